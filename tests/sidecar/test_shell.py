"""What every server has around its machine: a small server of a small machine, with real sockets and pidfds."""

import contextlib
import errno
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest

from sidecar.kernel import peers
from sidecar.kernel.processes import Processes, Unidentified, Whereabouts
from sidecar.machine.context import Hindered, Note, Tick
from sidecar.machine.shell import Shell
from sidecar.terminal.logs import Log
from sidecar.wire import connections as calling
from sidecar.wire.connections import Connections, Protocol
from sidecar.wire.frames import Channel, Message, close_all
from sidecar.wire.sockets import ServerSocket, connect
from tests.support.children import Child
from tests.support.descriptors import no_descriptor_leaks, open_descriptors
from tests.support.waiting import DEADLINE_S, readable, until


class Say(Message, frozen=True):
    text: str = ""
    number: int = 0


class Problem(Message, frozen=True):
    why: str


WIRE = msgspec.msgpack.Decoder(Say | Problem)


class Heard(NamedTuple):
    conn: int
    text: str


class Answered(NamedTuple):
    text: str


class Reply(NamedTuple):
    conn: int
    text: str


class Question(NamedTuple):
    text: str


class Machine:
    """Answers each word; to `ask` it asks the shell first, and to `wait` after a moment."""

    def __init__(self) -> None:
        self.deadline = float("inf")
        self.events: list[object] = []

    def handle(self, event: Any, time: Any) -> list[object]:
        self.events.append(event)
        if isinstance(event, Heard) and event.text == "ask":
            return [Question("one"), Question("two"), Reply(event.conn, "asked")]
        if isinstance(event, Heard) and event.text == "wait":
            self.deadline = time.mono + 0.05
            return []
        if isinstance(event, Heard) and event.text == "note":
            return [Note("noted", {"by": event.conn}), Reply(event.conn, "noted")]
        if isinstance(event, Heard):
            return [Reply(event.conn, event.text)]
        self.deadline = float("inf")
        return []


class Server(Shell):
    machine: Machine

    def __init__(self, directory: Path, name: str = "x.sock") -> None:
        self.words = StringIO()
        super().__init__(Log("test", stream=self.words))
        self.machine = Machine()
        self.shown = 0
        self.lost = threading.Event()
        self.connections = Connections(
            self.loop,
            self.log,
            Protocol(WIRE, lambda why: Problem(why=why)),
            frozenset(),
            heard=self._on_message,
            closed=lambda conn: self.feed(("closed", conn)),
        )
        self.doorway = ServerSocket(directory, name)
        self.connections.listen(self.doorway.open())
        self.watch_over(self.doorway.path, self._look_at_doorway)
        waking, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.loop.add(waking, self._woken)

    def _look_at_doorway(self) -> None:
        if self.doorway.replaced():
            self.lost.set()

    def _woken(self, _: int) -> None:
        self.loop.stopping = "the test is over"

    def end(self) -> None:
        os.write(self._waker, b"x")

    def _on_message(self, conn: int, sock: socket.socket, message: Any, descriptors: tuple[int, ...]) -> None:
        close_all(descriptors)
        if message.text == "flood":
            for number in range(message.number):
                self.connections.send(conn, Say(text="x" * 100_000, number=number))
            return
        if message.text == "descriptor":
            self.connections.send(conn, Say(text="here it is"), [self._waker])
            return
        if message.text == "too large":
            self.connections.send(conn, Say(text="x" * (2 << 20)))
            return
        if message.text == "connected?":
            self.connections.send(conn, Say(text=str(self.connections.connected(message.number))))
            return
        self.feed(Heard(conn, message.text))

    def _do_reply(self, effect: Reply) -> None:
        self.connections.send(effect.conn, Say(text=effect.text))

    def _do_question(self, effect: Question) -> None:
        self.answer(Answered(effect.text))

    def show(self) -> None:
        self.shown += 1

    def close(self) -> None:
        self.unwatch()
        self.doorway.close()
        self.connections.close()

    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        Reply: _do_reply,
        Question: _do_question,
        Note: Shell.note,
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Its loop runs in a thread of its own."""
    server = Server(tmp_path)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server
    server.end()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


class Caller(Channel):
    def __init__(self, path: Path) -> None:
        super().__init__(connect(path), WIRE)
        self.inbox: list[Any] = []

    def echoes(self, text: str) -> bool:
        self.send(Say(text=text))
        return bool(hear(self).text == text)


@contextlib.contextmanager
def caller(server: Server) -> Iterator[Caller]:
    channel = Caller(server.doorway.path)
    try:
        yield channel
    finally:
        channel.close()


def hear(channel: Caller) -> Any:
    """The next message; None at the end."""
    end = time.monotonic() + DEADLINE_S
    while not channel.inbox and not channel.eof:
        assert readable(channel.fileno(), end - time.monotonic()), "nothing comes"
        channel.inbox += [message for message, _ in channel.receive()]
    return channel.inbox.pop(0) if channel.inbox else None


def test_what_effects_bring_back_goes_in_before_anything_else(server: Server) -> None:
    with caller(server) as channel:
        channel.send(Say(text="ask"))
        channel.send(Say(text="more"))
        assert hear(channel).text == "asked"
        hear(channel)
    assert [event for event in server.machine.events if isinstance(event, Heard | Answered)] == [
        Heard(1, "ask"),
        Answered("one"),
        Answered("two"),
        Heard(1, "more"),
    ]


def test_a_tick_comes_when_the_machine_wanted_it(server: Server) -> None:
    with caller(server) as channel:
        channel.send(Say(text="wait"))
        until(lambda: Tick() in server.machine.events, "a tick comes")


def test_a_line_for_the_log_is_written_when_nothing_is_urgent(server: Server) -> None:
    with caller(server) as channel:
        channel.send(Say(text="note"))
        assert hear(channel).text == "noted"
        until(lambda: "noted by=1" in server.words.getvalue(), "the line is written")


def test_who_does_not_read_loses_its_connection_and_no_other_anything(server: Server) -> None:
    with caller(server) as deaf, caller(server) as other:
        deaf.send(Say(text="flood", number=200))
        assert other.echoes("still there?")
        with contextlib.suppress(ConnectionResetError):
            while hear(deaf) is not None:
                pass
    assert "peer_too_slow" in server.words.getvalue()
    assert ("closed", 1) in server.machine.events


def test_half_a_frame_and_no_more_is_told_so_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "HALF_FRAME_S", 0.05)
    with caller(server) as channel:
        os.write(channel.fileno(), struct.pack(">I", 100) + b"x")
        assert "not finished within" in hear(channel).why
        assert hear(channel) is None


def test_who_says_nothing_is_told_so_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "SILENT_S", 0.05)
    with caller(server) as channel, caller(server) as other:
        assert "nothing was said within" in hear(channel).why
        assert hear(channel) is None
        with contextlib.suppress(OSError):
            other.send(Say(text="too late, or not"))


def test_who_has_said_something_may_be_silent_afterwards(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "SILENT_S", 0.05)
    with caller(server) as channel:
        assert channel.echoes("in")
        with caller(server) as silent:
            assert hear(silent).why and hear(silent) is None
        assert channel.echoes("still in")


def test_where_there_is_no_room_the_one_that_is_silent_for_longest_makes_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "MOST_CONNECTIONS", 3)
    with caller(server) as talks, caller(server) as first, caller(server) as second:
        assert talks.echoes("in")
        with caller(server) as comes:
            assert comes.echoes("in too")
            assert "3 connections already" in hear(first).why
            assert second.echoes("still in")


def test_what_is_too_large_to_send_costs_one_connection(server: Server) -> None:
    with caller(server) as greedy, caller(server) as other:
        greedy.send(Say(text="too large"))
        assert hear(greedy) is None
        assert other.echoes("still there?")
    assert "too_large_to_send" in server.words.getvalue()


def kernel_that_refuses(monkeypatch: pytest.MonkeyPatch, refusal: int) -> threading.Event:
    """While the event is set, it takes nothing of what is sent with descriptors."""
    refuses, sendmsg = threading.Event(), socket.socket.sendmsg

    def refusing(sock: socket.socket, *what: Any) -> int:
        if refuses.is_set():
            raise OSError(refusal, "not now")
        return sendmsg(sock, *what)

    monkeypatch.setattr(socket.socket, "sendmsg", refusing)
    return refuses


@pytest.mark.parametrize("refusal", [errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM])
def test_what_the_kernel_takes_no_more_of_for_a_while_waits_and_costs_no_client_anything(
    server: Server, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """What others haven't received counts, and the kernel's memory: neither receiver can do anything about it."""
    refuses = kernel_that_refuses(monkeypatch, refusal)
    refuses.set()
    with caller(server) as first, caller(server) as second, caller(server) as other:
        for channel in (first, second):
            channel.send(Say(text="descriptor"))
            channel.send(Say(text="and then"))
        assert other.echoes("still there?")
        assert not readable(first.fileno(), 0.2) and not readable(second.fileno(), 0)
        refuses.clear()
        for channel in (first, second):
            assert [hear(channel).text, hear(channel).text] == ["here it is", "and then"]


def test_what_the_kernel_refuses_for_long_is_told_the_machine_and_so_is_its_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = kernel_that_refuses(monkeypatch, errno.ETOOMANYREFS)
    monkeypatch.setattr(calling, "HELD_UP_MOST_S", 0.1)

    def told() -> list[str]:
        return [event.why for event in server.machine.events if isinstance(event, Hindered)]

    for ends in ("the kernel takes it", "its connection ends"):
        refuses.set()
        before = len(told())
        with caller(server) as channel:
            channel.send(Say(text="descriptor"))
            until(lambda: len(told()) == before + 1, "the machine is told")  # noqa: B023
            assert "refused" in told()[-1]
            if ends == "the kernel takes it":
                refuses.clear()
                assert hear(channel).text == "here it is"
        until(lambda: len(told()) == before + 2, "and that it is over")  # noqa: B023
        assert told()[-1] == ""


def test_what_fails_when_it_is_sent_at_last_costs_one_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, send = threading.Event(), socket.socket.send

    def failing(sock: socket.socket, data: Any, *flags: int) -> int:
        if fails.is_set() and len(data) > 50_000:
            raise OSError(errno.EPERM, "a profile refuses it")
        return send(sock, data, *flags)

    monkeypatch.setattr(socket.socket, "send", failing)
    with caller(server) as deaf, caller(server) as other:
        deaf.send(Say(text="flood", number=20))
        until(lambda: any(each.writing for each in server.connections._connections.values()), "some of it waits")
        fails.set()
        while hear(deaf) is not None:
            continue
        assert other.echoes("still there?")
    assert "cant_be_sent" in server.words.getvalue()


def test_a_kernel_without_memory_for_another_caller_ends_no_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cgroup at its limit: the caller is sent away, and the loop may not even take the listener again."""
    add, full, refused = server.loop.add, threading.Event(), list[int]()

    def adding(fd: int, *more: Any) -> None:
        if full.is_set():
            refused.append(fd)
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        add(fd, *more)

    monkeypatch.setattr(server.loop, "add", adding)
    with caller(server) as first:
        assert first.echoes("in")
        full.set()
        with caller(server) as second:
            assert "Cannot allocate memory" in hear(second).why
            assert hear(second) is None
        listener = server.connections._listener
        until(lambda: listener is not None and listener.fileno() in refused, "it would listen again")
        assert first.echoes("still in")
        full.clear()
    with caller(server) as third:
        assert third.echoes("in, too")


def test_more_than_the_most_are_told_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "MOST_CONNECTIONS", 1)
    with caller(server) as first:
        assert first.echoes("in")
        with caller(server) as second:
            assert "1 connections already" in hear(second).why
            assert hear(second) is None
        assert first.echoes("still in")


def test_a_closed_end_is_seen_although_messages_of_it_are_unread(server: Server) -> None:
    with caller(server) as asking:
        with caller(server) as other:
            assert other.echoes("here")
            asking.send(Say(text="connected?", number=2))
            assert hear(asking).text == "True"
        asking.send(Say(text="connected?", number=2))
        assert hear(asking).text == "False"


def test_a_killed_caller_leaves_no_descriptor(server: Server) -> None:
    before = len(open_descriptors())

    def call(say: Callable[[str], None]) -> None:
        with caller(server) as channel:
            channel.send(Say(text="hello"))
            say(hear(channel).text)
            signal.pause()

    with Child(call) as child:
        assert child.line() == "hello"
    until(lambda: len(open_descriptors()) <= before, "its descriptors are closed")


# -- the server's socket -----------------------------------------------------------------------------------------------


def test_a_removed_socket_is_noticed(server: Server) -> None:
    server.doorway.path.unlink()
    assert server.lost.wait(DEADLINE_S)


def test_another_servers_socket_in_its_place_is_noticed_and_left_alone_at_the_end(server: Server) -> None:
    other = ServerSocket(server.doorway.path.parent, server.doorway.path.name)
    listener = other.open()
    assert server.lost.wait(DEADLINE_S)
    assert server.doorway.replaced() and not other.replaced()
    server.doorway.close()
    assert server.doorway.path.exists()
    listener.close()
    other.close()
    assert not server.doorway.path.exists()


@pytest.mark.parametrize("depth", [0, 1])
def test_a_directory_that_was_moved_away_is_noticed_also_when_its_parent_was(tmp_path: Path, depth: int) -> None:
    directory = tmp_path / "run" / "inner"
    directory.mkdir(parents=True)
    server = Server(directory)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        moved = [directory, *directory.parents][depth]
        moved.rename(tmp_path / "moved")
        assert server.lost.wait(DEADLINE_S)
    finally:
        server.end()
        thread.join(DEADLINE_S)


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def processes(server: Server, pidfds: str) -> Processes:
    return Processes(server.loop, pidfds)


def test_one_process_has_one_identity_whichever_pidfd_names_it(
    server: Server, pair: tuple[socket.socket, socket.socket]
) -> None:
    known = processes(server, "auto")
    if known.evidence is not peers.Evidence.PEER:
        pytest.skip("this kernel names no peers")
    by_peer = known.identify(pair[0], (), 1)
    by_word = known.keep(os.pidfd_open(os.getpid()))
    assert by_peer.process != by_word.process
    assert (by_peer.identity, by_peer.pid) == (by_word.identity, os.getpid())
    known.forget_all([by_peer, by_word])
    assert known.pidfds([by_peer.process or 0]) == []


def test_where_no_peer_is_named_what_was_sent_must_be_the_sender(
    server: Server, pair: tuple[socket.socket, socket.socket]
) -> None:
    known = processes(server, "sent")
    with no_descriptor_leaks():
        for descriptors in ((), (os.open("/dev/null", os.O_RDONLY),), (os.pidfd_open(os.getppid()),)):
            with pytest.raises(Unidentified):
                known.identify(pair[0], descriptors, 1)
        named = known.identify(pair[0], (os.pidfd_open(os.getpid()),), 1)
        assert named.process is not None and named.pid == os.getpid()
        known.forget(named.process)


def test_without_pidfds_there_is_only_a_pid(server: Server, pair: tuple[socket.socket, socket.socket]) -> None:
    with no_descriptor_leaks():
        named = processes(server, "none").identify(pair[0], (os.open("/dev/null", os.O_RDONLY),), 1)
    assert (named.process, named.identity, named.pid) == (None, "", os.getpid())


def test_of_several_pidfds_all_are_kept_or_none(server: Server) -> None:
    known = processes(server, "auto")
    with no_descriptor_leaks():
        with pytest.raises(Unidentified):
            known.keep_all((os.pidfd_open(os.getpid()), os.open("/dev/null", os.O_RDONLY), os.pidfd_open(1)))
        known.forget_all(known.keep_all((os.pidfd_open(os.getpid()), os.pidfd_open(1))))


def test_what_has_become_of_a_process_that_had_this_number(server: Server) -> None:
    known = processes(server, "auto")
    with no_descriptor_leaks():
        with Child(lambda say: signal.pause()) as child:
            there = known.keep(os.pidfd_open(child.pid))
            found = known.look_up(child.pid, there.identity)
            assert isinstance(found, type(there)) and found.identity == there.identity
            assert known.look_up(child.pid, "pidfs:1") is Whereabouts.GONE, "another process has the number"
            known.forget_all([there, found])
        assert known.look_up(child.pid, there.identity) is Whereabouts.GONE
        ends = threading.Event()
        thread = threading.Thread(target=ends.wait)
        thread.start()
        try:
            found = known.look_up(thread.native_id or 0, there.identity)
        finally:
            ends.set()
            thread.join()
        assert found is Whereabouts.GONE, "the number is a thread's by now"


def test_a_death_is_told_once_and_can_be_seen_before(server: Server) -> None:
    known = processes(server, "auto")
    told = threading.Semaphore(0)
    with Child(lambda say: signal.pause()) as child:
        named = known.keep(os.pidfd_open(child.pid))
        assert named.process is not None
        assert not known.is_dead(named.process)
        known.on_death(named.process, told.release)
        child.kill()
        assert known.is_dead(named.process)
        assert told.acquire(timeout=DEADLINE_S)
        assert not told.acquire(timeout=0.1)
    known.forget(named.process)
    assert known.is_dead(named.process)

"""Programs are upgraded one after the other: an older client under this server, this client under an older server, and
two that share no version. What the older ones said was recorded (`tests/lockserver/recorded_1.py`), and what they
understand is a copy of their messages (`messages_1.py` beside it).
"""

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from lockserver import messages as m
from lockserver.rundir import LIFE, SOCKET, connect
from sidecar.frames import Channel, close_all
from sidecar.lifelock import LifeLock
from tests.chaos.house import LONG_WINDOW, House, Server
from tests.lockserver import messages_1 as m1
from tests.lockserver import recorded_1
from tests.support.processes import ROOT
from tests.support.waiting import DEADLINE_S, until

pytestmark = pytest.mark.chaos
RECORDED = [
    recorded_1.ACQUIRES,
    recorded_1.WAITS,
    recorded_1.OBSERVES,
    recorded_1.HOLDER_COMES_BACK,
    recorded_1.WAITER_COMES_BACK,
]


class Older:
    """An engine of the version before, in a process of its own."""

    def __init__(self, house: House, engine_id: str) -> None:
        command = [sys.executable, "-m", "tests.chaos.older_client", str(house.run_dir), engine_id]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines: list[list[str]] = []
        self._rest = b""

    def hears(self, what: str) -> list[str]:
        """The first such line that wasn't asked for before."""

        def came() -> list[str] | None:
            self._read()
            return next((line for line in self.lines if line[1] == what), None)

        line: list[str] = until(came, f"the older client hears {what!r}; so far {self.lines}")
        self.lines.remove(line)
        return line[2:]

    def _read(self) -> None:
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 0)[0]:
            more = os.read(self.process.stdout.fileno(), 4096)
            assert more, f"the older client has ended; {self.lines}"
            *lines, self._rest = (self._rest + more).split(b"\n")
            self.lines += [line.decode().split(" ", 2) for line in lines]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def __enter__(self) -> "Older":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def test_what_was_recorded_is_what_the_old_messages_say() -> None:
    """The copy is honest: it says the same again."""
    for who, frame, _ in [frame for frames in RECORDED for frame in frames]:
        body = bytes.fromhex(frame)[4:]
        decoder: Any = m1.from_client if who == "client" else m1.from_server
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(decoder.decode(body))) == msgspec.msgpack.decode(body)


def test_an_older_holder_keeps_the_lock_across_a_crash_of_this_server_and_its_death_lets_the_next_one_in(
    house: House,
) -> None:
    server = house.server(*LONG_WINDOW)
    with Older(house, "old") as old:
        token = int(old.hears("granted")[0])
        new = house.engine("new")
        new.wants()
        server.kill()
        server = house.server(*LONG_WINDOW)
        assert int(old.hears("back")[0]) == token
        server.shows(lambda s: s.state == "HELD" and s.holder is not None and s.holder.engine_id == "old")
        assert not new.heard("granted")
        old.kill()
        assert new.granted()["token"] > token


def test_an_older_standby_keeps_the_holders_pidfds_and_takes_over_from_this_client(house: House) -> None:
    server = house.server(*LONG_WINDOW)
    new = house.engine("new")
    token = new.holds()
    with Older(house, "old") as old:
        old.hears("keeps")
        server.kill()
        new.kill()
        house.server(*LONG_WINDOW)
        assert int(old.hears("granted")[0]) > token


def test_an_older_lockctl_understands_this_server(house: House) -> None:
    server = house.server(*LONG_WINDOW)
    token = house.engine("new").holds()
    server.shows(lambda s: s.state == "HELD")
    channel = Channel(connect(house.run_dir), m1.from_server)
    for _, frame, _ in recorded_1.OBSERVES[:2]:
        channel.send(m1.from_client.decode(bytes.fromhex(frame)[4:]))
    heard: list[Any] = []

    def came() -> bool:
        heard.extend(message for message, _ in channel.receive())
        return bool(heard)

    until(came, "the status")
    assert isinstance(heard[0], m1.Status) and heard[0].token == token
    channel.close()


class OldServer:
    """A lock server of version 1, as far as one engine needs it: it grants token 7 to whoever asks, and knows it again.
    `server`: it calls itself so. What it is told it takes only in the words of its time."""

    def __init__(self, house: House, listener: socket.socket, server: str) -> None:
        self.registered: list[m1.Register] = []
        self.unknown: list[Exception] = []
        self.server = server
        self._listener = listener
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """As a crash: every connection ends."""
        self._closing.set()
        self._thread.join(DEADLINE_S)

    def _run(self) -> None:
        channels: list[Channel] = []
        while not self._closing.is_set():
            waited_for: list[socket.socket | Channel] = [self._listener, *channels]
            ready = select.select(waited_for, [], [], 0.02)[0]
            if self._listener in ready:
                channels.append(Channel(self._listener.accept()[0], m1.from_client))
            for channel in [channel for channel in channels if channel in ready]:
                try:
                    for message, descriptors in channel.receive():
                        close_all(descriptors)
                        self._answer(channel, message)
                except Exception as error:
                    self.unknown.append(error)
                if channel.eof or self.unknown:
                    channels.remove(channel)
                    channel.close()
        for channel in channels:
            channel.close()

    def _answer(self, channel: Channel, message: Any) -> None:
        if isinstance(message, m1.Register):
            assert message.protocol == m1.PROTOCOL, message
            self.registered.append(message)
            policy = m1.Policy(presume_dead=False, window_s=30, settle_s=0.5)
            channel.send(
                m1.Welcome(self.server, 0, policy, holds={str(lock): token for lock, token in message.claims.items()})
            )
        elif isinstance(message, m1.Acquire):
            channel.send(m1.Granted("active", 7))


@pytest.fixture
def listener(house: House) -> Iterator[socket.socket]:
    (house.run_dir / LIFE).mkdir(mode=0o700, parents=True)
    house.run_dir.chmod(0o700)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.bind(str(house.run_dir / SOCKET))
        sock.listen()
        yield sock


def test_this_client_holds_under_an_older_server_and_across_its_crash(house: House, listener: socket.socket) -> None:
    first = OldServer(house, listener, "first")
    new = house.engine("new")
    assert new.holds() == 7
    first.close()
    second = OldServer(house, listener, "second")
    until(lambda: second.registered, "it is back")
    assert second.registered[0].claims == {"active": 7}
    until(lambda: new.do("link")["server"] == "second", "it takes the welcome")
    assert not first.unknown and not second.unknown and not new.dead
    second.close()


def other_version(house: House, oldest: int, newest: int) -> Server:
    argv = [str(oldest), str(newest), "--run-dir", str(house.run_dir), *house.defaults, *LONG_WINDOW]
    process = house.run({"do": "exec", "argv": [sys.executable, "-m", "tests.chaos.other_version", *argv]})
    return house.grow(Server(process.pid, process.pidfd, house.run_dir))


def test_a_holder_serves_on_under_a_server_that_cannot_talk_to_it_and_both_sides_say_so(house: House) -> None:
    server = house.server(*LONG_WINDOW)
    holder, waiter = house.engine("a"), house.engine("b")
    token = holder.holds()
    waiter.wants(watching=[holder])
    server.kill()
    stranger = other_version(house, 8, 9)
    until(lambda: "finish the upgrade" in house.log.read_text(), "the server's alarm")
    until(lambda: "can't talk with this process" in holder.do("link")["warned"], "the client's")
    assert not waiter.heard("granted")
    stranger.kill()
    house.server(*LONG_WINDOW).has_back(holder)
    assert not waiter.heard("granted") and not holder.dead
    holder.kill()
    grant = waiter.granted()
    assert grant["dead"] == [True] and grant["token"] > token


def test_those_that_cannot_talk_with_the_server_leave_no_descriptors_in_it(house: House) -> None:
    """An engine that is started again and again has another life file each time."""
    server, descriptors = other_version(house, 8, 9), []
    until(lambda: (house.run_dir / SOCKET).exists(), "the server is there")
    for number in range(20):
        random = f"{number:08x}"
        life = LifeLock.create(house.run_dir / LIFE, f"e.{random}")
        channel = Channel(connect(house.run_dir), m.from_server)
        channel.send(
            m.Register(protocol=m.PROTOCOL, engine_id="e", incarnation=random, life=life.inode, pid=os.getpid())
        )
        while not channel.eof:
            select.select([channel.fileno()], [], [])
            channel.receive()
        channel.close()
        life.close()
        if number in (1, 19):
            descriptors.append(len(os.listdir(f"/proc/{server.pid}/fd")))
    assert descriptors[1] <= descriptors[0] + 2, "some of whoever leaves now"


def test_a_death_under_a_server_that_cannot_talk_is_seen_all_the_same(house: House) -> None:
    """It watched the holder from the moment at which the two could not agree."""
    server = house.server(*LONG_WINDOW)
    holder = house.engine("a")
    holder.holds()
    server.kill()
    other_version(house, 8, 9)
    until(lambda: "finish the upgrade" in house.log.read_text(), "the server's alarm")
    holder.kill()
    until(lambda: "released" in house.log.read_text(), "its end was proven")

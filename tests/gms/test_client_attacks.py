"""What would leave a client deaf: exceptions of signal handlers and callbacks, forks. Real servers, real signals."""

import contextlib
import faulthandler
import gc
import mmap
import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gms.client import GmsError, PoolShape
from gms.rules import messages as m
from gms.shell import slabs
from gms.shell.rundir import socket_path
from sidecar.wire.frames import Channel, close_all
from tests.gms.live import MIB, House, plain_layout
from tests.support.descriptors import open_descriptors
from tests.support.interruptions import Interrupted, alarm_raises
from tests.support.waiting import DEADLINE_S, until


def stop(house: House) -> None:
    house.servers["host:0"].send_signal(signal.SIGSTOP)


def go_on(house: House) -> None:
    house.servers["host:0"].send_signal(signal.SIGCONT)


def filled(writer: Any, *fills: int) -> Any:
    for fill in fills:
        slab = writer.create(2 * MIB)
        writer.memory(slab)[:] = bytes([fill]) * (2 * MIB)
    return writer.commit(plain_layout(tuple(writer.sizes)))


# -- signal handlers that raise (7) ------------------------------------------------------------------------------------


def test_a_read_that_was_interrupted_can_be_asked_again(house: House) -> None:
    client = house.client("reader")
    client.await_server(10)
    with alarm_raises():
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.1)
            with pytest.raises(Interrupted):
                client.read(30)
    with house.client("writer").write(10) as writer:
        filled(writer, 5)
    assert client.read(10).memory(0)[0] == 5


def test_a_wake_that_was_interrupted_can_be_asked_again_and_nothing_was_let_go_of(house: House) -> None:
    with house.client("reader").write(10) as writer:
        reader = filled(writer, 5)
    reader.sleep()
    until(lambda: house.status().state == "COMMITTED", "it sleeps")
    stop(house)
    with alarm_raises():
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.1)
            with pytest.raises(Interrupted):
                reader.wake(30)
    go_on(house)
    until(lambda: house.status().clients[0].doing == "asleep", "it is a sleeper as before")
    assert house.status().clients[0].holds == [reader.generation]
    reader.wake(10)
    assert reader.memory(0)[0] == 5


def test_a_slab_that_was_asked_for_when_an_exception_came_is_there_when_it_is_asked_for_again(house: House) -> None:
    with house.client("writer").write(10) as writer:
        for number in range(3):
            stop(house)
            with alarm_raises():
                signal.setitimer(signal.ITIMER_REAL, 0.02, 0.1)
                with pytest.raises(Interrupted):
                    writer.create(2 * MIB)
            go_on(house)
            assert writer.create(2 * MIB) == number
        until(lambda: house.status().slabs == 3, "and there are no more than were wanted")
        reader = writer.commit(plain_layout(tuple(writer.sizes)))
    assert reader.sizes == [2 * MIB] * 3


def test_a_commit_that_was_interrupted_and_is_asked_for_again_is_committed_once(house: House) -> None:
    with house.client("writer").write(10) as writer:
        writer.create(2 * MIB)
        layout = plain_layout(tuple(writer.sizes))
        stop(house)
        with alarm_raises():
            signal.setitimer(signal.ITIMER_REAL, 0.02, 0.1)
            with pytest.raises(Interrupted):
                writer.commit(layout)
        go_on(house)
        reader = writer.commit(layout)
    status = house.status()
    assert (status.state, status.generation, status.events["committed"]) == ("RO", reader.generation, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_exceptions_leaves_no_client_deaf(house: House, seed: int) -> None:
    chance = random.Random(seed)
    with house.client("writer") as other, other.write(10) as writer:
        filled(writer, 5).close()
    before = len(open_descriptors())
    client = house.client("stormy")
    client.await_server(10)
    raised = 0
    with alarm_raises():
        for _ in range(300):
            signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.001 + 0.0001, 0.0003)
            try:
                with client.read(10) as reader:
                    reader.sleep()
                    reader.wake(10)
            except Interrupted:
                raised += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    assert raised > 20
    house.kill()
    house.start()
    with client.write(20) as writer:
        filled(writer, 6).close()
    with client.read(10) as reader:
        assert reader.memory(0)[0] == 6
    client.close()
    gc.collect()  # exceptions keep their frames for a while
    # A signal between the kernel's handing over of a descriptor and the line that keeps it loses that one.
    assert len(open_descriptors()) - before <= 5, open_descriptors()


def test_a_handler_that_asks_itself_is_answered_and_the_call_that_it_interrupted_ends(house: House) -> None:
    client = house.client("reader")
    client.await_server(10)
    said: list[str] = []

    def ask(_: int, frame: FrameType | None) -> None:
        try:
            client.read(0.3)
        except GmsError as error:
            said.append(str(error))

    before = signal.signal(signal.SIGALRM, ask)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(GmsError, match="a signal handler of it has asked"):
            client.read(30)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(said) == 1 and "in vain" in said[0]
    with house.client("writer").write(10) as writer:
        filled(writer, 5)
    assert client.read(10).memory(0)[0] == 5


# -- callbacks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("its own"), SystemExit(3), KeyboardInterrupt()])
def test_a_callback_that_raises_ends_nothing(house: House, capfd: pytest.CaptureFixture[str], error: Any) -> None:
    called: list[str] = []

    def callback(*arguments: object) -> None:
        called.append(threading.current_thread().name)
        raise error

    client = house.client("reader", on_change=callback, on_lost=callback, on_problem=callback)
    client.await_server(10)
    with house.client("writer").write(10) as writer:
        filled(writer, 5)
    until(lambda: len(called) >= 1, "it was called")
    assert set(called) == {"gms-client"}
    reader = client.read(10)
    for _ in range(2):
        house.kill()
        house.start()
        until(lambda: house.status().state == "RO", "it comes back each time")
    assert reader.memory(0)[0] == 5
    assert "on_change raised" in capfd.readouterr().err


def test_a_callback_that_asks_its_own_client_is_told_that_it_cant(house: House) -> None:
    said: list[str] = []

    def ask(generation: int, hash: str) -> None:
        try:
            client.read(1)
        except GmsError as error:
            said.append(str(error))

    client = house.client("reader", on_change=ask)
    client.await_server(10)
    with house.client("writer").write(10) as writer:
        filled(writer, 5)
    until(lambda: said, "it was called")
    assert client.read(10).memory(0)[0] == 5


# -- forks (14) --------------------------------------------------------------------------------------------------------


def test_what_a_forked_child_does_with_the_client_is_nothing_to_the_parent(house: House) -> None:
    client = house.client("parent")
    with client.write(10) as writer:
        reader = filled(writer, 5)
    for how in ("exit", "use", "close"):
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                if how == "use":
                    with pytest.raises(GmsError):
                        client.read(1)
                elif how == "close":
                    reader.close()
                    client.close()
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, how
        assert house.status().state == "RO", how
    for _ in range(2):
        house.kill()
        house.start()
        until(lambda: house.status().state == "RO", "the parent sees the next server")
    assert reader.memory(0)[0] == 5
    reader.sleep()
    reader.wake(10)


def test_a_forked_child_that_closes_a_client_keeps_what_it_has_mapped_itself(house: House, tmp_path: Path) -> None:
    """The weights' addresses aren't inherited: the kernel gives them to what the child maps next."""
    file = tmp_path / "own"
    file.write_bytes(b"\7" * (2 * MIB))
    client = house.client("parent")
    with client.write(10) as writer:
        reader = filled(writer, 5)
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # without the rule it faults
        with open(file, "r+b") as opened:
            own = [mmap.mmap(opened.fileno(), 2 * MIB) for _ in range(8)]
        reader.close()
        client.close()
        os._exit(0 if all(mapped[:] == file.read_bytes() for mapped in own) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reader.memory(0)[0] == 5


@pytest.mark.parametrize("how", ["release", "forget"])
def test_a_forked_child_that_has_done_with_a_pool_keeps_what_it_has_mapped_itself(
    house: House, tmp_path: Path, how: str
) -> None:
    """Nor is the table inherited, and the object that stood for it unmapped what was there."""
    file = tmp_path / "own"
    file.write_bytes(b"\7" * 8192)
    client = house.client("parent")
    mapping = client.pool("kv-0").claim(PoolShape("sha256:a", (2 * MIB,), 8192), token=10, proven=True)
    mapping.table[0] = 5
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # without the rule it faults
        code = 1
        with contextlib.suppress(BaseException), open(file, "r+b") as opened:
            own = [mmap.mmap(opened.fileno(), 8192) for _ in range(8)]
            if how == "release":
                mapping.release()
            else:
                mapping._table = mapping.table = None  # type: ignore[assignment]
            code = 0 if all(mapped[:] == file.read_bytes() for mapped in own) else 1
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mapping.table[0] == 5
    assert mapping.release() is True


def test_a_forked_child_closes_a_client_whose_thread_was_about_to_close_a_layout(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has no such thread, and waited for it for ever."""
    client = house.client("parent")
    with client.write(10) as writer:
        reader = filled(writer, 5)
    reader.sleep()
    client.wait_for_background(10)
    reached, go_on = threading.Event(), threading.Event()

    def late(descriptors: list[int]) -> None:
        reached.set()
        go_on.wait()
        close_all(descriptors)

    with monkeypatch.context() as changed:
        changed.setattr(slabs, "close_all", late)
        client.loop.post(lambda: client.store.let_go(reader.generation))
        assert reached.wait(DEADLINE_S)
        child = os.fork()
        if child == 0:
            changed.undo()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(DEADLINE_S))
            client.close()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        go_on.set()
    assert code == 0


def test_what_is_not_used_any_more_is_closed_by_the_clients_thread_which_says_the_numbers(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another thread closed while this one handed it back to a server may be another file by then."""
    client = house.client("reader")
    with client.write(10) as writer:
        reader = filled(writer, 5)
    client.wait_for_background(10)
    closed, done = list[threading.Thread](), threading.Event()

    def seen(descriptors: list[int]) -> None:
        if descriptors:
            closed.append(threading.current_thread())
        close_all(descriptors)

    monkeypatch.setattr(slabs, "close_all", seen)
    client.loop.post(lambda: client.store.let_go(reader.generation))
    client.loop.post(done.set)
    assert done.wait(DEADLINE_S) and not closed, "it is still used"
    reader.close()
    until(lambda: closed, "it is closed")
    assert closed == [client.loop._thread]


def test_a_forked_child_makes_a_client_of_its_own(house: House) -> None:
    with house.client("parent").write(10) as writer:
        filled(writer, 5)
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if house.client("child").read(10).memory(0)[0] == 5 else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_client_that_is_turned_away_doesnt_keep_the_server_busy(house: House) -> None:
    """A server with no room: it is asked about once a second, and not a hundred times."""
    house.kill()
    path = socket_path(house.run_dir, "host:0")
    path.unlink(missing_ok=True)
    came = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(100)
        listener.settimeout(0.1)
        client = house.client("turned-away", on_problem=lambda why: None)
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            came += 1
            channel = Channel(sock, m.from_client)
            close_all(until(channel.receive, "its hello")[0].descriptors)
            channel.send(m.Problem(why="there is no room", about="place"))
            channel.close()
        assert client.problem == "there is no room" and 2 <= came <= 4
    path.unlink()
    house.start()
    until(lambda: not client.problem, "it is in")

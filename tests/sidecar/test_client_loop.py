"""The thread that owns a client: callers may lose their wait to an exception anywhere, and the thread hears on."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from sidecar.machine import client_loop
from sidecar.machine.client_loop import ClientLoop
from tests.support.descriptors import no_descriptor_leaks
from tests.support.waiting import DEADLINE_S, until


class Interrupted(Exception):
    """What a signal handler raises."""


class CannotWait(Exception):
    """What a caller is told that can't wait."""


class Counter:
    """A client whose peer sends bytes: it counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.done: list[str] = []
        self.left_undone = 0
        self.let_go = 0
        self.loop = ClientLoop("test", CannotWait, unexpected=self.unexpected, let_go=self.end)
        self.mine, self.peer = socket.socketpair()
        self.mine.setblocking(False)
        self.loop.add(self.mine.fileno(), self.ready)

    def unexpected(self) -> None:
        self.left_undone += 1

    def end(self) -> None:
        self.let_go += 1

    def do(self, what: str) -> None:
        self.loop.post(lambda: self.done.append(what))

    def fail(self, error: type[BaseException]) -> None:
        def work() -> None:
            raise error

        self.loop.post(work)

    def ready(self, _: int) -> None:
        self.count += len(self.mine.recv(1 << 16))

    def send(self) -> int:
        """Returns the count that will be there once it has arrived."""
        expected = self.count + 1
        self.peer.send(b"x")
        return expected


@pytest.fixture
def client() -> Iterator[Counter]:
    with no_descriptor_leaks():
        client = Counter()
        yield client
        client.loop.close()
        client.mine.close()
        client.peer.close()


def test_the_thread_hears_and_callers_wait_for_it(client: Counter) -> None:
    client.loop.start()
    for _ in range(50):
        expected = client.send()
        assert client.loop.wait(lambda expected=expected: client.count >= expected, DEADLINE_S)  # type: ignore[misc]
    client.do("posted")
    assert client.loop.wait(lambda: "posted" in client.done, DEADLINE_S)
    assert not client.loop.wait(lambda: False, 0.01)


def test_two_callers_wait_at_once_and_each_hears_what_it_waits_for(client: Counter) -> None:
    client.loop.start()
    first = threading.Thread(target=client.loop.wait, args=(lambda: client.count >= 2, DEADLINE_S))
    first.start()
    client.peer.send(b"x")
    assert client.loop.wait(lambda: client.count >= 1, DEADLINE_S)
    client.peer.send(b"x")
    first.join(DEADLINE_S)
    assert not first.is_alive()


@contextlib.contextmanager
def storm(seed: int, most_s: float) -> Iterator[None]:
    """Signals at random moments, which raise in the main thread wherever it is in the loop's own code."""
    chance, over = random.Random(seed), threading.Event()

    def handler(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == client_loop.__file__:
                raise Interrupted
            frame = frame.f_back

    def blow() -> None:
        while not over.wait(chance.uniform(0.0, most_s)):
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=blow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_an_exception_from_a_signal_handler_ends_one_wait_and_no_later_one(client: Counter) -> None:
    client.loop.start()
    seed = random.randrange(1 << 30)
    print("seed", seed)
    end = time.monotonic() + 1.5
    interrupted = heard = 0
    with storm(seed, most_s=0.002):
        while time.monotonic() < end:
            try:
                expected = client.send()
                client.do("posted")
                if client.loop.wait(lambda expected=expected: client.count >= expected, 1.0):  # type: ignore[misc]
                    heard += 1
            except Interrupted:
                interrupted += 1
    print("interrupted", interrupted, "heard", heard)
    assert interrupted > 0 and not client.left_undone, "no turn is cut short by what is raised in a caller"
    expected = client.send()
    assert client.loop.wait(lambda: client.count >= expected, DEADLINE_S), "it is deaf"
    expected = client.send()
    until(lambda: client.count >= expected, "the thread hears it, though no caller waits")


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_what_is_raised_in_the_thread_leaves_that_undone_and_nothing_else(
    client: Counter, capfd: pytest.CaptureFixture[str], error: type[BaseException]
) -> None:
    client.fail(error)
    client.do("good")
    client.loop.start()
    assert client.loop.wait(lambda: client.left_undone == 1, DEADLINE_S)
    assert client.done == ["good"]
    assert error.__name__ in capfd.readouterr().err


def test_what_goes_wrong_for_hours_pauses_between_its_tries_and_the_thread_lives_on(
    client: Counter, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("sidecar.machine.client_loop.time.sleep", pauses.append)

    def unexpected() -> None:
        if len(pauses) < 1500:
            raise OSError("again")
        client.left_undone += 1

    client.loop._unexpected = unexpected
    client.fail(ZeroDivisionError)
    client.loop.start()
    until(lambda: client.left_undone, "what went wrong is over")
    assert pauses == sorted(pauses) and pauses[0] < 0.1 and pauses[-1] == client_loop.MOST_PAUSE_S
    client.do("good")
    assert client.loop.wait(lambda: "good" in client.done, DEADLINE_S)
    capfd.readouterr()


def test_the_thread_itself_cant_wait(client: Counter) -> None:
    said: list[Exception] = []

    def work() -> None:
        try:
            client.loop.wait(lambda: True, 1.0)
        except CannotWait as error:
            said.append(error)

    client.loop.start()
    client.loop.post(work)
    assert client.loop.wait(lambda: bool(said), DEADLINE_S)


def test_a_forked_child_that_lets_go_takes_nothing_from_its_parent(client: Counter) -> None:
    client.loop.start()
    child = os.fork()
    if child == 0:
        try:
            client.loop.remove(client.mine.fileno())
            try:
                client.loop.wait(lambda: True, 0.0)
            except CannotWait:
                client.do("from the child")
                client.loop.close()
                os._exit(0 if client.let_go == 1 else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    expected = client.send()
    assert client.loop.wait(lambda: client.count >= expected, DEADLINE_S)
    assert client.done == [] and client.let_go == 0


def test_closing_ends_the_thread_and_every_wait_and_lets_go_once(client: Counter) -> None:
    client.loop.start()
    ended: list[str] = []

    def wait() -> None:
        try:
            client.loop.wait(lambda: False)
        except CannotWait as error:
            ended.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: client.loop._waiting, "it waits")
    client.loop.close()
    client.loop.close()
    waiting.join(DEADLINE_S)
    assert ended == ["this client is closed"] and client.let_go == 1 and not client.loop._thread.is_alive()


def test_no_ring_is_written_into_a_file_that_has_the_number_of_a_bell_that_was_closed(
    client: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread sees by itself that it is closed while the caller is about to ring: it wrote 1 into whatever was
    opened in that moment, weights among them.
    """

    def late(bell: int, value: int) -> None:
        client.peer.send(b"x")  # it turns, and sees that it is closed
        until(lambda: not client.loop._thread.is_alive(), "it has ended")
        with open(os.devnull, "wb") as opened:
            taken.append(opened.fileno() == bell)
        ring(bell, value)

    taken: list[bool] = []
    ring = os.eventfd_write
    monkeypatch.setattr(os, "eventfd_write", late)
    client.loop.start()
    client.loop.close()
    assert taken == [False]
    client.loop._ring()
    assert taken == [False], "and no bell is rung that is closed"


def test_a_signal_handler_that_closes_it_while_its_thread_rings_waits_for_nothing_that_this_one_holds(
    client: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(bell: int, value: int) -> None:
        monkeypatch.setattr(os, "eventfd_write", ring)
        os.kill(os.getpid(), signal.SIGUSR1)
        ring(bell, value)

    def close(*_: object) -> None:
        client.loop.close()
        ended.append(not client.loop._thread.is_alive())

    ended: list[bool] = []
    ring = os.eventfd_write
    client.loop.start()
    before = signal.signal(signal.SIGUSR1, close)
    try:
        monkeypatch.setattr(os, "eventfd_write", interrupted)
        client.do("a ring")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended == [True]


@pytest.mark.parametrize("rings", [True, False], ids=["it is rung", "it goes deaf, and is garbage"])
def test_what_a_program_opens_where_it_has_closed_a_clients_descriptors_is_left_as_it_is(
    rings: bool, tmp_path: Path
) -> None:
    """A ring was written into it, and Python closed it as soon as nothing had the client any more."""
    command = [sys.executable, "-c", _CLOSES_ALL, str(tmp_path / "own"), "rings" if rings else ""]
    assert subprocess.run(command).returncode == 0


_CLOSES_ALL = """
import gc, os, sys, threading, time
from sidecar.machine.client_loop import ClientLoop

path, rings = sys.argv[1:]
deaf = threading.Event()
soon = float("inf") if rings else time.monotonic() + 0.2
loop = ClientLoop("test", RuntimeError, deadline=lambda: soon, due=lambda: None, deaf=deaf.set)
last = max(loop.handlers)
loop.start()
os.closerange(3, last + 1)
own = [os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(3, last + 1)]
assert last in own
if rings:
    loop.post(lambda: None)
else:
    deaf.wait()
    loop._thread.join()
    del loop
    gc.collect()
for fd in own:
    os.close(fd)
os._exit(1 if os.path.getsize(path) else 0)
"""


def test_a_callback_that_hangs_keeps_no_caller_from_closing(client: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_loop, "CLOSE_S", 0.05)
    client.loop.start()
    hangs, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        go_on.wait()

    client.loop.post(hang)
    hangs.wait(DEADLINE_S)
    client.loop.close()
    assert client.let_go == 0, "it may still be in use"
    go_on.set()
    until(lambda: client.let_go == 1, "the thread lets go of it when it comes back")
    client.loop.close()

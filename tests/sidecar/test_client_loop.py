"""A client's loop: whoever has the turn may lose it to an exception anywhere, and nobody is deaf afterwards."""

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from sidecar import client_loop
from sidecar.client_loop import CannotWait, ClientLoop
from tests.support.descriptors import no_descriptor_leaks
from tests.support.waiting import DEADLINE_S, until


class Interrupted(Exception):
    """What a signal handler raises."""


class Counter:
    """A client whose peer sends bytes: it counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.fed: list[str] = []
        self.torn = 0
        self.raises: type[Exception] | None = None
        self.loop: ClientLoop[str] = ClientLoop("test", self.feed, lambda: float("inf"), "tick", self.tear)
        self.mine, self.peer = socket.socketpair()
        self.mine.setblocking(False)
        self.loop.add(self.mine.fileno(), self.ready)

    def tear(self) -> None:
        self.torn += 1

    def feed(self, event: str) -> None:
        self.fed.append(event)
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        self.loop.announce()

    def ready(self, _: int) -> None:
        self.count += len(self.mine.recv(1 << 16))
        self.loop.announce()

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
        client.loop.stop()
        client.loop.close()
        client.mine.close()
        client.peer.close()


def test_a_caller_hears_in_its_own_thread_and_the_loops_thread_hears_otherwise(client: Counter) -> None:
    client.loop.start()
    for _ in range(50):
        expected = client.send()
        assert client.loop.wait(lambda expected=expected: client.count >= expected, DEADLINE_S)  # type: ignore[misc]
    client.loop.tell("told")
    assert client.loop.wait(lambda: "told" in client.fed, DEADLINE_S)
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


@pytest.mark.parametrize("most_s", [0.0005, 0.005])
def test_an_exception_from_a_signal_handler_ends_one_wait_and_no_later_one(client: Counter, most_s: float) -> None:
    client.loop.start()
    seed = random.randrange(1 << 30)
    print("seed", seed)
    end = time.monotonic() + 1.5
    interrupted = heard = 0
    with storm(seed, most_s):
        while time.monotonic() < end:
            try:
                expected = client.send()
                client.loop.tell("told")
                if client.loop.wait(lambda expected=expected: client.count >= expected, 1.0):  # type: ignore[misc]
                    heard += 1
            except Interrupted:
                interrupted += 1
    print("interrupted", interrupted, "heard", heard, "torn", client.torn)
    assert interrupted > 0
    expected = client.send()
    assert client.loop.wait(lambda: client.count >= expected, DEADLINE_S), "it is deaf"
    expected = client.send()
    until(lambda: client.count >= expected, "the loop's own thread hears it, though nobody waits")


def test_whoever_comes_after_a_turn_that_was_cut_short_is_told(client: Counter) -> None:
    client.raises = Interrupted
    with pytest.raises(Interrupted):
        client.loop.wait(lambda: False, DEADLINE_S, first="bad")
    assert client.torn == 0
    assert not client.loop.wait(lambda: False, 0.01)
    assert client.torn == 1
    assert client.fed == ["bad", "bad"], "what was told is not lost"


def test_what_a_handler_raises_in_the_loops_thread_doesnt_end_it(
    client: Counter, capfd: pytest.CaptureFixture[str]
) -> None:
    client.raises = ZeroDivisionError
    client.loop.start()
    client.loop.tell("bad")
    until(lambda: client.torn, "what was cut short is told")
    assert client.torn == 1
    client.loop.tell("good")
    assert client.loop.wait(lambda: client.fed == ["bad", "good"], DEADLINE_S)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_what_goes_wrong_for_hours_pauses_between_its_tries_and_the_thread_lives_on(
    client: Counter, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("sidecar.client_loop.time.sleep", pauses.append)

    def tear() -> None:
        if len(pauses) < 1500:
            raise OSError("again")
        client.torn += 1

    client.loop._torn = tear
    client.raises = ZeroDivisionError
    client.loop.start()
    client.loop.tell("bad")
    until(lambda: client.torn, "what went wrong is over")
    assert pauses == sorted(pauses) and pauses[0] < 0.1 and pauses[-1] == client_loop.LOOK_S
    client.loop.tell("good")
    assert client.loop.wait(lambda: "good" in client.fed, DEADLINE_S)
    capfd.readouterr()


def test_a_handler_cant_wait_in_the_thread_that_runs_it(client: Counter) -> None:
    said: list[Exception] = []

    def ready(_: int) -> None:
        client.mine.recv(1)
        try:
            client.loop.wait(lambda: True, 1.0)
        except CannotWait as error:
            said.append(error)

    client.loop.remove(client.mine.fileno())
    client.loop.add(client.mine.fileno(), ready)
    client.peer.send(b"x")
    assert client.loop.wait(lambda: bool(said), DEADLINE_S)


def test_a_forked_child_that_lets_go_takes_nothing_from_its_parent(client: Counter) -> None:
    child = os.fork()
    if child == 0:
        try:
            client.loop.remove(client.mine.fileno())
            try:
                client.loop.wait(lambda: True, 0.0)
            except CannotWait:
                client.loop.tell("from the child")
                client.loop.stop()
                client.loop.close()
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    expected = client.send()
    assert client.loop.wait(lambda: client.count >= expected, DEADLINE_S)
    assert client.fed == []

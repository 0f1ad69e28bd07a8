"""What callers ask of a client: answered, given up, or asked anew; and what is raised in the client's own thread."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from sidecar.machine.client_shell import Ask, ClientShell, TimeIsOver
from tests.support.descriptors import no_descriptor_leaks
from tests.support.waiting import DEADLINE_S, until


class CannotAsk(Exception):
    pass


class Interrupted(Exception):
    """What a signal handler raises."""


class Machine:
    """An event is a list of effects."""

    deadline = float("inf")

    def handle(self, event: list[Any], now: float) -> list[Any]:
        return event


class Shell(ClientShell):
    def __init__(self) -> None:
        super().__init__("test", Machine(), CannotAsk)
        self.asks: list[Ask] = []
        self.given_up: list[Any] = []
        self.done: list[Any] = []
        self.loop.start()

    def on_ask(self, ask: Ask) -> None:
        self.asks.append(ask)

    def on_late(self, ask: Ask) -> None:
        self.answer(ask, TimeIsOver())

    def on_given_up(self, ask: Ask) -> None:
        self.given_up.append(ask.about)

    def disconnected(self, why: str) -> list[Any]:
        return ["disconnected"]

    def _do(self, effect: str) -> list[Any] | None:
        self.done.append(effect)
        return ["answer"] if effect == "ask" else None

    def _fail(self, effect: int) -> None:
        raise ZeroDivisionError

    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {str: _do, int: _fail}


@pytest.fixture
def shell() -> Iterator[Shell]:
    with no_descriptor_leaks():
        shell = Shell()
        yield shell
        shell.close()


def in_a_thread(ask: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    came: list[object] = []

    def run() -> None:
        try:
            came.append(ask())
        except CannotAsk as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, came


def strike(shell: Shell) -> None:
    until(lambda: shell.asks, "it waits")
    os.kill(os.getpid(), signal.SIGUSR1)


def test_what_an_effect_brings_back_is_the_next_event(shell: Shell) -> None:
    shell.tell(["ask", "last"])
    until(lambda: shell.done == ["ask", "last", "answer"], "all is carried out, in order")


def test_an_effect_that_raises_costs_the_connection_and_no_other_effect(
    shell: Shell, capfd: pytest.CaptureFixture[str]
) -> None:
    shell.tell(["first", 1, "second"])
    until(lambda: shell.done == ["first", "second", "disconnected"], "the others are carried out")
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_what_is_called_off_waits_no_longer_whether_it_was_asked_before_or_is_asked_later(shell: Shell) -> None:
    off, other = threading.Event(), threading.Event()
    asking, came = in_a_thread(lambda: shell.ask(Ask("x", off), None))
    goes_on, answered = in_a_thread(lambda: shell.ask(Ask("y", other), None))
    until(lambda: len(shell.asks) == 2, "both are asked")
    shell.call_off(off)
    asking.join(DEADLINE_S)
    assert isinstance(came[0], TimeIsOver) and isinstance(shell.ask(Ask("z", off), None), TimeIsOver)
    still = next(ask for ask in shell.asks if ask.about == "y")
    shell.loop.post(lambda: shell.answer(still, "yes"))
    goes_on.join(DEADLINE_S)
    assert answered == ["yes"] and not shell.given_up


def test_an_ask_is_answered_or_its_time_is_over(shell: Shell) -> None:
    asking, came = in_a_thread(lambda: shell.ask(Ask("x"), DEADLINE_S))
    until(lambda: shell.asks, "it is asked")
    shell.loop.post(lambda: shell.answer(shell.asks[0], "yes"))
    asking.join(DEADLINE_S)
    assert came == ["yes"] and not shell.given_up
    assert isinstance(shell.ask(Ask("y"), 0.01), TimeIsOver) and not shell.given_up


def test_what_is_answered_and_not_taken_yet_is_not_answered_again(shell: Shell) -> None:
    """Else one that was granted something could be told that all is lost, and have it for ever."""
    ask = Ask("a")
    thread, came = in_a_thread(lambda: shell.ask(ask, None))
    until(lambda: shell.asks, "it waits")

    def answer() -> None:
        for said in ("first", "second"):
            shell.answer_all(said, lambda asked: asked is ask)

    shell.loop.post(answer)
    thread.join(DEADLINE_S)
    assert came == ["first"]


def test_what_ends_a_wait_gives_up_what_was_asked_for(shell: Shell) -> None:
    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        kills, _ = in_a_thread(lambda: strike(shell))
        with pytest.raises(Interrupted):
            shell.ask(Ask("x"), DEADLINE_S)
        kills.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    until(lambda: shell.given_up == ["x"], "it is given up")


def test_a_thread_that_asks_anew_has_given_up_what_it_never_took(shell: Shell) -> None:
    """An exception ended its wait, and the next one kept it from saying so."""
    left = Ask("left")
    shell.loop.post(lambda: shell._begin(left))
    assert isinstance(shell.ask(Ask("next"), 0.01), TimeIsOver)
    assert shell.given_up == ["left"] and left.answer is not None
    assert isinstance(shell.ask(Ask("and again"), 0.01), TimeIsOver)
    assert shell.given_up == ["left"], "what was taken isn't given up"


def test_a_handler_that_asks_is_answered_and_the_wait_that_it_interrupted_ends(shell: Shell) -> None:
    inner: list[object] = []

    def handler(*_: object) -> None:
        inner.append(shell.ask(Ask("inner"), 0.01))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        kills, _ = in_a_thread(lambda: strike(shell))
        with pytest.raises(CannotAsk, match="signal handler"):
            shell.ask(Ask("outer"), DEADLINE_S)
        kills.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert isinstance(inner[0], TimeIsOver) and shell.given_up == ["outer"]


def test_closing_ends_whatever_waits(shell: Shell) -> None:
    asking, came = in_a_thread(lambda: shell.ask(Ask("x"), None))
    until(lambda: shell.asks, "it waits")
    shell.close()
    asking.join(DEADLINE_S)
    assert isinstance(came[0], CannotAsk) and "closed" in str(came[0])


def test_a_callback_cant_ask_its_own_client(shell: Shell) -> None:
    told: list[CannotAsk] = []

    def callback() -> None:
        try:
            shell.ask(Ask("x"), None)
        except CannotAsk as refused:
            told.append(refused)

    shell.loop.post(lambda: shell.call("on_change", callback))
    until(lambda: told, "it is told so")
    assert "can't wait" in str(told[0])
    assert not shell.asks and shell.done == []

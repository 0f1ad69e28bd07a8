"""Who of `failover up`'s children is started again, when, and when that is no use: `nursery.py`, without processes."""

import os
import time
from typing import Any

import pytest

from engine_shim import tree
from engine_shim.nursery import PAUSES_S, STEADY_S, Child, Nursery

NEVER = float("inf")


class Kept(Nursery):
    def __init__(self, *children: Child) -> None:
        self.said: list[str] = []
        super().__init__(children, lambda name, line: self.said.append(f"{name}: {line}"))

    def ran(self, child: Child, for_s: float, code: int, starts: int = 2) -> float:
        """It ran so long and ended; how long until it is started again."""
        now = time.monotonic()
        child.pid, child.starts, child.started_at, child.start_at = 7, starts, now - for_s, NEVER
        self._ended(child, code)
        return round(child.start_at - now, 1) if child.start_at < NEVER else NEVER


def test_it_is_started_again_at_once_and_then_after_longer_and_longer_pauses() -> None:
    child = Child("a", ("m",))
    kept = Kept(child)
    assert [kept.ran(child, 1.0, -9) for _ in range(7)] == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]
    assert kept.ran(child, STEADY_S, 1) == 0.0, "having run for a while makes a failure the first again"
    assert kept.hopeless is None and "a ended (SIGKILL); it is started again" in kept.said[0]


@pytest.mark.parametrize(
    ("code", "starts", "for_s", "hopeless"),
    [
        (64, 5, 100.0, True),
        (1, 1, 0.5, True),
        (1, 1, 100.0, False),
        (1, 2, 0.5, False),
        (-9, 1, 0.5, False),
        (0, 1, 0.5, False),
    ],
)
def test_one_that_was_called_wrongly_or_fails_at_its_first_start_is_not(
    code: int, starts: int, for_s: float, hopeless: bool
) -> None:
    child = Child("a", ("m",))
    kept = Kept(child)
    assert (kept.ran(child, for_s, code, starts) == NEVER) is hopeless
    assert (kept.hopeless is child) is hopeless


def test_told_to_end_nobody_is_started_again_and_only_who_lives_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append((pid, number)))
    alive, gone = Child("a", ("m",), pid=11), Child("b", ("m",))
    kept = Kept(alive, gone)
    kept.tell([alive, gone], 15)
    assert told == [(11, 15)] and kept.deadline == NEVER
    assert kept.ran(alive, 1.0, 0) == NEVER and kept.said == []


def test_children_are_armed_to_die_with_it_and_their_words_have_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child("lock", ("this", "--help"))
    kept = Kept(child)
    start, commands = tree.start, []

    def noted(command: Any, *rest: Any, **how: Any) -> int:
        commands.append(command[2:])
        return start(command, *rest, **how)

    monkeypatch.setattr(tree, "start", noted)
    kept.turn(time.monotonic())
    assert child.pid and child.start_at == NEVER
    assert commands == [("engine_shim.armed", str(os.getpid()), "this", "--help")]
    while child.rest:
        kept.turn(time.monotonic() + 1.0)
    kept.collect()
    assert kept.said and all(line.startswith("lock: ") or "ended" in line for line in kept.said)

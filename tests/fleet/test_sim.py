"""The simulator finds nothing, and would find something: each rule that is taken out of the database or of the
client's machine is noticed."""

from typing import Any

import pytest

from fleet.cli import clean
from fleet.rules import term as t
from gateway.rules import lease
from tests.fleet import sim
from tests.fleet.model import Host, Model


@pytest.mark.parametrize("part", range(2))
def test_no_schedule_breaks_a_claim(part: int) -> None:
    """A rule that is taken out below breaks one of the first seventy."""
    for seed in range(part * 100, part * 100 + 100):
        sim.run(seed)


@pytest.mark.parametrize(
    "rule", ["_turn_of", "_clean", "place"], ids=["others are minded", "what isn't renewed lapses", "the order"]
)
def test_a_database_without_a_rule_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instead: dict[str, Any] = {
        "_turn_of": staticmethod(lambda host, lease: True),
        "_clean": Model._turn,
        "place": lambda host, lease: (0, 0, -lease.id),
    }
    monkeypatch.setattr(Model if rule != "place" else Host, rule, instead[rule])
    assert _noticed()


@pytest.mark.parametrize(("what", "value"), [("MARGIN", 0.0), ("MARGIN", -0.1)])
def test_a_margin_that_is_too_small_is_noticed(what: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, what, value)
    assert _noticed()


def test_a_door_that_opens_while_it_knows_of_another_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease.DoorLease, "other", lambda door, now: None)
    assert "is open, and" in _noticed()


def test_a_door_that_looks_too_late_whether_it_has_drained_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "DRAIN_LOOK_S", lease.LOOK_S)
    assert "doesn't give way" in _noticed()


def test_a_run_that_waits_for_no_door_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "not_heard_of", lambda doors, token: set())
    assert _noticed()


def _noticed() -> str:
    for seed in range(1000):
        try:
            sim.run(seed)
        except sim.Broken as error:
            return str(error)
    return ""

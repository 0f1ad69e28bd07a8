"""How long a turn is, and when which model may be put to sleep for which (`pool/rules/turns.py`)."""

import math
from typing import Any

import pytest

from pool.entries import Entry
from pool.rules import events as e
from pool.rules.model import Demand, Model, Region
from pool.rules.turns import BEGIN_S, SwapBudget, effective, lazy, may_sleep

NOW = 1000.0
SERVING = e.LockView(resting=False, held=True, serving=True)
WAKE_S, SLEEP_S = 0.6, 0.4
COST = WAKE_S + SLEEP_S


def model(
    name: str = "m", *, demand: dict[str, Any] | None = None, entry: dict[str, Any] | None = None, **more: Any
) -> Model:
    rules = e.ModelRules(entry=Entry(name=name, **(entry or {})), devices=("gpu",), bytes={"gpu": 60})
    made = Model(rules, Region(name), child=e.Child(True), view=SERVING, away=False, since=NOW - 100, used_at=NOW - 50,
                 turn_at=NOW - 100, begun=True, learned=e.Learned(wake_s=WAKE_S, sleep_s=SLEEP_S))  # fmt: skip
    made.demand = Demand(**(demand or {}))
    for key, value in more.items():
        setattr(made, key, value)
    return made


def wanted(**demand: Any) -> Model:
    return model("up", demand={"waiting": 1, "since": NOW, **demand}, view=e.LockView(resting=True, ready=True))


BUSY = {"streaming": 1}


def asked(down: Model, up: Model | None = None, saved: float = math.inf, **host: Any) -> tuple[float, float]:
    """From when on, from now: the least, and the model's own time. `saved`: of the budget, in swaps."""
    budget = SwapBudget(0.1)
    if saved < math.inf:
        budget._saved["gpu"] = saved * COST, NOW
    found = may_sleep(up or wanted(), down, COST, e.HostRules(**{"drain_s": 0.0, **host}), budget, NOW)
    return round(found.least - NOW, 6), round(found.at - NOW, 6)


def test_two_swaps_are_saved_up_and_each_earns_its_share_back() -> None:
    budget = SwapBudget(0.1)
    assert budget.left(["gpu"], COST, NOW) == 2 * COST and budget.when(["gpu"], COST, COST, NOW) == NOW
    for left in (1.0, 0.0, -1.0, -2.0, -2.0):
        budget.spend(["gpu"], COST, NOW, borrows=True)
        assert budget.left(["gpu"], COST, NOW) == pytest.approx(left * COST)
    assert budget.when(["gpu"], COST, COST, NOW) == pytest.approx(NOW + 3 * COST / 0.1)
    assert budget.left(["gpu"], COST, NOW + 20) == pytest.approx(0.0)
    assert budget.left(["gpu"], COST, NOW + 2000) == 2 * COST, "and no more"
    assert budget.left(["other"], COST, NOW) == 2 * COST and budget.left([], COST, NOW) == math.inf


def test_a_swap_for_which_no_answer_waited_makes_no_later_one_wait() -> None:
    budget = SwapBudget(0.1)
    for left in (1.0, 0.0, 0.0):
        budget.spend(["gpu"], COST, NOW, borrows=False)
        assert budget.left(["gpu"], COST, NOW) == pytest.approx(left * COST)
    budget.spend(["gpu"], COST, NOW, borrows=True)
    budget.spend(["gpu"], COST, NOW, borrows=False)
    assert budget.left(["gpu"], COST, NOW) == pytest.approx(-COST), "what is owed stays as it is"


def test_what_a_long_turn_has_earned_makes_the_next_one_no_shorter() -> None:
    """Where the one has a turn of 150 s, the other had one of a second then."""
    budget = SwapBudget(0.1)
    for _ in range(2):
        budget.spend(["gpu"], COST, NOW, borrows=True, since=NOW)
    budget.spend(["gpu"], COST, NOW + 150, borrows=True, since=NOW + 1)
    assert budget.left(["gpu"], COST, NOW + 150) == pytest.approx(0.0)
    budget.spend(["gpu"], COST, NOW + 190, borrows=True)
    assert budget.left(["gpu"], COST, NOW + 190) == pytest.approx(COST), "that turn was no longer than it needs"


NEVER = (math.inf, math.inf)


def test_a_turn_lasts_until_requests_that_begin_anew_have_come_further_than_in_their_last_one() -> None:
    """But for one that is more urgent, or would be too late, or may wait no longer."""
    down = model(demand={**BUSY, "turn_s": 130.0})
    assert asked(down) == (-99.0, 30.0)
    assert asked(down, wanted(priority=-1)) == (-99.0, 0.0)
    assert asked(down, wanted(deadline=NOW + 9)) == (-99.0, 0.0)
    assert asked(down, longest_wait_s=8.0) == (-99.0, 8.0 - COST)


@pytest.mark.parametrize(
    ("down", "expected"),
    [
        (model(demand=BUSY, pinned=True), NEVER),
        (model(demand=BUSY, away=True), NEVER),
        (model(demand=BUSY, view=None), NEVER),
        (model(), (-100.0, 0.0)),
        (model(entry={"loaded_at_least_s": 130.0}), (30.0, 0.0)),
        (model(sleep_at=NOW + 7), (7.0, 0.0)),
        (model(demand=BUSY), (-99.0, 0.0)),
        (model(demand=BUSY, turn_at=NOW), (COST, 0.0)),
        (model(demand=BUSY, turn_at=NOW, begun=False), (BEGIN_S, 0.0)),
        (model(demand=BUSY, view=e.LockView(resting=False), since=NOW), (BEGIN_S, BEGIN_S)),
        (model(view=e.LockView(resting=False), since=NOW, learned=e.Learned(wake_s=9.0)), (9.0, 9.0)),
        (model(demand=BUSY, view=e.LockView(resting=False, held=True)), NEVER),
    ],
)
def test_who_may_sleep_where_swaps_are_plenty(down: Model, expected: tuple[float, float]) -> None:
    assert asked(down) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("up", "saved", "host", "at"),
    [
        ({}, 0.0, {}, 10.0),  # a swap has to be earned: a second at a tenth
        ({}, 0.5, {}, 5.0),
        ({}, 0.0, {"drain_s": 2.0}, 8.0),  # what drains is served: a part of the turn
        ({"priority": -1}, 0.0, {}, 0.0),
        ({"priority": -1}, -2.0, {}, 10.0),
        ({"deadline": NOW + 5}, 0.0, {}, 0.0),
        ({"deadline": NOW + 11.0}, 0.0, {}, 10.0),  # in time anyway
        ({"deadline": NOW + 10.5}, 0.0, {}, 0.0),
        ({"deadline": NOW + 0.5}, 0.0, {}, 10.0),  # it can't be kept any more
        ({"deadline": NOW + 1.5}, 0.0, {"drain_s": 1.0}, 9.0),
        ({"since": NOW - 2}, 0.0, {"longest_wait_s": 6.0}, 3.0),
        ({"since": NOW - 2}, 0.0, {"longest_wait_s": 60.0}, 10.0),
    ],
)
def test_who_has_requests_sleeps_when_its_turn_is_over(up: dict[str, Any], saved: float, host: Any, at: float) -> None:
    assert asked(model(demand=BUSY), wanted(**up), saved, **host)[1] == pytest.approx(at)


def test_one_that_has_to_load_first_comes_after_a_turn_that_is_worth_the_load() -> None:
    starts = wanted()
    starts.child, starts.learned = e.Child(False), e.Learned(wake_s=WAKE_S, sleep_s=SLEEP_S, load_s=18.0)
    assert asked(model(demand=BUSY, turn_at=NOW), starts)[0] == 18.0 + COST
    starts.child = e.Child(True)
    assert asked(model(demand=BUSY, turn_at=NOW), starts)[0] == COST, "it has loaded"


def test_a_more_urgent_one_is_left_alone_until_the_other_has_waited_for_long() -> None:
    urgent = model(demand={"streaming": 1, "priority": -1})
    assert asked(urgent, ageing_s=60.0) == (60.0, 0.0)
    assert asked(urgent, wanted(since=NOW - 60), ageing_s=60.0)[0] <= 0
    assert effective(wanted(since=NOW - 60), e.HostRules(), NOW) == -math.inf


@pytest.mark.parametrize(
    ("gap_s", "saved", "at"), [(0.2, 0.0, -49.6), (0.2, 1.0, 0.0), (1.5, 0.0, 0.0), (math.inf, 0.0, 0.0)]
)
def test_the_next_request_of_who_asks_again_soon_is_awaited_where_swaps_are_scarce(
    gap_s: float, saved: float, at: float
) -> None:
    assert asked(model(gap_s=gap_s), saved=saved)[1] == pytest.approx(at)


def test_for_the_default_model_others_have_to_have_been_idle_for_a_while_and_their_keep_alive_over() -> None:
    default = model("home", view=e.LockView(resting=True, ready=True))
    host: dict[str, Any] = {"default": "home", "default_after_s": 60.0}
    assert asked(model(), default, **host) == (10.0, 10.0)
    assert asked(model(used_at=NOW - 500, since=NOW - 20), default, **host) == (40.0, 40.0)
    assert asked(model(keep_alive_s=80.0), default, **host) == (30.0, 30.0)
    assert asked(model(entry={"loaded_at_least_s": 150.0}), default, **host) == (50.0, 50.0)
    assert asked(model(demand=BUSY), default, **host) == NEVER
    assert asked(model(), default, default="other") == (-100.0, 0.0)
    wants = wanted()
    wants.rules = default.rules
    assert asked(model(), wants, **host) == (-100.0, 0.0), "a request for it is a request like others"


def test_what_no_request_waits_for_interrupts_no_answer() -> None:
    pinned = model("up", pinned=True)
    assert lazy(pinned) and asked(model(demand=BUSY), pinned) == NEVER
    wakes = e.LockView(resting=False)
    assert asked(model(demand={"waiting": 1}, view=wakes), pinned) == NEVER != asked(model(view=wakes), pinned)
    pinned.asked_at = NOW
    assert not lazy(pinned) and asked(model(demand=BUSY), pinned)[1] == 0.0

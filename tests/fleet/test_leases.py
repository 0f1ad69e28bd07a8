"""What a look at a host shows: which lease it is, what is in the way of a waiter, and how that is said."""

from typing import Any

import pytest

from fleet.rules.leases import LeaseRow, Mode, Wish, check, in_the_way, no_such_host, seen, waits_for
from fleet.rules.schedule import calendar, cron_job, systemd
from fleet.rules.statements import SHOWN
from sidecar.terminal.names import BadValue


def row(lease: str, id: int, mode: str = "exclusive", token: int | None = None, priority: int = 0) -> LeaseRow:
    return LeaseRow(id, lease, mode, priority, lease, "", token, 0.0, None, 0.0, 60.0, 60.0, 0.0)


def leases(rows: list[LeaseRow], of: str) -> list[str]:
    return [each.lease for each in in_the_way(rows, of)]


# -- a look --------------------------------------------------------------------------------------------------------


def test_a_look_tells_the_exclusive_lease_that_is_held_from_the_wish_for_one() -> None:
    plain: dict[str, Any] = {"now": 5.0, "newest": 3, "priority": 0, "holder": "x", "purpose": "", "granted_at": None}
    plain |= dict.fromkeys(("asked_at", "renewed_at", "expires_at", "ttl_s", "drain_s"), 1.0)
    kinds = [("shared", 1), ("shared", None), ("exclusive", None), ("exclusive", None), ("exclusive", 3)]
    told = [{"id": 9 - at, "lease": f"l{at}", "mode": mode, "token": token} for at, (mode, token) in enumerate(kinds)]
    rows = [plain | row for row in told]
    found = seen(rows)
    assert found is not None and found.exclusive is not None and found.exclusive.lease == "l4"
    assert found.intent is not None and found.intent.lease == "l3", "the oldest"
    nothing = seen(rows[:2])
    assert nothing is not None and nothing.exclusive is None and nothing.intent is None
    assert seen([]) is None
    text = seen([plain | {"id": "1", "lease": "l", "mode": "shared", "token": "7"}])
    assert text is not None and text.rows[0].token == 7, "a database may answer with numbers as texts"


# -- what is in the way --------------------------------------------------------------------------------------------


def test_what_is_held_is_in_the_way_before_what_comes_earlier() -> None:
    rows = [row("early", 1), row("held", 2, token=5), row("me", 3), row("late", 4)]
    assert leases(rows, "me") == ["held", "early"]
    assert leases(rows, "early") == ["held"] and leases(rows, "late") == ["held", "early", "me"]


def test_sharers_arent_in_each_others_way_and_are_in_that_of_an_exclusive_one() -> None:
    rows = [row("held", 1, "shared", token=5), row("first", 2, "shared"), row("me", 3, "shared"), row("alone", 4)]
    assert leases(rows, "me") == [] and leases(rows, "alone") == ["held", "first", "me"]
    assert leases([row("alone", 1), row("me", 2, "shared")], "me") == ["alone"]


def test_one_that_is_granted_already_and_doesnt_know_has_nothing_in_its_way() -> None:
    rows = [row("me", 1, token=5), row("late", 2)]
    assert leases(rows, "me") == []


def test_priority_passes_exclusive_ones_and_no_sharer_that_asked_before() -> None:
    rows = [row("sharer", 2, "shared"), row("first", 1), row("urgent", 3, priority=9), row("me", 4, priority=1)]
    assert leases(rows, "first") == []
    assert leases(rows, "sharer") == ["first"]
    assert leases(rows, "me") == ["first", "sharer", "urgent"]
    assert leases(rows[1:], "first") == ["urgent", "me"]


def test_one_that_isnt_shown_waits_for_exclusive_ones_only_if_there_may_be_more_than_is_shown() -> None:
    rows = [row("alone", 0)] + [row(f"s{n}", n + 1, "shared", token=n) for n in range(SHOWN - 2)]
    assert leases(rows, "me") == [], "it has lapsed"
    assert leases([*rows, row("one more", 200, "shared", token=200)], "me") == ["alone"]


# -- words ---------------------------------------------------------------------------------------------------------


def test_what_is_waited_for_is_said_in_one_line() -> None:
    assert waits_for([]) == "nothing is in its way any more"
    held, waits = row("a", 1, token=7), row("b", 2)
    assert waits_for([held]) == "a holds it (exclusive, token 7, until 1970-01-01T00:01:00Z)"
    assert waits_for([waits]) == "b waits for it (exclusive, before us)"
    assert waits_for([held, waits]).endswith("; 1 more before us")


@pytest.mark.parametrize(
    ("count", "there"),
    [(0, "there are: none yet;"), (2, "there are: h0, h1;"), (20, "h18, h19;"), (21, "h18, h19 ...;")],
)
def test_a_host_that_isnt_there_is_said_with_those_that_are(count: int, there: str) -> None:
    assert there in no_such_host("x", [f"h{number}" for number in range(count)])


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
def test_a_wish_waits_for_some_time_or_none(wrong: float) -> None:
    with pytest.raises(BadValue, match="a wait 0 s or more"):
        check(Wish("h", Mode.EXCLUSIVE, "it", wait_s=wrong))
    check(Wish("h", Mode.EXCLUSIVE, "it", priority=1, wait_s=float("inf")))
    check(Wish("h", Mode.SHARED, "it", priority=0, wait_s=0.0))


# -- schedules -----------------------------------------------------------------------------------------------------


def test_a_range_with_steps_ends_where_it_says() -> None:
    assert calendar("1-6/2 3 * * *") == ["*-*-* 03:01,03,05:00"]
    assert calendar("55/2 3 * * *") == ["*-*-* 03:55,57,59:00"]


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "* * * *", "* * * * * *", "*-5 * * * *", "\u0663 * * * *", "60 * * * *", "1-0 * * * *", "0 24 * * *"),
        *("0 0 0 * *", "0 0 * * 8", "a * * * *", "*/0 * * * *", "1,,2 * * * *"),
    ],
)
def test_a_time_that_cron_doesnt_know_is_refused(wrong: str) -> None:
    for made in (lambda: calendar(wrong), lambda: cron_job("n", wrong, ["x"], 1.0, "i")):
        with pytest.raises(BadValue):
            made()


def test_a_cron_job_keeps_its_time_and_only_sunday_is_said_anew() -> None:
    assert "schedule: '0 3 * * *'\n" in cron_job("n", "0 3 * * *", ["x"], 1.0, "i").replace('"', "'")
    assert "schedule: '0 3 * * 0,1'\n" in cron_job("n", "0 3 * * 7,mon", ["x"], 1.0, "i").replace('"', "'")


def test_systemd_quotes_what_needs_it_alone() -> None:
    assert 'ExecStart=a-b "c d" %% $$x\n' in systemd("n", "0 3 * * *", ["a-b", "c d", "%", "$x"], 1.0).replace(
        '"%%"', "%%"
    ).replace('"$$x"', "$$x")

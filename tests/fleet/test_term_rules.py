"""The rules of `term.py`, one by one: the test plays the database, and the clock. A term is 60 s long."""

import math
from typing import Any

import pytest

from fleet.cli import status_text
from fleet.rules import term as t
from fleet.rules.leases import LeaseRow, Mode, Seen, Wish, check
from fleet.rules.statements import SHOWN
from sidecar.terminal.names import BadValue


class Client:
    def __init__(
        self, mode: Mode = Mode.EXCLUSIVE, *, looks: bool = False, wait_s: float = 1000.0, ttl_s: float = 60.0
    ) -> None:
        self.now = 1e6
        self.term = t.Term(Wish("h", mode, "it", wait_s=wait_s, ttl_s=ttl_s), "name", self.now, looks=looks)
        self.heard: list[t.Effect] = []
        self.feed(t.Tick())

    def feed(self, event: Any) -> list[t.Effect]:
        new = self.term.handle(event, self.now)
        self.heard += new
        return new

    def after(self, seconds: float) -> list[t.Effect]:
        """Ticks at every deadline until then."""
        end, new = self.now + seconds, []
        while self.term.deadline <= end:
            self.now = max(self.now, self.term.deadline)
            new += self.feed(t.Tick())
        self.now = end
        return new

    @property
    def asked(self) -> t.Ask:
        return [effect for effect in self.heard if isinstance(effect, t.Ask)][-1]

    def answer(self, *, token: int | None = None, left_s: float = 60.0, lease: str | None = "", wanted: bool = False,
               took_s: float = 0.0) -> list[t.Effect]:  # fmt: skip
        """The database's clock is years off."""
        self.now += took_s
        lease = self.term.lease if lease == "" else lease
        row = {"now": 5.0, "lease": lease, "token": token, "expires_at": 5.0 + left_s, "wanted": wanted}
        return self.feed(t.Answered(self.asked.question, [row]))

    def looked(self, *rows: dict[str, Any]) -> list[t.Effect]:
        plain = {"priority": 0, "holder": "x", "purpose": "", "token": None, "asked_at": 1.0, "granted_at": None,
                 "renewed_at": 1.0, "expires_at": 60.0, "ttl_s": 60.0, "drain_s": 0.0}  # fmt: skip
        said = [{"now": 5.0, "newest": 3, **plain, **row} for row in rows]
        return self.feed(t.Answered(self.asked.question, said or [{"now": 5.0, "newest": 3, "lease": None}]))

    def fail(self, why: str = "away", *, final: bool = False) -> list[t.Effect]:
        return self.feed(t.Failed(self.asked.question, why, final))


def held(mode: Mode = Mode.EXCLUSIVE, **how: Any) -> Client:
    client = Client(mode, **how)
    client.answer(token=7)
    assert client.term.holds(client.now)
    return client


def ends(effects: list[t.Effect]) -> list[t.End]:
    return [effect.end for effect in effects if isinstance(effect, t.Ended)]


def test_a_lease_is_relied_on_for_two_thirds_of_a_term_from_before_the_question() -> None:
    client = Client()
    effects = client.answer(token=7, took_s=3.0)
    assert effects[0] == t.Granted(7, client.now - 3 + 40)
    assert ends(client.after(36.9)) == [] and client.term.holds(client.now)
    assert ends(client.after(0.1)) == [t.End.LOST] and not client.term.holds(client.now)


def test_it_is_renewed_every_third_of_a_term_and_each_renewal_counts_from_its_own_question() -> None:
    client = held()
    assert client.after(19.9) == [] and client.after(0.1) == [client.asked] and client.asked.name == "renew"
    assert client.answer(token=7, took_s=2.0) == [t.Extended(client.now - 2 + 40)]
    assert client.after(17.9) == [] and client.after(0.2) == [client.asked]


def test_a_renewal_that_fails_is_tried_again_until_the_lease_is_stepped_down_from() -> None:
    client = held()
    asked_at: list[float] = []
    while not ends(client.after(0.5)):
        if client.asked.name == "renew" and client.term._under_way:
            asked_at.append(client.now - 1e6)
            client.fail()
    assert client.now == pytest.approx(1e6 + 40)
    assert asked_at == [20, 21, 23, 27, 33, 39], "pauses double, up to a tenth of a term: a crowd isn't a storm"
    assert client.heard[-1] == t.Ended(t.End.LOST, "the last renewal began 40.0 s ago; away")


def test_an_answer_ends_the_doubling_of_pauses() -> None:
    client = held()
    for _ in range(2):
        client.after(20.0)
        client.fail()
        assert client.after(1.0) == [client.asked], "a second after the first failure"
        client.answer(token=7)


def test_a_question_that_isnt_answered_is_cut_and_what_comes_after_that_isnt_heard() -> None:
    client = held()
    client.after(20.0)
    first = client.asked
    assert t.Cut() in client.after(5.0)
    client.after(1.0)
    assert client.asked.question > first.question
    late = [{"now": 5.0, "lease": client.term.lease, "token": 7, "expires_at": 65.0, "wanted": False}]
    assert client.feed(t.Answered(first.question, late)) == []


def test_a_process_that_was_stopped_steps_down_before_it_hears_the_answer_to_its_renewal() -> None:
    """Found by the simulator, seed 1416: it extended a lease that was over."""
    client = held()
    client.after(20.0)
    effects = client.answer(token=7, left_s=600.0, took_s=30.0)
    assert ends(effects) == [t.End.LOST] and not any(isinstance(effect, t.Extended) for effect in effects)


def test_a_lease_that_has_lapsed_in_the_database_is_lost_at_once() -> None:
    client = held()
    client.after(20.0)
    assert ends(client.answer(lease=None)) == [t.End.LOST]


def test_a_grant_whose_answer_came_too_late_is_renewed_before_it_is_relied_on() -> None:
    client = Client()
    assert client.answer(token=7, left_s=21.0, took_s=4.0) == []  # an answer to a question that was asked twice
    client.after(1.0)
    assert client.asked.name == "renew" and t.Granted(7, client.now + 40) in client.answer(token=7)


def test_a_waiter_looks_every_second_and_asks_when_nothing_is_in_its_way() -> None:
    client = Client()
    client.answer()
    me = {"id": 2, "lease": client.term.lease, "mode": "exclusive"}
    other = {"id": 1, "lease": "o", "mode": "shared", "token": 3}
    assert client.asked.name == "look"
    said = client.looked(other, me)
    assert said == [t.Waits("x holds it (shared, token 3, until 1970-01-01T00:01:00Z)")]
    assert client.after(0.9) == [] and client.after(0.1) == [client.asked] and client.asked.name == "look"
    client.looked(me)
    assert client.asked.name == "ask" and t.Granted(8, client.now + 40) in client.answer(token=8)


def test_a_waiter_keeps_its_place_and_begins_anew_when_it_has_lost_it() -> None:
    client = Client()
    client.answer()
    names = []
    waits = [{"id": n, "lease": lease, "mode": "exclusive"} for n, lease in enumerate(("o", client.term.lease))]
    for _ in range(22):
        names.append(client.asked.name)
        client.answer() if names[-1] == "ask" else client.looked(*waits)
        client.after(1.0)
    assert names.count("ask") == 1 and names.count("look") == 21
    before = client.term.lease
    client.after(20)
    client.fail()
    client.after(20)
    while not (client.asked.name == "ask" and client.term._under_way):
        client.after(0.1)
    client.answer(lease=None)
    assert client.asked.values["lease"] == client.term.lease != before


def test_waiting_has_a_bound_and_the_wish_is_taken_back() -> None:
    client = Client(wait_s=30.0)
    client.answer()
    client.looked({"id": 1, "lease": "o", "mode": "exclusive", "token": 1}, {"id": 2, "lease": client.term.lease,
                  "mode": "exclusive"})  # fmt: skip
    end = next(effect for effect in client.after(30.0) if isinstance(effect, t.Ended))
    assert end.end is t.End.NOT_IN_TIME and end.why.startswith("not granted within 30 s: ")
    assert client.asked.name == "release" and client.answer() == [t.Over()] and client.term.deadline == math.inf


def test_a_sharer_behind_more_than_are_shown_waits_for_exclusive_ones_alone() -> None:
    rows = [{"id": n, "lease": f"o{n}", "mode": "shared", "token": n + 1} for n in range(SHOWN)]
    client = Client(Mode.SHARED)
    client.answer()
    client.after(1.0)
    client.looked(*rows)
    assert client.asked.name == "ask", "nothing is in its way"
    client.answer()
    client.after(1.0)
    client.looked({"id": 0, "lease": "e", "mode": "exclusive"}, *rows[1:])
    assert client.asked.name == "look"


def test_a_status_that_may_not_be_all_says_so() -> None:
    def shown(count: int) -> list[str]:
        row = LeaseRow(1, "l", "shared", 0, "me", "", 1, 0.0, 0.0, 0.0, 60.0, 60.0, 0.0)
        return status_text.lines({"box": Seen(5.0, 1, (row,) * count)})

    assert len(shown(SHOWN - 1)) == SHOWN - 1
    assert shown(SHOWN)[-1].strip() == f"only the first {SHOWN} are shown"


def test_a_wish_that_doesnt_wait_is_asked_once() -> None:
    assert t.Granted(7, 1e6 + 40) in Client(wait_s=0.0).answer(token=7)
    assert ends(Client(wait_s=0.0).answer()) == [t.End.NOT_IN_TIME]
    assert ends(Client(wait_s=0.0).after(10.0)) == [t.End.REFUSED]


def test_a_database_that_has_never_answered_ends_a_wish_and_one_that_goes_away_doesnt() -> None:
    client = Client()
    assert ends(client.fail("no connection")) == [t.End.REFUSED]
    client = Client()
    client.answer()
    assert ends(client.fail()) == [] and client.term.phase is t.Phase.WAITS
    assert ends(client.after(1.0)) == []
    assert ends(client.fail("the table is gone", final=True)) == [t.End.REFUSED]


def test_a_host_that_isnt_there_ends_a_wish() -> None:
    client = Client()
    assert ends(client.feed(t.Answered(client.asked.question, []))) == [t.End.REFUSED]
    assert client.heard[-1] == t.Over()


def test_a_sharer_that_looks_hears_of_a_wish_within_a_second_and_once() -> None:
    client = held(Mode.SHARED, looks=True)
    client.after(1.0)
    assert client.asked.name == "look"
    assert client.looked({"id": 2, "lease": "o", "mode": "exclusive"}) == [t.Wanted()]
    assert [effect for effect in client.after(5.0) if isinstance(effect, (t.Wanted, t.Ask))] == []
    for other in (held(Mode.SHARED), held(looks=True)):
        assert {effect.name for effect in other.after(20.0) if isinstance(effect, t.Ask)} == {"renew"}, "no looks"


def test_one_that_is_renewed_no_further_says_that_another_waits() -> None:
    client = held(Mode.SHARED)
    client.after(20.0)
    client.answer(token=7, left_s=25.0, wanted=True)
    (end,) = [effect for effect in client.after(20.0) if isinstance(effect, t.Ended)]
    assert end.end is t.End.LOST and end.why.startswith("a program waits")


def test_an_exclusive_one_is_told_of_no_wish() -> None:
    client = Client(looks=True)
    assert t.Wanted() not in client.answer(token=7, wanted=True)


def test_giving_back_doesnt_wait_for_what_is_under_way() -> None:
    client = held()
    client.after(20.0)
    assert client.feed(t.GiveBack()) == [t.Ended(t.End.RELEASED), t.Cut(), client.asked]


@pytest.mark.parametrize(
    "bad",
    [{"host": ""}, {"host": "a b"}, {"holder": ""}, {"holder": "a\nb"}, {"purpose": "x" * 201}, {"priority": 101},
     {"priority": 1, "mode": Mode.SHARED}, {"ttl_s": 0.01}, {"drain_s": -1.0}],
)  # fmt: skip
def test_a_wish_that_no_database_takes_is_said_to_be_wrong(bad: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        check(Wish(**{"host": "h", "mode": Mode.EXCLUSIVE, "holder": "it", **bad}))


# -- what made mutants showed that no test held ------------------------------------------------------------------------


def test_a_lease_that_is_over_isnt_relied_on_before_its_tick_comes_either() -> None:
    client = held()
    assert client.term.holds(1e6 + 39.9) and not client.term.holds(1e6 + 40)


def test_the_end_of_a_lease_is_due_while_its_renewal_is_under_way() -> None:
    client = held()
    while client.now < 1e6 + 39:
        if client.term._under_way:
            client.fail()
        client.after(0.5)
    assert client.term._under_way and client.term.deadline == 1e6 + 40
    assert ends(client.after(1.0)) == [t.End.LOST]
    assert client.term._under_way and client.term.deadline < math.inf, "what is under way is still cut"
    assert t.Cut() in client.after(10.0)


def test_the_first_answer_is_waited_for_longer_and_no_later_one_for_more_than_a_sixth_of_a_term() -> None:
    client = Client(ttl_s=6.0)
    assert client.term.patience_s == t.FIRST_PATIENCE_S
    client.answer()
    assert client.term.patience_s == 1.0
    assert held().term.patience_s == t.MOST_PATIENCE_S


def test_short_terms_are_looked_at_more_often_and_retried_sooner() -> None:
    client = Client(ttl_s=3.0)
    client.answer()
    client.after(0.5)
    assert client.asked.name == "look"
    client.fail()
    asked = client.asked
    client.after(0.09)
    assert client.asked is asked
    client.after(0.02)
    assert client.asked is not asked


def test_a_look_at_once_is_asked_with_the_next_tick() -> None:
    client = held(Mode.SHARED, looks=True)
    client.looked()
    assert client.feed(t.Tick()) == []
    client.term.look_now()
    assert client.feed(t.Tick()) == [client.asked] and client.asked.name == "look"
    exclusive = held(looks=True)
    exclusive.term.look_now()
    assert exclusive.feed(t.Tick()) == [], "only a shared one gives way"


def test_a_wish_that_doesnt_wait_is_asked_with_no_wait_however_late() -> None:
    term = t.Term(Wish("h", Mode.EXCLUSIVE, "it", wait_s=0.0), "name", 0.0)
    (ask,) = term.handle(t.Tick(), 5.0)
    assert isinstance(ask, t.Ask) and ask.values["wait"] == 0.0


def test_after_a_final_no_nothing_is_taken_back_and_after_another_it_is() -> None:
    client = Client()
    assert client.fail("no such table", final=True)[-1] == t.Over()
    client = Client()
    assert t.Over() not in client.fail("no connection")
    client.after(1.0)
    assert client.asked.name == "release"
    client.fail()
    assert client.term.phase is t.Phase.OVER, "once will do: it may never have come there"


def test_why_it_waits_is_said_when_it_changes_and_by_a_waiter_alone() -> None:
    client = Client()
    client.answer()
    assert t.Waits("away") in client.fail()
    client.after(1.0)
    assert t.Waits("away") not in client.fail()
    client = held()
    client.after(20.0)
    assert client.fail() == []


def test_the_end_of_a_wait_says_why_if_that_is_known() -> None:
    client = Client(wait_s=3.0)
    client.answer()
    client.now += 3.0
    (end,) = [effect for effect in client.feed(t.Tick()) if isinstance(effect, t.Ended)]
    assert end.why == "not granted within 3 s"
    client = held()
    client.now += 40.0
    (end,) = [effect for effect in client.feed(t.Tick()) if isinstance(effect, t.Ended)]
    assert end.why == "the last renewal began 40.0 s ago"


def test_a_grant_that_cant_be_relied_on_yet_is_told_of_no_wish() -> None:
    client = Client(Mode.SHARED)
    assert client.answer(token=7, wanted=True, took_s=41.0) == []


def test_giving_back_is_said_once_and_cuts_nothing_that_isnt_there() -> None:
    client = held()
    assert client.feed(t.GiveBack()) == [t.Ended(t.End.RELEASED), client.asked]
    assert client.feed(t.GiveBack()) == []
    client.answer()
    assert client.term.phase is t.Phase.OVER and client.feed(t.GiveBack()) == [] and client.after(100.0) == []
    client = held()
    client.after(40.0)
    assert ends(client.feed(t.GiveBack())) == [], "its end was said"


def test_a_grant_whose_answer_was_lost_is_renewed_as_soon_as_it_is_known() -> None:
    """The question that was answered had extended nothing: it was counted from, and no renewal was due in time."""
    client = Client()
    client.answer(token=7, left_s=35.0)
    assert client.term.until == 1e6 + 15 and client.asked.name == "renew"
    assert client.answer(token=7) == [t.Extended(1e6 + 40)]
    client = Client(ttl_s=12.0)
    client.answer(token=7, left_s=6.0)
    (end,) = [effect for effect in client.after(2.0) if isinstance(effect, t.Ended)]
    assert end.why.startswith("the last renewal began"), "no other waits"


def test_an_answer_that_extends_nothing_is_no_extension() -> None:
    client = held()
    client.after(20.0)
    assert client.answer(token=7, left_s=30.0, took_s=1.0) == []


def test_what_is_lost_or_given_back_isnt_held_again_whatever_is_answered_late() -> None:
    client = held()
    while client.now < 1e6 + 39:
        client.fail()
        client.after(0.5)
    assert client.asked.name == "renew" and client.term._under_way
    assert ends(client.after(1.0)) == [t.End.LOST]
    assert client.answer(token=7) == [] and not client.term.holds(client.now), "a renewal, from the database's side"
    client.feed(t.GiveBack())
    assert client.asked.name == "release" and client.answer() == [t.Over()]
    other = held()
    other.feed(t.GiveBack())
    assert not other.term.holds(other.now)


def test_a_host_that_is_gone_is_no_answer() -> None:
    client = Client()
    client.answer()
    assert client.asked.name == "look" and client.feed(t.Answered(client.asked.question, [])) == []


def test_a_lease_that_cant_be_given_back_lapses_after_three_tries_and_not_before() -> None:
    client = held()
    client.feed(t.GiveBack())
    for _ in range(2):
        assert client.asked.name == "release"
        client.fail()
        assert t.Over() not in client.heard
        client.after(6.0)
    assert client.fail()[-1] == t.Over() and client.term.phase is t.Phase.OVER

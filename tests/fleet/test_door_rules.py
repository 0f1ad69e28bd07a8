"""What the lease of its host means at the door: which requests are let in (`admission.py`), and what the door makes of
what the database says (`lease.py`).
"""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fleet.rules import term as t
from gateway.rules import errors, kinds
from gateway.rules import events as e
from gateway.rules.lease import Bounds, DoorLease
from gateway.shell.lease import Lease, Settings
from gateway.shell.metrics import Counts
from sidecar.terminal.logs import Log
from tests.fleet.model import Model
from tests.gateway.test_door_rules import BODY, COMPLETION, answered, step, with_engine, world
from tests.gateway.world import SimClient, World

HELD = e.LeaseSeen(until=1e9, newest=3)
LEASED = e.LeaseSeen(False, -math.inf, 7, 7, "host h is leased", retry_after_s=9, pause_at=-math.inf)
DRAINS = msgspec.structs.replace(LEASED, token=0, newest=3, until=1e9)


def uncovered(it: World) -> int:
    return it.machine.admission.uncovered


def status(client: SimClient) -> int:
    return client.status


# -- which requests are let in -------------------------------------------------------------------------------------


def test_while_another_has_the_host_only_its_requests_are_let_in_and_the_others_wait() -> None:
    it = world()
    it.feed(LEASED)
    plain, own = it.arrive(COMPLETION, BODY), it.arrive(COMPLETION, BODY, lease=7)
    it.run()
    assert answered(own) and not plain.ended and with_engine(it) == 0
    it.feed(HELD)
    it.run()
    assert answered(plain) and uncovered(it) == 0


def test_they_are_refused_at_once_where_that_is_wished_and_else_when_they_have_waited_for_long() -> None:
    it = world(queue_timeout_s=60.0)
    it.feed(msgspec.structs.replace(LEASED, refuse=True))
    refused = it.arrive(COMPLETION, BODY)
    assert status(refused) == 503 and b"host h is leased" in refused.body and (b"retry-after", b"9") in refused.headers
    it.feed(LEASED)
    waits = it.arrive(COMPLETION, BODY)
    it.wait(59.0)
    assert not waits.ended
    it.wait(1.0)
    assert status(waits) == 503 and b"host h is leased" in waits.body


def test_a_token_is_a_number_with_or_without_blanks_around_it() -> None:
    plain = kinds.Kind("POST", b"/v1/completions", [], b"")
    assert kinds.carrying(plain, b"\t7 ").lease == 7 and kinds.carrying(plain, b"  ") is plain
    for wrong in (b"+1", b"3,3", b"1 2", "\u00b2".encode(), b"1" * 19):
        with pytest.raises(errors.Refusal, match="has to be the token of a lease"):
            kinds.carrying(plain, wrong)


def test_a_token_that_has_ended_is_refused_wherever_its_request_is() -> None:
    it = world()
    it.feed(LEASED)
    old = it.arrive(COMPLETION, BODY, lease=6)
    assert status(old) == 409 and b"lease 6 has ended: host h is leased" in old.body
    streams = it.arrive(COMPLETION, BODY, lease=7)
    step(it, streams, 3)
    it.feed(msgspec.structs.replace(LEASED, token=8, newest=8))
    assert streams.outcome is e.Outcome.ENDED and with_engine(it) == 0, "it would disturb the next one"


def test_a_token_that_isnt_known_waits_for_a_look_and_no_longer() -> None:
    it = world()
    it.feed(HELD)
    new, made_up = it.arrive(COMPLETION, BODY, lease=7), it.arrive(COMPLETION, BODY, lease=9)
    assert with_engine(it) == 0 and not new.ended and it.looks_at_lease == 2
    it.feed(msgspec.structs.replace(LEASED, looked_at=it.now - 1))
    assert with_engine(it) == 1 and not made_up.ended, "that look was before it came"
    it.feed(msgspec.structs.replace(LEASED, looked_at=it.now + 1))
    assert status(made_up) == 409
    it.run()
    assert answered(new)


def test_a_wish_lets_what_is_there_finish_and_then_pauses_it_and_nothing_is_cut() -> None:
    it = world()
    it.feed(HELD)
    quick, slow = it.arrive(COMPLETION, BODY), it.arrive(COMPLETION, BODY)
    step(it, slow, 3)
    it.feed(msgspec.structs.replace(DRAINS, pause_at=it.now + 5.0))
    late = it.arrive(COMPLETION, BODY)
    while not quick.ended:
        step(it, quick)
    assert answered(quick) and with_engine(it) == 1
    it.wait(5.0)
    assert with_engine(it) == 0 and not slow.ended and it.notes[-1].event == "paused"
    it.wait(3600.0)
    assert not slow.ended, "however long that takes"
    assert status(late) == 503
    it.feed(HELD)
    it.run()
    assert answered(slow) and slow.how == "continued" and uncovered(it) == 0
    assert not slow.gaps, "no engine was lost"


def test_a_paused_answer_waits_for_its_turn_as_long_as_any_other_after_that() -> None:
    it = world(failover_timeout_s=60.0)
    slow = it.arrive(COMPLETION, BODY)
    step(it, slow, 3)
    it.feed(LEASED)
    it.wait(1000.0)
    it.lock("FENCING")
    it.feed(HELD)
    it.wait(59.0)
    assert not slow.ended
    it.wait(2.0)
    assert slow.outcome is e.Outcome.ENDED


def test_what_no_lease_covers_is_counted_and_marked() -> None:
    it = world()
    it.feed(HELD)
    there = it.arrive(COMPLETION, BODY)
    step(it, there, 2)
    it.feed(e.LeaseSeen(until=-math.inf, newest=3))
    assert uncovered(it) == 1
    it.feed(e.LeaseSeen(until=-math.inf, newest=3))
    assert uncovered(it) == 1
    it.arrive(COMPLETION, BODY)
    it.run()
    assert uncovered(it) == 2, "each once"


def test_what_is_with_an_engine_when_a_door_hears_that_another_has_the_host_is_uncovered() -> None:
    """Found by the simulator, seed 720323: it was taken away uncounted, and the other's time called clean."""
    it = world()
    it.feed(HELD)
    step(it, it.arrive(COMPLETION, BODY), 2)
    own = it.arrive(COMPLETION, BODY, lease=7)
    it.feed(LEASED)
    it.run()
    assert answered(own) and uncovered(it) == 1


def test_a_door_that_is_stopped_while_it_drains_counts_what_it_takes_away_too_late() -> None:
    it = world()
    it.feed(HELD)
    step(it, it.arrive(COMPLETION, BODY), 2)
    it.feed(msgspec.structs.replace(DRAINS, until=it.now + 6.0, pause_at=it.now + 5.0))
    it.now += 100.0
    it.wait(0.0)
    assert it.notes[-1].event == "paused" and uncovered(it) == 1


def test_what_a_lease_has_covered_since_counts_anew_when_it_is_uncovered() -> None:
    """Found by the simulator, seed 58244: another had the host when the lease was lost again, and was told nothing."""
    it = world()
    it.feed(HELD)
    step(it, it.arrive(COMPLETION, BODY), 2)
    for count in (1, 2):
        it.feed(e.LeaseSeen(until=-math.inf, newest=3))
        assert uncovered(it) == count and it.machine.admission.uncovered_now == 1
        it.feed(HELD)
        assert uncovered(it) == count and it.machine.admission.uncovered_now == 0


def test_what_is_with_an_engine_under_a_token_that_has_ended_is_uncovered() -> None:
    it = world()
    it.feed(LEASED)
    streams, waits = it.arrive(COMPLETION, BODY, lease=7), it.arrive(COMPLETION, BODY, lease=9)
    step(it, streams, 3)
    it.feed(msgspec.structs.replace(LEASED, token=8, newest=9))
    assert streams.outcome is e.Outcome.ENDED and waits.ended and uncovered(it) == 1


def test_a_door_that_was_stopped_counts_what_ended_before_it_knew() -> None:
    """Its lease was over while it was stopped; then the answers are read first, and the clock after that."""
    it = world()
    it.feed(msgspec.structs.replace(HELD, until=it.now + 0.2))
    there = it.arrive(COMPLETION, BODY)
    step(it, there, 2)
    it.now += 0.5
    it.run()
    assert answered(there) and uncovered(it) == 1


# -- what the door makes of the database ---------------------------------------------------------------------------


class Door:
    """Over the simulator's database, with a clock of the test's. A term is 60 s."""

    def __init__(self, *, answers: bool = True, **bounds: Any) -> None:
        self.now, self.uncovered, self.in_flight, self.uncovered_now = 1e6, 0, 0, 0
        self.store, self.answers, self.asked = Model(lambda: self.now - 5e5), answers, [""]
        self.final = False
        """Asking again doesn't help."""
        self.heard: list[Any] = []
        self.opened: list[bool] = []
        """Whether it was open, after each event."""
        self.store.init(["h"])
        self.it = DoorLease(Bounds("h", "d", "i" * 16, **bounds), self.now)
        self.feed(t.Tick())

    def feed(self, event: Any) -> None:
        pending = list(self.it.handle(event, self.now, self.uncovered, self.in_flight, self.uncovered_now))
        while pending:
            self.opened.append(self.gate.open)
            effect = pending.pop(0)
            self.heard.append(effect)
            if isinstance(effect, t.Ask):
                self.asked.append(effect.name)
                pending += self.it.handle(
                    self.answer(effect), self.now, self.uncovered, self.in_flight, self.uncovered_now
                )

    def answer(self, ask: t.Ask) -> t.Answered | t.Failed:
        if not self.answers:
            return t.Failed(ask.question, "away", self.final)
        return t.Answered(ask.question, self.call(ask.name, **ask.values))

    def call(self, name: str, **values: Any) -> list[dict[str, Any]]:
        return self.store.call(name, **values)

    def after(self, seconds: float) -> None:
        end = self.now + seconds
        while self.it.deadline <= end:
            self.now = max(self.now + 1e-3, self.it.deadline)
            self.feed(t.Tick())
        self.now = end

    def other(self, number: int = 1, drain: float = 10.0, ttl: float = 60.0) -> dict[str, Any]:
        """Another program's wish for the host alone, said again with every call."""
        values = {"lease": f"{number:032}", "mode": "exclusive", "priority": 0, "holder": "bench", "purpose": "b"}
        return self.call("ask", host="h", ttl=ttl, wait=1e6, drain=drain, **values)[0]

    def release(self, number: int = 1) -> None:
        self.call("release", host="h", lease=f"{number:032}")

    @property
    def gate(self) -> e.LeaseSeen:
        return self.it.gate(self.now)

    @property
    def notes(self) -> list[str]:
        return [note.event for note in self.said]

    @property
    def said(self) -> list[e.Note]:
        """Without what is said of each lease."""
        notes = (effect for effect in self.heard if isinstance(effect, e.Note))
        return [note for note in notes if note.event not in ("lease_held", "lease_of_another")]

    @property
    def reported(self) -> tuple[int, bool]:
        (row,) = self.call("doors", host="h")
        return row["uncovered"], bool(row["ended"])


def test_a_door_is_shut_until_it_has_its_lease_and_open_while_it_has() -> None:
    door = Door()
    assert door.gate.open and door.gate.until == door.now + 40 and door.asked.count("ask") == 1
    door.after(200.0)
    assert door.gate.open and door.gate.until > door.now and door.asked.count("renew") == 10
    assert DoorLease(Bounds("h", "d", "j" * 16), 0.0).gate(0.0).open is False


def test_a_wish_is_seen_within_a_second_drains_and_then_has_the_host() -> None:
    door = Door()
    door.in_flight = 3
    assert door.other()["token"] is None
    door.after(1.0)
    assert not door.gate.open and door.gate.pause_at == pytest.approx(door.now + 10.0, abs=0.1)
    assert door.now < door.gate.until < door.now + 60.0, "its lease covers what drains"
    assert "is wanted by bench for b alone" in door.gate.why and door.gate.token == 0
    door.after(9.0)
    assert door.other()["token"] is None
    door.in_flight = 0
    door.after(1.0)
    assert door.other()["token"] == 2
    door.after(1.0)
    assert not door.gate.open and door.gate.token == 2 and "is leased by bench for b until" in door.gate.why
    door.release()
    door.after(1.5)
    assert door.gate.open and door.gate.newest == 3, "the door has its own lease again"


def test_a_door_looks_often_whether_it_has_drained_and_no_longer() -> None:
    door = Door()
    door.in_flight = 1
    door.other()
    door.after(1.0)
    assert door.it.deadline - door.now < 0.1
    (release,) = door.it.handle(t.Tick(), door.now, 0, 0)
    assert getattr(release, "name", "") == "release"
    door.it.handle(t.Tick(), door.now, 0, 0)
    assert door.it.deadline - door.now > 0.5, "no answer has come"


def test_a_door_that_gives_way_is_shut_until_it_has_its_lease_again() -> None:
    door = Door()
    for turn in range(3):
        door.other(turn)
        door.after(1.0)
        door.opened.clear()
        assert door.other(turn)["token"] is not None
        door.after(5.0)
        assert not any(door.opened), "another may have the host by now"
        door.release(turn)
        door.after(1.5)
        assert door.gate.open
    assert door.notes == ["lease_wanted"] * 3
    names = [event["lease"] for event in door.call("history", host="h", last=99) if event["event"] == "granted"]
    assert [name for name in names if name.startswith("i")] == [f"{'i' * 16}-{term}.0" for term in (4, 3, 2, 1)]


def test_the_log_says_which_program_had_the_host_and_when_it_was_open_again() -> None:
    door = Door()
    door.other()
    door.after(1.0)
    assert door.other()["token"] == 2
    door.after(5.0)
    door.release()
    door.after(1.5)
    notes = [effect for effect in door.heard if isinstance(effect, e.Note)]
    assert [(note.event, note.detail.get("token")) for note in notes] == [
        ("lease_held", 1), ("lease_wanted", None), ("lease_of_another", 2), ("lease_held", 3)
    ]  # fmt: skip
    assert str(notes[2].detail["why"]).startswith("host h is leased by bench for b until")


def test_a_wish_that_a_renewal_has_met_first_drains_as_long_as_it_allows() -> None:
    door = Door()
    door.in_flight = 1
    door.after(19.9)
    door.other()
    door.after(0.2)
    assert "renew" in door.asked
    door.after(1.0)
    assert not door.gate.open and door.gate.pause_at == pytest.approx(door.now + 9.0, abs=1.2)


def test_while_another_has_the_host_a_database_that_says_no_lets_no_request_in() -> None:
    door = Door()
    door.other()
    door.after(1.0)
    assert door.other()["token"] == 2
    door.after(1.0)
    door.answers, door.final = False, True
    door.opened.clear()
    door.after(50.0)
    assert not door.gate.open and door.gate.token == 2 and not any(door.opened)
    door.after(12.0)
    assert door.gate.open and door.gate.until == -math.inf, "that lease has ended for certain"


def test_one_that_is_turned_away_is_told_when_the_others_lease_ends() -> None:
    door = Door()
    assert door.gate.retry_after_s == 1
    door.other()
    door.after(1.0)
    assert door.gate.retry_after_s == 1, "a wish has no end"
    door.other()
    door.after(1.0)
    assert door.gate.retry_after_s == 59
    door.after(20.5)
    assert door.gate.retry_after_s == 39


def test_a_token_that_isnt_known_is_looked_for_at_once() -> None:
    door = Door()
    looks = door.asked.count("look")
    door.it.look_now()
    door.feed(t.Tick())
    assert door.asked.count("look") == looks + 1 and door.gate.looked_at == door.now
    door.after(0.5)
    assert door.gate.looked_at == pytest.approx(door.now - 0.5, abs=0.1)
    door.after(20.0)
    assert door.asked[-1] == "look" and door.now - door.gate.looked_at <= 1.1, "renewals are no looks"


def test_a_term_shorter_than_a_look_is_renewed_in_time() -> None:
    door = Door(ttl_s=0.3)
    door.after(5.0)
    assert door.gate.open and not door.notes


def test_a_door_that_is_closed_asks_for_nothing_more_and_says_so_though_it_has_just_failed() -> None:
    door = Door()
    door.uncovered, door.answers = 1, False
    door.after(3.0)
    assert door.asked[-1] == "report" or "report" in door.asked[-4:]
    door.answers = True
    effects = door.it.close(door.now, 1)
    asked = [effect.name for effect in effects if isinstance(effect, t.Ask)]
    assert sorted(asked) == ["release", "report"]
    for effect in effects:
        if isinstance(effect, t.Ask):
            assert not door.it.handle(door.answer(effect), door.now, 1, 0)
    door.now += 60.0
    assert not [ask for ask in door.it.handle(t.Tick(), door.now, 1, 0) if getattr(ask, "name", "") == "ask"]


def test_a_question_that_is_under_way_is_no_failure_until_it_is_cut() -> None:
    door = Door()
    door.now = door.it.deadline
    (ask,) = door.it.handle(t.Tick(), door.now, 0, 0)
    assert getattr(ask, "name", "") == "look" and [door.it.away] == [""]
    door.now += 5.0
    assert t.Cut() in door.it.handle(t.Tick(), door.now, 0, 0) and [door.it.away] == ["no answer within 5 s"]


def test_a_door_that_waits_its_turn_goes_on_unverified_a_third_of_a_term_after_the_last_answer() -> None:
    door = Door()
    door.call("ask", host="h", lease="s" * 32, mode="shared", priority=0, holder="s", purpose="", ttl=9e3, wait=9.0,
              drain=0.0)  # fmt: skip
    door.other(ttl=9e3)
    door.after(300.0)
    assert not door.gate.open and door.notes == ["lease_wanted"], "the database answers"
    door.answers = False
    door.after(19.0)
    assert not door.gate.open
    door.after(5.0)
    assert door.gate.open and door.gate.until == -math.inf and door.notes == ["lease_wanted", "lease_unverified"]
    door.after(100.0)
    assert door.notes == ["lease_wanted", "lease_unverified"]
    door.answers = True
    door.after(5.0)
    assert not door.gate.open and door.notes[-1] == "lease_verified"
    assert door.said[-1].detail["why"].startswith("waits: host h is wanted by")
    door.it.unverified = True
    door.after(1.1)
    assert door.said[-1].detail["why"].startswith("waits: host h is wanted by bench for b alone")
    door.call("release", host="h", lease="s" * 32)
    assert door.other(ttl=9e3)["token"] is not None
    door.after(1.1)
    door.it.unverified = True
    door.after(1.1)
    assert door.said[-1].detail["why"].startswith("waits: host h is leased by bench for b until")


def test_a_late_answer_that_another_has_the_host_shuts_a_door_whose_lease_is_lost() -> None:
    """Found by the simulator, seed 32738: it was open until it had given the lost lease back and asked anew."""
    door = Door()
    door.now = door.it.deadline
    (look,) = (effect for effect in door.it.handle(t.Tick(), door.now, 0, 0) if isinstance(effect, t.Ask))
    door.now += 100.0  # this machine was stopped
    assert door.other()["token"] is not None
    heard = t.Answered(look.question, door.call(look.name, **look.values))
    door.it.handle(heard, door.now, 0, 0)
    assert not door.gate.open and door.gate.token == 2 and door.gate.until == -math.inf


def test_an_answer_to_an_earlier_lease_says_nothing_of_this_one() -> None:
    door = Door(answers=False)
    door.now += 3.0
    asked = [effect for effect in door.it.handle(t.Tick(), door.now, 0, 0) if getattr(effect, "name", "") == "ask"]
    assert asked and door.gate.until == -math.inf, "it is under way"
    effects = door.it.handle(t.Answered(1, []), door.now, 0, 0)
    assert door.gate.open and not [effect for effect in effects if isinstance(effect, e.Note)]


def test_the_bound_of_a_drain_is_the_smaller_one() -> None:
    door = Door(drain_s=3.0)
    door.in_flight = 1
    door.other()
    door.after(1.0)
    assert door.gate.pause_at == pytest.approx(door.now + 3.0, abs=0.1)


@pytest.mark.parametrize("drain_s", [30.0, 45.0, 300.0])
def test_what_is_there_is_paused_before_the_doors_own_lease_is_over(drain_s: float) -> None:
    door = Door(drain_s=drain_s)
    door.in_flight = 1
    began = door.now
    while not -math.inf < door.gate.pause_at <= door.now:
        assert door.other(drain=drain_s)["token"] is None and door.it._term.holds(door.now)
        door.after(1.0)
    assert door.it._term.holds(door.now) and door.now - began > min(drain_s, 35.0) * 0.9
    assert not [effect for effect in door.heard if getattr(effect, "event", "") == "lease_unverified"]


def test_a_holder_that_is_killed_keeps_the_door_shut_for_a_term_and_no_longer() -> None:
    door = Door()
    door.other()
    door.after(2.0)
    assert door.other()["token"] == 2
    door.after(59.0)
    assert not door.gate.open
    door.after(3.0)
    assert door.gate.open and door.gate.until > door.now


def test_without_the_database_traffic_goes_on_unverified_when_the_lease_is_over_and_not_before() -> None:
    door = Door()
    door.answers = False
    door.after(39.0)
    assert door.gate.open and door.gate.until > door.now and not door.notes
    door.after(2.0)
    assert door.gate.open and door.gate.until == -math.inf
    door.after(60.0)
    assert door.notes == ["lease_unverified"] and door.said[-1].alarm, "once"
    door.answers = True
    door.opened.clear()
    door.after(25.0)
    assert door.gate.open and door.gate.until > door.now and all(door.opened), "also until it has its lease again"
    assert door.notes == ["lease_unverified", "lease_verified"]
    assert door.said[-1].detail["why"] == "shared, with token 2"


def test_without_the_database_the_host_stays_leased_until_that_lease_has_ended_for_certain() -> None:
    door = Door()
    door.other()
    door.after(2.0)
    door.other()
    door.after(1.0)
    assert door.gate.token == 2
    door.answers = False
    door.after(56.0)
    assert not door.gate.open and door.gate.token == 2
    door.after(3.0)
    assert door.gate.open and door.gate.until == -math.inf and door.gate.token == 0


def test_a_door_that_is_started_without_its_database_lets_traffic_in() -> None:
    door = Door(answers=False)
    assert door.gate.open and door.gate.until == -math.inf


def test_a_door_that_finds_the_host_leased_when_it_is_back_pauses_at_once() -> None:
    door = Door()
    door.answers = False
    door.after(70.0)
    door.in_flight, door.uncovered = 2, 2
    door.other()
    assert door.other()["token"] == 2
    door.answers, before = True, len(door.asked)
    door.after(25.0)
    assert not door.gate.open and door.gate.pause_at == -math.inf and door.gate.token == 2
    assert door.reported == (2, False), "before it asked for its lease"
    names = door.asked[before:]
    assert names.index("report") < names.index("ask")


def test_uncovered_requests_are_reported_and_the_end_of_anothers_lease_is() -> None:
    door = Door()
    assert door.reported == (0, False)
    door.other()
    door.after(2.0)
    door.other()
    door.after(5.0)
    before = door.call("doors", host="h")[0]["seen_at"]
    door.release()
    released_at = door.now
    door.after(1.5)
    assert door.call("doors", host="h")[0]["seen_at"] >= released_at - 5e5 > before
    door.uncovered = 4
    door.after(1.0)
    assert door.reported == (4, False)
    door.uncovered = 5
    for effect in door.it.close(door.now, 5):
        if isinstance(effect, t.Ask):
            door.answer(effect)
    assert door.reported == (5, True) and not door.call("look", host="h")[0]["lease"]


def test_an_uncovered_request_that_is_still_there_counts_again_in_the_next_report() -> None:
    """Another may have had the host in between, and the count was read before that."""
    door = Door()
    door.answers = False
    door.after(70.0)
    door.uncovered = door.in_flight = door.uncovered_now = 2
    door.answers = True
    door.other()
    assert door.other()["token"] == 2
    door.after(25.0)
    assert not door.gate.open and door.reported == (4, False)
    door.uncovered_now = door.in_flight = 0
    door.after(25.0)
    assert door.reported == (4, False)


def test_a_report_says_up_to_which_token_no_lease_excludes_the_door() -> None:
    door = Door()

    def knows() -> int:
        found: int = door.call("doors", host="h")[0]["knows"]
        return found

    door.other()
    door.after(2.0)
    assert door.other()["token"] == 2
    door.after(3.0)
    assert knows() == 1, "the other has it"
    door.release()
    door.after(1.5)
    assert knows() == 2
    door.after(2.0)
    assert door.gate.open and knows() == 3, "its own grant, too"
    door.call("ask", host="h", lease="s" * 32, mode="shared", priority=0, holder="s", purpose="", ttl=9.0, wait=9.0,
              drain=0.0)  # fmt: skip
    door.after(1.1)
    assert knows() == 4, "a lease that it hasn't seen before"


def test_a_door_that_was_stopped_reports_when_what_it_has_is_counted_and_not_before() -> None:
    door = Door()
    door.in_flight = 1
    door.now += 50.0
    (look,) = [t.Answered(0, door.call("look", host="h"))]
    first = door.it.handle(look, door.now, 0, 1)
    assert not door.it._term.holds(door.now) and not [
        ask for ask in first if isinstance(ask, t.Ask) and ask.name == "report"
    ]
    assert door.it.deadline == door.now
    (report,) = [ask for ask in door.it.handle(t.Tick(), door.now, 1, 1, 1) if getattr(ask, "name", "") == "report"]
    assert report.values["uncovered"] == 1  # type: ignore[union-attr]


def test_an_answer_to_a_lease_before_is_no_answer_to_this_one() -> None:
    door = Door()
    before = door.it._term
    door.other()
    door.after(3.0)
    assert door.it._term is not before and door.it._term._first > before.asked


def test_a_report_that_fails_is_said_again_and_not_at_once() -> None:
    door = Door()
    door.answers, door.uncovered = False, 3
    before = len(door.asked)
    door.after(10.0)
    assert door.asked[before:].count("report") <= 6
    door.answers = True
    door.after(3.0)
    assert door.reported == (3, False)


def test_what_a_pair_has_counted_stays_when_it_goes(tmp_path: Path) -> None:
    """A count that went down would hide what comes after it."""

    async def story() -> None:
        pairs: list[Any] = [
            SimpleNamespace(machine=SimpleNamespace(admission=SimpleNamespace(uncovered=number))) for number in (5, 2)
        ]
        settings = Settings("box", f"sqlite://{tmp_path}/fleet.db", "door", False, 60.0, 30.0)
        lease = Lease(asyncio.get_running_loop(), settings, pairs, Counts(), Log("gateway", json=False))
        gone = pairs.pop(0)
        lease.forget(gone)
        assert lease._uncovered == 7
        await lease.close()

    asyncio.run(story())

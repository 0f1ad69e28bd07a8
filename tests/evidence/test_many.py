"""Hundreds of incarnations at once: an event costs a look at what it concerns (rule E11). And it knows no lock."""

import re
from pathlib import Path

import pytest

from evidence.rules import events as e
from evidence.rules import messages
from evidence.rules.incarnation import Stage
from evidence.rules.incarnations import Incarnations
from evidence.rules.pidfd_copies import PidfdCopies
from evidence.rules.proof import all_ended
from tests.evidence.parts import Known, peer

MANY = 400
ROOT = Path(__file__).resolve().parents[2]


class Counted(Known):
    """Counts the incarnations that are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.looks = self.gives = 0
        look, give = Incarnations._look, PidfdCopies.give

        def counted(this: Incarnations, *args: object) -> object:
            self.looks += 1
            return look(this, *args)  # type: ignore[arg-type]

        def counted_give(this: PidfdCopies, *args: object) -> object:
            self.gives += 1
            return give(this, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Incarnations, "_look", counted)
        monkeypatch.setattr(PidfdCopies, "give", counted_give)
        for number in range(MANY):
            who = self.registered(f"e{number}", 2 * number + 1, conn=number)
            self.incarnations.enter(who, peer(2 * number + 2), 0, 0)
        self.all = list(self.incarnations.known.values())

    def turn(self) -> None:
        self.carry_out()
        list(self.evidence.copies.give_own())


def test_the_ends_of_hundreds_cost_some_looks_each(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Counted(monkeypatch)
    known.bind(*known.all[: MANY // 2])
    for who in known.all:
        known.incarnations.closed(who, who.conn or 0)
        known.incarnations.lose(who, Stage.LOST)
        known.turn()
        for member in list(who.members.values()):
            known.incarnations.died(member.process or 0)
            known.turn()
        known.incarnations.probed(who.name, True)
        known.turn()
    assert len(known.incarnations.absent) == MANY and known.looks <= 8 * MANY
    known.at(1.0)
    for who in known.all:
        known.turn()
        known.incarnations.probed(who.name, False)
        known.turn()
    assert known.looks <= 16 * MANY
    assert [who for who in known.all if not all_ended(who)] == [] and len(known.incarnations.known) == MANY // 2
    assert [unlink.incarnation for unlink in known.asked(e.Unlink)] == [who.name for who in known.all[MANY // 2 :]]


def test_copies_for_hundreds_cost_some_gives_each(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Counted(monkeypatch)
    known.turn()
    for number in (*range(MANY), *range(MANY)):  # some wait for room until others have taken theirs
        known.evidence.copies.taken(number, 1)
        known.turn()
    assert known.gives <= 4 * MANY
    assert all(known.evidence.copies.under_way_with(number) == 0 for number in range(MANY))


def test_a_turn_in_which_nothing_is_new_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Counted(monkeypatch)
    known.turn()
    known.looks = known.gives = 0
    known.turn()
    assert known.looks == known.gives == 0 and known.again == float("inf")


def test_a_plan_changes_nothing_and_says_the_same_again() -> None:
    known = Known()
    who = known.a(members=2)
    known.incarnations.lose(who, Stage.LOST)
    known.incarnations.died(1)
    known.incarnations.died(2)
    before = len(known.context.out)
    assert known.incarnations.plan(0.0) == known.incarnations.plan(0.0) and known.incarnations.plan(0.0).looks[0].probe
    assert len(known.context.out) == before and not who.probing


def test_evidence_knows_no_lock() -> None:
    words = re.compile(r"\b(token|permit|holder|standby|waiter|lock server)s?\b", re.IGNORECASE)
    others = ("holders are read", "with its holders", 'name="token"')  # of a life lock; on the wire for ever
    named = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "evidence").rglob("*.py"))
        if path.name != "__init__.py"  # it names its first user
        for line in path.read_text().splitlines()
        if words.search(line) and not any(other in line for other in others)
    ]
    assert named == []
    assert not [name for name in messages.Join.__struct_fields__ if words.search(name)]

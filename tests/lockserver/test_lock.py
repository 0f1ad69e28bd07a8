"""The lock's states and transitions, and the invariants, each built alone."""

from collections.abc import Callable

import pytest

from evidence.rules.callers import Callers
from evidence.rules.incarnation import Incarnation, Stage
from lockserver.rules.invariants import Invariants
from lockserver.rules.lock import Lock, Phase, State, WrongTransition
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.rules.queue import Waiter
from lockserver.rules.succession import Succession
from sidecar.machine.disk_writes import DiskWrites
from tests.evidence.parts import incarnation
from tests.lockserver.parts import DOUBT, TENURE, UNNAMED, Turns, held_by

FREE, IN_DOUBT, GRANTING, HELD, FENCING = Phase


def in_phase(phase: Phase, lock: Lock | None = None) -> Lock:
    """Brought there by transitions; where an engine holds it, that is `a` with token 7."""
    lock, a = lock or Lock(ACTIVE), incarnation()
    if phase is IN_DOUBT:
        lock.found(incarnation(stage=Stage.AWAITED), TENURE, DOUBT)
    elif phase is not FREE:
        lock.grant(a, 7, "then", Waiter(a, {}, 0.0), verified=True)
        lock.recorded_by = 3
    if phase in (HELD, FENCING):
        lock.hold()
    if phase is FENCING:
        a.stage = Stage.DOOMED
        lock.lose(5.0, DOUBT)
    assert lock.phase is phase and lock.broken_rule() == ""
    return lock


STEPS: dict[str, tuple[Callable[[Lock], object], set[Phase], Phase]] = {
    # What is done, in which phases it may be, and which phase follows.
    "found": (lambda lock: lock.found(incarnation("b", stage=Stage.AWAITED), TENURE, DOUBT), {FREE}, IN_DOUBT),
    "suspect": (lambda lock: lock.suspect(UNNAMED), {FREE}, IN_DOUBT),
    "hear of": (lambda lock: lock.hear_of(incarnation("b", stage=Stage.AWAITED), 8), {IN_DOUBT, FENCING}, IN_DOUBT),
    "grant": (lambda lock: lock.grant(incarnation("b"), 8, "now", None, verified=False), {FREE}, GRANTING),
    "hold": (lambda lock: lock.hold(), {GRANTING}, HELD),
    "take back": (lambda lock: lock.take_back(), {GRANTING}, FREE),
    "claimed": (lambda lock: lock.claimed(incarnation("b"), 8), {FREE, IN_DOUBT, FENCING}, HELD),
    "come back": (lambda lock: lock.come_back(), {IN_DOUBT, FENCING}, HELD),
    "lose": (lambda lock: lock.lose(6.0, None), {IN_DOUBT, GRANTING, HELD, FENCING}, FENCING),
    "release": (lambda lock: lock.release(), {IN_DOUBT, FENCING}, FREE),
    "release, and doubt": (lambda lock: lock.release(UNNAMED), {IN_DOUBT, FENCING}, IN_DOUBT),
    "settle": (lambda lock: lock.settle(), {IN_DOUBT}, FREE),
    "give back": (lambda lock: lock.give_back(), {HELD}, FREE),
}


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
@pytest.mark.parametrize("step", STEPS)
def test_each_transition_is_made_from_its_phases_and_from_no_other(phase: Phase, step: str) -> None:
    do, allowed, after = STEPS[step]
    lock = in_phase(phase)
    if phase in allowed:
        do(lock)
        assert lock.phase is after
        return
    before = (lock.phase, lock.holder, lock.token, lock.doubt, lock.waiter, lock.recorded_by)
    with pytest.raises(WrongTransition, match=ACTIVE):
        do(lock)
    assert before == (lock.phase, lock.holder, lock.token, lock.doubt, lock.waiter, lock.recorded_by)


# -- what each transition leaves behind --------------------------------------------------------------------------------


def test_what_the_file_says_of_its_holder_is_on_disk_already() -> None:
    lock = in_phase(IN_DOUBT)
    assert (lock.token, lock.granted_at, lock.endpoint, lock.verified) == (7, "then", "there", True)
    assert lock.recorded_by == 0 and lock.doubt is DOUBT
    lock.come_back()
    assert lock.token_on_disk(on_disk=0) == 7
    lock = Lock(ACTIVE)
    lock.found(incarnation(stage=Stage.AWAITED, members=0), TENURE, DOUBT)
    assert lock.recorded_by is None  # only a waiter had told of it: its processes aren't on disk


def test_no_engine_is_told_before_the_grant_is_on_disk() -> None:
    lock = in_phase(GRANTING)
    with pytest.raises(WrongTransition, match="before it is on disk"):
        lock.token_on_disk(on_disk=3)  # not told yet
    lock.hold()
    with pytest.raises(WrongTransition, match="before it is on disk"):
        lock.token_on_disk(on_disk=2)
    assert lock.token_on_disk(on_disk=3) == 7


def test_an_engine_that_has_been_told_has_no_place_in_the_queue_any_more() -> None:
    assert in_phase(HELD).waiter is None


def test_a_claim_is_not_confirmed_before_a_write_names_it() -> None:
    lock = in_phase(FREE)
    lock.claimed(incarnation("b"), 9)
    with pytest.raises(WrongTransition, match="before it is on disk"):
        lock.token_on_disk(on_disk=100)


def test_a_holder_that_is_lost_has_no_place_in_the_queue_any_more() -> None:
    lock = in_phase(GRANTING)
    lock.lose(6.0, None)
    assert lock.waiter is None and lock.fencing_since == 6.0


def test_the_doubt_of_a_new_server_outlives_the_loss_of_its_holder() -> None:
    lock = in_phase(IN_DOUBT)
    lock.lose(6.0, UNNAMED)
    assert lock.doubt is DOUBT
    lock.lose(7.0, None)
    assert lock.doubt is DOUBT


def test_a_holder_that_is_back_is_in_no_doubt_and_not_fenced() -> None:
    lock = in_phase(FENCING)
    lock.come_back()
    assert (lock.doubt, lock.fencing_since, lock.token) == (None, 0.0, 7)


def test_a_claim_replaces_whatever_was_known_of_the_holder() -> None:
    lock = in_phase(IN_DOUBT)
    lock.claimed(incarnation("b"), 8)
    assert (lock.token, lock.granted_at, lock.endpoint, lock.verified) == (8, "", None, False)
    assert (lock.doubt, lock.fencing_since, lock.recorded_by) == (None, 0.0, None)


def test_a_holder_that_was_heard_of_is_not_in_the_file() -> None:
    lock = in_phase(FREE)
    with pytest.raises(WrongTransition, match="nothing is in doubt"):
        lock.hear_of(incarnation("b", stage=Stage.AWAITED), 8)
    lock.suspect(UNNAMED)
    lock.hear_of(incarnation("b", stage=Stage.AWAITED), 8)
    assert lock.token == 8 and lock.recorded_by is None and lock.unnamed and lock.broken_rule() == ""
    lock = in_phase(FENCING)
    lock.hear_of(incarnation("b", stage=Stage.AWAITED), 8)
    assert (lock.verified, lock.fencing_since, lock.recorded_by, lock.granted_at) == (False, 0.0, None, "")
    lock.written_by(3)
    assert lock.recorded_by is None  # nothing is known of its processes yet


def test_an_unnamed_holder_is_in_doubt_only_where_no_file_names_a_holder() -> None:
    lock = in_phase(FREE)
    assert not lock.unnamed and not in_phase(IN_DOUBT).unnamed
    lock.suspect(UNNAMED)
    assert lock.unnamed and lock.broken_rule() == ""
    lock.settle()
    assert not lock.unnamed and lock.doubt is None


def test_a_released_lock_keeps_only_the_doubt_that_remains() -> None:
    lock = in_phase(FENCING)
    lock.endpoint = "there"
    assert lock.release(UNNAMED).name == "a.00000000"
    assert lock.holder is None and lock.endpoint is None and lock.doubt is UNNAMED and lock.fencing_since == 0.0


def test_no_engine_is_proven_gone_where_none_is_known_to_hold() -> None:
    lock = Lock(ACTIVE)
    lock.suspect(UNNAMED)
    with pytest.raises(WrongTransition, match="no engine holds it"):
        lock.release()


def test_what_is_given_back_has_no_holder_and_keeps_its_token() -> None:
    lock = in_phase(HELD)
    lock.give_back()
    assert (lock.holder, lock.endpoint, lock.granted_at, lock.verified, lock.token) == (None, None, "", False, 7)


def test_where_the_holder_serves_is_news_once() -> None:
    lock = in_phase(HELD)
    assert lock.serve_at("here") and not lock.serve_at("here") and lock.serve_at(None)


# -- what people are told ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "wanted", "now", "state"),
    [
        (FREE, False, 0.0, State.FREE),
        (FREE, True, 0.0, State.FENCING),
        (IN_DOUBT, False, 9.9, State.RECOVERING),
        (IN_DOUBT, False, 10.0, State.FENCING),
        (GRANTING, False, 0.0, State.FENCING),
        (HELD, True, 0.0, State.HELD),
        (FENCING, False, 0.0, State.FENCING),
    ],
)
def test_the_public_state(phase: Phase, wanted: bool, now: float, state: State) -> None:
    assert in_phase(phase).state(now, wanted=wanted) is state


def test_a_holder_that_will_not_come_back_is_not_awaited() -> None:
    lock = in_phase(IN_DOUBT)
    assert lock.holder is not None
    lock.holder.stage = Stage.LOST
    assert lock.state(0.0, wanted=False) is State.FENCING


def test_the_lock_is_held_by_the_engine_that_knows_it() -> None:
    for phase in Phase:
        lock = in_phase(phase)
        assert lock.held_by(lock.holder) is (phase is HELD)
    assert not in_phase(HELD).held_by(incarnation("b"))


# -- what must hold ----------------------------------------------------------------------------------------------------


def break_presence(lock: Lock) -> None:
    assert lock.holder is not None
    there = lock.holder.stage is Stage.PRESENT
    lock.holder.stage = Stage.LOST if there else Stage.PRESENT


@pytest.mark.parametrize(
    ("phase", "spoil", "said"),
    [
        *(
            (phase, lambda lock: setattr(lock, "holder", None), "no engine is its holder")
            for phase in (GRANTING, HELD, FENCING)
        ),
        (FREE, lambda lock: setattr(lock, "holder", incarnation("b", stage=Stage.LOST)), "b.00000000 is its holder"),
        (IN_DOUBT, lambda lock: setattr(lock, "doubt", None), "its doubt is None"),
        *(
            (phase, lambda lock: setattr(lock, "doubt", DOUBT), "its doubt is Doubt")
            for phase in (FREE, GRANTING, HELD)
        ),
        *((phase, break_presence, "its holder is lost") for phase in (GRANTING, HELD)),
        *((phase, break_presence, "its holder is present") for phase in (IN_DOUBT, FENCING)),
    ],
)
def test_a_lock_sees_its_own_broken_rules(phase: Phase, spoil: Callable[[Lock], None], said: str) -> None:
    lock = in_phase(phase)
    assert lock.broken_rule() == ""
    spoil(lock)
    assert lock.broken_rule().startswith(f"{ACTIVE}: {phase.value}, and ") and said in lock.broken_rule()


# -- invariants: the parts together ------------------------------------------------------------------------------------


class Parts:
    """A holder that is there, and everything that the invariants look at."""

    def __init__(self) -> None:
        turns = Turns()
        self.incarnations = turns.incarnations
        self.disk: DiskWrites[object] = DiskWrites()
        self.succession = Succession(
            turns.config, turns.context, Callers(turns.context, lambda conn: None), turns.evidence
        )
        self.a: Incarnation = turns.registered("a", 1)
        self.succession.active = held_by(self.a, token=7)
        self.succession.newest_token = 7
        self.invariants = Invariants()

    @property
    def broken(self) -> str:
        return self.invariants.check(self.succession, self.incarnations, self.disk)


def test_nothing_is_broken_while_all_is_well() -> None:
    parts = Parts()
    assert parts.broken == ""
    parts.succession.newest_token = 9
    assert parts.broken == ""


def test_a_token_that_falls_is_seen() -> None:
    parts = Parts()
    parts.succession.newest_token = 9
    assert parts.broken == ""
    parts.succession.newest_token = 8
    assert "tokens only grow, and 8 came after 9" in parts.broken


def test_a_holder_with_a_token_that_was_never_granted_is_seen() -> None:
    parts = Parts()
    parts.succession.active.token = 8
    assert "newer than the newest" in parts.broken


@pytest.mark.parametrize("which", [0, 1], ids=[ACTIVE, INIT])
def test_both_locks_are_looked_at(which: int) -> None:
    parts = Parts()
    lock = parts.succession.locks[which]
    lock.phase = FREE if which == 0 else HELD
    assert parts.broken.startswith(f"{lock.name}: ")


def test_a_holder_whose_processes_are_not_watched_is_seen() -> None:
    parts = Parts()
    del parts.incarnations.known[parts.a.name]
    assert "its processes aren't watched" in parts.broken


def test_a_grant_that_is_on_disk_and_was_not_told_is_seen() -> None:
    parts = Parts()
    parts.disk.ask()
    parts.succession.active.phase = GRANTING
    assert parts.broken == ""
    parts.disk.persisted(1)
    assert "was not told" in parts.broken


def test_a_holder_that_also_waits_is_seen() -> None:
    parts = Parts()
    parts.succession.queue.enter(parts.a, {}, looked=True)
    assert "holds the lock, and waits for it" in parts.broken

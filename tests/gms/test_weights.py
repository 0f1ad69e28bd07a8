"""The phases of weights (`gms/rules/weights.py`): which step may be taken from which, and what each leaves."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from gms import layout as lay
from gms.rules.messages import Open
from gms.rules.record import Region
from gms.rules.record import Slab as RecordedSlab
from gms.rules.weights import MAY_FOLLOW, BrokenRule, Generations, Layout, Phase, Slab, Weights
from tests.gms.machine_shell import document

RECORD = Region("weights", "shared", 6, lay.structure_hash(document(5)), (RecordedSlab(5, "m1"),))


def layout_of(weights: Weights) -> Layout:
    draft = weights.draft
    assert draft is not None
    return Layout(draft.generation, "hash", b"document", 1, tuple(draft.slabs))


def new(given: int) -> Weights:
    generations = Generations()
    generations.newest = given
    return Weights("weights", generations)


def next_of(weights: Weights) -> int:
    return weights._generations.next()


def empty() -> Weights:
    weights = new(5)
    weights.await_(None)
    return weights


def recovering() -> Weights:
    weights = new(6)
    weights.await_(RECORD)
    return weights


def being_written() -> Weights:
    weights = empty()
    weights.write(1, next_of(weights), replaces=False)
    weights.add(Slab(11, "m1", 5))
    return weights


def read_by_its_writer() -> Weights:
    weights = being_written()
    weights.commit(layout_of(weights))
    return weights


def committed() -> Weights:
    weights = read_by_its_writer()
    weights.stop_reading(1)
    return weights


def being_parked() -> Weights:
    weights = committed()
    weights.write(1, next_of(weights), replaces=True, moves=True, parks=True)
    weights.add(Slab(13, "table:1", 5))
    return weights


def parked() -> Weights:
    weights = being_parked()
    weights.commit(replace(layout_of(weights), contents=6, parked=True))
    return weights


def being_brought_back() -> Weights:
    weights = parked()
    weights.write(1, next_of(weights), replaces=True, moves=True)
    weights.add(Slab(14, "m4", 5))
    return weights


def being_replaced() -> Weights:
    weights = committed()
    weights.write(1, next_of(weights), replaces=True)
    weights.add(Slab(12, "m2", 5))
    return weights


MAKERS = {
    Phase.EMPTY: empty,
    Phase.RECOVERING: recovering,
    Phase.RW: being_written,
    Phase.RO: read_by_its_writer,
    Phase.COMMITTED: committed,
    Phase.PARKED: parked,
}
STEPS: dict[str, tuple[Callable[[Weights], object], set[Phase], Phase]] = {
    # What is done, from which phases it may be, and which phase follows.
    "write": (
        lambda w: w.write(2, next_of(w), replaces=False),
        {Phase.EMPTY, Phase.COMMITTED, Phase.RECOVERING, Phase.PARKED},
        Phase.RW,
    ),
    "replace": (lambda w: w.write(2, next_of(w), replaces=True), {Phase.COMMITTED, Phase.PARKED}, Phase.RW),
    "park": (lambda w: w.write(2, next_of(w), replaces=True, moves=True, parks=True), {Phase.COMMITTED}, Phase.RW),
    "unpark": (lambda w: w.write(2, next_of(w), replaces=True, moves=True), {Phase.PARKED}, Phase.RW),
    "add": (lambda w: w.add(Slab(12, "m2", 7)), {Phase.RW}, Phase.RW),
    "commit": (lambda w: w.commit(layout_of(w)), {Phase.RW}, Phase.RO),
    "abort": (lambda w: w.abort(), {Phase.RW}, Phase.EMPTY),
    "read": (lambda w: w.read(3), {Phase.COMMITTED, Phase.RO}, Phase.RO),
    "hand back": (
        lambda w: w.handed_back(b"document", 1, (Slab(11, "m1", 5),), ()),
        {Phase.RECOVERING},
        Phase.COMMITTED,
    ),
    "give up": (lambda w: w.give_up(), {Phase.RECOVERING, Phase.COMMITTED, Phase.PARKED}, Phase.EMPTY),
}


@pytest.mark.parametrize("make", [*MAKERS.values(), being_replaced])
@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_taken_from_its_phases_and_from_no_other_and_changes_nothing_there(
    make: Callable[[], Weights], step: str
) -> None:
    weights = make()
    phase = weights.phase
    act, may, follows = STEPS[step]
    if phase in may:
        act(weights)
        assert weights.phase is (Phase.COMMITTED if (make, step) == (being_replaced, "abort") else follows)
        return
    before = (weights.committed, weights.draft, weights.awaited, set(weights.readers))
    with pytest.raises((BrokenRule, AssertionError)):
        act(weights)
    assert (weights.phase, weights.committed, weights.draft, weights.awaited, weights.readers) == (phase, *before)


def parked_and_handed_back() -> Weights:
    weights = new(7)
    weights.await_(parked().record())
    weights.handed_back(b"document", 1, (Slab(21, "table:1", 5),), ("a",))
    return weights


def test_a_layout_that_is_parked_or_brought_back_stays_what_it_is_in_other_memory() -> None:
    weights = being_parked()
    assert weights.abort().slabs == [Slab(13, "table:1", 5)] and weights.phase is Phase.COMMITTED
    for weights in (parked(), parked_and_handed_back()):
        layout = weights.committed
        assert layout is not None and (layout.generation, layout.contents, layout.hash) == (7, 6, "hash")
        assert (layout.size, layout.on_device, weights.in_host_memory) == (5, 0, 5)
        with pytest.raises(BrokenRule):
            weights.read(3)
    weights = being_brought_back()
    assert (weights.in_host_memory, weights.abort().on_device, weights.phase) == (5, 5, Phase.PARKED)
    weights = being_brought_back()
    with pytest.raises(BrokenRule):
        weights.commit(replace(layout_of(weights), parked=True))
    weights.commit(replace(layout_of(weights), contents=6))
    assert (weights.phase, weights.readers, weights.in_host_memory) == (Phase.RO, {1}, 0)
    assert weights.record() == Region("weights", "shared", 8, "hash", (RecordedSlab(5, "m4"),), contents=6)


def test_what_is_moved_has_to_be_where_it_was() -> None:
    def why(weights: Weights, wish: Open) -> str:
        return weights.verdict(wish, lambda conns: "x", is_new=False).why_never

    assert not why(committed(), Open(mode="rw", parks=6)) and not why(parked(), Open(mode="rw", unparks=7))
    for weights, wish in (
        (committed(), Open(mode="rw", unparks=6)),
        (committed(), Open(mode="rw", parks=5)),
        (parked(), Open(mode="rw", parks=7)),
        (parked(), Open(mode="rw", unparks=6)),
        (empty(), Open(mode="rw", parks=6)),
    ):
        assert "any more" in why(weights, wish)


def test_the_table_says_what_the_steps_do_and_nothing_more() -> None:
    seen: dict[Phase, set[Phase]] = {phase: set() for phase in Phase}
    for (phase, make), (act, may, follows) in itertools.product(MAKERS.items(), STEPS.values()):
        if phase in may and follows is not phase:
            act(make())
            seen[phase].add(follows)
    weights = committed()
    weights.write(2, next_of(weights), replaces=True)
    weights.abort()
    seen[Phase.RW].add(weights.phase)
    weights = read_by_its_writer()
    weights.stop_reading(1)
    seen[Phase.RO].add(weights.phase)
    seen[Phase.RW].add(parked().phase)
    seen[Phase.RECOVERING].add(parked_and_handed_back().phase)
    assert seen == {phase: set(follow) for phase, follow in MAY_FOLLOW.items()}


def test_a_replaced_layout_is_returned_by_the_commit_and_a_cleared_one_by_the_writer() -> None:
    weights = committed()
    first = weights.committed
    assert first is not None
    assert weights.write(2, next_of(weights), replaces=True) is None and weights.committed is first
    weights.add(Slab(12, "m2", 7))
    old = weights.commit(layout_of(weights))
    assert old is not None and (old.generation, old.slabs) == (first.generation, first.slabs)
    weights.stop_reading(2)
    cleared = weights.write(3, next_of(weights), replaces=False)
    assert cleared is not None and cleared.slabs == (Slab(12, "m2", 7),) and not cleared.was_awaited
    cleared = (awaited := recovering()).write(1, next_of(awaited), replaces=False)
    assert cleared is not None and cleared.was_awaited and cleared.slabs == ()


def test_only_what_was_made_can_be_committed_and_only_what_is_awaited_handed_back() -> None:
    weights = being_written()
    with pytest.raises(BrokenRule):
        weights.commit(Layout(weights._generations.newest, "hash", b"", 1, (Slab(99, "another", 5),)))
    weights = recovering()
    with pytest.raises(BrokenRule):
        weights.handed_back(b"", 1, (Slab(11, "other memory", 5),), ())


def test_the_record_says_what_is_so() -> None:
    assert empty().record() == Region("weights", "shared")
    assert recovering().record() == RECORD
    weights = committed()
    assert weights.record() == Region("weights", "shared", 6, "hash", (RecordedSlab(5, "m1"),))
    assert (weights.there, recovering().there, empty().there) == ((6, "hash"), (6, RECORD.hash), (0, ""))


def test_sums_are_of_the_layout_that_is_committed_and_the_first_stand() -> None:
    weights = committed()
    assert not weights.sum_up(5, ("a",)) and not weights.sum_up(6, ("a", "b")) and weights.sum_up(6, ("a",))
    assert not weights.sum_up(6, ("b",)) and weights.sum_up(6, ("a",))
    assert weights.committed is not None and weights.committed.sums == ("a",)

"""The weights of one region: what is committed, what is being written, what is awaited, and who reads or writes.

Pure, and the only owner of all this. Everything that can happen to the weights is one method here, and `MAY_FOLLOW`
says which phase may follow which. A step that the table doesn't have is not taken: it raises BrokenRule, which the
machine turns into an alarm. Who may come in to write or to read, and why not, is decided here alone, too (`verdict`).

    EMPTY       there is no layout, and no process writes one
    RW          one process writes, and none reads. With `replace`, the old layout still stands
    COMMITTED   there is a layout, and no process reads it at the moment
    RO          there is a layout, and a process reads it
    PARKED      there is a layout, in host memory: it can be read once it is back in the device
    RECOVERING  this server is new: a layout is on disk, and is to be handed back by a process that has it

What this file may not do: speak to a process, or look at the time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, NamedTuple

from msgspec import UNSET

from gms.rules.messages import Open
from gms.rules.record import Region as RecordedRegion
from gms.rules.record import Slab as RecordedSlab


class Phase(Enum):
    EMPTY = "EMPTY"
    RECOVERING = "RECOVERING"
    RW = "RW"
    COMMITTED = "COMMITTED"
    RO = "RO"
    PARKED = "PARKED"


MAY_FOLLOW: dict[Phase, frozenset[Phase]] = {
    # A writer is let in.
    Phase.EMPTY: frozenset({Phase.RW}),
    # The layout is given up; a writer is let in, and it is given up for that; it is handed back.
    Phase.RECOVERING: frozenset({Phase.EMPTY, Phase.RW, Phase.COMMITTED, Phase.PARKED}),
    # The writer ends without a commit, where nothing stood or where the old layout still stands; it commits, and reads;
    # it has parked the layout.
    Phase.RW: frozenset({Phase.EMPTY, Phase.COMMITTED, Phase.RO, Phase.PARKED}),
    # A writer is let in; a reader is; it is given up on purpose.
    Phase.COMMITTED: frozenset({Phase.RW, Phase.RO, Phase.EMPTY}),
    # The last reader is gone.
    Phase.RO: frozenset({Phase.COMMITTED}),
    # A writer is let in, as a rule to bring it back; it is given up on purpose.
    Phase.PARKED: frozenset({Phase.RW, Phase.EMPTY}),
}


class BrokenRule(Exception):
    """A step that no rule allows. It was not taken; there is a mistake in this program."""


_A_SECOND = 1 << 20


def numbers_begin(wall_s: float, incarnation: str) -> int:
    """Where a server's numbers of memory begin: at a place of its own in this second."""
    return int(wall_s) * _A_SECOND + int(incarnation[:5], 16)


def begin_above(given: int, begin: int) -> int:
    """What a file says was given may be an older file's, so its own second isn't gone on with: another server may have,
    and the clock may be back where it was then. Two have the same place in a second by one chance in 2^20.
    """
    return max(begin // _A_SECOND, given // _A_SECOND + 1) * _A_SECOND + begin % _A_SECOND


class Generations:
    """Numbers of memory: a layout's or a pool's, one device's all together."""

    def __init__(self) -> None:
        self.newest = 0
        """They only grow, and no two writers or owners get the same, not even after a restart."""

    def next(self) -> int:
        """It is given once only, even if its process is then not let in."""
        self.newest += 1
        return self.newest


class Slab(NamedTuple):
    """A slab of which this server has the descriptor."""

    handle: int
    identity: str
    size: int = 0
    """0 while that is only said by the process that brings it."""


@dataclass
class Layout:
    """A committed layout."""

    generation: int
    hash: str
    document: bytes
    tensors: int
    slabs: tuple[Slab, ...]
    sums: tuple[str, ...] = ()
    """The sums of the slabs' contents, once they are known."""
    contents: int = 0
    """The generation whose contents these are, if they were moved: parked, or brought back. 0: its own."""
    parked: bool = False
    """Its contents lie in host memory, in one piece that stands in place of the slabs."""

    @property
    def size(self) -> int:
        return sum(slab.size for slab in self.slabs)

    @property
    def on_device(self) -> int:
        """Bytes that it takes of the device."""
        return 0 if self.parked else self.size


@dataclass
class Draft:
    """What a writer has made so far."""

    writer: int
    """Its connection."""
    generation: int
    moves: bool = False
    """It parks the layout, or brings it back: the contents stay what they are."""
    parks: bool = False
    slabs: list[Slab] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(slab.size for slab in self.slabs)

    @property
    def on_device(self) -> int:
        return 0 if self.parks else self.size


class Cleared(NamedTuple):
    """A layout that is gone."""

    generation: int
    slabs: tuple[Slab, ...] = ()
    """Which are needed no more; none if it was only awaited."""
    was_awaited: bool = False


class EntryVerdict(NamedTuple):
    """Whether a process may come in, and how."""

    mode: Literal["rw", "ro"]
    why_not: str
    why_never: str = ""
    """What it asks for can't come any more."""

    @property
    def may(self) -> bool:
        return not self.why_not


class Weights:
    def __init__(self, key: str, generations: Generations) -> None:
        self.key = key
        self.phase = Phase.EMPTY
        self._generations = generations
        self.committed: Layout | None = None
        self.draft: Draft | None = None
        self.awaited: RecordedRegion | None = None
        """What is to be handed back."""
        self.readers: set[int] = set()
        """Connections."""

    # -- what they are ---------------------------------------------------------------------------------------------

    @property
    def writer(self) -> int | None:
        """Its connection."""
        return self.draft.writer if self.draft is not None else None

    @property
    def there(self) -> tuple[int, str]:
        """Generation and hash of the layout that is committed, or else awaited; 0 and nothing if there is none."""
        layout = self.committed or self.awaited
        return (layout.generation, layout.hash) if layout is not None else (0, "")

    @property
    def parked(self) -> bool:
        """The layout that is there, or awaited, lies in host memory."""
        return self.committed.parked if self.committed is not None else bool(self.awaited and self.awaited.parked)

    @property
    def in_host_memory(self) -> int:
        """Bytes of it that are taken, or are to be handed back."""
        slabs = self.awaited.slabs if self.awaited is not None else self.standing
        draft = self.draft.size if self.draft is not None and self.draft.parks else 0
        return draft + (sum(slab.size for slab in slabs) if self.parked else 0)

    @property
    def standing(self) -> tuple[Slab, ...]:
        """Slabs of the committed layout."""
        return self.committed.slabs if self.committed is not None else ()

    def record(self) -> RecordedRegion:
        """What the file has to say now."""
        layout = self.committed
        if layout is not None:
            return self.record_of(layout)
        return self.awaited if self.awaited is not None else RecordedRegion(self.key, "shared")

    def record_of(self, layout: Layout) -> RecordedRegion:
        """What the file has to say once this one is committed."""
        slabs = tuple(RecordedSlab(slab.size, slab.identity) for slab in layout.slabs)
        moved = layout.contents or UNSET
        return RecordedRegion(self.key, "shared", layout.generation, layout.hash, slabs, contents=moved)

    # -- who may come in (rules 1 and 2 of `machine.py`) -----------------------------------------------------------

    def wants_to_read(self, request: Open, *, is_new: bool) -> bool:
        """`rw_or_ro` reads if there is a layout, or may soon be one again. `is_new`: processes of which this server
        doesn't know yet may be on their way back.
        """
        there_is_one = self.committed is not None or (self.phase is Phase.RECOVERING and is_new)
        return request.mode == "ro" or (request.mode == "rw_or_ro" and there_is_one)

    def verdict(self, request: Open, named: Callable[[Iterable[int]], str], *, is_new: bool) -> EntryVerdict:
        """`named`: processes in words, by their connections."""
        reads = self.wants_to_read(request, is_new=is_new)
        if self.draft is not None:
            why_not = f"{named([self.draft.writer])} is writing"
        elif reads:
            why_not = self._why_no_reader()
        else:  # no reader is on its way back to what is parked
            why_not = self._why_no_writer(named, is_new=is_new and not request.unparks)
        return EntryVerdict("ro" if reads else "rw", why_not, self._why_not_moved(request))

    def _why_no_reader(self) -> str:
        if self.awaited is not None:
            return f"layout {self.awaited.generation} is to be handed back by a process that has kept it"
        if self.committed is None:
            return "nothing is committed"
        return f"{self.key} is parked in host memory: gmsctl unpark {self.key} brings it back" if self.parked else ""

    def _why_not_moved(self, request: Open) -> str:
        """A layout that is to be parked, or brought back, isn't where it was."""
        moved, there = request.moves, self.committed
        if not moved or (there is not None and there.generation == moved and there.parked is bool(request.unparks)):
            return ""
        return f"layout {moved} is not {'parked' if request.unparks else 'in the device'} any more"

    def _why_no_writer(self, named: Callable[[Iterable[int]], str], *, is_new: bool) -> str:
        if self.phase is Phase.RO:
            return f"{named(sorted(self.readers))} {'reads' if len(self.readers) == 1 else 'read'}"
        if not is_new:
            return ""
        if self.awaited is not None:
            return f"this server is new, and layout {self.awaited.generation} may still be handed back"
        return "this server is new, and others who read may still be on their way back"

    # -- the start -------------------------------------------------------------------------------------------------

    def await_(self, awaited: RecordedRegion | None) -> None:
        self.awaited = awaited
        self.phase = Phase.EMPTY if awaited is None else Phase.RECOVERING

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(
        self, conn: int, generation: int, *, replaces: bool, moves: bool = False, parks: bool = False
    ) -> Cleared | None:
        """A writer is let in. Returns the layout that is gone because of it."""
        if generation > self._generations.newest:
            raise BrokenRule(
                f"generation {generation} is written, and {self._generations.newest} is the newest that was given"
            )
        if replaces and self.committed is None:
            raise BrokenRule(f"generation {generation} replaces a layout, and none is committed")
        if moves and not (replaces and parks is not self.parked):
            raise BrokenRule(f"generation {generation} moves a layout to where it is already, or doesn't replace it")
        self._becomes(Phase.RW, before=(Phase.EMPTY, Phase.COMMITTED, Phase.RECOVERING, Phase.PARKED))
        self.draft = Draft(conn, generation, moves, parks)
        return None if replaces else self._clear()

    def add(self, slab: Slab) -> int:
        """A slab was made for the writer. Returns its number."""
        draft = self._must_write()
        draft.slabs.append(slab)
        return len(draft.slabs) - 1

    def commit(self, layout: Layout) -> Cleared | None:
        """The file says so already. Its writer reads it from this moment on, unless that has parked it. Returns the
        layout that it replaces.
        """
        draft = self._must_write()
        if (layout.generation, layout.slabs) != (draft.generation, tuple(draft.slabs)):
            raise BrokenRule(f"layout {layout.generation} is committed, and {draft.generation} was written")
        if layout.parked is not draft.parks:
            raise BrokenRule(f"layout {layout.generation} isn't where it was to be written")
        self._becomes(Phase.PARKED if draft.parks else Phase.RO, before=(Phase.RW,))
        old = self._clear()
        self.draft, self.committed = None, layout
        if not layout.parked:
            self.readers.add(draft.writer)
        return old

    def abort(self) -> Draft:
        """The writer ends without a commit. Returns what it had made: it is needed no more."""
        draft = self._must_write()
        self._becomes(self._at_rest if self.committed is not None else Phase.EMPTY, before=(Phase.RW,))
        self.draft = None
        return draft

    @property
    def _at_rest(self) -> Phase:
        """A layout that no process reads."""
        return Phase.PARKED if self.parked else Phase.COMMITTED

    def _must_write(self) -> Draft:
        if self.draft is None:
            raise BrokenRule("no process writes")
        return self.draft

    def _clear(self) -> Cleared | None:
        """The file says already that this layout is gone."""
        layout, awaited = self.committed, self.awaited
        self.committed = self.awaited = None
        if layout is not None:
            return Cleared(layout.generation, layout.slabs)
        return Cleared(awaited.generation, was_awaited=True) if awaited is not None else None

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, conn: int) -> Layout:
        """A reader is let in."""
        layout = self.committed
        if layout is None:
            raise BrokenRule("a process reads, and nothing is committed")
        if self.phase is not Phase.RO:
            self._becomes(Phase.RO, before=(Phase.COMMITTED,))
        self.readers.add(conn)
        return layout

    def stop_reading(self, conn: int) -> None:
        """Nothing happens if it doesn't read."""
        if conn in self.readers:
            self.readers.remove(conn)
            if not self.readers:
                self._becomes(Phase.COMMITTED, before=(Phase.RO,))

    def sum_up(self, generation: int, sums: tuple[str, ...]) -> bool:
        """The sums of the slabs' contents are known. False: they are of another layout; or the first that were said
        stand, because contents never change.
        """
        layout = self.committed
        if layout is None or layout.generation != generation or layout.parked or len(layout.slabs) != len(sums):
            return False
        if layout.sums:
            return layout.sums == sums
        layout.sums = sums
        return True

    # -- after a restart -------------------------------------------------------------------------------------------

    def handed_back(self, document: bytes, tensors: int, slabs: tuple[Slab, ...], sums: tuple[str, ...]) -> Layout:
        """What was awaited is here, and stands again."""
        awaited = self.awaited
        if awaited is None:
            raise BrokenRule("a layout is handed back, and none is awaited")
        if [slab.identity for slab in slabs] != [slab.identity for slab in awaited.slabs]:
            raise BrokenRule(f"other memory is handed back than that of layout {awaited.generation}")
        self._becomes(self._at_rest, before=(Phase.RECOVERING,))
        self.awaited, moved = None, awaited.contents or 0
        self.committed = Layout(
            awaited.generation, awaited.hash, document, tensors, slabs, sums, moved, parked=awaited.parked
        )
        return self.committed

    def give_up(self) -> Cleared:
        """What was awaited will never come, or what is there isn't wanted any more; the file says so already."""
        self._becomes(Phase.EMPTY, before=(Phase.RECOVERING, Phase.COMMITTED, Phase.PARKED))
        cleared = self._clear()
        if cleared is None:
            raise BrokenRule("a layout is given up, and there is none")
        return cleared

    def _becomes(self, phase: Phase, before: tuple[Phase, ...]) -> None:
        """`before`: the phases in which this step may be taken."""
        if self.phase not in before or phase not in MAY_FOLLOW[self.phase]:
            raise BrokenRule(f"{phase.value} can't follow {self.phase.value} here")
        self.phase = phase

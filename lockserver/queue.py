"""Who is next (rules 3 and 4 of `machine.py`).

Pure. A waiter is next if it is there, ready, has looked at its engine since the last holder was lost, and the memory
that it needs is free. Two lines of defence against a waiter that only looks alive: `Prepare` asks it in parallel with
the proof of the old holder's end, and one who is silent is passed over and keeps its place.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from lockserver.context import Context
from lockserver.events import Config, MemoryRead, ReadMemory
from lockserver.messages import Prepare
from lockserver.tree import Stage, Tree

ASK_AGAIN_S = 1.0
READ_EVERY_S = 0.02


@dataclass(slots=True)
class Waiter:
    tree: Tree
    needs: dict[str, int]
    since: float
    ready: bool = True
    looked: int = 0
    """The last round in which it said that its engine could wake."""
    asked: int = 0
    asked_at: float = 0.0
    failed: int = 0
    vetted: bool = True
    """What it needs is no more than the devices have."""


class Queue:
    def __init__(self, config: Config, context: Context) -> None:
        self.config = config
        self.context = context
        self.waiters: dict[str, Waiter] = {}
        self.round = 1
        """Grows when a holder is lost: what a waiter said of its engine before doesn't count."""
        self.preferred = ""
        """A switchover's successor goes first."""
        self.reading: MemoryRead | None = None
        """Of this turn; older ones prove nothing."""
        self._asked_to_read = False
        self._read_at = -math.inf
        self._unmet: tuple[str, float] | None = None
        """Who has been waiting for memory with everything else proven, and since when."""

    # -- coming and going ------------------------------------------------------------------------------------------

    def enter(self, tree: Tree, needs: dict[str, int], *, looked: bool) -> None:
        if tree.name not in self.waiters:
            self.waiters[tree.name] = Waiter(tree, needs, self.context.wall)
            self.context.note("waiting", engine=tree.engine_id)
        self.update(tree, ready=True, looked=looked, needs=needs)

    def update(self, tree: Tree, *, ready: bool, looked: bool, needs: dict[str, int] | None) -> None:
        waiter = self.waiters.get(tree.name)
        if waiter is None:
            return
        waiter.ready = ready
        if looked:
            waiter.looked = self.round
        if needs is not None:
            waiter.needs = needs
            waiter.vetted = not needs or not self.config.reads_memory
            if not waiter.vetted:
                self._read(at_once=True)
        self.context.changed = True

    def leave(self, tree: Tree) -> None:
        self.waiters.pop(tree.name, None)

    def put_back(self, waiter: Waiter) -> None:
        """At the head, where it was."""
        self.waiters = {waiter.tree.name: waiter, **self.waiters}

    def first(self, count: int) -> Iterator[Waiter]:
        return islice(self.waiters.values(), count)

    @property
    def wanted(self) -> bool:
        return any(waiter.ready for waiter in self.waiters.values())

    # -- a look at one's engine ------------------------------------------------------------------------------------

    def new_round(self) -> None:
        self.round += 1
        self._unmet = None

    def prepared(self, waiter: Waiter) -> bool | None:
        """Has it looked at its engine in this round? None: it is being asked, and has time left."""
        if not waiter.ready or waiter.tree.stage is not Stage.PRESENT or waiter.tree.conn is None:
            return False
        if not waiter.vetted:
            return None
        if waiter.looked == self.round:
            return True
        if waiter.failed == self.round:
            if not self.context.reached(waiter.asked_at + ASK_AGAIN_S):
                return False
            waiter.failed = waiter.asked = 0
        if waiter.asked != self.round:
            waiter.asked, waiter.asked_at = self.round, self.context.now
            self.context.send(waiter.tree.conn, Prepare(round=self.round))
        return False if self.context.reached(waiter.asked_at + self.config.prepare_timeout_s) else None

    def answered(self, tree: Tree, in_round: int, *, ok: bool, why: str) -> None:
        waiter = self.waiters.get(tree.name)
        if waiter is None or in_round != self.round:
            return
        if ok:
            waiter.looked = in_round
        else:
            waiter.failed, waiter.asked_at = in_round, self.context.now
            self.context.note("not_prepared", engine=tree.engine_id, why=why)

    def head(self) -> Waiter | None:
        """The first who is prepared: waits for one who is being asked, passes over one who is silent."""
        for waiter in self._line():
            prepared = self.prepared(waiter)
            if prepared:
                return waiter
            if prepared is None:
                return None
        return None

    @property
    def promising(self) -> bool:
        """Somebody who waits is prepared, or hasn't been asked, or has time left to answer."""
        return any(
            waiter.ready
            and waiter.tree.stage is Stage.PRESENT
            and (
                waiter.looked == self.round
                or (
                    waiter.failed != self.round
                    and (
                        waiter.asked != self.round or self.context.now < waiter.asked_at + self.config.prepare_timeout_s
                    )
                )
            )
            for waiter in self.waiters.values()
        )

    def _line(self) -> Iterator[Waiter]:
        preferred = self.waiters.get(self.preferred)
        if preferred is not None:
            yield preferred
        for waiter in self.waiters.values():
            if waiter is not preferred:
                yield waiter

    # -- memory ----------------------------------------------------------------------------------------------------

    def next(self) -> Waiter | None:
        """Who is to be granted, now that nobody holds."""
        head = self.head()
        if head is None or not self.config.reads_memory or not head.needs:
            return head
        if self.reading is None:
            self._read()
            return None
        if self.fits(head):
            return head
        if self._unmet is None or self._unmet[0] != head.tree.name:
            self._unmet = (head.tree.name, self.context.now)
            self.context.note("memory_awaited", engine=head.tree.engine_id)
            self.context.changed = True
        self._read()
        if not self.context.reached(self._unmet[1] + self.config.memory_bound_s):
            return None
        others = [(waiter, self.prepared(waiter)) for waiter in self._line()]
        for waiter, prepared in others:
            if prepared and self.fits(waiter):
                return waiter
        if any(prepared is None for _, prepared in others):
            return None
        self.context.shout(
            f"{head.tree.engine_id} is granted though the memory that it needs "
            f"was not free after {self.config.memory_bound_s:g} s"
        )
        return head

    def memory_proves(self) -> bool:
        """The one who would be next has said what it needs, and that much is free."""
        head = self.head()
        if head is None or not self.config.reads_memory or not any(head.needs.values()):
            return False
        if self.reading is not None and self.fits(head):
            return True
        self._read()
        return False

    def fits(self, waiter: Waiter) -> bool:
        free = self.reading.devices if self.reading is not None else {}
        return all(free.get(device, (0, 0))[0] >= need for device, need in waiter.needs.items())

    def unmet(self) -> str:
        """For people: who waits for which memory."""
        waiter = self.waiters.get(self._unmet[0]) if self._unmet is not None else None
        if waiter is None:
            return ""
        wants = ", ".join(f"{need} bytes of {device}" for device, need in sorted(waiter.needs.items()))
        return f"memory: {waiter.tree.engine_id} needs {wants}, and less is free"

    def granted(self, waiter: Waiter) -> bool:
        """It leaves the queue. True if its memory was seen to be free."""
        verified = self.config.reads_memory and any(waiter.needs.values()) and self.fits(waiter)
        self.preferred, self._unmet = "", None
        self.leave(waiter.tree)
        return verified

    def _read(self, *, at_once: bool = False) -> None:
        if not self._asked_to_read and (at_once or self.context.reached(self._read_at + READ_EVERY_S)):
            self._asked_to_read, self._read_at = True, self.context.now
            self.context.out.append(ReadMemory())

    def read(self, reading: MemoryRead) -> list[tuple[Waiter, str]]:
        """A reading has come. Returns the waiters that can never be granted, and why."""
        self._asked_to_read = False
        self.reading = reading
        hopeless = []
        if reading.problem:
            self.context.alarm("reader", f"memory can't be read: {reading.problem}")
        else:
            self.context.calm("reader")
        for waiter in self.waiters.values():
            if not waiter.vetted:
                waiter.vetted = True
                if not reading.problem and (why := _never(waiter.needs, reading)):
                    hopeless.append((waiter, why))
        return hopeless


def _never(needs: dict[str, int], reading: MemoryRead) -> str:
    for device, need in sorted(needs.items()):
        if device not in reading.devices:
            return f"no device {device!r} is known here; there are: {', '.join(sorted(reading.devices)) or 'none'}"
        in_all = reading.devices[device][1]
        if need > in_all:
            return f"{need} bytes of {device} are needed, and it has {in_all} in all"
    return ""

"""Who is next (rules 3 and 4 of `machine.py`).

Pure. A waiter is next if it is there, ready, has looked at its engine since the last holder was lost, and the memory
that it needs is free. There are two lines of defence against a waiter that only looks alive: `Prepare` asks it in
parallel with the proof of the old holder's end, and one who is silent is passed over and keeps its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from lockserver.context import Context
from lockserver.events import Config
from lockserver.free_memory import FreeMemory
from lockserver.incarnation import Incarnation, Stage
from lockserver.messages import Prepare

ASK_AGAIN_S = 1.0


@dataclass(slots=True)
class Waiter:
    incarnation: Incarnation
    needs: dict[str, int]
    since: float
    ready: bool = True
    looked_in: int = 0
    """The last round in which it said that its engine could wake."""
    asked_in: int = 0
    """The last round in which it was asked."""
    asked_or_failed_at: float = 0.0
    asked_on: int = 0
    """Over this connection: what was asked over an earlier one may not have arrived."""
    failed_in: int = 0
    """The last round in which it said that its engine couldn't."""
    why_failed: str = ""
    vetted: bool = True
    """What it needs is no more than the devices have."""

    @property
    def is_there(self) -> bool:
        return self.ready and self.incarnation.stage is Stage.PRESENT


class Queue:
    def __init__(self, config: Config, context: Context, memory: FreeMemory) -> None:
        self.config = config
        self.context = context
        self.memory = memory
        self.waiters: dict[str, Waiter] = {}
        self.round = 1
        """Grows when a holder is lost: what a waiter said of its engine before doesn't count."""
        self.preferred = ""
        """A switchover's successor goes first."""
        self._unmet: tuple[str, float] | None = None
        """Who has been waiting for memory with everything else proven, and since when."""

    # -- coming and going ------------------------------------------------------------------------------------------

    def enter(self, incarnation: Incarnation, needs: dict[str, int], *, looked: bool) -> None:
        if incarnation.name not in self.waiters:
            self.waiters[incarnation.name] = Waiter(incarnation, needs, self.context.wall)
            self.context.note("waiting", engine=incarnation.engine_id)
        self.update(incarnation, ready=True, looked=looked, needs=needs)

    def update(self, incarnation: Incarnation, *, ready: bool, looked: bool, needs: dict[str, int] | None) -> None:
        waiter = self.waiters.get(incarnation.name)
        if waiter is None:
            return
        waiter.ready = ready
        if looked:
            waiter.looked_in = self.round
        if needs is not None:
            waiter.needs = needs
            waiter.vetted = not needs or not self.memory.is_read
            if not waiter.vetted:
                self.memory.ask(at_once=True)
        self.context.changed = True

    def leave(self, incarnation: Incarnation) -> None:
        self.waiters.pop(incarnation.name, None)
        if self._unmet is not None and self._unmet[0] == incarnation.name:
            self._nobody_is_unmet()

    def put_back(self, waiter: Waiter) -> None:
        """At the head, where it was."""
        self.waiters = {waiter.incarnation.name: waiter, **self.waiters}

    def first(self, count: int) -> Iterator[Waiter]:
        return islice(self.waiters.values(), count)

    @property
    def wanted(self) -> bool:
        return any(waiter.ready for waiter in self.waiters.values())

    # -- a look at one's engine ------------------------------------------------------------------------------------

    def new_round(self) -> None:
        self.round += 1
        self._nobody_is_unmet()

    def prepared(self, waiter: Waiter) -> bool | None:
        """Has it looked at its engine in this round? None: it is being asked, and has time left."""
        conn = waiter.incarnation.conn
        if not waiter.is_there or conn is None:
            return False
        if not waiter.vetted and not self.memory.late():
            return None
        if waiter.looked_in == self.round:
            return True
        if waiter.failed_in == self.round:
            if not self.context.reached(waiter.asked_or_failed_at + ASK_AGAIN_S):
                return False
            waiter.failed_in = waiter.asked_in = 0
        if waiter.asked_in != self.round:
            waiter.asked_in, waiter.asked_or_failed_at, waiter.asked_on = self.round, self.context.now, 0
        if waiter.asked_on != conn:
            waiter.asked_on = conn
            self.context.send(conn, Prepare(round=self.round))
        return False if self.context.reached(waiter.asked_or_failed_at + self.config.prepare_timeout_s) else None

    def answered(self, incarnation: Incarnation, in_round: int, *, ok: bool, why: str) -> None:
        waiter = self.waiters.get(incarnation.name)
        if waiter is None or in_round != self.round:
            return
        if ok:
            waiter.looked_in = in_round
        else:
            waiter.failed_in, waiter.asked_or_failed_at = in_round, self.context.now
            waiter.why_failed = why
            self.context.note("not_prepared", engine=incarnation.engine_id, why=why)

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
            waiter.is_there
            and (
                waiter.looked_in == self.round
                or (
                    waiter.failed_in != self.round
                    and (
                        waiter.asked_in != self.round
                        or self.context.now < waiter.asked_or_failed_at + self.config.prepare_timeout_s
                    )
                )
            )
            for waiter in self.waiters.values()
        )

    @property
    def first_unprepared(self) -> Waiter | None:
        """The first waiter that is ready and hasn't said yet that its engine could wake."""
        return next((w for w in self.waiters.values() if w.ready and w.looked_in != self.round), None)

    @property
    def unprepared(self) -> str:
        """For people."""
        waiter = self.first_unprepared
        if waiter is None:
            return ""
        if waiter.failed_in == self.round:
            return f"{waiter.incarnation.engine_id}: its engine isn't well: {waiter.why_failed}"
        return f"{waiter.incarnation.engine_id}: asked whether its engine can wake"

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
        head, memory = self.head(), self.memory
        if head is None or not memory.is_read or not head.needs:
            return head
        if memory.fits(head.needs):
            return head
        memory.ask()
        if memory.reading is None and not memory.late():
            return None
        if self._unmet is None or self._unmet[0] != head.incarnation.name:
            self._unmet = (head.incarnation.name, self.context.now)
            self.context.note("memory_awaited", engine=head.incarnation.engine_id)
            self.context.changed = True
        since = self._unmet[1]
        if not self.context.reached(since + min(self.config.memory_patience_s, self.config.memory_bound_s)):
            return None
        return self._instead_of(head, since)

    def _instead_of(self, head: Waiter, since: float) -> Waiter | None:
        """Its memory has not become free for a while."""
        others = [(waiter, self.prepared(waiter)) for waiter in self._line()]
        for waiter, prepared in others:
            if prepared and self.memory.fits(waiter.needs):
                return waiter
        if any(prepared is None for _, prepared in others):
            return None
        if not self.context.reached(since + self.config.memory_bound_s):
            what = "is not free, and has not been"
            if self.memory.reading is None or self.memory.reading.problem:
                what = "can't be read (see that alarm), so nobody knows whether it is free, and it has not been read"
            self.context.alarm(
                "memory",
                f"nobody is granted: the memory that {head.incarnation.engine_id} needs {what} "
                f"for {self.config.memory_patience_s:g} s",
            )
            return None
        self.context.shout(
            f"{head.incarnation.engine_id} is granted though the memory that it needs "
            f"was not free after {self.config.memory_bound_s:g} s (--memory-bound-s)"
        )
        return head

    def memory_proves(self) -> bool:
        """The one who would be next has said what it needs, and that much is free."""
        head = self.head()
        if head is None or not self.memory.is_read or not any(head.needs.values()):
            return False
        if self.memory.fits(head.needs):
            return True
        self.memory.ask()
        return False

    def _nobody_is_unmet(self) -> None:
        self._unmet = None
        self.context.calm("memory")

    def unmet(self) -> str:
        """For people: who waits for which memory."""
        waiter = self.waiters.get(self._unmet[0]) if self._unmet is not None else None
        if waiter is None:
            return ""
        wants = ", ".join(f"{need} bytes of {device}" for device, need in sorted(waiter.needs.items()))
        return f"memory: {waiter.incarnation.engine_id} needs {wants}, and less is free"

    def granted(self, waiter: Waiter) -> bool:
        """It leaves the queue. True if its memory was seen to be free."""
        needs = waiter.needs
        verified = any(needs.values()) and self.memory.fits(needs)
        self.preferred = ""
        self._nobody_is_unmet()
        self.leave(waiter.incarnation)
        return verified

    def read(self) -> list[tuple[Waiter, str]]:
        """A reading has come. Returns the waiters that can never be granted, and why."""
        hopeless = []
        for waiter in self.waiters.values():
            if not waiter.vetted:
                waiter.vetted = True
                if why := self.memory.never_fits(waiter.needs):
                    hopeless.append((waiter, why))
        return hopeless

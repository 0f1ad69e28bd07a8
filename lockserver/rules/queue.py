"""Who is next (rules 3 and 4 of `machine.py`).

Pure. A waiter is next if it is there, ready, has looked at its engine since the last holder was lost, and the memory
that it needs is free. There are two lines of defence against a waiter that only looks alive: `Prepare` asks it in
parallel with the proof of the old holder's end, and a silent one is passed over and keeps its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from evidence.rules.free_memory import FreeMemory
from evidence.rules.incarnation import Incarnation, Stage
from lockserver.rules.context import Context
from lockserver.rules.events import Config
from lockserver.rules.messages import Prepare
from lockserver.rules.plan import Plan

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
        """Which waiter waits for memory with everything else proven, and since when."""

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
                self.memory.ask()
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

    def prepared(self, waiter: Waiter, now: float) -> bool | None:
        """Has it looked at its engine in this round? None: it is being asked, or is about to be, and has time left."""
        if not waiter.is_there or waiter.incarnation.conn is None:
            return False
        if not waiter.vetted and not self.memory.late(now):
            return None
        if waiter.looked_in == self.round:
            return True
        if waiter.failed_in == self.round and now < waiter.asked_or_failed_at + ASK_AGAIN_S:
            return False
        began = waiter.asked_or_failed_at if self._is_asked(waiter) else now
        return False if now >= began + self.config.prepare_timeout_s else None

    def _is_asked(self, waiter: Waiter) -> bool:
        return waiter.asked_in == self.round and waiter.failed_in != self.round

    def plan_look(self, plan: Plan, waiter: Waiter) -> None:
        """It is asked, if it has to be."""
        prepared = self.prepared(waiter, plan.now)
        if prepared or not waiter.is_there or waiter.incarnation.conn is None:
            return
        if not waiter.vetted and not self.memory.late(plan.now):
            plan.wait_until(self.memory.late_at)
        elif waiter.failed_in == self.round and plan.wait_until(waiter.asked_or_failed_at + ASK_AGAIN_S):
            return
        elif not self._is_asked(waiter) or waiter.asked_on != waiter.incarnation.conn:
            plan.do(self.ask, waiter)
        else:
            plan.wait_until(waiter.asked_or_failed_at + self.config.prepare_timeout_s)

    def ask(self, waiter: Waiter) -> None:
        if not self._is_asked(waiter):
            waiter.failed_in = 0
            waiter.asked_in, waiter.asked_or_failed_at = self.round, self.context.now
        conn = waiter.incarnation.conn
        if conn is not None:
            waiter.asked_on = conn
            self.context.send(conn, Prepare(round=self.round))

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

    def head(self, now: float) -> Waiter | None:
        """The first that is prepared; none while one before it is being asked. One that is silent is passed over."""
        for waiter in self._line():
            prepared = self.prepared(waiter, now)
            if prepared is not False:
                return waiter if prepared else None
        return None

    def plan_head(self, plan: Plan) -> None:
        """The first one is asked; the next ones, too, if it is passed over."""
        for waiter in self._line():
            self.plan_look(plan, waiter)
            if self.prepared(waiter, plan.now) is not False:
                return

    def promising(self, now: float) -> bool:
        """A waiter is prepared, or hasn't been asked, or has time left to answer."""
        return any(waiter.is_there and self._may_say_yes(waiter, now) for waiter in self.waiters.values())

    def _may_say_yes(self, waiter: Waiter, now: float) -> bool:
        if waiter.looked_in == self.round:
            return True
        in_time = waiter.asked_in != self.round or now < waiter.asked_or_failed_at + self.config.prepare_timeout_s
        return waiter.failed_in != self.round and in_time

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

    def plan_next(self, plan: Plan) -> tuple[Waiter | None, str]:
        """Which waiter is to be granted, now that the lock is free; and what is to be said with it."""
        head, memory = self.head(plan.now), self.memory
        if head is None or not memory.is_read or not head.needs or memory.fits(head.needs):
            return head, ""
        memory.plan(plan)
        if memory.reading is None and not memory.late(plan.now):
            return None, ""
        if self._unmet is None or self._unmet[0] != head.incarnation.name:
            plan.do(self.await_memory, head)
            return None, ""
        since = self._unmet[1]
        if plan.wait_until(since + min(self.config.memory_patience_s, self.config.memory_bound_s)):
            return None, ""
        return self._plan_instead_of(plan, head, since)

    def _plan_instead_of(self, plan: Plan, head: Waiter, since: float) -> tuple[Waiter | None, str]:
        """Its memory has not become free for a while."""
        for waiter in self._line():
            self.plan_look(plan, waiter)
        others = [(waiter, self.prepared(waiter, plan.now)) for waiter in self._line()]
        for waiter, prepared in others:
            if prepared and self.memory.fits(waiter.needs):
                return waiter, ""
        if any(prepared is None for _, prepared in others):
            return None, ""
        if plan.wait_until(since + self.config.memory_bound_s):
            what = "is not free, and has not been"
            if self.memory.reading is None or self.memory.reading.problem:
                what = "can't be read (see that alarm), so it isn't known whether it is free, and it has not been read"
            text = f"no engine is granted: the memory that {head.incarnation.engine_id} needs {what}"
            plan.say(self.context.alarm, "memory", f"{text} for {self.config.memory_patience_s:g} s")
            return None, ""
        return head, (
            f"{head.incarnation.engine_id} is granted though the memory that it needs "
            f"was not free after {self.config.memory_bound_s:g} s (--memory-bound-s)"
        )

    def await_memory(self, waiter: Waiter) -> None:
        self._unmet = (waiter.incarnation.name, self.context.now)
        self.context.note("memory_awaited", engine=waiter.incarnation.engine_id)
        self.context.changed = True

    def memory_proves(self, now: float) -> bool:
        """The one that would be next has said what it needs, and that much is free."""
        head = self.head(now)
        return head is not None and self._asks_memory(head) and self.memory.fits(head.needs)

    def plan_proof(self, plan: Plan) -> None:
        """It is to be known what `memory_proves`."""
        head = self.head(plan.now)
        if head is not None and self._asks_memory(head) and not self.memory.fits(head.needs):
            self.memory.plan(plan)

    def _asks_memory(self, waiter: Waiter) -> bool:
        return self.memory.is_read and any(waiter.needs.values())

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

    def take(self, waiter: Waiter) -> bool:
        """It leaves the queue. True if its memory was seen to be free."""
        needs = waiter.needs
        verified = any(needs.values()) and self.memory.fits(needs)
        self.preferred = ""
        self._nobody_is_unmet()
        self.leave(waiter.incarnation)
        return verified

    def vet(self) -> list[tuple[Waiter, str]]:
        """A reading has come. Returns the waiters that can never be granted, and why."""
        hopeless = []
        for waiter in self.waiters.values():
            if not waiter.vetted:
                waiter.vetted = True
                if why := self.memory.never_fits(waiter.needs):
                    hopeless.append((waiter, why))
        return hopeless

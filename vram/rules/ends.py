"""Trees whose end has to be proven, and what becomes of their leases (rules V4 and V7 of `machine.py`).

Pure. What proves an end is the business of the package `evidence`; here is which of its proofs will do for memory.
"""

from evidence.rules.callers import Callers
from evidence.rules.incarnation import Incarnation, Life, Stage
from evidence.rules.proof import Verdict, all_ended, gone, what_is_missing
from sidecar.machine.plan import Plan
from vram.rules.books import Books, Part
from vram.rules.returns import Returns, pace


class Ends(Part):
    def __init__(self, books: Books, callers: Callers, returns: Returns) -> None:
        super().__init__(books)
        self.callers = callers
        self.returns = returns
        self._lost_at: dict[str, float] = {}
        """Since when the end, or the return, of a tree is awaited."""

    def _ending(self) -> list[str]:
        """Trees that have something, and aren't here."""
        return sorted(self.evidence.incarnations.bound.keys() & self.evidence.incarnations.absent.keys())

    def _is_gone(self, who: Incarnation, now: float) -> Verdict:
        mine = self.leases.of_tree(who.name)
        return gone(
            who,
            found=not who.came or who.unaccounted,
            over=now >= self._lost_at.get(who.name, now) + self.config.window_s,
            memory_is_free=self.memory.is_known and self.devices.shows_free(mine),
            life_lock_is_enough=not mine,
            unknown_may_be_dying=bool(mine) and now < who.outlived_at + self.config.settle_s,
        )

    def plan(self, plan: Plan) -> None:
        for name in self._ending():
            who = self.evidence.incarnations.bound[name]
            verdict = self._is_gone(who, plan.now)
            if verdict.enough:
                plan.do(self._end, who, verdict)
                continue
            waits = plan.wait_until(self._lost_at.get(name, plan.now) + self.config.window_s)
            dying = plan.wait_until(who.outlived_at + self.config.settle_s)
            if who.life is Life.FREE and not who.seen_alive and (dying or not all_ended(who)) and self.memory.is_read:
                self.memory.plan(plan, pace(plan.now - self._lost_at.get(name, plan.now)))
            may_come_back = who.stage is Stage.LOST and who.main is not None and not who.main.dead
            if not waits and not may_come_back:
                why = verdict.alarm or "; ".join(what_is_missing(who, new_server=not who.came)[:5])
                plan.say(self.context.alarm, f"end {name}", f"{name} is not proven gone, and its leases count: {why}")
        for lease in self.heirs.estates_of_none():
            plan.do(self.returns.end, lease, "ended")

    def bind(self) -> None:
        """Whose end is to be proven: those that have leases, and heirs."""
        self.evidence.incarnations.bind(self.heirs.trees() | self.leases.trees())

    def await_all(self) -> None:
        """A new server waits for those of which the file tells."""
        self.bind()
        self._lost_at = dict.fromkeys(self.evidence.incarnations.bound, self.context.now)

    def lost(self, who: Incarnation, stage: Stage, seen_by: str) -> None:
        if self.evidence.incarnations.lose(who, stage):
            self._lost_at[who.name] = self.context.now
            if who.bound:
                self.context.note("lost", tree=who.name, seen_by=seen_by)

    def forget_loss(self, who: Incarnation) -> None:
        self._lost_at.pop(who.name, None)
        self.context.calm(f"end {who.name}")

    def _end(self, who: Incarnation, verdict: Verdict) -> None:
        for lease in self.leases.of_tree(who.name):
            if lease.outlives:
                self.returns.outlive(lease)
            elif lease.bytes and self.heirs.keep(lease):
                self.context.note("kept_for_heir", lease=lease.number, name=lease.name)
                self.returns.less_in_use_soon(lease.counted)
                self.leases.change(lease, returning={})
                self.leases.pass_on(lease, None)
                lease.fresh_until = self.context.now + self.config.patience_s
            else:
                self.returns.end(lease, "ended", by=verdict.by)
        self.heirs.forget(who)
        self.forget_loss(who)
        for conn in self.evidence.incarnations.remove(who, was_bound=True):
            self.callers.end(conn)
        self.disk.now()

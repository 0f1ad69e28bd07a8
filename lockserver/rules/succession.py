"""Which engine holds, and which is next: what follows for the lock and the permit when one is lost, proven gone, or
waits (rules 1, 3, 4, 7 and 9 of `machine.py`).

Pure. The states and what may follow what are in `lock.py`, the proof is in `evidence/rules/proof.py` and `flags.py`,
the waiters are in `queue.py`: here they are brought together. `plan` says what follows now, and changes nothing;
`conclude` does it, and asks again until nothing follows any more. Whatever has to be on disk is asked for with
`must_write`; `machine.py` does it.
"""

from evidence.rules.callers import Callers
from evidence.rules.evidence import Evidence
from evidence.rules.free_memory import FreeMemory
from evidence.rules.incarnation import Incarnation, Life, Stage
from evidence.rules.incarnations import Plan as EvidencePlan
from evidence.rules.proof import Verdict, all_ended, gone
from lockserver.rules.context import Context
from lockserver.rules.events import Config, LookedAt, MemoryRead
from lockserver.rules.exclusion import Exclusion
from lockserver.rules.flags import Flags, nobody_holds, with_flags
from lockserver.rules.lock import Doubt, Found, Lock, Phase, State
from lockserver.rules.messages import ACTIVE, Exit, Refused
from lockserver.rules.overdue import Overdue
from lockserver.rules.permit import Permit
from lockserver.rules.plan import Awaited, Plan
from lockserver.rules.queue import Queue, Waiter
from lockserver.rules.recovery import Recovery, back_by
from lockserver.rules.rest import Rest
from lockserver.rules.switchover import Switchover
from sidecar.machine.context import rfc3339
from sidecar.machine.plan import conclude

_NOTHING = Awaited()
MOST_ROUNDS = 200
"""Plans that may follow from one event: more is a circle."""


class Succession:
    def __init__(self, config: Config, context: Context, callers: Callers, evidence: Evidence) -> None:
        self.config = config
        self.context = context
        self.callers = callers
        self.evidence = evidence
        self._flags = Flags(config.presume_dead, config.grant_unproven)
        self.incarnations = evidence.incarnations
        self.memory = FreeMemory(config, context)
        self.queue = Queue(config, context, self.memory)
        self.active = Lock(ACTIVE)
        self.permit = Permit(context)
        self.exclusion = Exclusion(config, context)
        self.rest = Rest(context)
        self.recovery = Recovery(config, context, evidence, self.rest)
        self.overdue = {lock.name: Overdue(config, context, lock) for lock in self.locks}
        self.switchover = Switchover(config, context, self.queue, self.incarnations, self.rest)
        self.newest_token = 0
        """The newest token that is known to have been granted: an older claim has ended."""
        self._newest_told = 0
        """The newest that any process has told of. The next one is greater; no holder is ended by it."""
        self.token_floor = 0
        self._nothing_writes = False
        """Each process of the last holder has ended, or it gave back what it had."""
        self._bound: tuple[Incarnation | None, Incarnation | None] = (None, None)
        self.must_write = False
        """The last write doesn't say how things stand now."""

    # -- questions -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self.active.state(self.context.now, wanted=self.queue.wanted and not self.rest.why)

    @property
    def locks(self) -> tuple[Lock, Lock]:
        return self.active, self.permit.lock

    def holds(self, who: Incarnation) -> bool:
        """It holds one of them, or has to be proven gone before another engine does."""
        return who is self.active.holder or who is self.permit.lock.holder

    @property
    def nobody_has_any(self) -> bool:
        """And none may have one of which this server hasn't heard: nothing is on a device by a grant of these locks."""
        return all(lock.phase is Phase.FREE for lock in self.locks) and not self.why_not_free()

    def why_not_free(self) -> list[str]:
        """Why the lock isn't granted though it is free: an engine may have it, and no file says so."""
        return self.recovery.who_may_hold(self.context.now) if self.active.phase is Phase.FREE else []

    @property
    def permit_may_be_held(self) -> bool:
        """By the file it is free, and the file may be an older one. Two that initialise beside each other are a fault
        and no danger: so after the window none is waited for.
        """
        now = self.context.now
        return now < self.recovery.window_ends_at and bool(self.recovery.who_may_hold(now))

    @property
    def why_no_permit(self) -> str:
        now, may_be_held = self.context.now, self.permit_may_be_held
        return self.permit.why_not(self.active, self.queue, self.state.value, now, may_be_held=may_be_held)

    def nobody_holds(self, doubt: Doubt, now: float) -> Verdict:
        comes_no_more = now >= self._back_by(doubt) and self.exclusion.has(now)  # nor has another server the names
        memory_is_free = comes_no_more and self.queue.memory_proves(now)
        known = self.recovery.what_is_known(doubt, now, memory_is_free=memory_is_free)
        return nobody_holds(doubt.found, known, self._flags)

    def is_gone(self, lock: Lock, holder: Incarnation, now: float) -> Verdict:
        doubt, active = lock.doubt, lock is self.active
        over = doubt is not None and now >= doubt.until
        verdict = gone(
            holder,
            found=doubt is not None,
            over=over,
            memory_is_free=self._memory_helps(lock, holder, now) and self.queue.memory_proves(now),
            life_lock_is_enough=not active,
            unknown_may_be_dying=active and now < self._settled_at(holder),
        )
        return with_flags(holder, verdict, self._flags, may_be_presumed=over)

    def _memory_helps(self, lock: Lock, holder: Incarnation, now: float) -> bool:
        helps = now < self._settled_at(holder) if all_ended(holder) else lock.doubt is not None
        return helps and lock is self.active and holder.life is Life.FREE and not holder.seen_alive

    def _settled_at(self, holder: Incarnation) -> float:
        """From then on no process of it that no file names can be dying still."""
        return holder.outlived_at + self.config.settle_s

    def _back_by(self, doubt: Doubt) -> float:
        return doubt.since + back_by(doubt.found, self.config.settle_s)

    def _devices(self, waiter: Waiter) -> tuple[str, ...]:
        """Those whose names have to be this server's before it is granted."""
        return tuple(sorted(waiter.needs)) if self.memory.is_read else ()

    # -- what follows ----------------------------------------------------------------------------------------------

    def plan(self, *, may_grant: bool) -> Plan:
        """What is to be done now, and when to look again. Each part speaks once those before it have nothing to do."""
        plan = Plan(self.context.now, self.context.alarms)
        evidence = self.incarnations.plan(plan.now)
        if evidence.looks:
            plan.do(self._carry_out, evidence)
            return plan
        plan.again = evidence.again
        self._plan_active(plan, may_grant)
        if not plan.steps:
            self._plan_permit(plan, may_grant)
        return plan

    def _plan_alarms(self, plan: Plan) -> None:
        """Nothing else is left to be done: what is awaited is said, if it takes too long."""
        for name, overdue in self.overdue.items():
            overdue.plan(plan, plan.awaited.get(name, _NOTHING))

    def _plan_active(self, plan: Plan, may_grant: bool) -> None:
        lock = self.active
        if lock.phase is Phase.HELD:
            self.switchover.plan_next(plan, self._tell_to_end, self._fence_the_sleeper)
        elif lock.holder is not None and lock.phase in (Phase.FENCING, Phase.IN_DOUBT):
            self.queue.plan_head(plan)  # the next one is asked in parallel with the proof
            self.switchover.plan_end(plan)
            self._plan_end(plan, lock, lock.holder)
        elif lock.phase is Phase.IN_DOUBT and lock.doubt is not None:
            self.queue.plan_head(plan)
            self._plan_settling(plan, lock.doubt)
        elif lock.phase is Phase.FREE and may_grant:
            if self.rest.why:
                self._plan_at_rest(plan)
            elif not self._plan_who_may_hold(plan):
                self._plan_grant(plan)

    def _plan_end(self, plan: Plan, lock: Lock, holder: Incarnation) -> None:
        """Its end, or its return, is awaited."""
        doubt, active = lock.doubt, lock is self.active
        comes_back = doubt is not None and plan.wait_until(doubt.until) and lock.phase is Phase.IN_DOUBT
        if active:
            plan.wait_until(self._settled_at(holder))
        if self._memory_helps(lock, holder, plan.now):
            self.queue.plan_proof(plan)
        verdict = self.is_gone(lock, holder, plan.now)
        if verdict.enough:
            plan.do(self._end_proven, lock, holder, verdict)
        elif verdict.alarm:
            plan.say(self.context.alarm, "unproven", verdict.alarm)
        elif not (comes_back or holder.cannot_talk) and (active or holder is not self.active.holder):
            plan.awaited[lock.name] = Awaited(holder)

    def _plan_settling(self, plan: Plan, doubt: Doubt) -> None:
        """An incarnation that no file names may hold the lock."""
        if not plan.wait_until(self._back_by(doubt)) and self.exclusion.plan(plan):
            self.queue.plan_proof(plan)
        plan.wait_until(doubt.until)
        plan.wait_until(self.evidence.strangers.settled_at())
        self._plan_look_at_strangers(plan)
        looked = self.evidence.strangers.look(plan.now)
        stranger = looked is not None and looked.any
        if looked is not None and not stranger:
            plan.calm(self.context.calm, "strangers")
        verdict = self.nobody_holds(doubt, plan.now)
        if verdict.alarm:
            plan.say(self.context.alarm, "strangers" if stranger else "unproven", verdict.alarm)
        if verdict.enough:
            plan.do(self._settle)

    def _plan_look_at_strangers(self, plan: Plan) -> None:
        strangers = self.evidence.strangers
        if strangers.wants_look(plan.now):
            plan.do(strangers.ask)
        else:
            plan.wait_until(strangers.stale_at())

    def _plan_who_may_hold(self, plan: Plan) -> bool:
        """An engine may hold the lock, though it is free by the file."""
        if plan.wait_until(self.recovery.settled_at):
            self._plan_look_at_strangers(plan)
        may = self.recovery.who_may_hold(plan.now)
        if not may:
            plan.calm(self.context.calm, "awaited")
        elif self.queue.wanted and not plan.wait_until(self.recovery.window_ends_at):
            plan.say(self.context.alarm, "awaited", f"no engine is granted: {may[0]}")
        return bool(may)

    def _plan_grant(self, plan: Plan) -> None:
        self.queue.plan_head(plan)
        head, silent = self.queue.head(plan.now), self.queue.first_unprepared
        if head is not None and not self._plan_names(plan, head):
            return
        waiter, though = self.queue.plan_next(plan)
        if waiter is not None:
            if self._plan_names(plan, waiter):
                plan.do(self._grant, waiter, though)
        elif self.queue.wanted:
            if head is None and silent is not None:
                plan.awaited[ACTIVE] = Awaited(silent.incarnation, self.queue.unprepared)
        else:
            self._plan_at_rest(plan)

    def _plan_at_rest(self, plan: Plan) -> None:
        """There is no waiter to be granted."""
        plan.calm(self.context.calm, "names", "awaited")
        if self.switchover.under_way is not None:
            plan.do(self.switchover.end_without_successor)
        if not self.must_write and 0 in self.incarnations.pending_unlinks.values():
            plan.do(self._write_soon)

    def _plan_names(self, plan: Plan, waiter: Waiter) -> bool:
        """Whether this server has the names that it needs for this grant."""
        return self._flags.presume_dead or self.exclusion.plan(plan, self._devices(waiter))

    def _plan_permit(self, plan: Plan, may_grant: bool) -> None:
        permit, lock, doubt = self.permit, self.permit.lock, self.active.doubt
        if lock.holder is not None and lock.phase in (Phase.FENCING, Phase.IN_DOUBT):
            self._plan_end(plan, lock, lock.holder)
        elif lock.phase is Phase.IN_DOUBT and lock.doubt is not None and not plan.wait_until(lock.doubt.until):
            plan.do(lock.settle)
        elif lock.phase is Phase.FREE and permit.waiters and may_grant:
            if self.permit_may_be_held:
                plan.wait_until(self.recovery.window_ends_at)
                self._plan_who_may_hold(plan)
            elif not self.why_no_permit:
                plan.do(self._grant_permit)
            elif doubt is not None:
                plan.wait_until(doubt.until)

    # -- what is done ----------------------------------------------------------------------------------------------

    def conclude(self, *, may_grant: bool) -> None:
        """Everything that follows from how things stand. Raises Circle."""

        def ask() -> Plan:
            self.bind()
            return self.plan(may_grant=may_grant)

        plan = conclude(ask, MOST_ROUNDS)
        self._plan_alarms(plan)
        while plan.carry_out():
            plan.steps.clear()
            self._plan_alarms(plan)
        self.memory.forget()
        self.context.wake(plan.again)

    def bind(self) -> None:
        """Evidence is told which have been granted something."""
        holders = (self.active.holder, self.permit.lock.holder)
        if holders[0] is not self._bound[0] or holders[1] is not self._bound[1]:
            self._bound = holders
            self.incarnations.bind({holder.name: holder for holder in holders if holder is not None})

    def token_granted(self, token: int) -> None:
        """It was granted: its engine holds, or has to be proven gone."""
        self.newest_token = max(self.newest_token, token)

    def token_told(self, token: int) -> None:
        """A process tells of a grant. To whom, and whether it has ended, isn't known by that."""
        self._newest_told = max(self._newest_told, token)

    def lose(self, who: Incarnation, stage: Stage, seen_by: str) -> None:
        """Its main process is dead, or its connection ended."""
        self.queue.leave(who)
        self.permit.leave(who)
        if not self.incarnations.lose(who, stage):
            return
        for lock in self.locks:
            if lock.holder is who:
                self._fence(lock, who, seen_by)

    def _fence(self, lock: Lock, holder: Incarnation, seen_by: str) -> None:
        now = self.context.now
        # There may be a member that died while the server was away, and of whose pidfd no client has a copy.
        doubt = Doubt(Found.HOLDER, now, now + self.config.window_s) if holder.unaccounted else None
        lock.lose(self.context.wall, doubt)
        self.context.note("fencing", engine=holder.engine_id, lock=lock.name, token=lock.token, seen_by=seen_by)
        if lock is self.active:
            self.queue.new_round()
            self.switchover.holder_lost()

    def _tell_to_end(self) -> None:
        told = self.switchover.tell_to_end()
        if told is not None:
            self.lose(told, Stage.DOOMED, "switchover")

    def _fence_the_sleeper(self, holder: Incarnation) -> None:
        self.context.shout(f"{holder.engine_id} was told to give the lock back and has not; it is killed")
        self.lose(holder, Stage.DOOMED, "sleep")
        self.incarnations.kill_living(holder)
        if holder.conn is not None:  # for one that can't be killed from here
            self.context.send(holder.conn, Exit(round=self.queue.round))

    def _end_proven(self, lock: Lock, holder: Incarnation, verdict: Verdict) -> None:
        if verdict.by_flag:
            self.context.shout(verdict.by)
        if lock is not self.active:
            self._release(lock, holder)
            self.must_write = True
            return
        remaining = lock.doubt if lock.unnamed else None  # a waiter told of this holder; there may be a newer one
        self._nothing_writes = verdict.every_process and remaining is None
        self._release(lock, holder, remaining)

    def _release(self, lock: Lock, holder: Incarnation, remaining: Doubt | None = None) -> None:
        """The holder is gone."""
        self.context.note("released", engine=holder.engine_id, lock=lock.name, token=lock.token)
        lock.release(remaining)
        if lock is self.active:
            self.memory.something_ended()
        if lock is self.active and remaining is None and holder.was_alive:
            self.exclusion.holder_ended()
        self.context.changed = True
        if lock is self.active and self.permit.lock.holder is holder:
            self._release(self.permit.lock, holder)
        elif holder.stage is not Stage.PRESENT and not self.holds(holder):
            self._end(self.incarnations.remove(holder, was_bound=True))

    def _settle(self) -> None:
        self.active.settle()
        self._nothing_writes = False  # whichever it was
        self.evidence.strangers.settle()
        self.context.note("nobody_holds")

    def _grant(self, waiter: Waiter, though: str) -> None:
        if though:
            self.context.shout(though)
        verified = self.queue.take(waiter)
        self.newest_token = max(self.newest_token, self._newest_told, self.token_floor) + 1
        self.context.calm("unproven", "record", "strangers", "version", "names")
        proven = verified and self._nothing_writes
        at = rfc3339(self.context.wall)
        self.active.grant(waiter.incarnation, self.newest_token, at, waiter, verified, proven)
        self._nothing_writes = False
        self.must_write = True

    def _grant_permit(self) -> None:
        self.permit.lock.grant(self.permit.take_next(), 0, rfc3339(self.context.wall), None, verified=False)
        self.must_write = True

    def _write_soon(self) -> None:
        self.must_write = True

    def _carry_out(self, plan: EvidencePlan) -> None:
        self._end(self.incarnations.carry_out(plan))

    def _end(self, conns: list[int]) -> None:
        for conn in conns:
            self.callers.end(conn)

    def give_back(self, who: Incarnation, why: str) -> None:
        """The holder's engine is asleep: nothing of it is on a device, and it has let go of the names."""
        lock = self.active
        self.context.note("given_back", engine=who.engine_id, lock=lock.name, token=lock.token)
        lock.give_back()
        self._nothing_writes = True
        self.memory.something_ended()
        self.exclusion.holder_ended()
        self.switchover.given_back(who, why)

    def give_permit_back(self, who: Incarnation) -> None:
        """It has initialised, or doesn't want to any more."""
        self.permit.leave(who)
        lock = self.permit.lock
        if lock.held_by(who):
            self.context.note("released", engine=who.engine_id, lock=lock.name, token=lock.token)
            lock.give_back()
            self.context.changed = self.must_write = True

    # -- the disk and the memory -----------------------------------------------------------------------------------

    def take_back(self) -> None:
        """What was granted isn't on disk and its waiter wasn't told: it is decided anew once the disk works, by what is
        so then.
        """
        for lock in self.locks:
            if lock.phase is not Phase.GRANTING:
                continue
            holder, waiter = lock.take_back()
            self.context.changed = True
            if holder is None or holder.stage is not Stage.PRESENT:
                continue
            if lock is not self.active:
                self.permit.put_back(holder)
            elif waiter is not None:
                self.queue.put_back(waiter)

    def looked_at(self, event: LookedAt) -> None:
        for overdue in self.overdue.values():
            overdue.looked_at(event)

    def memory_read(self, reading: MemoryRead) -> None:
        self.memory.came(reading)
        for waiter, why in self.queue.vet():
            who = waiter.incarnation
            self.queue.leave(who)
            self.context.note("refused", engine=who.engine_id, why=why)
            if who.conn is not None:
                self.context.send(who.conn, Refused(why=why))

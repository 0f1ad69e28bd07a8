"""Who holds, and who comes next: what follows for the lock and the permit when somebody is lost, proven gone, or waits
(rules 1, 3, 4, 7 and 9 of `machine.py`).

Pure. The states and what may follow what are in `lock.py`, the proof is in `proof.py`, the waiters are in `queue.py`:
here they are brought together. Whatever has to be on disk is asked for with `must_write`; `machine.py` does it.
"""

from lockserver.callers import Callers
from lockserver.context import Context
from lockserver.events import Config, LookedAt, MemoryRead
from lockserver.exclusion import Exclusion
from lockserver.free_memory import FreeMemory
from lockserver.incarnation import Incarnation, Life, Stage
from lockserver.incarnations import Incarnations
from lockserver.lock import Doubt, Found, Lock, Phase, State
from lockserver.messages import ACTIVE, Refused
from lockserver.overdue import Overdue
from lockserver.permit import Permit
from lockserver.proof import Policy, holder_gone, nobody_holds
from lockserver.queue import Queue, Waiter
from lockserver.recovery import Recovery, back_by
from lockserver.switchover import Switchover
from sidecar.context import rfc3339


class Succession:
    def __init__(self, config: Config, context: Context, callers: Callers, incarnations: Incarnations) -> None:
        self.config = config
        self.context = context
        self.callers = callers
        self.incarnations = incarnations
        self.memory = FreeMemory(config, context)
        self.queue = Queue(config, context, self.memory)
        self.active = Lock(ACTIVE)
        self.permit = Permit(context)
        self.exclusion = Exclusion(config, context)
        self.recovery = Recovery(config, context, incarnations)
        self.overdue = Overdue(config, context, self.active)
        self.permit_overdue = Overdue(config, context, self.permit.lock)
        self.switchover = Switchover(config, context, self.queue, incarnations)
        self.policy = Policy(config.presume_dead, config.grant_unproven)
        self.newest_token = 0
        """The newest token that is known to have been granted: an older claim has ended."""
        self._heard = 0
        """The newest that anybody has told of, whoever it is about. The next one is greater; nobody is ended by it."""
        self.token_floor = 0
        self._every_process_ended = False
        """Those of the last holder."""
        self.nobody_holds_lacks: tuple[str, ...] = ()
        """What the proof lacked at the last look that nobody holds."""
        self.why_not_free: list[str] = []
        """Why a lock that is free isn't granted: somebody may have it, though no file says so."""
        self.must_write = False
        """What is so now is not what the last write says."""

    @property
    def state(self) -> State:
        return self.active.state(self.context.now, wanted=self.queue.wanted)

    @property
    def locks(self) -> tuple[Lock, Lock]:
        return self.active, self.permit.lock

    def holds(self, who: Incarnation) -> bool:
        """It holds one of them, or has to be proven gone before anybody else does."""
        return who is self.active.holder or who is self.permit.lock.holder

    def knows_of(self, token: int) -> None:
        """It was granted: to whoever holds, or has to be proven gone."""
        self.newest_token = max(self.newest_token, token)

    def hears_of(self, token: int) -> None:
        """Somebody tells of a grant. To whom, and whether it has ended, isn't known by that."""
        self._heard = max(self._heard, token)

    # -- ends ------------------------------------------------------------------------------------------------------

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
        # There may be a member that died while the server was away, and of whose pidfd nobody kept a copy.
        doubt = Doubt(Found.HOLDER, now, now + self.config.window_s) if holder.unaccounted else None
        lock.lose(self.context.wall, doubt)
        self.context.note("fencing", engine=holder.engine_id, lock=lock.name, token=lock.token, seen_by=seen_by)
        if lock is self.active:
            self.queue.new_round()
            self.switchover.holder_lost()

    # -- what is due -----------------------------------------------------------------------------------------------

    def step(self, *, may_grant: bool) -> None:
        """Every conclusion that can be drawn now."""
        for who in list(self.incarnations.absent.values()):
            holds = self.holds(who)
            self.incarnations.pursue(who, holds=holds)
            nothing_left = who.members_gone and who.life in (Life.FREE, Life.MISSING)
            has_left = who.may_have_left and who.life is Life.FREE
            if (nothing_left or has_left) and not holds:
                self._remove(who, held_a_lock=False)
        self._step_active(may_grant)
        self._step_permit(may_grant)
        self.overdue.turn_ends()
        self.permit_overdue.turn_ends()
        self.memory.forget()

    def _step_active(self, may_grant: bool) -> None:
        lock = self.active
        if lock.phase is Phase.HELD:
            told_to_end = self.switchover.step()
            if told_to_end is None:
                return
            self.lose(told_to_end, Stage.DOOMED, "switchover")
        if lock.holder is not None and lock.phase in (Phase.FENCING, Phase.IN_DOUBT):
            self.queue.head()  # asks the next one, in parallel with the proof
            self.switchover.enforce()
            if not self._is_gone(lock, lock.holder):
                return
            remaining = lock.doubt if lock.unnamed else None  # a waiter told of this holder; there may be a newer one
            self._release(lock, lock.holder, remaining)
            self._every_process_ended &= remaining is None
        if lock.phase is Phase.IN_DOUBT and lock.doubt is not None:
            self.queue.head()
            if not self._nobody_holds(lock.doubt):
                return
            lock.settle()
            self._every_process_ended = False  # whoever it was
            self.recovery.nobody_is_left()
            self.context.note("nobody_holds")
        if lock.phase is Phase.FREE and may_grant and self._nobody_else_may_hold(lock):
            self._choose(lock)

    def _nobody_else_may_hold(self, lock: Lock) -> bool:
        self.why_not_free = self.recovery.who_may_hold(lock, self.permit.lock)
        if not self.why_not_free:
            self.context.calm("awaited")
        elif self.queue.wanted and self.recovery.window_is_over:
            self.context.alarm("awaited", f"nobody is granted: {self.why_not_free[0]}")
        return not self.why_not_free

    def _choose(self, lock: Lock) -> None:
        head = self.queue.head()
        if head is not None and not self._has_names_for(head):
            return
        waiter, silent = self.queue.next(), self.queue.first_unprepared
        if waiter is None:
            if head is None and silent is not None:
                self.overdue.not_granted(silent.incarnation, self.queue.unprepared)
            if not self.queue.wanted:
                self.context.calm("names")
                self.switchover.nobody_left()
                self.must_write |= 0 in self.incarnations.pending_unlinks.values()
        elif self._has_names_for(waiter):
            verified = self.queue.granted(waiter)
            self.newest_token = max(self.newest_token, self._heard, self.token_floor) + 1
            self.context.calm("unproven", "record", "strangers", "version", "names")
            proven = verified and self._every_process_ended
            lock.grant(waiter.incarnation, self.newest_token, rfc3339(self.context.wall), waiter, verified, proven)
            self._every_process_ended = False
            self.must_write = True

    def _has_names_for(self, waiter: Waiter) -> bool:
        devices = tuple(sorted(waiter.needs)) if self.memory.is_read else ()
        return self.policy.presume_dead or self.exclusion.has(devices)

    def _is_gone(self, lock: Lock, holder: Incarnation) -> bool:
        doubt = lock.doubt
        over = doubt is not None and self.context.reached(doubt.until)
        dying = lock is self.active and not self.context.reached(holder.outlived_at + self.config.settle_s)
        helps = dying if holder.gone else doubt is not None
        asks_memory = helps and lock is self.active and holder.life is Life.FREE and not holder.seen_alive
        verdict = holder_gone(
            holder,
            doubt,
            over=over,
            memory_is_free=asks_memory and self.queue.memory_proves(),
            policy=self.policy,
            life_lock_is_enough=lock is not self.active,
            unknown_may_be_dying=dying,
        )
        if verdict.alarm:
            self.context.alarm("unproven", verdict.alarm)
        elif verdict.enough and verdict.by_flag:
            self.context.shout(verdict.by)
        elif not verdict.enough and lock is self.active:
            self.overdue.not_gone(holder)
        elif not verdict.enough and holder is not self.active.holder:
            self.permit_overdue.not_gone(holder)
        if verdict.enough and lock is self.active:
            self._every_process_ended = verdict.every_process
        return verdict.enough

    def _nobody_holds(self, doubt: Doubt) -> bool:
        wait_s = back_by(doubt.found, self.config.settle_s)
        back_by_now = self.context.reached(doubt.since + wait_s)  # then whoever has the names doesn't come
        memory_is_free = back_by_now and self.exclusion.has() and self.queue.memory_proves()
        known = self.recovery.what_is_known(doubt, self.active, self.permit.lock, memory_is_free=memory_is_free)
        verdict = nobody_holds(doubt.found, known, self.policy)
        self.nobody_holds_lacks = verdict.missing
        if known.strangers is not None and not known.strangers.somebody:
            self.context.calm("strangers")
        if verdict.alarm:
            somebody = known.strangers is not None and known.strangers.somebody
            self.context.alarm("strangers" if somebody else "unproven", verdict.alarm)
        return verdict.enough

    def _release(self, lock: Lock, holder: Incarnation, remaining: Doubt | None = None) -> None:
        """The holder is gone, or has given its permit back."""
        self.context.note("released", engine=holder.engine_id, lock=lock.name, token=lock.token)
        lock.release(remaining)
        if lock is self.active:
            self.memory.holder_ended()
        if lock is self.active and remaining is None and holder.was_alive:
            self.exclusion.holder_ended()
        self.context.changed = True
        if lock is self.active and self.permit.lock.holder is holder:
            self._release(self.permit.lock, holder)
        elif holder.stage is not Stage.PRESENT and not self.holds(holder):
            self._remove(holder, held_a_lock=True)

    def _remove(self, who: Incarnation, *, held_a_lock: bool) -> None:
        for conn in self.incarnations.remove(who, held_a_lock=held_a_lock):
            self.callers.end(conn)

    # -- the permit ------------------------------------------------------------------------------------------------

    def _step_permit(self, may_grant: bool) -> None:
        permit, lock = self.permit, self.permit.lock
        if (
            lock.holder is not None
            and lock.phase in (Phase.FENCING, Phase.IN_DOUBT)
            and self._is_gone(lock, lock.holder)
        ):
            self._release(lock, lock.holder)
            self.must_write = True
        if lock.phase is Phase.IN_DOUBT and lock.holder is None and lock.doubt is not None:
            self._settle_permit(lock, lock.doubt)
        if lock.phase is not Phase.FREE or not permit.waiters or not may_grant:
            return
        if not permit.why_not(self.active, self.queue, self.state.value):
            lock.grant(permit.next(), 0, rfc3339(self.context.wall), None, verified=False)
            self.must_write = True

    def _settle_permit(self, lock: Lock, doubt: Doubt) -> None:
        if self.context.reached(doubt.until):
            lock.settle()

    def give_back(self, who: Incarnation) -> None:
        """It has initialised, or doesn't want to any more."""
        self.permit.leave(who)
        if self.permit.lock.held_by(who):
            self._release(self.permit.lock, who)
            self.must_write = True

    # -- the disk and the memory -----------------------------------------------------------------------------------

    def take_back(self) -> None:
        """What was granted isn't on disk and nobody was told: it is decided anew once the disk works, by what is so
        then.
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
        self.overdue.looked_at(event)
        self.permit_overdue.looked_at(event)

    def memory_read(self, reading: MemoryRead) -> None:
        self.memory.came(reading)
        for waiter, why in self.queue.read():
            who = waiter.incarnation
            self.queue.leave(who)
            self.context.note("refused", engine=who.engine_id, why=why)
            if who.conn is not None:
                self.context.send(who.conn, Refused(why=why))

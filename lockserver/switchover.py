"""A planned change of holder: `Drain -> Drained -> the successor looks at its engine -> Exit`.

Pure. Up to `Exit` it can be called off and the old holder serves on; after it the path is an ordinary death, with the
proof and all, except that a holder that was told to end and doesn't is killed when its time is up.
"""

from dataclasses import dataclass
from enum import Enum
from itertools import islice

from lockserver import messages as m
from lockserver.context import Context
from lockserver.events import Config
from lockserver.incarnation import Incarnation
from lockserver.incarnations import Incarnations
from lockserver.lock import Lock, Phase
from lockserver.queue import Queue, Waiter

DRAIN_MARGIN_S = 2.0
"""The holder keeps the bound of its drain itself, and says so at its end; this is for one that doesn't."""


MOST_NAMED = 10
"""Where a switchover is refused, so many of those who wait are named."""


class Step(Enum):
    DRAINING = "draining"
    CHECKING = "checking"
    EXITING = "exiting"


@dataclass(slots=True)
class Plan:
    asker: int | None
    old: Incarnation
    old_token: int
    to: Incarnation
    step: Step
    round: int
    until: float
    drain_timeout_s: float


class Switchover:
    def __init__(self, config: Config, context: Context, queue: Queue, incarnations: Incarnations) -> None:
        self.config = config
        self.context = context
        self.queue = queue
        self.incarnations = incarnations
        self.plan: Plan | None = None

    # -- asked for by a person -------------------------------------------------------------------------------------

    def ask(self, asker: int, wish: m.Switchover, active: Lock, state: str) -> None:
        holder = active.holder
        if self.plan is not None:
            self._tell(asker, "refused", "a switchover is under way already", done=True)
            return
        if active.phase is not Phase.HELD or holder is None or holder.conn is None:
            self._tell(asker, "refused", f"there is no holder to take over from: the lock is {state}", done=True)
            return
        able = [w.incarnation for w in self.queue.waiters.values() if w.is_there and w.vetted]
        to = next((waiter for waiter in able if wish.to in ("", waiter.engine_id)), None)
        if to is None:
            who = f"no waiter named {wish.to} is there" if wish.to else "there is no waiter"
            why = f"{who}, alive and ready" if wish.to != holder.engine_id else f"{wish.to} holds the lock already"
            self._tell(asker, "refused", f"{why}; {self._who_waits()}", done=True)
            return
        self.queue.new_round()
        timeout_s = wish.drain_timeout_s
        until = self.context.now + timeout_s + DRAIN_MARGIN_S
        self.plan = Plan(asker, holder, active.token, to, Step.DRAINING, self.queue.round, until, timeout_s)
        self.context.note("switchover", engine=holder.engine_id, to=to.engine_id)
        self.context.send(holder.conn, m.Drain(round=self.plan.round, timeout_s=timeout_s))
        self._tell(asker, "draining", f"{holder.engine_id} finishes what it has begun")

    def _who_waits(self) -> str:
        """So that a person can pick one."""
        waiters = self.queue.waiters.values()
        named = [f"{w.incarnation.engine_id} ({self._how_it_waits(w)})" for w in islice(waiters, MOST_NAMED)]
        more = f" and {len(waiters) - len(named)} more" if len(waiters) > len(named) else ""
        return f"waiting: {', '.join(named)}{more}" if named else "nobody waits"

    @staticmethod
    def _how_it_waits(waiter: Waiter) -> str:
        if not waiter.is_there:
            return "its connection has ended" if waiter.ready else "not ready"
        return "ready" if waiter.vetted else "its need for memory is being looked at"

    def call_off(self, conn: int) -> None:
        if self.plan is None or self.plan.step is Step.EXITING:
            self._tell(conn, "refused", "there is no switchover that could still be called off", done=True)
            return
        own = self.plan.asker == conn
        self._abort("it was called off")
        if not own:
            self._tell(conn, "aborted", "it was called off", done=True, ok=True)

    def asker_left(self, conn: int) -> None:
        if self.plan is not None and self.plan.asker == conn:
            self.plan.asker = None
            self._abort("the one who asked for it has gone")

    # -- how it goes on --------------------------------------------------------------------------------------------

    def drained(self, message: m.Drained) -> None:
        plan = self.plan
        if plan is None or plan.step is not Step.DRAINING or message.round != plan.round:
            return
        if not message.ok:
            self._abort(f"the holder could not drain: {message.why}")
            return
        plan.step, plan.until = Step.CHECKING, self.context.now + self.config.prepare_timeout_s
        self._tell(plan.asker, "checking", f"{plan.to.engine_id} looks at its engine")

    def step(self) -> Incarnation | None:
        """Called in every turn while the holder is there. Returns the holder once it was told to end: there is no way
        back for it.
        """
        plan = self.plan
        if plan is None:
            return None
        successor = self.queue.waiters.get(plan.to.name)
        if successor is None or not successor.ready:
            self._abort("the successor is no longer there and ready")
        elif plan.step is Step.CHECKING and self.queue.prepared(successor):
            plan.step, plan.until = Step.EXITING, self.context.now + self.config.exit_timeout_s
            if plan.old.conn is not None:
                self.context.send(plan.old.conn, m.Exit(round=plan.round))
            self._tell(plan.asker, "exiting", f"{plan.old.engine_id} was told to end")
            self.queue.preferred = plan.to.name
            return plan.old
        elif self.context.reached(plan.until):
            self._abort(
                "draining took too long"
                if plan.step is Step.DRAINING
                else "the successor's engine isn't well, or it doesn't answer"
            )
        return None

    def holder_lost(self) -> None:
        """The holder's end, planned or not."""
        plan = self.plan
        if plan is not None and plan.step is not Step.EXITING:
            self.plan = None
            self._tell(
                plan.asker, "died", f"{plan.old.engine_id} ended by itself; whoever is ready takes over", done=True
            )

    def enforce(self) -> None:
        """It was told to end, and had finished what it had begun."""
        plan = self.plan
        if plan is None or plan.step is not Step.EXITING or not self.context.reached(plan.until):
            return
        plan.until = self.context.now + self.config.exit_timeout_s
        self.context.shout(f"{plan.old.engine_id} was told to end and has not; it is killed")
        self.incarnations.kill_rest(plan.old)

    def granted(self, holder: Incarnation, token: int) -> None:
        plan, self.plan = self.plan, None
        if plan is not None:
            self._tell(plan.asker, "done", f"{holder.engine_id} holds the lock, with token {token}", done=True, ok=True)

    def nobody_left(self) -> None:
        """The old holder is gone, and whoever could have taken over, too."""
        plan, self.plan = self.plan, None
        if plan is not None:
            self._tell(
                plan.asker,
                "died",
                f"{plan.old.engine_id} has ended, {plan.to.engine_id} too, and nobody waits; the next one is granted",
                done=True,
            )

    def _abort(self, why: str) -> None:
        plan = self.plan
        if plan is None or plan.step is Step.EXITING:
            return
        self.plan = None
        self.context.note("switchover_aborted", why=why)
        self._tell(plan.asker, "aborted", why, done=True)
        if plan.old.conn is not None:
            self.context.send(plan.old.conn, m.Resume(why=why))

    def _tell(self, conn: int | None, phase: str, detail: str, *, done: bool = False, ok: bool = False) -> None:
        self.context.changed = True
        if conn is not None:
            self.context.send(conn, m.SwitchoverStep(phase=phase, detail=detail, done=done, ok=ok))

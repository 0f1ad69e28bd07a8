"""A planned change of holder: `Drain -> Drained -> the successor looks at its engine -> Exit`.

Pure, a part of `machine.py`. Up to `Exit` it can be called off and the old holder serves on; after it the path is an
ordinary death, with the proof and all, except that a holder that was told to end and doesn't is killed when its time
is up.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from lockserver import messages as m
from lockserver.tree import Stage, Tree

if TYPE_CHECKING:
    from lockserver.machine import Machine


class Step(Enum):
    DRAINING = "draining"
    CHECKING = "checking"
    EXITING = "exiting"


@dataclass(slots=True)
class Plan:
    asker: int | None
    old: Tree
    to: Tree
    step: Step
    round: int
    until: float


class Switchover:
    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.context = machine.context
        self.forest = machine.forest
        self.queue = machine.queue
        self.config = machine.config
        self.plan: Plan | None = None

    # -- asked for by a person -------------------------------------------------------------------------------------

    def ask(self, asker: int, wish: m.Switchover) -> None:
        machine, context = self.machine, self.context
        holder = machine.active.holder
        if self.plan is not None:
            self._tell(asker, "refused", "a switchover is under way already", done=True)
            return
        if not machine.active.held or holder is None or holder.conn is None:
            self._tell(
                asker, "refused", f"there is no holder to take over from: the lock is {machine.state.value}", done=True
            )
            return
        able = [
            w.tree for w in machine.queue.waiters.values() if w.ready and w.vetted and w.tree.stage is Stage.PRESENT
        ]
        to = next((tree for tree in able if wish.to in ("", tree.engine_id)), None)
        if to is None:
            who = f"no waiter named {wish.to} is there" if wish.to else "there is no waiter"
            self._tell(asker, "refused", f"{who}, alive and ready", done=True)
            return
        machine.queue.new_round()
        self.plan = Plan(asker, holder, to, Step.DRAINING, machine.queue.round, context.now + wish.drain_timeout_s)
        context.note("switchover", engine=holder.engine_id, to=to.engine_id)
        context.send(holder.conn, m.Drain(round=self.plan.round, timeout_s=wish.drain_timeout_s))
        self._tell(asker, "draining", f"{holder.engine_id} finishes what it has begun")

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

    def step(self) -> None:
        """Called in every turn while the holder is there."""
        plan, machine = self.plan, self.machine
        if plan is None:
            return
        successor = machine.queue.waiters.get(plan.to.name)
        if successor is None or not successor.ready:
            self._abort("the successor is no longer there and ready")
        elif plan.step is Step.CHECKING and machine.queue.prepared(successor):
            assert plan.old.conn is not None
            plan.step, plan.until = Step.EXITING, machine.context.now + machine.config.exit_timeout_s
            machine.context.send(plan.old.conn, m.Exit(round=plan.round))
            self._tell(plan.asker, "exiting", f"{plan.old.engine_id} was told to end")
            machine.queue.preferred = plan.to.name
            machine.doom(plan.old)
        elif machine.context.reached(plan.until):
            self._abort(
                "draining took too long"
                if plan.step is Step.DRAINING
                else "the successor's engine isn't well, or it doesn't answer"
            )

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
        self.forest.kill_rest(plan.old)

    def granted(self, tree: Tree, token: int) -> None:
        plan, self.plan = self.plan, None
        if plan is not None:
            self._tell(plan.asker, "done", f"{tree.engine_id} holds the lock, with token {token}", done=True, ok=True)

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
        if conn is not None and conn in self.machine.desk.callers:
            self.context.send(conn, m.SwitchoverStep(phase=phase, detail=detail, done=done, ok=ok))

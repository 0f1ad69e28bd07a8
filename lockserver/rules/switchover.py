"""A planned change of holder: `Drain -> Drained -> the successor looks at its engine -> Exit`; and one without a
successor, after which the lock is at rest: `Drain -> Drained -> GiveBack -> Release`.

Pure. Up to `Exit` or `GiveBack` it can be called off and the old holder serves on. After `Exit` the path is an ordinary
death, with the proof and all, except that a holder that was told to end and doesn't is killed when its time is up. So
is one that was told to give back, and doesn't.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from evidence.rules.incarnation import Incarnation
from evidence.rules.incarnations import Incarnations
from lockserver.rules import messages as m
from lockserver.rules.context import Context
from lockserver.rules.events import Config
from lockserver.rules.lock import Lock, Phase
from lockserver.rules.plan import Plan
from lockserver.rules.queue import Queue, Waiter
from lockserver.rules.rest import Rest

DRAIN_MARGIN_S = 2.0
"""The holder keeps the bound of its drain itself, and says so at its end; this is for one that doesn't."""


MOST_NAMED = 10
"""Where a switchover is refused, so many waiters are named."""


class Step(Enum):
    DRAINING = "draining"
    CHECKING = "checking"
    EXITING = "exiting"
    GIVING_BACK = "giving back"


NO_WAY_BACK = (Step.EXITING, Step.GIVING_BACK)


@dataclass(slots=True)
class Switch:
    asker: int | None
    old: Incarnation
    old_token: int
    to: Incarnation | None
    """None: the lock goes to rest."""
    step: Step
    round: int
    until: float
    drain_timeout_s: float
    why: str
    """What a sleep is for."""
    waked: bool = False
    """When there was no way back any more: it is given back, and isn't at rest."""

    @property
    def what(self) -> str:
        return "a switchover" if self.to is not None else "a sleep"


class Switchover:
    def __init__(self, config: Config, context: Context, queue: Queue, incarnations: Incarnations, rest: Rest) -> None:
        self.config = config
        self.context = context
        self.queue = queue
        self.rest = rest
        self.incarnations = incarnations
        self.under_way: Switch | None = None

    # -- asked for by a person -------------------------------------------------------------------------------------

    def ask(self, asker: int, wish: m.Switchover, active: Lock, state: str) -> None:
        holder = active.holder
        if self.under_way is not None:
            self._refuse(asker, f"{self.under_way.what} is under way already")
            return
        if active.phase is not Phase.HELD or holder is None or holder.conn is None:
            self._refuse(asker, f"there is no holder to take over from: the lock is {state}")
            return
        able = [w.incarnation for w in self.queue.waiters.values() if w.is_there and w.vetted]
        to = next((waiter for waiter in able if wish.to in ("", waiter.engine_id)), None)
        if to is None:
            who = f"no waiter named {wish.to} is there" if wish.to else "there is no waiter"
            why = f"{who}, alive and ready" if wish.to != holder.engine_id else f"{wish.to} holds the lock already"
            self._refuse(asker, f"{why}; {self._who_waits()}")
            return
        self._drain(asker, holder, active.token, to, wish.drain_timeout_s)

    def sleep(self, asker: int, wish: m.Sleep, active: Lock) -> None:
        """Where no engine holds the lock it is at rest at once, whatever is to be proven yet."""
        holder = active.holder
        if self.under_way is not None:
            self._refuse(asker, f"{self.under_way.what} is under way already")
            return
        if active.phase is Phase.HELD and holder is not None:
            self._drain(asker, holder, active.token, None, wish.drain_timeout_s, wish.why)
        elif active.phase is Phase.GRANTING:
            self._refuse(asker, "a grant is being written: ask again")
        else:
            self.rest.begin(wish.why, asker)

    def wake(self, asker: int) -> None:
        switch = self.under_way
        if switch is not None and switch.step is Step.GIVING_BACK:
            switch.waked = True
        elif switch is not None and switch.to is None:
            self._abort("it was waked")
        if self.rest.why:
            self.queue.new_round()  # what a waiter said of its engine was said before the rest
        self.rest.end(asker)

    def _refuse(self, asker: int, why: str) -> None:
        self._tell(asker, "refused", why, done=True)

    def _drain(
        self, asker: int, old: Incarnation, token: int, to: Incarnation | None, timeout_s: float, why: str = ""
    ) -> None:
        self.queue.new_round()
        until = self.context.now + timeout_s + DRAIN_MARGIN_S
        self.under_way = Switch(asker, old, token, to, Step.DRAINING, self.queue.round, until, timeout_s, why)
        self.context.note("switchover", engine=old.engine_id, to=to.engine_id if to is not None else "")
        if old.conn is not None:
            self.context.send(old.conn, m.Drain(round=self.under_way.round, timeout_s=timeout_s))
        self._tell(asker, "draining", f"{old.engine_id} finishes what it has begun")

    def _who_waits(self) -> str:
        """So that a person can pick one."""
        waiters = self.queue.waiters.values()
        named = [f"{w.incarnation.engine_id} ({self._how_it_waits(w)})" for w in islice(waiters, MOST_NAMED)]
        more = f" and {len(waiters) - len(named)} more" if len(waiters) > len(named) else ""
        return f"waiting: {', '.join(named)}{more}" if named else "no engine waits"

    @staticmethod
    def _how_it_waits(waiter: Waiter) -> str:
        if not waiter.is_there:
            return "its connection has ended" if waiter.ready else "not ready"
        return "ready" if waiter.vetted else "its need for memory is being looked at"

    def call_off(self, conn: int) -> None:
        if self.under_way is None or self.under_way.step in NO_WAY_BACK:
            self._tell(conn, "refused", "there is no switchover that could still be called off", done=True)
            return
        own = self.under_way.asker == conn
        self._abort("it was called off")
        if not own:
            self._tell(conn, "aborted", "it was called off", done=True, ok=True)

    def asker_left(self, conn: int) -> None:
        if self.under_way is not None and self.under_way.asker == conn:
            self.under_way.asker = None
            self._abort("the one who asked for it has gone")

    # -- how it goes on --------------------------------------------------------------------------------------------

    def drained(self, message: m.Drained) -> None:
        switch = self.under_way
        if switch is None or switch.step is not Step.DRAINING or message.round != switch.round:
            return
        if not message.ok:
            self._abort(f"the holder could not drain: {message.why}")
            return
        if switch.to is None:
            self._tell_to_give_back(switch)
            return
        switch.step, switch.until = Step.CHECKING, self.context.now + self.config.prepare_timeout_s
        self._tell(switch.asker, "checking", f"{switch.to.engine_id} looks at its engine")

    def _tell_to_give_back(self, switch: Switch) -> None:
        switch.step, switch.until = Step.GIVING_BACK, self.context.now + self.config.exit_timeout_s
        if switch.old.conn is not None:
            self.context.send(switch.old.conn, m.GiveBack(round=switch.round))
        self._tell(switch.asker, "giving back", f"{switch.old.engine_id} puts its engine to sleep")

    def given_back(self, holder: Incarnation, why: str) -> None:
        """Asked for or not: the lock is at rest, unless it was waked meanwhile."""
        switch, self.under_way = self.under_way, None
        if switch is not None and switch.to is not None:
            self._tell(switch.asker, "died", f"{holder.engine_id} gave the lock back by itself", done=True)
        self._rest(switch, why or f"{holder.engine_id} gave the lock back")

    def _rest(self, switch: Switch | None, why: str) -> None:
        """The holder has given back, or won't serve again."""
        if switch is None or switch.to is not None:
            self.rest.begin(why)
        elif not switch.waked:
            self.rest.begin(switch.why, switch.asker)
        else:
            self._tell(switch.asker, "waked", "it was waked meanwhile", done=True)

    def plan_next(self, plan: Plan, tell_to_end: Callable[[], None], fence: Callable[[Incarnation], None]) -> None:
        """While the holder is there. `tell_to_end`: there is no way back for it. `fence`: it didn't give back."""
        switch = self.under_way
        if switch is None:
            return
        if switch.to is None:
            if not plan.wait_until(switch.until):
                back = switch.step is Step.GIVING_BACK
                plan.do(fence, switch.old) if back else plan.do(self._abort, "draining took too long")
            return
        successor = self.queue.waiters.get(switch.to.name)
        if successor is None or not successor.ready:
            plan.do(self._abort, "the successor is no longer there and ready")
            return
        if switch.step is Step.CHECKING:
            if self.queue.prepared(successor, plan.now):
                plan.do(tell_to_end)
                return
            self.queue.plan_look(plan, successor)
        if not plan.wait_until(switch.until):
            draining = switch.step is Step.DRAINING
            why = "draining took too long" if draining else "the successor's engine isn't well, or it doesn't answer"
            plan.do(self._abort, why)

    def tell_to_end(self) -> Incarnation | None:
        """Returns the holder that was told."""
        switch = self.under_way
        if switch is None or switch.to is None:
            return None
        switch.step, switch.until = Step.EXITING, self.context.now + self.config.exit_timeout_s
        if switch.old.conn is not None:
            self.context.send(switch.old.conn, m.Exit(round=switch.round))
        self._tell(switch.asker, "exiting", f"{switch.old.engine_id} was told to end")
        self.queue.preferred = switch.to.name
        return switch.old

    def holder_lost(self) -> None:
        """The holder's end, planned or not."""
        switch = self.under_way
        if switch is not None and switch.step is Step.GIVING_BACK:
            self.under_way = None
            self._rest(switch, "")
        elif switch is not None and switch.step is not Step.EXITING:
            self.under_way = None
            self._tell(
                switch.asker,
                "died",
                f"{switch.old.engine_id} ended by itself; the next that is ready takes over",
                done=True,
            )

    def plan_end(self, plan: Plan) -> None:
        """While the holder's end is awaited."""
        switch = self.under_way
        if switch is not None and switch.step is Step.EXITING and not plan.wait_until(switch.until):
            plan.do(self.enforce, switch)

    def enforce(self, switch: Switch) -> None:
        """The holder was told to end, and had finished what it had begun."""
        switch.until = self.context.now + self.config.exit_timeout_s
        self.context.shout(f"{switch.old.engine_id} was told to end and has not; it is killed")
        self.incarnations.kill_living(switch.old)

    def granted(self, holder: Incarnation, token: int) -> None:
        switch, self.under_way = self.under_way, None
        if switch is not None:
            self._tell(
                switch.asker, "done", f"{holder.engine_id} holds the lock, with token {token}", done=True, ok=True
            )

    def end_without_successor(self) -> None:
        """The old holder is gone, and so is the successor."""
        switch, self.under_way = self.under_way, None
        if switch is not None and switch.to is not None:
            ended = f"{switch.old.engine_id} has ended, {switch.to.engine_id} too"
            self._tell(switch.asker, "died", f"{ended}, and no engine waits; the next one is granted", done=True)

    def _abort(self, why: str) -> None:
        switch = self.under_way
        if switch is None or switch.step in NO_WAY_BACK:
            return
        self.under_way = None
        self.context.note("switchover_aborted", why=why)
        self._tell(switch.asker, "aborted", why, done=True)
        if switch.old.conn is not None:
            self.context.send(switch.old.conn, m.Resume(why=why))

    def _tell(self, conn: int | None, phase: str, detail: str, *, done: bool = False, ok: bool = False) -> None:
        self.context.changed = True
        if conn is not None:
            self.context.send(conn, m.SwitchoverStep(phase=phase, detail=detail, done=done, ok=ok))

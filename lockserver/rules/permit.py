"""The permit `init`: one engine at a time initialises device memory.

Pure. The permit has a state like the lock (`lock.py`), and is simpler: it is granted without asking for free memory and
without asking the engine again whether it is well. Its waiters are kept here, and so is the rule when it may be
granted, which depends on what the lock is doing (`why_not`).
"""

from evidence.rules.incarnation import Incarnation, Life
from lockserver.rules.context import Context
from lockserver.rules.lock import Lock, Phase
from lockserver.rules.messages import INIT
from lockserver.rules.queue import Queue


class Permit:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.lock = Lock(INIT)
        self.waiters: dict[str, Incarnation] = {}

    def enter(self, incarnation: Incarnation) -> None:
        self.waiters[incarnation.name] = incarnation
        self.context.changed = True

    def leave(self, incarnation: Incarnation) -> None:
        self.waiters.pop(incarnation.name, None)

    def put_back(self, incarnation: Incarnation) -> None:
        """At the head, where it was."""
        self.waiters = {incarnation.name: incarnation, **self.waiters}

    def take_next(self) -> Incarnation:
        """Takes the first out of the queue, which isn't empty."""
        return self.waiters.pop(next(iter(self.waiters)))

    def why_not(self, active: Lock, queue: Queue, state: str, now: float, *, may_be_held: bool) -> str:
        """No engine initialises device memory between a holder's death and its successor's Active: it would size itself
        by memory that moves. Where no waiter can take over, another engine is what is needed most.
        """
        if may_be_held or self.lock.phase is Phase.IN_DOUBT:
            return "the server is new; the one that had the permit may come back"
        if active.phase is Phase.HELD and active.holder is not None:
            return "" if active.endpoint is not None else f"{active.holder.engine_id} is waking"
        if state == "FREE" or (self._nobody_dies(active, now) and not queue.promising(now)):
            return ""
        return f"the lock is {state}"

    def _nobody_dies(self, active: Lock, now: float) -> bool:
        """No holder is on its way out. Or one is, and waiting brings no proof: a restarted server lacks only free
        memory, which is looked for when an engine waits for the lock, and none can wait before it has initialised.
        """
        holder, doubt = active.holder, active.doubt
        if holder is None or doubt is None:
            return holder is None and doubt is None
        return now >= doubt.until and holder.life is Life.FREE and not holder.seen_alive

"""What a new server finds, and when it may grant (rule V10 of `machine.py`).

Pure. The file says which trees have leases: these count until their trees are proven gone or give them back. It may be
an older copy of itself, or lost, or unreadable: then a tree that no file names may have leases, and every tree that
has a life lock here is asked for (`evidence/rules/strangers.py`).
"""

import math

from evidence.rules.evidence import Evidence
from sidecar.machine.plan import Plan
from vram.rules.events import Config, Started


class Recovery:
    def __init__(self, config: Config, evidence: Evidence) -> None:
        self.config = config
        self.evidence = evidence
        self.why = "it has not begun"
        """Why a tree that no file names may have a lease; empty once that is settled."""
        self.lost_file = ""
        """There is no file, or one that can't be read."""
        self.until = math.inf
        """Until then holders of which no file tells have time to come back."""

    def begin(self, event: Started, now: float, *, same_boot: bool) -> None:
        record = event.record
        if event.unreadable:
            self.lost_file = f"vram.json can't be read ({event.unreadable}); it was put aside"
        elif record is None:
            self.lost_file = "there is no vram.json"
        else:
            self.lost_file = record.unsettled if same_boot else ""  # every process of then has ended
        self.why = self.lost_file or "the server is new: holders may come back"
        self.until = now + (self.config.window_s if event.unreadable else self.config.settle_s)

    def settle(self) -> None:
        self.why = self.lost_file = ""
        self.evidence.strangers.settle()

    def plan(self, plan: Plan) -> tuple[bool, list[str]]:
        """May it grant? And what it waits for."""
        if not self.why:
            return True, []
        strangers, waits = self.evidence.strangers, plan.wait_until(self.until)
        if strangers.wants_look(plan.now):
            plan.do(strangers.ask)
            return False, []
        plan.wait_until(strangers.stale_at())
        look = strangers.look(plan.now)
        if look is None:
            return False, []
        if self.lost_file:
            lately = plan.wait_until(strangers.settled_at())
            may = [f"the life files can't be read: {look.unreadable}"] if look.unreadable else []
            may += [f"the life lock of {name} is held by a process that has not come" for name in look.held]
            may += strangers.unheard()
            if not waits and not may and not lately:
                plan.do(self.settle)
            return False, may
        awaited = [name for name, who in self.evidence.incarnations.bound.items() if not who.came]
        may = [f"{name} may come back" for name in (*awaited, *strangers.holding(look))]
        if not waits or not (may or any(strangers.unheard())):
            plan.do(self.settle)
        return False, may

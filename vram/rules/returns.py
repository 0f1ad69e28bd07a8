"""What is given back, or ends, and when it counts no more (rules V4 and V5 of `machine.py`).

Pure. What a tree had that is proven gone is free at once. What a living tree gives back counts as `returning` until a
reading shows that it is free.
"""

from collections.abc import Container

from sidecar.machine.plan import Plan
from sidecar.terminal.formatting import sizes
from vram.rules.books import Books, Part
from vram.rules.leases import Asked, Lease, minus, plus
from vram.rules.messages import Bytes

SOON_S = 0.002


class Returns(Part):
    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self.last_at = 0.0
        """When something ended, or was given back, for the last time."""

    def plan(self, plan: Plan, found: Container[str]) -> None:
        """`found`: names of which the next holder has come, and waits for what it has found."""
        leases = list(self.leases.returning.values())
        if not leases:
            return
        readable = any(self.devices.can_be_read(device) for lease in leases for device in lease.returning)
        if self.memory.is_known or not readable:
            for lease, still in self.devices.returned():
                plan.do(self._returned, lease, still)
        if plan.steps:
            return
        since = [lease.returning_since for lease in leases]
        if readable:
            self.memory.plan(plan, pace(plan.now - max(since)))
        for lease in leases:
            if lease.has_outlived and lease.name in found:
                continue
            patience_s = self.config.window_s if lease.has_outlived else self.config.patience_s
            if not plan.wait_until(lease.returning_since + patience_s):
                if not lease.overdue:
                    plan.do(self._overdue, lease)
                plan.say(self.context.alarm, f"returning {lease.number}", self._not_back(lease))

    def _overdue(self, lease: Lease) -> None:
        lease.overdue = True

    def _not_back(self, lease: Lease) -> str:
        missing = sizes(lease.returning)
        if lease.tree is None:
            return (
                f"{missing} of {lease.name} are in use still: its holder is gone, and the next one has not found them"
            )
        who = f"{lease.tree.engine_id} (process {lease.tree.pid})"
        return f"{who} said that it has given back {lease.name}, and {missing} are still in use"

    def end(self, lease: Lease, how: str, **more: str) -> None:
        self.context.note(how, lease=lease.number, name=lease.name, **more)
        self.less_in_use_soon(lease.counted)
        self.context.calm(f"returning {lease.number}", f"asked {lease.number}")
        self.leases.end(lease)

    def outlive(self, lease: Lease) -> None:
        """Its holder is gone, and others may have what it had: it is the next holder's, or free once that is seen."""
        self.context.note("outlived", lease=lease.number, name=lease.name)
        lease.returning_since, lease.overdue = self.context.now, False
        self.less_in_use_soon({})
        self.context.calm(f"returning {lease.number}", f"asked {lease.number}")
        self.leases.change(lease, bytes={}, returning=lease.counted)
        self.leases.pass_on(lease, None)

    def less_in_use_soon(self, bytes: Bytes) -> None:
        """The next reading may show less. `bytes`: what no lease has any more."""
        self.devices.ended(bytes)
        self.memory.something_ended()
        self.last_at = self.context.now

    def give_back(self, lease: Lease, left: Bytes, *, unused: bool) -> None:
        """The holder has only so much from now on. `unused`: it never used what it gives back."""
        back = minus(lease.bytes, left)
        if not back:
            return
        self.context.note("gave_back", lease=lease.number, name=lease.name, whole=not left)
        asked = lease.asked
        if asked is not None:
            rest = minus(asked.bytes, back)
            self.leases.ask(lease, Asked(rest, asked.until, asked.for_name, asked.late) if rest and left else None)
        if lease.asked is None:
            self.context.calm(f"asked {lease.number}")
        lease.returning_since, lease.overdue = self.context.now, False
        self.less_in_use_soon({})
        self.leases.change(lease, bytes=left, returning=lease.returning if unused else plus(lease.returning, back))

    def _returned(self, lease: Lease, still: Bytes) -> None:
        self.devices.ended(minus(lease.returning, still))
        self.leases.change(lease, returning=still)
        if not still:
            self.context.calm(f"returning {lease.number}")
            self.context.note("returned", lease=lease.number, name=lease.name)


def pace(waited_s: float) -> float:
    """How soon memory is read again for one that has waited so long."""
    return min(max(waited_s / 50, SOON_S), 1.0)

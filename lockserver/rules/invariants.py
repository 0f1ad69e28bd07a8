"""What must hold after every event, checked in production: a broken rule is a bug of ours, and two engines should
not be awake for it.

Pure, and cheap: nothing here goes through all callers or waiters (the tests do). `machine.py` stops granting when a
rule is broken, and says so with all that is needed to report it.
"""

from typing import Any

from evidence.rules.incarnations import Incarnations
from lockserver.rules.lock import Lock, Phase
from lockserver.rules.succession import Succession
from sidecar.machine.disk_writes import DiskWrites


class Invariants:
    def __init__(self) -> None:
        self._newest = 0

    def check(self, succession: Succession, incarnations: Incarnations, disk: DiskWrites[Any]) -> str:
        """Which rule is broken; empty as it should be."""
        newest, active = succession.newest_token, succession.active
        if newest < self._newest:
            return f"tokens only grow, and {newest} came after {self._newest}"
        self._newest = newest
        if active.holder is not None and active.token > newest:
            return f"the holder's token {active.token} is newer than the newest, {newest}"
        for lock in succession.locks:
            if why := lock.broken_rule() or self._broken_by(lock, incarnations, disk):
                return why
        if succession.rest.why and active.phase in (Phase.GRANTING, Phase.HELD):
            return f"the lock is at rest, and {active.phase.value}"
        if active.holder is not None and active.holder.name in succession.queue.waiters:
            return f"{active.holder.name} holds the lock, and waits for it"
        return ""

    @staticmethod
    def _broken_by(lock: Lock, incarnations: Incarnations, disk: DiskWrites[Any]) -> str:
        holder = lock.holder
        if holder is None:
            return ""
        if incarnations.known.get(holder.name) is not holder:
            return f"{lock.name}: {holder.name} is its holder, and its processes aren't watched"
        on_disk = lock.recorded_by is not None and lock.recorded_by <= disk.done
        if lock.phase is Phase.GRANTING and on_disk:
            return f"{lock.name}: the grant to {holder.name} is on disk, and it was not told"
        return ""

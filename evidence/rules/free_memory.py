"""How much memory is free, as far as that is known at this moment (what it proves: rule E8 of the package).

Pure. A reading counts in the turn in which it comes, and never later: memory moves. Asking takes a while, and a driver
may hang: a reading that doesn't come in time is not known, and that is said.
"""

import math
from typing import Any

from evidence.rules.events import Config, MemoryRead, ReadMemory
from sidecar.machine.context import Context
from sidecar.machine.plan import Plan

READ_EVERY_S = 0.02


class FreeMemory:
    def __init__(self, config: Config, context: Context[Any]) -> None:
        self.config = config
        self.context = context
        self.reading: MemoryRead | None = None
        """The one that came in this turn."""
        self._asked = False
        self._asked_at = -math.inf
        self._too_old = False
        """What is being read may tell of a moment before something ended."""

    @property
    def is_read(self) -> bool:
        """There is a reader that can say what is free."""
        return self.config.reads_memory

    @property
    def is_known(self) -> bool:
        """There is a reading in this turn."""
        return self.reading is not None and not self.reading.problem

    def late(self, now: float) -> bool:
        """It was asked for, and hasn't come within its time."""
        return self._asked and now >= self.late_at

    @property
    def late_at(self) -> float:
        return self._asked_at + self.config.reader_s

    def plan(self, plan: Plan, every_s: float = READ_EVERY_S) -> None:
        """A reading is needed."""
        if self._asked:
            if not plan.wait_until(self.late_at):
                text = f"memory can't be read: no answer for {self.config.reader_s:g} s; does the driver hang?"
                plan.say(self.context.alarm, "reader", text)
        elif not plan.wait_until(self._asked_at + every_s):
            plan.do(self.ask)

    def ask(self) -> None:
        if not self._asked:
            self._asked, self._asked_at = True, self.context.now
            self.context.out.append(ReadMemory())

    def came(self, reading: MemoryRead) -> None:
        in_time = self.context.now < self._asked_at + self.config.reader_s
        self._asked = False
        if reading.problem:
            self.context.alarm("reader", f"memory can't be read: {reading.problem}")
        elif in_time:
            self.context.calm("reader")
        self.reading = reading if in_time and not self._too_old else None
        self._too_old = False

    def something_ended(self) -> None:
        """It may have taken memory since the reading that is under way began."""
        self._too_old = self._asked

    def forget(self) -> None:
        """The turn is over."""
        self.reading = None

    def fits(self, needs: dict[str, int]) -> bool:
        """So much is known to be free."""
        free = self.reading.devices if self.reading is not None else {}
        return all(free.get(device, (0, 0))[0] >= need for device, need in needs.items())

    def never_fits(self, needs: dict[str, int]) -> str:
        """Why so much can't ever be free; empty if it can, or if nothing is known."""
        if self.reading is None or not self.is_known:
            return ""
        devices = self.reading.devices
        for device, need in sorted(needs.items()):
            if device not in devices:
                return f"no device {device!r} is known here; there are: {', '.join(sorted(devices)) or 'none'}"
            in_all = devices[device][1]
            if need > in_all:
                return f"{need} bytes of {device} are needed, and it has {in_all} in all"
        return ""

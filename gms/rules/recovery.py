"""A new server and a region of the one before (rules 9 and 10 of `machine.py`): how long it waits, and for what.

Pure. Memory outlives the server, because processes keep its descriptors. The file tells which memory that is; those who
have it hand it back (`hand_back.py`). Here is how long others are kept out, and when to ask whether any process still
has that memory.
"""

import math
from enum import Enum

from gms.rules.context import Context
from gms.rules.events import MemoryChecked
from sidecar.machine.disk_writes import RETRY_S

CHECK_EVERY_S = 0.25


class Step(Enum):
    """What is to be done now."""

    NOTHING = "nothing"
    CHECK_MEMORY = "ask whether any process has that memory"
    GIVE_UP = "write into the file that there is no memory: no process has it"


class Recovery:
    def __init__(self, context: Context, window_until: float) -> None:
        self._context = context
        self._window_until = window_until
        """Until then others than those who are here may be on their way back."""
        self._awake_at = math.inf
        """When this server last did anything."""
        self._check_at = math.inf
        self._checking = False
        self._gone_at = math.inf
        """When it is to be written into the file that no process has it."""

    def awaits(self, window_s: float, *, asks: bool) -> None:
        """There was memory. `asks`: whether any process has it still is asked at once."""
        self._window_until = self._context.now + window_s
        self._check_at = self._context.now if asks else math.inf

    # -- the window ------------------------------------------------------------------------------------------------

    @property
    def window_is_over(self) -> bool:
        return self._context.reached(self._window_until)

    def notice(self) -> None:
        """The window is time in which processes could come back: not that in which this server itself was stopped."""
        now = self._context.now
        asleep_s = now - self._awake_at - CHECK_EVERY_S
        if asleep_s > CHECK_EVERY_S and self._awake_at < self._window_until:
            self._window_until += asleep_s
        self._awake_at = now

    # -- does any process have it? ---------------------------------------------------------------------------------

    def step(self, *, awaited: bool) -> Step:
        context = self._context
        is_new = context.wait_until(self._window_until)
        if is_new:
            context.wake(self._awake_at + CHECK_EVERY_S)
        if not awaited:
            return Step.NOTHING
        if not context.wait_until(self._gone_at):
            self._gone_at = math.inf
            return Step.GIVE_UP
        if is_new and not self._checking and not context.wait_until(self._check_at):
            return self.check()
        return Step.NOTHING

    def check(self) -> Step:
        """A process has left, say: it may have been the last one that had that memory."""
        if self._checking:
            return Step.NOTHING
        self._checking, self._check_at = True, self._context.now + CHECK_EVERY_S
        return Step.CHECK_MEMORY

    def checked(self, answer: MemoryChecked) -> None:
        self._checking = False
        if answer.held is False:
            self._gone_at = self._context.now

    def could_not_give_up(self) -> None:
        """The file can't be written."""
        self._gone_at = self._context.now + RETRY_S

    def gave_up(self) -> None:
        """So the file says: it is given up, and no process is on the way."""
        self._window_until = -math.inf

    def end(self) -> None:
        """Nothing is awaited any more."""
        self._gone_at = math.inf

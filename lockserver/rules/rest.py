"""Whether the lock is at rest: no waiter is granted until it is waked (rule 14 of `machine.py`).

Pure. It outlives the server: what was asked for is said once it is on disk. How a holder is brought to give the lock
back is `switchover.py`'s business.
"""

from lockserver.rules.context import Context
from lockserver.rules.messages import SwitchoverStep

ASKED = "it was asked for"


class Rest:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.why = ""
        """Empty while it isn't at rest."""
        self.must_write = False
        """The last write doesn't say how things stand now."""
        self.owed: list[tuple[int, SwitchoverStep]] = []
        """What callers are told once it is on disk."""

    def begin(self, why: str, asker: int | None = None) -> None:
        self._set(why or ASKED, "at_rest")
        self._owe(asker, SwitchoverStep(phase="asleep", detail=f"the lock is at rest: {self.why}", done=True, ok=True))

    def end(self, asker: int | None = None) -> None:
        if self.why:
            self._set("", "waked")
        detail = "the lock isn't at rest: the next engine that is ready is granted"
        self._owe(asker, SwitchoverStep(phase="waked", detail=detail, done=True, ok=True))

    def _set(self, why: str, event: str) -> None:
        self.why = why
        self.context.note(event, why=why)
        self.context.changed = self.must_write = True

    def _owe(self, asker: int | None, step: SwitchoverStep) -> None:
        if asker is not None:
            self.owed.append((asker, step))
            self.must_write = True

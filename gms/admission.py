"""Who may come in to write or to read, and why not (rules 1 and 2 of `machine.py`).

Pure: a request goes in, a verdict comes out. It looks at the weights, at who reads and writes, and at the window of a
new server; it changes nothing. This is the only place where it is decided.
"""

from typing import Literal, NamedTuple

from gms import messages as m
from gms.recovery import Recovery
from gms.sessions import Client, Sessions
from gms.weights import Phase, Weights


class Verdict(NamedTuple):
    mode: Literal["rw", "ro"]
    why_not: str = ""

    @property
    def may(self) -> bool:
        return not self.why_not

    def __str__(self) -> str:
        what = "write" if self.mode == "rw" else "read"
        return f"may {what}" if self.may else f"may not {what}: {self.why_not}"


class Admission:
    def __init__(self, weights: Weights, sessions: Sessions, recovery: Recovery) -> None:
        self._weights = weights
        self._sessions = sessions
        self._recovery = recovery
        self.why_closed = ""
        """Why nobody is let in any more; empty while all is well."""

    def wants_to_read(self, request: m.Open) -> bool:
        """`rw_or_ro` reads if there is a layout, or may soon be one again."""
        there_is_one = self._weights.committed is not None or self._recovery.hopes
        return request.mode == "ro" or (request.mode == "rw_or_ro" and there_is_one)

    def verdict(self, request: m.Open) -> Verdict:
        if self.wants_to_read(request):
            return Verdict("ro", self.why_closed or self._why_no_reader())
        return Verdict("rw", self.why_closed or self._why_no_writer())

    def _why_no_reader(self) -> str:
        phase = self._weights.phase
        if phase is Phase.RW:
            return self._somebody_writes()
        if phase in (Phase.COMMITTED, Phase.RO):
            return ""
        return self._recovery.why_no_reader or "nothing is committed"

    def _why_no_writer(self) -> str:
        phase = self._weights.phase
        if phase is Phase.RW:
            return self._somebody_writes()
        if phase is Phase.RO:
            readers = self._sessions.readers
            return f"{_names(readers)} {'reads' if len(readers) == 1 else 'read'}"
        return self._recovery.why_no_writer

    def _somebody_writes(self) -> str:
        return f"{self._sessions.writer} is writing"


def _names(clients: list[Client]) -> str:
    names = ", ".join(str(client) for client in clients[:5])
    return f"{names} and {len(clients) - 5} more" if len(clients) > 5 else names

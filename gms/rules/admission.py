"""Who may come in to write or to read weights, and why not (rules 1 and 2 of `machine.py`).

Pure: a request goes in, a verdict comes out. It looks at the weights, at who reads and writes, and at the window of a
new server; it changes nothing. This is the only place where it is decided.
"""

from typing import Literal, NamedTuple

from gms.rules import messages as m
from gms.rules.recovery import Recovery
from gms.rules.sessions import Client, Sessions
from gms.rules.weights import Phase, Weights


class Verdict(NamedTuple):
    mode: Literal["rw", "ro"]
    why_not: str = ""

    @property
    def may(self) -> bool:
        return not self.why_not


class Admission:
    def __init__(self, weights: Weights, sessions: Sessions, recovery: Recovery) -> None:
        self._weights = weights
        self._sessions = sessions
        self._recovery = recovery

    def wants_to_read(self, request: m.Open) -> bool:
        """`rw_or_ro` reads if there is a layout, or may soon be one again."""
        hopes = self._weights.phase is Phase.RECOVERING and not self._recovery.window_is_over
        there_is_one = self._weights.committed is not None or hopes
        return request.mode == "ro" or (request.mode == "rw_or_ro" and there_is_one)

    def verdict(self, request: m.Open) -> Verdict:
        if self.wants_to_read(request):
            return Verdict("ro", self._why_no_reader())
        return Verdict("rw", self._why_no_writer())

    def _why_no_reader(self) -> str:
        phase, awaited = self._weights.phase, self._weights.awaited
        if phase is Phase.RW:
            return self._writes()
        if phase in (Phase.COMMITTED, Phase.RO):
            return ""
        if awaited is not None:
            return f"layout {awaited.generation} is to be handed back by a process that has kept it"
        return "nothing is committed"

    def _why_no_writer(self) -> str:
        phase, awaited = self._weights.phase, self._weights.awaited
        if phase is Phase.RW:
            return self._writes()
        if phase is Phase.RO:
            readers = [self._sessions.clients[conn] for conn in sorted(self._weights.readers)]
            return f"{_names(readers)} {'reads' if len(readers) == 1 else 'read'}"
        if self._recovery.window_is_over:
            return ""
        if awaited is not None:
            return f"this server is new, and layout {awaited.generation} may still be handed back"
        return "this server is new, and others who read may still be on their way back"

    def _writes(self) -> str:
        writer = self._weights.writer
        return f"{self._sessions.clients[writer] if writer is not None else 'a process'} is writing"


def _names(clients: list[Client]) -> str:
    names = ", ".join(str(client) for client in clients[:5])
    return f"{names} and {len(clients) - 5} more" if len(clients) > 5 else names

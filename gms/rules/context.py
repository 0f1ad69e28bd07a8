"""One turn of GMS's machine (`sidecar/machine/context.py`), shared by the parts of the machine."""

from collections.abc import Iterable

from gms.rules.events import Effect, Forget, Send
from gms.rules.messages import Reason, Refused, ServerMessage
from gms.rules.weights import Slab
from sidecar.machine import context


class Context(context.Context[Effect]):
    def __init__(self, history_size: int) -> None:
        super().__init__(history_size)
        self.counts: dict[str, int] = {}
        """How often each event has happened, also those that the history has forgotten."""

    def send(self, conn: int, message: ServerMessage, slabs: tuple[int, ...] = ()) -> None:
        self.out.append(Send(conn, message, slabs))

    def refuse(self, conn: int, why: str, reason: Reason) -> None:
        self.send(conn, Refused(why=why[:2000], reason=reason))

    def forget(self, slabs: Iterable[Slab]) -> None:
        """These descriptors are needed no more."""
        handles = tuple(slab.handle for slab in slabs)
        if handles:
            self.out.append(Forget(handles))

    def note(self, event: str, **detail: str | int | float | bool) -> None:
        super().note(event, **detail)
        self.counts[event] = self.counts.get(event, 0) + 1
        self.changed = True

"""One turn of GMS's machine (`sidecar/context.py`), shared by the parts of the machine."""

from gms.events import Effect, Send
from gms.messages import ServerMessage
from sidecar import context


class Context(context.Context[Effect]):
    def __init__(self, history_size: int) -> None:
        super().__init__(history_size)
        self.counts: dict[str, int] = {}
        """How often each event has happened, also those that the history has forgotten."""

    def send(self, conn: int, message: ServerMessage, slabs: tuple[int, ...] = ()) -> None:
        self.out.append(Send(conn, message, slabs))

    def note(self, event: str, **detail: str | int | float | bool) -> None:
        super().note(event, **detail)
        self.counts[event] = self.counts.get(event, 0) + 1
        self.changed = True

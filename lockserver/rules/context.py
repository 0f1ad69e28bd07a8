"""One turn of the lock server's machine (`sidecar/machine/context.py`), shared by the parts of the machine."""

from lockserver.rules.events import Effect, Send
from lockserver.rules.messages import ServerMessage
from sidecar.machine import context


class Context(context.Context[Effect]):
    def send(self, conn: int, message: ServerMessage) -> None:
        self.out.append(Send(conn, message))

"""One turn of the lock server's machine (`sidecar/context.py`), shared by the parts of the machine."""

from lockserver.events import Effect, Send
from lockserver.messages import ServerMessage
from sidecar import context


class Context(context.Context[Effect]):
    def send(self, conn: int, message: ServerMessage) -> None:
        self.out.append(Send(conn, message))

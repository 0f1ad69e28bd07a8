"""One turn of the lock server's machine (`sidecar/turn.py`), shared by the parts of the machine."""

from lockserver.events import Effect, Send
from lockserver.messages import ServerMessage
from sidecar import turn


class Turn(turn.Turn[Effect]):
    def send(self, conn: int, message: ServerMessage) -> None:
        self.out.append(Send(conn, message))

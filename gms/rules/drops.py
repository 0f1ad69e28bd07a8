"""Asking processes to drop memory of a layout or a pool that is gone (rule 7 of `machine.py`).

Pure, a part of the machine. Who has what, and whose drop is pending: `holders.py`.
"""

from gms.rules import messages as m
from gms.rules.context import Context
from gms.rules.holders import Holders
from gms.rules.sessions import Client, Sessions
from sidecar.machine.context import rfc3339

ANSWER_S = 5.0
"""A process that isn't stopped and doesn't hang drops what it is asked to drop within that."""


class Drops:
    def __init__(self, context: Context, holders: Holders, sessions: Sessions) -> None:
        self._context = context
        self._holders = holders
        self._sessions = sessions

    def ask(self, generation: int) -> list[int]:
        """That memory is gone: every process that has it is asked. Returns the connections of those that have more of
        it to drop than one process can have.
        """
        who = [self._sessions.clients[conn] for conn in self._holders.who_has(generation)]
        return [client.conn for client in who if not self.ask_one(client, generation)]

    def ask_one(self, client: Client, generation: int, *, tell: bool = True) -> bool:
        """False: it says that it has more memory than one process can have. `tell`: it doesn't know by itself."""
        may = self._holders.ask(client.conn, generation, self._context.now)
        self._sessions.turns_to_something_else(client)
        if tell:
            self._context.send(client.conn, m.Drop(generation=generation))
        return may

    def dropped(self, client: Client, generation: int) -> None:
        if self._holders.dropped(client.conn, generation):
            self._context.note("dropped", region=client.key, engine=client.engine_id, generation=generation)
        self._sessions.turns_to_something_else(client)

    def still(self, generation: int) -> list[str]:
        """Processes that have that memory. In sentences."""
        return [
            f"{self._sessions.clients[conn]} has memory of {self._what(conn, generation)}, and was asked to drop it"
            for conn in self._holders.who_has(generation)
        ]

    def step(self) -> None:
        """A process that doesn't answer is named in an alarm."""
        clients, context = self._sessions.clients, self._context
        late = [
            f"{clients[drop.conn]} still has memory of {self._what(drop.conn, drop.generation)}, which is gone, and "
            "does not answer"
            for drop in self._holders.pending
            if not context.wait_until(drop.asked_at + ANSWER_S)
        ]
        if late:
            context.alarm("pending_drops", "; ".join(late[:5]))
        else:
            context.calm("pending_drops")

    @property
    def pending(self) -> list[str]:
        """In sentences."""
        clients, context = self._sessions.clients, self._context
        return [
            f"{clients[drop.conn]} has memory of {self._what(drop.conn, drop.generation)}, and was asked to drop it at "
            f"{rfc3339(context.wall - (context.now - drop.asked_at))}"
            for drop in self._holders.pending
        ]

    @property
    def also(self) -> str:
        """The same, behind why there is too little memory."""
        return "".join(f"; {sentence}" for sentence in self.pending)

    def _what(self, conn: int, generation: int) -> str:
        key = self._sessions.clients[conn].key
        return f"layout {generation}" if key == m.WEIGHTS else f"memory {generation} of {key}"

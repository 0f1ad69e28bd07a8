"""Who is connected, what each of them does, what each has asked for, and in which order.

Pure. A process that wants weights is a client; whoever only looks is an observer. What a client does is not stored
here: it follows from the weights, from what it has asked for, and from the descriptors that it has.

What this file may not do: decide who may come in (`admission.py`).
"""

from dataclasses import dataclass
from enum import Enum

from gms import messages as m
from gms.context import Context
from gms.holders import Holders
from gms.weights import Weights

MOST_CLIENTS = 500
MOST_OBSERVERS = 500


class Doing(Enum):
    WRITING = "writing"
    READING = "reading"
    WAITING = "waiting"
    ASLEEP = "asleep"
    WATCHING = "watching"


IDLE = (Doing.ASLEEP, Doing.WATCHING)
"""It neither reads nor writes nor waits."""


@dataclass(frozen=True)
class Request:
    """An `Open` that waits."""

    open: m.Open
    number: int
    """Its place in the queue; no two requests have the same."""
    until: float


@dataclass
class Client:
    conn: int
    engine_id: str
    pid: int
    process: int | None
    since: float
    """On the clock on the wall: when what it does became what it is."""
    request: Request | None = None

    def __str__(self) -> str:
        return f"{self.engine_id} (pid {self.pid})"


@dataclass
class Observer:
    watches: bool = False
    """It wants to hear of each change."""


class Sessions:
    def __init__(self, context: Context, weights: Weights, holders: Holders) -> None:
        self._context = context
        self._weights = weights
        self._holders = holders
        self.clients: dict[int, Client] = {}
        """By connection, the oldest first."""
        self.observers: dict[int, Observer] = {}
        """The same."""
        self._requests = 0

    def doing(self, client: Client) -> Doing:
        if client.conn == self._weights.writer:
            return Doing.WRITING
        if client.conn in self._weights.readers:
            return Doing.READING
        if client.request is not None:
            return Doing.WAITING
        return Doing.ASLEEP if self._holders.keeps_some(client.conn) else Doing.WATCHING

    @property
    def queue(self) -> list[tuple[Client, Request]]:
        """Those who wait, in the order in which they asked."""
        waiting = [(client, client.request) for client in self.clients.values() if client.request is not None]
        return sorted(waiting, key=lambda each: each[1].number)

    @property
    def readers(self) -> list[Client]:
        return [client for conn, client in self.clients.items() if conn in self._weights.readers]

    @property
    def writer(self) -> Client | None:
        writer = self._weights.writer
        return self.clients.get(writer) if writer is not None else None

    @property
    def watchers(self) -> list[int]:
        """Connections of the observers that want to hear of each change."""
        return [conn for conn, observer in self.observers.items() if observer.watches]

    def knows(self, conn: int) -> bool:
        return conn in self.clients or conn in self.observers

    def of(self, process: int) -> list[Client]:
        return [client for client in self.clients.values() if client.process == process]

    def tell(self, message: m.ServerMessage, but: Client | None = None) -> None:
        """To all clients."""
        for client in self.clients.values():
            if client is not but:
                self._context.send(client.conn, message)

    # -- coming and going ------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """There are as many clients as there may be, and each of them does something."""
        return len(self.clients) >= MOST_CLIENTS and self._idlest() is None

    def too_many(self) -> list[int]:
        """Who has to go because more have come than there may be. An observer can always come again, and a client that
        does nothing and has nothing comes again by itself.
        """
        going = []
        if len(self.observers) > MOST_OBSERVERS:
            silent = (conn for conn, each in self.observers.items() if not each.watches)
            going.append(next(silent, next(iter(self.observers))))
        idlest = self._idlest() if len(self.clients) > MOST_CLIENTS else None
        return going if idlest is None else [*going, idlest]

    def _idlest(self) -> int | None:
        watching = (conn for conn, client in self.clients.items() if self.doing(client) is Doing.WATCHING)
        return next(watching, None)

    def gone(self, conn: int) -> None:
        """The connection ended."""
        self.observers.pop(conn, None)
        if self.clients.pop(conn, None) is not None:
            self._context.changed = True

    def turns_to_something_else(self, client: Client) -> None:
        """What it does is different from now on."""
        client.since = self._context.wall
        self._context.changed = True

    # -- requests --------------------------------------------------------------------------------------------------

    def ask(self, client: Client, message: m.Open, until: float) -> Request:
        self._requests += 1
        client.request = Request(message, self._requests, until)
        self.turns_to_something_else(client)
        return client.request

    def refuse(self, client: Client, why: str, reason: m.Reason) -> None:
        """Its request is over."""
        client.request = None
        self.turns_to_something_else(client)
        self._context.note("refused", engine=client.engine_id, reason=reason, why=why)
        self._context.refuse(client.conn, why, reason)

    def asking(self, conn: int, number: int) -> tuple[Client, Request] | None:
        """That very request, if it still waits."""
        client = self.clients.get(conn)
        if client is None or client.request is None or client.request.number != number:
            return None
        return client, client.request

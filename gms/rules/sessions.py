"""Who is connected, what each has asked for, and in which order.

Pure. A process that has to do with a region is a client; a caller that only looks is an observer. What a client does is
not stored here: its region knows (`Region.doing`).

What this file may not do: decide who may come in (`weights.py`, `claims.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from gms.rules import messages as m
from gms.rules.context import Context

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
    """An `Open` or a `ClaimPool` that waits."""

    message: m.Open | m.ClaimPool
    number: int
    """Its place in the queue; no two requests have the same."""
    until: float
    why_empty: str = ""
    """A claim has it while memory is being made for it: why it gets new memory."""


@dataclass
class Client:
    conn: int
    engine_id: str
    pid: int
    process: int | None
    since: float
    """On the clock on the wall: when what it does became what it is."""
    key: str = m.WEIGHTS
    """The region's."""
    identity: str = ""
    """The kernel's name for it; empty on older kernels."""
    local_pid: int = 0
    """Its number in this server's own PID namespace; 0 where it has none."""
    writes_end: bool = False
    """What it writes ends with its process."""
    says_what_it_has: bool = False
    """It has descriptors already, and will say of what (`HandBack`): until then it is told nothing."""
    parks: bool = False
    """It understands `Parked`."""
    request: Request | None = None

    def __str__(self) -> str:
        return f"{self.engine_id} (pid {self.pid})"


class Sessions:
    def __init__(self, context: Context, doing: Callable[[Client], Doing]) -> None:
        self._context = context
        self._doing = doing
        self.clients: dict[int, Client] = {}
        """By connection, the oldest first."""
        self.observers: dict[int, bool] = {}
        """The same; whether it wants to hear of each change."""
        self._requests = 0

    def queue(self, key: str) -> list[tuple[Client, Request]]:
        """Those of that region who wait, in the order in which they asked."""
        waiting = [(client, client.request) for client in self.of_region(key) if client.request is not None]
        return sorted(waiting, key=lambda each: each[1].number)

    def of_region(self, key: str) -> list[Client]:
        return [client for client in self.clients.values() if client.key == key]

    def of_process(self, process: int) -> list[Client]:
        return [client for client in self.clients.values() if client.process == process]

    def named(self, conns: Iterable[int]) -> str:
        """In words."""
        clients = [self.clients[conn] for conn in conns]
        names = ", ".join([str(client) for client in clients[:5]])
        return f"{names} and {len(clients) - 5} more" if len(clients) > 5 else names

    def knows(self, conn: int) -> bool:
        return conn in self.clients or conn in self.observers

    def tell(self, key: str, message: m.ServerMessage, but: Client | None = None) -> None:
        """To all clients of that region."""
        for client in self.of_region(key):
            if client is not but:
                self._context.send(client.conn, message)

    # -- coming and going ------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """There are as many clients as there may be, and each of them does something."""
        return len(self.clients) >= MOST_CLIENTS and self._idlest() is None

    def too_many(self) -> list[int]:
        """Those that have to go because more have come than there may be. An observer can always come again, and a
        client that does nothing and has nothing comes again by itself.
        """
        going = []
        if len(self.observers) > MOST_OBSERVERS:
            silent = (conn for conn, watches in self.observers.items() if not watches)
            going.append(next(silent, next(iter(self.observers))))
        idlest = self._idlest() if len(self.clients) > MOST_CLIENTS else None
        return going if idlest is None else [*going, idlest]

    def _idlest(self) -> int | None:
        watching = (conn for conn, client in self.clients.items() if self._doing(client) is Doing.WATCHING)
        return next(watching, None)

    def remove(self, conn: int) -> None:
        """The connection ended."""
        self.observers.pop(conn, None)
        if self.clients.pop(conn, None) is not None:
            self._context.changed = True

    def turns_to_something_else(self, client: Client) -> None:
        """What it does is different from now on."""
        client.since = self._context.wall
        self._context.changed = True

    # -- requests --------------------------------------------------------------------------------------------------

    def ask(self, client: Client, message: m.Open | m.ClaimPool, until: float) -> Request:
        self._requests += 1
        client.request = Request(message, self._requests, until)
        self.turns_to_something_else(client)
        return client.request

    def asking(self, conn: int, number: int) -> tuple[Client, Request] | None:
        """That very request, if it still waits."""
        client = self.clients.get(conn)
        if client is None or client.request is None or client.request.number != number:
            return None
        return client, client.request

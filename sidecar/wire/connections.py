"""The callers of a server: its socket, the connections, and what each may cost the others, which is nothing.

* A new caller is looked at: its user, and how many there are already. One that may not come in is told why.
* A caller that sends nothing, or what is no frame, or half of one and no more, or doesn't read what it is sent, is told
  why where that is possible, and loses its connection. Where there is no room left, the one that has been silent for
  longest makes room for the new one.
* What is too large for a frame costs the one that it was for its connection, and not the server its life.
* Callers that come faster than they can be let in don't keep the loop from a death; a server that has no descriptors
  left serves those that are in, and listens again a little later.
* What can't be sent costs the connection that it was for, and no other caller anything. What the kernel doesn't take
  because too many descriptors are under way, to any caller, waits.

What this file may not do: know what a message means. Which process a caller is: `processes.py`.
"""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sidecar.kernel import peers
from sidecar.machine.loop import Loop
from sidecar.terminal.logs import Log
from sidecar.wire.frames import (
    MAX_BACKLOG_BYTES,
    MAX_FRAME_BYTES,
    BadFrame,
    Channel,
    Message,
    PeerTooSlow,
    close_all,
)

HALF_FRAME_S = 10.0
SILENT_S = 10.0
"""A new caller says what it is before that."""
DEAF_S = 1.0
"""After a connection could not be accepted: trying again at once, and again, would keep a processor busy."""
MOST_CONNECTIONS = 4096
_FULL = "there are {} connections already"
HELD_UP_S = 0.05
"""When the kernel takes no more descriptors, it is asked again after that."""
HELD_UP_MOST_S = 3.0
"""When it has taken none of a connection's for so long, a person has to know."""
ACCEPTS_AT_A_TIME = 64
"""Then whatever else has happened."""


@dataclass(frozen=True)
class Access:
    """Who may connect, and how their processes are seen."""

    socket_mode: int = 0o600
    allow_uids: frozenset[int] = frozenset()
    pidfds: str = "auto"
    """`auto`: as the kernel can. `peer`, `sent`, `none`: as an older one would."""


@dataclass(frozen=True)
class Protocol:
    """What is spoken here."""

    decoder: msgspec.msgpack.Decoder[Any]
    problem: Callable[[str], Message]
    """The last word to a caller that made a mistake."""
    busy: Callable[[str], Message] | None = None
    """The last word to a caller for which there is no room now; without it that is a `problem`, too."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    max_backlog_bytes: int = MAX_BACKLOG_BYTES


@dataclass(slots=True)
class Connection:
    channel: Channel
    sock: socket.socket
    writing: bool = False
    """The loop waits for the socket to take more."""


class Connections:
    def __init__(
        self,
        loop: Loop,
        log: Log,
        protocol: Protocol,
        allow_uids: frozenset[int],
        *,
        heard: Callable[[int, socket.socket, Any, tuple[int, ...]], None],
        closed: Callable[[int], None],
    ) -> None:
        """`heard`: connection, its socket, message, and descriptors that are the handler's to close. `closed`: a
        connection that ended by itself or for a mistake, and not by `drop`.
        """
        self._loop = loop
        self._log = log
        self._protocol = protocol
        self._allow_uids = allow_uids
        self._heard = heard
        self._closed = closed
        self._listener: socket.socket | None = None
        self._connections: dict[int, Connection] = {}
        self._next = 0
        self._half: dict[int, float] = {}
        """Connections in the middle of a frame -> when they must be through; the oldest first."""
        self._silent: dict[int, float] = {}
        """Connections that have said nothing yet -> when they must have; the oldest first."""
        self._held_up: dict[int, float] = {}
        """Connections to which the kernel takes no descriptors now -> when it is asked again; the oldest first."""
        self._held_up_since: dict[int, float] = {}
        self._deaf_until = float("inf")
        """When it listens again; infinite while it does."""
        self._why_deaf = ""
        """Why the last caller could not be let in; empty once that is over."""

    @property
    def deadline(self) -> float:
        """When `due` has something to do."""
        first = min(next(iter(waiting.values()), self._deaf_until) for waiting in self._waiting)
        return min(first, self._deaf_until)

    @property
    def _waiting(self) -> tuple[dict[int, float], ...]:
        return self._half, self._silent, self._held_up

    def hindrance(self, now: float) -> str:
        """What has kept callers from coming in, or from hearing what they are sent, and does so still."""
        hindrances = []
        if self._why_deaf:
            hindrances.append(
                f"no new connection can be accepted ({self._why_deaf}), and those that are open are served: raise the "
                "server's limit of open files, or end what connects without end"
            )
        if self._held_up_since and now >= next(iter(self._held_up_since.values())) + HELD_UP_MOST_S:
            hindrances.append(
                f"the kernel has refused for {HELD_UP_MOST_S:g} s to send what a connection waits for (a grant, say): "
                "too many descriptors are on their way to processes of this user that don't read, or it has no memory; "
                "end those that are stopped, or raise the server's limit of open files"
            )
        return "; ".join(hindrances)

    def do_due(self, now: float) -> None:
        for conn, until in list(self._held_up.items()):
            if now < until:
                break
            self._flush(conn)
        for waiting, why in (
            (self._half, f"a frame was begun and not finished within {HALF_FRAME_S:g} s"),
            (self._silent, f"nothing was said within {SILENT_S:g} s"),
        ):
            for conn, until in list(waiting.items()):
                if now < until:
                    break
                self._turn_away(conn, why)
        if now >= self._deaf_until and self._listener is not None:
            self._deaf_until = float("inf")
            try:
                self._loop.add(self._listener.fileno(), self._on_connect)
            except OSError as error:
                self._go_deaf(self._listener, error)
                return
            self._on_connect(0)  # the kernel says at once whether there are descriptors, though no caller waits

    def listen(self, listener: socket.socket) -> None:
        """Its owner from now on. A listener that it had before is closed; the connections that came through it stay."""
        if self._listener is not None:
            self._loop.remove(self._listener.fileno())
            self._listener.close()
        self._listener = listener
        self._loop.add(listener.fileno(), self._on_connect)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for connection in self._connections.values():
            connection.channel.close()

    # -- what a server says ----------------------------------------------------------------------------------------

    def send(self, conn: int, message: Message, descriptors: Sequence[int] = ()) -> None:
        """To a caller that has gone nothing is sent."""
        connection = self._connections.get(conn)
        if connection is None:
            return
        try:
            connection.channel.send(message, descriptors)
        except ValueError as error:
            self._log.alarm("too_large_to_send", why=error)
            self.end(conn)
            return
        except (PeerTooSlow, OSError) as error:  # OSError: no descriptors left to keep what it doesn't read
            self._log.warning("peer_too_slow", why=error)
            self.end(conn)
            return
        self._mind_what_waits(conn, connection)

    def _flush(self, conn: int) -> None:
        self._held_up.pop(conn, None)
        connection = self._connections.get(conn)
        if connection is None:
            return
        try:
            connection.channel.flush()
        except (PeerTooSlow, OSError) as error:
            self._log.warning("cant_be_sent", why=error)
            self.end(conn)
            return
        self._mind_what_waits(conn, connection)

    def _mind_what_waits(self, conn: int, connection: Connection) -> None:
        if connection.channel.held_up and conn not in self._held_up:
            now = time.monotonic()
            self._held_up[conn] = now + HELD_UP_S
            self._held_up_since.setdefault(conn, now)
        elif not connection.channel.held_up and self._held_up_since:
            self._held_up_since.pop(conn, None)
        self._mind_writing(connection)

    def complain(self, conn: int, why: str) -> None:
        """A mistake: it costs its sender this connection."""
        connection = self._connections.get(conn)
        if connection is not None:
            self._log.warning("bad_message", why=why)
            self._part(conn, connection, self._protocol.problem(why))
            self._closed(conn)

    def _turn_away(self, conn: int, why: str) -> None:
        """It has said nothing for too long. It may have been stopped, or be slow: it may come again."""
        self._log.warning("turned_away", why=why)
        self._part(conn, self._connections[conn], self._not_now(why))
        self._closed(conn)

    def _not_now(self, why: str) -> Message:
        return (self._protocol.busy or self._protocol.problem)(why)

    def drop(self, conn: int) -> None:
        """The server has done with it."""
        connection = self._take_out(conn)
        if connection is not None:
            self._hang_up(connection)

    def end(self, conn: int) -> None:
        """It has ended, and that is news."""
        connection = self._take_out(conn)
        if connection is not None:
            self._closed(conn)  # first what follows from it, then the tidying
            self._hang_up(connection)

    def _take_out(self, conn: int) -> Connection | None:
        self._half.pop(conn, None)
        self._silent.pop(conn, None)
        self._held_up.pop(conn, None)
        self._held_up_since.pop(conn, None)
        return self._connections.pop(conn, None)

    def connected(self, conn: int) -> bool:
        """Its end is open at this moment: whatever of it is still unread, and whatever this server has noticed."""
        connection = self._connections.get(conn)
        if connection is None:
            return False
        poll = select.poll()
        poll.register(connection.sock, select.POLLRDHUP)
        return not poll.poll(0)

    # -- what happens ----------------------------------------------------------------------------------------------

    def _on_connect(self, _: int) -> None:
        listener = self._listener
        assert listener is not None
        for _turn in range(ACCEPTS_AT_A_TIME):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                self._why_deaf = ""
                return
            except OSError as error:
                self._go_deaf(listener, error)
                return
            self._next += 1
            conn, protocol = self._next, self._protocol
            channel = Channel(
                sock,
                protocol.decoder,
                max_frame_bytes=protocol.max_frame_bytes,
                max_backlog_bytes=protocol.max_backlog_bytes,
            )
            connection = self._connections[conn] = Connection(channel, sock)
            if len(self._connections) > MOST_CONNECTIONS and self._silent:
                self._turn_away(next(iter(self._silent)), f"{_FULL.format(MOST_CONNECTIONS)}; this one says nothing")
            if len(self._connections) > MOST_CONNECTIONS:
                self._log.warning("no_room", connections=MOST_CONNECTIONS)
                self._part(conn, connection, self._not_now(_FULL.format(MOST_CONNECTIONS)))
                continue
            why = self._why_not(sock)
            if why:
                self._log.warning("turned_away", why=why)
                self._part(conn, connection, protocol.problem(why))
                continue
            try:
                self._loop.add(sock.fileno(), lambda what, conn=conn: self._on_ready(conn, what))  # type: ignore[misc]
            except OSError as error:
                self._part(conn, connection, self._not_now(f"the server has no room: {error.strerror}"))
                self._go_deaf(listener, error)
                return
            self._silent[conn] = time.monotonic() + SILENT_S
            self._why_deaf = ""

    def _go_deaf(self, listener: socket.socket, error: OSError) -> None:
        """No descriptors are left, say, or no memory: those that are in are served on."""
        if not self._why_deaf:
            self._log.alarm("accept_failed", why=error)
        self._why_deaf = error.strerror or str(error)
        self._loop.remove(listener.fileno())
        self._deaf_until = time.monotonic() + DEAF_S

    def _why_not(self, sock: socket.socket) -> str:
        uid = peers.credentials(sock).uid
        if uid != os.getuid() and uid not in self._allow_uids:
            return f"user {uid} is not allowed here; the server runs as user {os.getuid()} (--allow-uid lets more in)"
        return ""

    def _on_ready(self, conn: int, what: int) -> None:
        connection = self._connections.get(conn)
        if connection is None:
            return
        channel = connection.channel
        if what & select.EPOLLOUT:
            self._flush(conn)
        if not what & ~select.EPOLLOUT or conn not in self._connections:
            return
        try:
            received = channel.receive()
        except BadFrame as error:
            self._log.warning("bad_frame", why=error)
            self._part(conn, connection, self._protocol.problem(str(error)))
            self._closed(conn)
            return
        except OSError as error:
            self._log.warning("cant_be_received", why=error)
            self.end(conn)
            return
        if received and self._silent:
            self._silent.pop(conn, None)
        for message, descriptors in received:
            if conn in self._connections:
                self._heard(conn, connection.sock, message, descriptors)
            else:
                close_all(descriptors)
        if channel.eof:
            self.end(conn)
        elif channel.half_frame:
            self._half.setdefault(conn, time.monotonic() + HALF_FRAME_S)
        elif self._half:
            self._half.pop(conn, None)

    def _part(self, conn: int, connection: Connection, last_word: Message) -> None:
        """Says what was wrong, and closes. What the peer doesn't read at once it doesn't get."""
        with contextlib.suppress(PeerTooSlow, ValueError, OSError):
            connection.channel.send(last_word)
        self.drop(conn)

    def _hang_up(self, connection: Connection) -> None:
        self._loop.remove(connection.sock.fileno())
        connection.channel.close()

    def _mind_writing(self, connection: Connection) -> None:
        wants = connection.channel.wants_write
        if wants is not connection.writing:
            connection.writing = wants
            self._loop.also_when_writable(connection.sock.fileno(), wants)

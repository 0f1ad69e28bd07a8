"""A connection for people and programs that only look: `lockctl`, the gateway, a waiting `lockctl hold`. Blocking.

    with Onlooker("/run/failover") as onlooker:
        status = onlooker.ask(m.AskStatus(), m.Status)
        for status in onlooker.watch():                 # now, and on every change
            ...

    for status in watch_forever("/run/failover"):       # None while there is no server; comes back by itself
        ...

An onlooker holds nothing, and no process of an engine is one: whoever wants to hold uses `client.py`. What it may not
do: guess. What the server doesn't say isn't known, and no server is not the same as a free lock.
"""

import errno
import os
import select
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Self, TypeVar

from lockserver import messages as m
from lockserver.rundir import SOCKET, connect
from sidecar import peers
from sidecar.frames import BadFrame, Channel, PeerTooSlow, close_all

TIMEOUT_S = 5.0
"""A server answers within milliseconds; one that needs seconds is stopped, or its machine is."""
RETRY_FIRST_S = 0.005
RETRY_MOST_S = 0.1

Reply = TypeVar("Reply", bound=m.ServerMessage)


class OnlookerError(Exception):
    """Nothing can be seen here, why, and what to do."""


class NoServer(OnlookerError):
    """Nobody listens, or whoever did has gone."""


class ServerSilent(OnlookerError):
    """Somebody listens and doesn't answer."""


class Refused(OnlookerError):
    """The server doesn't want to speak with this process."""


class Onlooker:
    """One connection. Making it raises NoServer or Refused; so may every use of it."""

    def __init__(self, run_dir: Path | str, timeout_s: float = TIMEOUT_S) -> None:
        self.run_dir = Path(run_dir)
        self.timeout_s = timeout_s
        self._inbox: deque[m.ServerMessage] = deque()
        try:
            sock = connect(self.run_dir)
        except OSError as error:
            raise _why_not(self.run_dir, error) from None
        self._server_pid = peers.credentials(sock).pid
        self._channel = Channel(sock, m.from_server)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self.tell(m.Observe(protocol=m.PROTOCOL))

    def ask(self, message: m.ClientMessage, reply: type[Reply]) -> Reply:
        """Says it, and waits for the answer."""
        self.tell(message)
        return self.hear(reply, self.timeout_s)

    def watch(self) -> Iterator[m.Status]:
        """The state now, and after every change, until the server goes (NoServer)."""
        self.tell(m.Watch())
        yield self.hear(m.Status, self.timeout_s)
        while True:
            yield self.hear(m.Status, None)

    def tell(self, message: m.ClientMessage) -> None:
        """Says something and doesn't wait."""
        try:
            self._channel.send(message)
        except PeerTooSlow:
            raise self._silent() from None

    def hear(self, kind: type[Reply], timeout_s: float | None) -> Reply:
        """The next message of this kind; others before it are passed over. None: waits as long as the server lives."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            while self._inbox:
                message = self._inbox.popleft()
                if isinstance(message, kind):
                    return message
                if isinstance(message, m.Refused | m.Problem):
                    raise Refused(f"the lock server at {self.run_dir} refuses: {message.why}")
            if not self._await(end):
                raise self._silent()

    def fileno(self) -> int:
        """For a poll of one's own: readable when `hear` has something, or the server has gone."""
        return self._channel.fileno()

    def listen(self, timeout_s: float) -> None:
        """Lets time pass. Ends early, with NoServer, when the server goes."""
        end = time.monotonic() + timeout_s
        while self._await(end):
            pass

    def _await(self, end: float | None) -> bool:
        """Takes in what has come. False when nothing does in time."""
        if self._channel.eof:
            raise NoServer(f"the lock server at {self.run_dir} went away; whoever holds the lock serves on without it")
        if self._channel.wants_write:
            self._channel.flush()
        timeout_ms = None if end is None else max(0.0, end - time.monotonic()) * 1000
        if not self._poll.poll(timeout_ms):
            return False
        try:
            received = self._channel.receive()
        except BadFrame as error:
            where = self.run_dir / SOCKET
            raise Refused(
                f"what answers at {where} speaks another protocol: {error}. Are both of one version?"
            ) from None
        for message, descriptors in received:
            close_all(descriptors)
            self._inbox.append(message)  # type: ignore[arg-type]  # the decoder knows no others
        return True

    def _silent(self) -> ServerSilent:
        who = f"process {self._server_pid}" if self._server_pid else "its process, in another PID namespace,"
        return ServerSilent(
            f"the lock server at {self.run_dir} does not answer within {self.timeout_s:g} s: "
            f"is {who} stopped (state T in ps: kill -CONT), or the machine overloaded?"
        )

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def watch_forever(run_dir: Path | str, timeout_s: float = TIMEOUT_S) -> Iterator[m.Status | None]:
    """Every change of state, for ever; one None when there is no server (or a silent one).

    A server that goes is seen at once, by its end of file; the next one is looked for ten times a second. Raises
    Refused: that needs a person.
    """
    away = False
    wait_s = RETRY_FIRST_S
    while True:
        try:
            with Onlooker(run_dir, timeout_s) as onlooker:
                onlooker.tell(m.Watch())
                patience: float | None = timeout_s
                while True:
                    try:
                        status = onlooker.hear(m.Status, patience)
                    except ServerSilent:
                        if not away:
                            away = True
                            yield None
                    else:
                        away, wait_s = False, RETRY_FIRST_S
                        yield status
                    patience = None
        except NoServer:
            if not away:
                away = True
                yield None
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, RETRY_MOST_S)


def _why_not(run_dir: Path, error: OSError) -> OnlookerError:
    path = run_dir / SOCKET
    if isinstance(error, PermissionError):
        return Refused(
            f"user {os.getuid()} may not connect to {path}: "
            "be the user that the server runs as, or start it with --allow-uid and --socket-mode"
        )
    if isinstance(error, ConnectionRefusedError):
        return NoServer(
            f"no lock server listens at {path}, though its socket is still there: it was killed. "
            f"Start it again: lockserver --run-dir {run_dir}"
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if not os.path.isdir(run_dir):
            return NoServer(f"no lock server: there is no directory {run_dir}. Is this the --run-dir of the server?")
        return NoServer(
            f"no lock server at {run_dir}: start one (lockserver --run-dir {run_dir}), "
            "or look into the log of the one that should be there"
        )
    if error.errno == errno.EAGAIN:
        return ServerSilent(f"the lock server at {run_dir} accepts nobody: is it stopped?")
    return NoServer(f"no lock server can be reached at {path}: {error.strerror or error}")

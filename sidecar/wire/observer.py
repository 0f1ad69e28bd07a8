"""A connection for people and programs that only look. Blocking, and the same for every server of the house.

An observer holds nothing and is no member. What it may not do: guess. What the server doesn't say isn't known,
and that no server answers is an answer of its own, with the reason and what to do.

Each package has its own on top, with its own words: `lockserver/observer.py`, `gms/observer.py`.
"""

import errno
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from sidecar.kernel import peers
from sidecar.wire import sockets
from sidecar.wire.frames import MAX_FRAME_BYTES, BadFrame, Channel, Message, PeerTooSlow, close_all

TIMEOUT_S = 5.0
"""A server answers within milliseconds; one that needs seconds is stopped, or its machine is."""
RETRY_FIRST_S = 0.005
RETRY_MOST_S = 0.1

Reply = TypeVar("Reply", bound=Message)


class ObserverError(Exception):
    """Nothing can be seen here, why, and what to do."""


class NoServer(ObserverError):
    """No server listens, or the one that did has gone."""


class ServerSilent(ObserverError):
    """A server listens and doesn't answer."""


class Refused(ObserverError):
    """The server doesn't want to speak with this process."""


class Busy(ObserverError):
    """The server has no room now."""


class Incompatible(ObserverError):
    """The server speaks another version."""


@dataclass(frozen=True)
class Whom:
    """Whom to look at: in words, and on the wire."""

    name: str
    """`lock server`."""
    at: str
    """Where people know it to be: `/run/failover`."""
    run_dir: Path
    socket: Path
    start: str
    """The command that starts it."""
    decoder: msgspec.msgpack.Decoder[Any]
    hello: Message
    last_words: dict[type[Message], type[ObserverError] | Callable[[Any], type[ObserverError]]]
    """After these it says nothing more; `why` is in each. And what that is for the caller, which may depend on the
    message.
    """
    without_it: str = ""
    """What its absence means for others."""
    instead: Callable[[], str] = str
    """Where else to look, in a sentence; empty where one is to be started here. Asked where none is."""
    max_frame_bytes: int = MAX_FRAME_BYTES


class Observer:
    """One connection. Making it raises NoServer or Refused; so may every use of it."""

    def __init__(self, whom: Whom, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._whom = whom
        self._inbox: deque[Message] = deque()
        try:
            sock = sockets.connect(whom.socket, timeout_s)
        except OSError as error:
            raise _why_not(whom, error) from None
        self._server_pid = peers.credentials(sock).pid
        self._channel = Channel(sock, whom.decoder, max_frame_bytes=whom.max_frame_bytes)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self.tell(whom.hello)

    def ask(self, message: Message, reply: type[Reply]) -> Reply:
        """Says it, and waits for the answer."""
        self.tell(message)
        return self.hear(reply, self.timeout_s)

    def tell(self, message: Message) -> None:
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
                if (last := self._whom.last_words.get(type(message))) is not None:
                    why = getattr(message, "why", "")
                    error = last if isinstance(last, type) else last(message)
                    raise error(f"the {self._whom.name} at {self._whom.at} refuses: {why}")
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
        whom = self._whom
        if self._channel.eof:
            raise NoServer(f"the {whom.name} at {whom.at} went away{whom.without_it and '; '}{whom.without_it}")
        ready = select.POLLOUT
        while ready == select.POLLOUT:  # the server reads: it takes more of what was said, and hasn't answered
            self._channel.flush()
            self._poll.modify(self.fileno(), select.POLLIN | (select.POLLOUT if self._channel.wants_write else 0))
            timeout_ms = None if end is None else max(0.0, end - time.monotonic()) * 1000
            ready = next((what for _, what in self._poll.poll(timeout_ms)), 0)
        if not ready:
            return False
        try:
            received = self._channel.receive()
        except BadFrame as error:
            raise Incompatible(
                f"what answers at {whom.socket} speaks another protocol: {error}. Are both of one version?"
            ) from None
        for message, descriptors in received:
            close_all(descriptors)
            self._inbox.append(message)
        return True

    def _silent(self) -> ServerSilent:
        who = f"process {self._server_pid}" if self._server_pid else "its process, in another PID namespace,"
        return ServerSilent(
            f"the {self._whom.name} at {self._whom.at} does not answer within {self.timeout_s:g} s: "
            f"is {who} stopped (state T in ps: kill -CONT), or the machine overloaded?"
        )

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def watch_forever(
    look: Callable[[], Observer],
    watch: Message,
    kind: type[Reply],
    *,
    question: Message | None = None,
    idle_s: float = TIMEOUT_S,
    over: Callable[[], bool] = lambda: False,
) -> Iterator[Reply | None]:
    """Every change of state, for ever or until it is `over`; one None when there is no server (or a silent one).

    A server that goes is seen at once, by its end of file; the next one is looked for ten times a second. One that is
    stopped says as little as one whose state doesn't change: with a `question` it is asked when it has been silent for
    `idle_s`, and its answer is the state again. Raises Refused: that needs a person.
    """
    away = False
    wait_s = RETRY_FIRST_S
    while not over():
        try:
            with look() as observer:
                observer.tell(watch)
                patience: float | None = observer.timeout_s
                asked = True
                while not over():
                    try:
                        status = observer.hear(kind, patience)
                    except ServerSilent:
                        if question is not None and not asked:
                            observer.tell(question)
                            asked, patience = True, observer.timeout_s
                            continue
                        if not away:
                            away = True
                            yield None
                        patience = None
                    else:
                        away, wait_s = False, RETRY_FIRST_S
                        yield status
                        asked, patience = False, idle_s if question is not None else None
        except (NoServer, Busy, Incompatible, ServerSilent):
            if not away:
                away = True
                yield None
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, RETRY_MOST_S)


def _why_not(whom: Whom, error: OSError) -> ObserverError:
    path, run_dir = whom.socket, whom.run_dir
    if isinstance(error, PermissionError):
        return Refused(
            f"user {os.getuid()} may not connect to {path}: "
            "be the user that the server runs as, or start it with --allow-uid and --socket-mode"
        )
    if isinstance(error, ConnectionRefusedError):
        return NoServer(
            f"no {whom.name} listens at {path}, though its socket is still there: it was killed. failover up and "
            f"--restart in-place start it again by themselves; where neither does: {whom.start}"
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if not os.path.isdir(run_dir):
            return NoServer(f"no {whom.name}: there is no directory {run_dir}. Is this the --run-dir of the server?")
        start = f"start one ({whom.start}), or look into the log of the one that should be there"
        return NoServer(f"no {whom.name} at {whom.at}: {whom.instead() or start}")
    if error.errno == errno.EAGAIN or isinstance(error, TimeoutError):
        return ServerSilent(f"the {whom.name} at {whom.at} accepts no connection: is it stopped?")
    return NoServer(f"no {whom.name} can be reached at {path}: {error.strerror or error}")

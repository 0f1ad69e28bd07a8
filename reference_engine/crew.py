"""The engine's processes: this one, and the workers that it starts. Each has its share of every layer's heads and MLP,
on its own device where there are several; what they compute adds up.

Main process and worker speak over a socket pair, one question at a time: a length, a small message, an array. No
worker may be missing: one that is gone, or doesn't answer, breaks the engine.

What this file may not do: compute (`rank.py`), or decide when. The other end is `worker.py`.
"""

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import msgspec
import numpy as np

from engine_shim.engine import CannotRun, WorkerFailed
from engine_shim.kept_cache import Claimed
from reference_engine.options import Options
from reference_engine.places import Floats, Span
from reference_engine.rank import Home, Rank, device_of

T = TypeVar("T")

_LENGTHS = struct.Struct(">II")
_WELL_TIMEOUT_S = 2.0
_STOP_TIMEOUT_S = 2.0


class Ask(msgspec.Struct):
    """To a worker."""

    what: Literal["start", "sleep", "claim", "wake", "well", "attend", "feed"]
    layer: int = 0
    spans: Sequence[Span] = ()
    width: int = 0
    """That of the array that comes along."""
    token: int = 0
    proven: bool = False
    """Whether the grant was, for a claim."""
    blocks: Sequence[int] = ()
    """What is parked at a sleep."""


class Answer(msgspec.Struct):
    """From a worker."""

    error: str = ""
    exit_code: int = 0
    """Another start would end in the same way."""
    needs: int = 0
    well: bool = True
    times: dict[str, float] = {}
    parked: int = 0
    """For how many blocks, the last of those that were to be parked, there was time."""
    unparked: bool = False
    claimed: tuple[str, str, int] | None = None
    """What came of a claim: which memory it is, and why it is empty."""


class Start(msgspec.Struct):
    """What a worker is told first."""

    arguments: tuple[str, ...]
    rank: int
    home: Home | None


def say(sock: socket.socket, message: msgspec.Struct, array: Floats | None = None) -> None:
    head = msgspec.msgpack.encode(message)
    data = b"" if array is None else np.ascontiguousarray(array).data.cast("B")
    sock.sendall(_LENGTHS.pack(len(head), len(data)) + head)
    if data:
        sock.sendall(data)


def hear(sock: socket.socket) -> tuple[bytes, bytearray]:
    """Raises EOFError when the other end is gone."""
    head, data = _LENGTHS.unpack(_exactly(sock, _LENGTHS.size))
    return bytes(_exactly(sock, head)), _exactly(sock, data)


def _exactly(sock: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return data


class _Worker:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reference_engine.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._sock = ours

    def say(self, message: Ask | Start, array: Floats | None = None) -> None:
        try:
            say(self._sock, message, array)
        except OSError as error:
            raise self._gone(error) from None

    def hear(self, timeout_s: float | None = None) -> tuple[Answer, bytearray]:
        self._sock.settimeout(timeout_s)
        try:
            head, data = hear(self._sock)
        except TimeoutError:
            self._sock.close()  # its answer may still come, and would be taken for another's
            raise WorkerFailed(f"worker {self.rank} (pid {self.process.pid}) doesn't answer") from None
        except (OSError, EOFError) as error:
            raise self._gone(error) from None
        self._sock.settimeout(None)
        answer = msgspec.msgpack.decode(head, type=Answer)
        if answer.error:
            said = f"worker {self.rank} (pid {self.process.pid}): {answer.error}"
            raise CannotRun(said, answer.exit_code) if answer.exit_code else WorkerFailed(said)
        return answer, data

    def stop(self) -> None:
        self._sock.close()
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _gone(self, error: Exception) -> WorkerFailed:
        return WorkerFailed(f"worker {self.rank} (pid {self.process.pid}) is gone ({type(error).__name__})")


class Crew:
    """All ranks as one. The workers' processes begin at once, and end with the thread that made this."""

    def __init__(self, options: Options, arguments: Sequence[str], home: Home | None) -> None:
        self._options = options
        self._home = home
        self._width = options.shape.width
        self._talk = threading.Lock()
        self._main: Rank | None = None
        self._workers = [_Worker(rank) for rank in range(1, options.ranks)]
        for worker in self._workers:
            worker.say(Start(tuple(arguments), worker.rank, home))
        self._needs = [0] * options.ranks
        self.unparked = False
        """All ranks have what they parked, since the last wake."""

    @property
    def main(self) -> Rank:
        if self._main is None:
            raise WorkerFailed("the engine has not been started")
        return self._main

    def start(self) -> None:
        """Blocks until all have their weights."""

        def own() -> int:
            self._main = Rank(self._options, self._home, 0)
            return self._main.needs

        mine, theirs = self._together(Ask("start"), own)
        self._needs = [mine, *(answer.needs for answer in theirs)]

    def needs(self) -> dict[str, int]:
        """What each device must have free for a wake, as of the last time that a worker was asked."""
        needs: dict[str, int] = {}
        for rank, needed in enumerate(self._needs):
            if needed:
                device = device_of(self._options, rank)
                needs[device] = needs.get(device, 0) + needed
        return needs

    def sleep(self, parks: Sequence[int] = ()) -> int:
        """With what these blocks hold in host memory. For how many of them, the last ones, each rank had time."""
        mine, theirs = self._together(Ask("sleep", blocks=parks), lambda: self.main.sleep(parks))
        return min(mine, *(answer.parked for answer in theirs)) if theirs else mine

    def claim(self, token: int, proven: bool) -> list[Claimed | None]:
        """The cache that the predecessor left: for each rank what came of it."""
        mine, theirs = self._together(Ask("claim", token=token, proven=proven), lambda: self.main.claim(token, proven))
        return [mine, *(None if answer.claimed is None else Claimed(*answer.claimed) for answer in theirs)]

    def wake(self) -> dict[str, float]:
        """How long the slowest took. Raises what its own part raises, or WorkerFailed."""
        mine, theirs = self._together(Ask("wake"), self.main.wake)
        self.unparked = self.main.unparked and all(answer.unparked for answer in theirs)
        return {name: max([mine[name], *(answer.times[name] for answer in theirs)]) for name in mine}

    def well(self) -> bool:
        """Asks all workers, also what they need. One that is busy for so long that it can't answer isn't well."""
        if self._main is None or not self._main.well or self.missing():
            return False
        self._needs[0] = self._main.needs
        if not self._workers:
            return True
        if not self._talk.acquire(timeout=_WELL_TIMEOUT_S):
            return False
        try:
            for worker in self._workers:
                worker.say(Ask("well"))
            answers = [worker.hear(_WELL_TIMEOUT_S)[0] for worker in self._workers]  # all of them, else they are late
            self._needs[1:] = [answer.needs for answer in answers]
            return all(answer.well for answer in answers)
        except WorkerFailed:
            return False
        finally:
            self._talk.release()

    def missing(self) -> str:
        """Which workers are gone, or nothing."""
        gone = [
            f"{worker.rank} (pid {worker.process.pid})" for worker in self._workers if worker.process.poll() is not None
        ]
        return f"worker {', '.join(gone)} is gone" if gone else ""

    def attend(self, layer: int, x: Floats, spans: Sequence[Span]) -> Floats:
        if not self._workers:
            return self.main.part.attend(layer, x, spans)
        return self._summed(Ask("attend", layer, spans, self._width), x, lambda: self.main.part.attend(layer, x, spans))

    def feed(self, layer: int, x: Floats) -> Floats:
        if not self._workers:
            return self.main.part.feed(layer, x)
        return self._summed(Ask("feed", layer, width=self._width), x, lambda: self.main.part.feed(layer, x))

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()
        if self._main is not None:
            self._main.close()
            self._main = None

    def _summed(self, ask: Ask, x: Floats, own: Callable[[], Floats]) -> Floats:
        with self._talk:
            for worker in self._workers:
                worker.say(ask, x)
            result = own()
            for worker in self._workers:
                result += np.frombuffer(worker.hear()[1], np.float32).reshape(result.shape)
        return result

    def _together(self, ask: Ask, own: Callable[[], T]) -> tuple[T, list[Answer]]:
        with self._talk:
            for worker in self._workers:
                worker.say(ask)
            mine = own()
            return mine, [worker.hear()[0] for worker in self._workers]

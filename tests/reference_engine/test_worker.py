"""When a worker gives back in order what it has."""

import socket
import threading

import pytest

from reference_engine import rank, worker
from reference_engine.crew import Ask, Start, hear, say


class Recorded:
    """In a rank's place: it says whether it was closed."""

    closed = False
    needs = 0

    def __init__(self, *_: object) -> None: ...

    def close(self) -> None:
        type(self).closed = True

    sleep = close


def test_a_worker_that_is_left_alone_gives_nothing_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A main process that died takes its workers with it. If one gave its KV cache back first, GMS would count a death
    at one rank and not at the other, and of two caches one would be given up at each wake to come.
    """
    monkeypatch.setattr(rank, "Rank", Recorded)
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=worker.serve, args=(theirs,))
    serving.start()
    with ours, theirs:
        say(ours, Start((), 1, None))
        say(ours, Ask("start"))
        hear(ours)
        ours.shutdown(socket.SHUT_RDWR)
        serving.join()
    assert not Recorded.closed

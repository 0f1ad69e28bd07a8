"""Which requests are worked on, and when: continuous batching, without preemption.

1. Requests are let in as they came. One that comes in takes the blocks of the KV cache that it can come to need,
   all at once, and begins behind those that hold the beginning of its prompt already; the first in the queue for which
   there aren't enough waits, and all behind it.
2. Each step works on all that are in and due: a piece of a prompt, or one token.
3. With a pace, a request is due again one period after it was due; one that is late doesn't catch up in a burst.
4. Closed, it takes no new request, and finishes those that it has, waiting or in.

Pure: time is passed in.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from reference_engine.kv_prefix import Blocks, Key, blocks_for
from reference_engine.places import BLOCK

MAX_WAITING = 1000


class NotNow(Exception):
    """It takes no request at the moment; the text says why."""


class TooLong(Exception):
    """It would never fit."""


@dataclass(eq=False)
class Job:
    positions: int
    """As many as it can come to need."""
    blocks: tuple[int, ...] = ()
    due: float = field(default=0.0, init=False)
    keys: Sequence[Key] = field(default=(), init=False)
    """One for each full block, as far as its tokens are known."""
    known: int = field(default=0, init=False)
    """So many of its blocks, the first ones, hold what their keys say."""

    @property
    def reusable(self) -> Sequence[Key]:
        """Those of its keys for which blocks of others will do."""
        return ()

    def came_in(self) -> None:
        """It has its blocks."""


class Scheduler:
    def __init__(self, blocks: Blocks, *, max_batch: int, period_s: float = 0.0) -> None:
        self._blocks = blocks
        self._max_batch = max_batch
        self._period_s = period_s
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._closed = "the engine is not awake yet"
        self.publish: Callable[[int, Key, int], None] = lambda block, key, tokens: None
        """Is told what a block holds when it is written no more."""

    @property
    def queued(self) -> int:
        return len(self._waiting) + len(self._running)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def jobs(self) -> list[Job]:
        return [*self._running, *self._waiting]

    def open(self) -> None:
        self._closed = ""

    def close(self, why: str) -> None:
        self._closed = why

    def add(self, job: Job) -> None:
        """Raises NotNow or TooLong."""
        if self._closed:
            raise NotNow(self._closed)
        if blocks_for(job.positions) > self._blocks.count:
            raise TooLong(f"{job.positions} positions don't fit into the KV cache")
        if len(self._waiting) >= MAX_WAITING:
            raise NotNow(f"{len(self._waiting)} requests are waiting already")
        self._waiting.append(job)

    def end(self, job: Job) -> None:
        """It is finished, or its client wants it no more. May be called again."""
        if job in self._running:
            self._running.remove(job)
            self._blocks.give(job.blocks)
            job.blocks = ()
        elif job in self._waiting:
            self._waiting.remove(job)

    def step(self, now: float) -> list[Job]:
        """Lets in the requests that fit; which to work on now, longest in first."""
        while self._can_come_in():
            job = self._waiting.popleft()
            taken = self._blocks.take(job.positions, job.reusable)
            job.blocks, job.known, job.due = taken.blocks, taken.reused, now
            job.came_in()
            self._running.append(job)
        return [job for job in self._running if job.due <= now]

    def computed(self, job: Job, positions: int) -> None:
        """So many of its positions are in the cache, on every rank."""
        for place in range(job.known, positions // BLOCK):
            block, key = job.blocks[place], job.keys[place]
            if self._blocks.filled(block, key):
                self.publish(block, key, (place + 1) * BLOCK)
        job.known = max(job.known, positions // BLOCK)

    def told(self, job: Job, now: float) -> None:
        """It got a token."""
        job.due = max(job.due + self._period_s, now)

    def next_at(self) -> float | None:
        """When the next step is due; None: not before a request comes or goes."""
        if self._can_come_in():
            return 0.0
        return min((job.due for job in self._running), default=None)

    def _can_come_in(self) -> bool:
        if not self._waiting or len(self._running) >= self._max_batch:
            return False
        first = self._waiting[0]
        return self._blocks.fits(first.positions, first.reusable)

"""Clients that ask on and on while something is exchanged, and what they saw of it, step by step.

A client that can't connect, or is told 503 with Retry-After, asks again, as `openai`'s does; both are counted. Nothing
else may happen to it: an answer that breaks off, another status or another text is a failure.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.gateway.door import Stream
from tests.support.waiting import until

AGAIN_S = 0.1


@dataclass
class Step:
    """One exchange, as the clients saw it. A request belongs to the step in which it ended."""

    what: str
    typed: list[str] = field(default_factory=list)
    answers: int = 0
    refused: int = 0
    """Attempts for which nothing listened, or whose connection ended before a byte had come."""
    told_503: int = 0
    failed: list[str] = field(default_factory=list)
    pause_s: float = 0.0
    """The longest that a client waited for a first byte, all its attempts together, or between two of a stream."""


class SteadyLoad:
    def __init__(self, port: int, asked: Sequence[Stream], known: Sequence[Stream], clients: int) -> None:
        """`known`: the answers when nothing happens."""
        self.port = port
        """Where new requests go."""
        self.models = 1
        """So many have answered by now: an answer is one of one of them."""
        self.step = Step("before")
        self._asked = asked
        self._known = [[one.alike] for one in known]
        self._ended = False
        self._done: list[list[float]] = [[] for _ in range(clients)]
        """When the requests began of which each client has the answer."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._all()))

    def __enter__(self) -> "SteadyLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[Step]:
        """It is over when each client has had two answers that it asked for behind it."""
        self.step = Step(what)
        yield self.step
        over = time.monotonic()
        until(lambda: all(sum(began > over for began in done) > 1 for done in self._done), f"all go on after: {what}")

    async def _all(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(len(self._done))))

    async def _client(self, number: int) -> None:
        place = number
        while not self._ended:
            began = time.monotonic()
            try:
                await self._ask(place % len(self._asked), began)
            except Exception as error:  # a client that is gone would be missed by no test
                self.step.failed.append(f"{type(error).__name__}: {error}")
            self._done[number].append(began)
            place += len(self._done)

    async def _ask(self, place: int, began: float) -> None:
        asked = self._asked[place]
        while True:
            stream = Stream(asked.body, asked.path, asked.streams)
            with contextlib.suppress(ConnectionError):
                await stream.run(self.port, f"q{place}")
            if stream.status == 0:
                self.step.refused += 1
            elif stream.status == 503 and b"\r\nretry-after" in stream.head:
                self.step.told_503 += 1
            else:
                break
            if self._ended:
                return
            await asyncio.sleep(AGAIN_S)
        step = self.step
        step.answers += 1
        first = stream.at[1] if len(stream.at) > 1 else stream.at[0]  # an answer in one piece takes what it takes
        step.pause_s = max(step.pause_s, first - began, stream.gap_s)
        if (stream.status, stream.whole, stream.error) != (200, True, ""):
            step.failed.append(f"{stream.status} {stream.error}: {stream.raw[-300:]!r}")
        elif (alike := stream.alike) not in self._known[place]:
            self._learn(place, alike)

    def _learn(self, place: int, alike: dict[int, list[Any]]) -> None:
        if len(self._known[place]) < self.models:
            self._known[place].append(alike)
        else:
            self.step.failed.append(f"question {place} has an answer that no model gives: {alike}")

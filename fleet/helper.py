"""Leases for Python programs that use a host: `with fleet.exclusive("host", purpose=...) as lease`, or `async with`.

    with fleet.exclusive("gpu-box-1", purpose="bench qwen3") as lease:
        client = OpenAI(default_headers=lease.headers)
        for prompt in prompts:
            lease.check()
            ...

    async with fleet.shared("gpu-box-1", purpose="agents") as lease:
        while not lease.wanted: ...

A lease that is lost (not renewed for two thirds of a term) is over: `check` raises LeaseLost, `on_lost` is called in a
thread of the lease's, and in an `async with` the task is cancelled; at the end of the block LeaseLost is raised.
"""

import asyncio
import contextlib
import os
import queue
from collections.abc import Callable
from typing import Any

from fleet.rules import term as t
from fleet.rules.leases import DRAIN_S, TTL_S, WAIT_S, Mode, Wish, check
from fleet.shell.holding import GIVING_BACK_S, Holding, holder_name
from fleet.shell.store import default_database, open_store
from sidecar.terminal.logs import complain

HEADER = "x-failover-lease"


class NotGranted(Exception):
    """The lease wasn't granted: refused, or not in time. What was to run under it must not."""


class LeaseLost(Exception):
    """Another may have the host by now: what runs under the lease has to stop."""


class Lease:
    """One wish, and what has become of it. A context manager of both kinds, for one use."""

    def __init__(self, wish: Wish, database: str | None, on_lost: Callable[[str], None] | None = None) -> None:
        check(wish)
        self._wish, self._on_lost = wish, on_lost
        self._database = database or os.environ.get("FAILOVER_DATABASE") or default_database()
        self._holding: Holding | None = None
        self._told: queue.SimpleQueue[t.Granted | t.Ended] = queue.SimpleQueue()
        self._answer: Callable[[t.Granted | t.Ended], None] = self._told.put
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        """That of the block, while it runs."""
        self._cancelled = False
        self.token = 0
        self.lost = ""  # why, once it is
        self.wanted = False
        """A shared one: an exclusive lease waits for it. Finish, and leave the block."""

    @property
    def headers(self) -> dict[str, str]:
        """What the door lets a request through for. A shared lease needs none: the door is open."""
        return {HEADER: str(self.token)} if self._wish.mode is Mode.EXCLUSIVE else {}

    def check(self) -> None:
        """Raises LeaseLost, by this machine's own clock."""
        if self.lost or self._holding is None or not self._holding.holds():
            raise LeaseLost(self.lost or "it is relied on no longer")

    def __enter__(self) -> "Lease":
        self._holding = Holding(open_store(self._database), self._wish, self._hear, looks=True)
        try:
            self._take(self._told.get())
            return self
        except BaseException:  # it may be granted by now
            self._holding.give_back(GIVING_BACK_S)
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._holding is not None
        self._holding.give_back(GIVING_BACK_S)
        if self.lost and kind is None:
            raise LeaseLost(self.lost)

    async def __aenter__(self) -> "Lease":
        """No thread waits: there may be more waiters than threads, and those that have it need one to leave."""
        loop = self._loop = asyncio.get_running_loop()
        told: asyncio.Future[t.Granted | t.Ended] = loop.create_future()
        self._answer = lambda it: self._in_loop(lambda: None if told.done() else told.set_result(it))
        self._holding = Holding(open_store(self._database), self._wish, self._hear, looks=True)
        try:
            self._take(await told)
            if self.lost:
                raise LeaseLost(self.lost)
        except BaseException:
            self._holding.give_back()
            await asyncio.shield(loop.run_in_executor(None, self._holding.join, GIVING_BACK_S))
            raise
        self._task = asyncio.current_task()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        task, self._task = self._task, None  # from here on the loss is said, and cancels nothing
        assert task is not None and self._holding is not None and self._loop is not None
        if self._cancelled:
            task.uncancel()
        self._holding.give_back()
        await self._loop.run_in_executor(None, self._holding.join, GIVING_BACK_S)
        if self.lost and (kind is None or (kind is asyncio.CancelledError and self._cancelled)):
            raise LeaseLost(self.lost)

    def _take(self, told: t.Granted | t.Ended) -> None:
        if isinstance(told, t.Ended):
            raise NotGranted(told.why or "it was called off")
        self.token = told.token

    def _hear(self, effect: t.Effect) -> None:
        """In a thread of the holding's."""
        if isinstance(effect, (t.Granted, t.Ended)):
            self._answer(effect)
        if isinstance(effect, t.Wanted):
            self.wanted = True
        elif isinstance(effect, t.Ended) and effect.end is t.End.LOST:
            self.lost = effect.why
            self._in_loop(self._cancel)
            if self._on_lost is not None:
                try:
                    self._on_lost(effect.why)
                except BaseException as error:  # the lease is given back all the same
                    complain(f"fleet: on_lost raised {error!r}")

    def _in_loop(self, call: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(call)

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()


def exclusive(
    host: str, *, purpose: str, database: str | None = None, priority: int = 0, wait_s: float = WAIT_S,
    ttl_s: float = TTL_S, drain_s: float = DRAIN_S, holder: str = "", on_lost: Callable[[str], None] | None = None,
) -> Lease:  # fmt: skip
    """The host alone. Raises NotGranted, where the block begins, after `wait_s` at the latest."""
    wish = Wish(host, Mode.EXCLUSIVE, holder or holder_name(), purpose, priority, ttl_s, wait_s, drain_s)
    return Lease(wish, database, on_lost)


def shared(
    host: str, *, purpose: str, database: str | None = None, wait_s: float = WAIT_S, ttl_s: float = TTL_S,
    holder: str = "", on_lost: Callable[[str], None] | None = None,
) -> Lease:  # fmt: skip
    """The host, with others that share it. `wanted` says when to give way."""
    wish = Wish(host, Mode.SHARED, holder or holder_name(), purpose, 0, ttl_s, wait_s)
    return Lease(wish, database, on_lost)

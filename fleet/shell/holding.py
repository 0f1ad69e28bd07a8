"""A lease that this process wants and holds: the machine of `term.py`, its clock, and two threads.

One thread asks the database, and may be stuck in it; the other owns the machine, and is not: so a lease is stepped down
from in time, whatever the database does. What this file may not do: decide.
"""

import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable

from fleet.rules import term as t
from fleet.rules.leases import Wish, no_such_host
from fleet.shell.store import Refused, Store, StoreError

GIVING_BACK_S = 10.0
_NAP_S = 1.0
"""Waits are counted on a clock that a suspend stops; so no wait is longer."""


def clock() -> float:
    """It goes on while the machine is suspended, as the database's does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def holder_name() -> str:
    return f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()} process {os.getpid()}"[:200]


class Asker:
    """The thread that asks. Answers come back in it."""

    def __init__(self, store: Store, answer: Callable[[t.Answered | t.Failed], None]) -> None:
        self._store = store
        self._answer = answer
        self._asked: queue.SimpleQueue[t.Ask | None] = queue.SimpleQueue()
        self._done: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._work, name="fleet-ask", daemon=True)
        self._thread.start()

    def ask(self, ask: t.Ask) -> None:
        self._asked.put(ask)

    def cut(self) -> None:
        self._store.cut()

    def close(self) -> None:
        self._asked.put(None)
        self._store.cut()

    def close_when_done(self, done: Callable[[], object]) -> None:
        """After what was asked before. `done` is called in the thread."""
        self._done = done
        self._asked.put(None)

    def _work(self) -> None:
        while (ask := self._asked.get()) is not None:
            try:
                rows = self._store.call(ask.name, **ask.values)
                if not rows and ask.name != "release":
                    hosts = [row["name"] for row in self._store.call("hosts")]
                    raise Refused(no_such_host(str(ask.values["host"]), hosts))
                answer: t.Answered | t.Failed = t.Answered(ask.question, rows)
            except StoreError as error:
                answer = t.Failed(ask.question, str(error), isinstance(error, Refused))
            self._answer(answer)
        self._store.close()
        self._done()


class Holding:
    def __init__(self, store: Store, wish: Wish, tell: Callable[[t.Effect], None], *, looks: bool = False) -> None:
        """`tell` gets what the machine says, in a thread of this one's."""
        self._term = t.Term(wish, secrets.token_hex(16), clock(), looks=looks)
        self._tell = tell
        self._events: queue.SimpleQueue[t.Answered | t.Failed | t.GiveBack] = queue.SimpleQueue()
        self._asker = Asker(store, self._events.put)
        self._thread = threading.Thread(target=self._work, name="fleet-lease", daemon=True)
        self._thread.start()

    @property
    def lease(self) -> str:
        return self._term.lease

    def holds(self) -> bool:
        return self._term.holds(clock())

    def give_back(self, wait_s: float = 0.0) -> None:
        self._events.put(t.GiveBack())
        self._thread.join(wait_s)

    def join(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def _work(self) -> None:
        event: t.Answered | t.Failed | t.GiveBack | t.Tick = t.Tick()
        while True:
            for effect in self._term.handle(event, clock()):
                if isinstance(effect, t.Ask):
                    self._asker.ask(effect)
                elif isinstance(effect, t.Cut):
                    self._asker.cut()
                else:
                    self._tell(effect)
            if self._term.phase is t.Phase.OVER:
                self._asker.close()
                return
            try:
                event = self._events.get(timeout=max(0.0, min(_NAP_S, self._term.deadline - clock())))
            except queue.Empty:
                event = t.Tick()

"""Who calls: the connections, and what each introduced itself as.

Pure. There are three kinds of caller: a main process registers, another process of its incarnation joins, an
observer observes. Who may come in: `admission.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evidence.rules.incarnation import Incarnation
from sidecar.machine.context import Close, Context

MOST_OBSERVERS = 2000


@dataclass(slots=True)
class Caller:
    """One connection, by what it introduced itself as."""

    conn: int
    incarnation: Incarnation | None = None
    main: bool = False
    watching: bool = False


class Callers:
    def __init__(self, context: Context[Any], ended: Callable[[int], None]) -> None:
        """`ended` hears of each connection that ends."""
        self.context = context
        self._ended = ended
        self.by_conn: dict[int, Caller] = {}
        self._observers = 0

    def enter(self, caller: Caller) -> Caller:
        self.by_conn[caller.conn] = caller
        self._observers += caller.incarnation is None
        return caller

    def leave(self, conn: int) -> Caller | None:
        caller = self.by_conn.pop(conn, None)
        if caller is not None:
            self._observers -= caller.incarnation is None
            self._ended(conn)
        return caller

    def end(self, conn: int) -> None:
        """This server has done with it."""
        self.leave(conn)
        self.context.out.append(Close(conn))

    def watchers(self) -> list[int]:
        return [caller.conn for caller in self.by_conn.values() if caller.watching]

    @property
    def full_of_observers(self) -> bool:
        """Processes of trees always have room."""
        return self._observers >= MOST_OBSERVERS

"""Who calls: the connections, what each introduced itself as, and in which version it talks.

Pure. There are three kinds of caller: an engine's main process registers, another process of its incarnation joins, an
observer observes. Who may come in: `admission.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from evidence.rules.incarnation import Incarnation
from lockserver.rules import messages as m
from lockserver.rules.context import Context
from lockserver.rules.events import Close
from sidecar.wire.versions import Spoken

MOST_OBSERVERS = 2000

Hello = m.Register | m.Join | m.Observe


@dataclass(slots=True)
class Caller:
    """One connection, by what it introduced itself as."""

    conn: int
    incarnation: Incarnation | None = None
    main: bool = False
    watching: bool = False


class Callers:
    def __init__(self, context: Context, ended: Callable[[int], None]) -> None:
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
        """Engines always have room."""
        return self._observers >= MOST_OBSERVERS


def spoken() -> Spoken:
    return Spoken(m.OLDEST, m.PROTOCOL)


def incompatible(hello: Hello) -> m.Incompatible:
    return m.Incompatible(oldest=m.OLDEST, newest=m.PROTOCOL, why=spoken().why_none(hello))

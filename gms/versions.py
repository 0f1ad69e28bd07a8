"""Which protocols are spoken here, and with whom none is shared.

Programs are upgraded one after the other, so each of them speaks the protocol before its own as well. A hello says the
oldest and the newest that its sender speaks (`protocol` and `newest`; a sender that knows of no `newest` speaks only
the one). Both sides go by the newest that both speak; the server's welcome says which that is.

    1   the first
    2   a status says `pending_drops` where 1 says `pins`; a `Problem` says what it is about
    3   pools

Pure. A process with whom no protocol is shared is told so, and reads on: nothing is taken away from it. For as long as
it tries, an alarm names it.
"""

from gms import messages as m
from gms.context import Context

OLDEST, NEWEST = m.OLDEST, m.PROTOCOL
Hello = m.Hello | m.Observe | m.PoolHello
REMEMBERED_S = 30.0
"""It tries again every few seconds."""
MOST = 8


def agreed(hello: Hello) -> int:
    """The newest protocol that both sides speak; 0 if there is none."""
    newest = min(max(hello.protocol, hello.newest), NEWEST)
    return newest if newest >= max(hello.protocol, OLDEST) else 0


def why_none(hello: Hello) -> str:
    theirs = (
        f"protocols {hello.protocol} to {hello.newest}"
        if hello.newest > hello.protocol
        else f"protocol {hello.protocol}"
    )
    older = "its program" if max(hello.protocol, hello.newest) < OLDEST else "this server"
    return f"the caller speaks {theirs}, and this server speaks {OLDEST} to {NEWEST}; {older} has to be upgraded"


class Strangers:
    """Processes with whom no protocol is shared."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._until: dict[str, float] = {}

    def came(self, hello: m.Hello | m.PoolHello) -> None:
        who = f"{hello.engine_id} (pid {hello.pid}): {why_none(hello)}"
        self._until.pop(who, None)
        if len(self._until) >= MOST:
            del self._until[next(iter(self._until))]
        self._until[who] = self._context.now + REMEMBERED_S

    def step(self) -> None:
        for who, until in list(self._until.items()):
            if self._context.reached(until):
                del self._until[who]
        if self._until:
            self._context.alarm("protocol", "; ".join(self._until)[:1900] + ". Until then it can only read on")
        else:
            self._context.calm("protocol")

"""Which protocols are spoken here, and with whom none is shared.

Programs are upgraded one after the other, so each of them speaks the protocol before its own as well. A hello says the
oldest and the newest that its sender speaks (`protocol` and `newest`; a sender that knows of no `newest` speaks only
the one). Both sides go by the newest that both speak; the server's welcome says which that is.

    1   the first
    2   a status says `pending_drops` where 1 says `pins`; a `Problem` says what it is about
    3   pools

Pure. A process with whom no protocol is shared is told so, and reads on: nothing is taken away from it. For as long as
it tries an alarm names its engine, also between two starts of that engine, until one of its starts can talk.
"""

from gms import messages as m
from gms.context import Context

OLDEST, NEWEST = m.OLDEST, m.PROTOCOL
Hello = m.Hello | m.Observe
REMEMBERED_S = 600.0
"""It tries again every few seconds, and after a pause when it is started again: the longest of those is kubelet's, five
minutes. Who hasn't come for longer was taken away."""
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
    """Engines with whom no protocol is shared."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[str, tuple[float, str]] = {}
        """By engine: until when it is remembered, and what is said of it."""

    def came(self, hello: m.Hello) -> None:
        self._known.pop(hello.engine_id, None)
        if len(self._known) >= MOST:
            del self._known[next(iter(self._known))]
        said = f"{hello.engine_id} (pid {hello.pid}): {why_none(hello)}"
        self._known[hello.engine_id] = self._context.now + REMEMBERED_S, said

    def talks(self, engine_id: str) -> None:
        """A protocol is shared with it now: it, or this server, was upgraded."""
        self._known.pop(engine_id, None)

    def step(self) -> None:
        for engine_id, (until, _) in list(self._known.items()):
            if self._context.reached(until):
                del self._known[engine_id]
        if self._known:
            named = "; ".join(said for _, said in self._known.values())
            self._context.alarm("protocol", f"{named[:1900]}. Until then it can only go on with what it has")
        else:
            self._context.calm("protocol")

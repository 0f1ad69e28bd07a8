"""What becomes of a process with which this server shares no version (`sidecar/wire/versions.py`).

It is told so, and reads on: nothing is taken away from it. For as long as it tries an alarm names its engine, also
between two starts of that engine, until one of its starts can talk. Pure.
"""

from gms.rules import messages as m
from gms.rules.context import Context
from sidecar.machine.plan import Plan
from sidecar.wire.versions import Spoken

REMEMBERED_S = 600.0
"""It tries again every few seconds, and after a pause when it is started again: the longest of those is kubelet's, five
minutes. An engine that hasn't come for longer was taken away."""
MOST = 8


def spoken() -> Spoken:
    return Spoken(m.OLDEST, m.PROTOCOL)


class OtherVersions:
    """Engines with which no version is shared."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[str, tuple[float, str]] = {}
        """By engine: until when it is remembered, and what is said of it."""

    def came(self, hello: m.Hello) -> None:
        self._known.pop(hello.engine_id, None)
        if len(self._known) >= MOST:
            del self._known[next(iter(self._known))]
        said = f"{hello.engine_id} (pid {hello.pid}): {spoken().why_none(hello)}"
        self._known[hello.engine_id] = self._context.now + REMEMBERED_S, said

    def talks(self, engine_id: str) -> None:
        """A version is shared with it now: it, or this server, was upgraded. Or it hasn't come for long."""
        self._known.pop(engine_id, None)

    def plan(self, plan: Plan) -> None:
        named = []
        for engine_id, (until, said) in self._known.items():
            if plan.wait_until(until):
                named.append(said)
            else:
                plan.do(self.talks, engine_id)
        if named:
            text = f"{'; '.join(named)[:1900]}. Until then it can only go on with what it has"
            plan.say(self._context.alarm, "protocol", text)
        else:
            plan.calm(self._context.calm, "protocol")

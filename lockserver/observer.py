"""A connection for people and programs that only look at the lock: `lockctl`, the gateway, a waiting `lockctl hold`.

    with Observer(run_dir) as observer:
        status = observer.ask(m.AskStatus(), m.Status)
        for status in observer.watch():                 # now, and on every change
            ...

    for status in watch_forever(run_dir):               # None while there is no server; comes back by itself
        ...

    watch_for_good(run_dir, tell, alarm)                # the same in a thread that must never end: a refusal is told

An observer holds nothing, and no process of an engine is one: an engine that wants to hold uses `client.py`. What it
may not do: guess. What the server doesn't say isn't known, and no server is not the same as a free lock. How it is
done: `sidecar/wire/observer.py`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lockserver.rules import messages as m
from lockserver.shell.rundir import SOCKET
from sidecar.wire import observer as looking
from sidecar.wire.observer import TIMEOUT_S, Busy, Incompatible, NoServer, ObserverError, Refused, ServerSilent, Whom

__all__ = [
    "TIMEOUT_S",
    "AskStatus",
    "Busy",
    "Incompatible",
    "NoServer",
    "Observer",
    "ObserverError",
    "Refused",
    "ServerSilent",
    "Sleep",
    "Status",
    "Step",
    "Wake",
    "Watch",
    "watch_for_good",
    "watch_forever",
    "whom",
]

REFUSED_RETRY_S = 1.0

Status = m.Status
Step = m.SwitchoverStep
AskStatus, Watch, Sleep, Wake = m.AskStatus, m.Watch, m.Sleep, m.Wake
"""What a program says that watches and asks in a loop of its own, and what it hears."""


def whom(run_dir: Path | str) -> Whom:
    """The lock server of this directory, for whatever watches it in a loop of its own (`sidecar/wire/upstream.py`)."""
    run_dir = Path(run_dir)
    return Whom(
        name="lock server",
        at=str(run_dir),
        run_dir=run_dir,
        socket=run_dir / SOCKET,
        start=f"lockserver --run-dir {run_dir}",
        decoder=m.from_server,
        hello=m.Observe(protocol=m.OLDEST, newest=m.PROTOCOL),
        last_words={m.Refused: Refused, m.Problem: Refused, m.Busy: Busy, m.Incompatible: Incompatible},
        without_it="the holder serves on without it",
        instead=lambda: _many(run_dir),
    )


def _many(run_dir: Path) -> str:
    """What to say of a directory that has a lock for each of its models, and none of its own."""
    there = sorted(path.parent.name for path in run_dir.glob(f"lock/*/{SOCKET}"))
    if not there:
        return ""
    return f"it has many locks: --run-dir {run_dir}/lock/NAME is one's; there are {', '.join(there)}"


class Observer(looking.Observer):
    """One connection. Making it raises NoServer or Refused; so may every use of it."""

    def __init__(self, run_dir: Path | str, timeout_s: float = TIMEOUT_S) -> None:
        self.run_dir = Path(run_dir)
        super().__init__(whom(run_dir), timeout_s)

    def watch(self) -> Iterator[m.Status]:
        """The state now, and after every change, until the server goes (NoServer)."""
        self.tell(m.Watch())
        yield self.hear(m.Status, self.timeout_s)
        while True:
            yield self.hear(m.Status, None)

    def last_served(self) -> dict[str, str] | None:
        """The engine that served last (`engine_id`), and `until` when. None while one does, and where none is known."""
        served = until = ""
        for event in self.ask(m.AskHistory(), m.History).events:
            if event.event == "serving" and event.detail["url"]:
                served, until = str(event.detail["engine"]), ""
            elif event.event == "serving" or (event.event == "fencing" and event.detail["lock"] == m.ACTIVE):
                until = until or event.at
        return {"engine_id": served, "until": until} if served and until else None


def watch_forever(
    run_dir: Path | str, timeout_s: float = TIMEOUT_S, *, asks: bool = False, idle_s: float = TIMEOUT_S,
    over: Callable[[], bool] = lambda: False,
) -> Iterator[m.Status | None]:  # fmt: skip
    """Every change of state, for ever or until it is `over`; one None when there is no server (or a silent one). Raises
    Refused. `asks`: one that has been silent for `idle_s` is asked, so that a stopped one is noticed, too; an answer is
    no change.
    """
    question = m.AskStatus() if asks else None
    return looking.watch_forever(
        lambda: Observer(run_dir, timeout_s), m.Watch(), m.Status, question=question, idle_s=idle_s, over=over
    )


def watch_for_good(
    run_dir: Path | str, tell: Callable[[m.Status | None], object], alarm: Callable[[str], None], *,
    asks: bool = False, over: Callable[[], bool] = lambda: False,
) -> None:  # fmt: skip
    """For a thread of a program that has to see the lock for as long as it lives, or until it is `over`. `tell`
    is told every change, and None while the lock can't be seen: there is no server, or it refuses. A refusal may pass
    (a mode that a person is changing), so it goes to `alarm`, once for each reason, and is tried again. So is whatever
    `tell` raises.
    """
    said = ""
    while not over():
        try:
            for status in watch_forever(run_dir, asks=asks, over=over):
                tell(status)
                said = "" if status is not None else said
        except Exception as error:
            why = str(error) if isinstance(error, ObserverError) else f"{type(error).__name__}: {error}"
            if why != said:
                alarm(why)
            said = why
        with contextlib.suppress(Exception):  # whatever it is was told above
            tell(None)
        time.sleep(REFUSED_RETRY_S)

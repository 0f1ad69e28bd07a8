"""A connection for people and programs that only look at the ledger: `vramctl`, the pool.

    with Observer(host_dir) as observer:
        status = observer.ask(m.AskStatus(), Status)

    for status in watch_forever(host_dir):              # None while there is no server; comes back by itself
        ...

How it is done: `sidecar/wire/observer.py`.
"""

from collections.abc import Iterator
from pathlib import Path

from evidence.rules import messages as em
from sidecar.wire import observer as looking
from sidecar.wire.observer import TIMEOUT_S, Busy, Incompatible, NoServer, ObserverError, Refused, ServerSilent, Whom
from vram.rules import messages as m
from vram.shell.rundir import SOCKET, ledger_of

__all__ = [
    "AskStatus",
    "NoServer",
    "Observer",
    "ObserverError",
    "ServerSilent",
    "Status",
    "Watch",
    "watch_forever",
    "whom",
]

Status = m.Status
AskStatus, Watch = m.AskStatus, m.Watch


def whom(host_dir: Path | str) -> Whom:
    """The ledger of this host, for whatever watches it in a loop of its own (`sidecar/wire/upstream.py`)."""
    run_dir = ledger_of(host_dir)
    return Whom(
        name="ledger",
        at=str(run_dir),
        run_dir=run_dir,
        socket=run_dir / SOCKET,
        start=f"vram --run-dir {host_dir}",
        decoder=m.from_server,
        hello=em.Observe(protocol=m.OLDEST, newest=m.PROTOCOL),
        last_words={em.Refused: Refused, em.Problem: Refused, em.Busy: Busy, em.Incompatible: Incompatible},
        without_it="holders go on without it",
    )


class Observer(looking.Observer):
    """One connection. Making it raises NoServer or Refused; so may every use of it."""

    def __init__(self, host_dir: Path | str, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(whom(host_dir), timeout_s)

    def status(self) -> m.Status:
        return self.ask(m.AskStatus(), m.Status)


def watch_forever(host_dir: Path | str, timeout_s: float = TIMEOUT_S) -> Iterator[m.Status | None]:
    """Every change, for ever; one None when there is no server (or a silent one). Raises Refused."""
    return looking.watch_forever(lambda: Observer(host_dir, timeout_s), m.Watch(), m.Status)

"""A connection for people and programs that only look at a device's weights: `gmsctl`, metrics.

    with Observer(run_dir, "host:0") as observer:
        status = observer.ask(m.AskStatus(), m.Status)

An observer has nothing and keeps no process waiting. How it is done: `sidecar/wire/observer.py`. For a process that
wants weights: `client.py`.
"""

from collections.abc import Iterator
from pathlib import Path

from gms.rules import messages as m
from gms.shell import rundir
from gms.shell.rundir import devices
from sidecar.wire import observer as looking
from sidecar.wire.observer import TIMEOUT_S, Busy, Incompatible, NoServer, ObserverError, Refused, Whom

__all__ = ["TIMEOUT_S", "NoServer", "Observer", "ObserverError", "Status", "devices", "watch_forever", "whom"]

Status = m.Status
AskStatus, Watch = m.AskStatus, m.Watch


def whom(run_dir: Path | str, device: str) -> Whom:
    """The GMS of this device, for whatever watches it in a loop of its own (`sidecar/wire/upstream.py`)."""
    run_dir = Path(run_dir)
    return Whom(
        name=f"GMS of {device}",
        at=str(run_dir),
        run_dir=run_dir,
        socket=rundir.socket_path(run_dir, device),
        start=f"gms --run-dir {run_dir} --devices ...",
        decoder=m.from_server,
        hello=m.Observe(protocol=m.OLDEST, newest=m.PROTOCOL),
        last_words={m.Refused: Refused, m.Problem: _kind},
        without_it="its readers go on without it",
        max_frame_bytes=m.MAX_FRAME_BYTES,
    )


class Observer(looking.Observer):
    """One connection. Making it raises NoServer or Refused; so may every use of it."""

    def __init__(self, run_dir: Path | str, device: str, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(whom(run_dir, device), timeout_s)

    def status(self) -> m.Status:
        return self.ask(m.AskStatus(), m.Status)


def _kind(problem: m.Problem) -> type[ObserverError]:
    return {"protocol": Incompatible, "place": Busy}.get(problem.about, Refused)


def watch_forever(run_dir: Path | str, device: str, timeout_s: float = TIMEOUT_S) -> Iterator[m.Status | None]:
    """Every change of state, for ever; one None when there is no server (or a silent one). Raises Refused."""
    return looking.watch_forever(lambda: Observer(run_dir, device, timeout_s), m.Watch(), m.Status)

"""An engine of the hunt: wants the lock, says what it was told, and has workers that come and go. A process of its own.

    python -m tests.hunt.contender RUN_DIR ENGINE_ID WITNESS LOG

The witness is a directory of which the lock server knows nothing: every engine has a file in it, which its main process
and every worker that has joined keep locked. One that is granted finds none of an earlier holder's locked, or two are
awake. What happens goes as a line into the log, with one write each.
"""

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from lockserver.client import LockClient, LockError, NotInTime, join
from sidecar.kernel.lifelock import LifeLock, LifeProbe

HOLDERS = "holders"
POLLS = "c"
"""The engine that asks for a moment only."""
WORKER_MOST_S = 3.0


def main(run_dir: str, engine_id: str, witness: str, log: str) -> None:
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(what: str) -> None:
        os.write(lines, f"{time.monotonic():.3f} {os.getpid()} {engine_id} {what}\n".encode())

    def lost(why: str) -> None:
        say(f"lost {why}")
        os._exit(70)

    engine = LockClient(run_dir, engine_id, on_lost=lost)
    try:
        engine.start()
        own = LifeLock.create(Path(witness), engine.name)
        threading.Thread(target=_workers, args=(engine, witness), daemon=True).start()
        token = _polls(engine) if engine_id == POLLS else engine.acquire().token
    except LockError as error:
        say(f"ended {error}")
        return
    for other in _earlier_holders(Path(witness), engine.name):
        say(f"conflict {token}: {other} lives")
    say(f"granted {token}")
    engine.serving(f"http://{engine_id}")
    with own:
        while True:
            time.sleep(3600)


def _polls(engine: LockClient) -> int:
    """Gives up again and again: a grant may come in that very moment."""
    while True:
        with contextlib.suppress(NotInTime):
            return engine.acquire(timeout_s=random.random() * 0.05).token
        time.sleep(random.random() * 0.05)


def _earlier_holders(witness: Path, name: str) -> list[str]:
    """Those of whom a process lives. This one is a holder itself from now on."""
    with open(witness / HOLDERS, "a+") as file:
        file.seek(0)
        holders = file.read().split()
        file.write(f"{name}\n")
    probes = {other: LifeProbe.open(witness, other) for other in holders}
    return [other for other, probe in probes.items() if probe is not None and probe.locked()]


def _workers(engine: LockClient, witness: str) -> None:
    """They inherit nothing, and join before they are of any use."""
    while True:
        environment = {**os.environ, **engine.environment()}
        with subprocess.Popen([sys.executable, "-m", "tests.hunt.contender", witness], env=environment):
            pass
        time.sleep(random.random())


def work(witness: str) -> None:
    with contextlib.suppress(LockError):
        engine = join(timeout_s=30)
        with LifeLock.join(Path(witness), engine.name):
            time.sleep(random.random() * WORKER_MOST_S)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        work(sys.argv[1])
    else:
        main(*sys.argv[1:])

"""An engine of the hunt: wants the lock, says what it was told, and has workers that come and go. A process of its own.

    python -m tests.hunt.contender RUN_DIR ENGINE_ID WITNESS LOG

The witness is a file of which the lock server knows nothing: whoever was granted locks it, with all its workers. If
somebody else has it, two are awake. What happens goes as a line into the log, with one write each.
"""

import contextlib
import fcntl
import os
import random
import subprocess
import sys
import threading
import time

from lockserver.client import LockClient, LockError, join

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
        file = os.open(witness, os.O_RDWR | os.O_CREAT, 0o600)
        os.set_inheritable(file, True)
        threading.Thread(target=_workers, args=(engine, file), daemon=True).start()
        token = engine.acquire().token
    except LockError as error:
        say(f"ended {error}")
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"conflict {token}")
    say(f"granted {token}")
    engine.serving(f"http://{engine_id}")
    while True:
        time.sleep(3600)


def _workers(engine: LockClient, witness: int) -> None:
    """They inherit nothing but the witness, and join before they use it."""
    while True:
        environment = {**os.environ, **engine.environment()}
        with subprocess.Popen([sys.executable, "-m", "tests.hunt.contender"], env=environment, pass_fds=(witness,)):
            pass
        time.sleep(random.random())


def work() -> None:
    with contextlib.suppress(LockError):
        join(timeout_s=30)
        time.sleep(random.random() * WORKER_MOST_S)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        work()
    else:
        main(*sys.argv[1:])

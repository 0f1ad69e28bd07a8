"""A stand-in for an engine: a main process and a worker, each with its half of the device's memory while it is awake.

    python -m demo.lock.contender main ENGINE_ID DEVICE BYTES
    python -m demo.lock.contender worker DEVICE BYTES          (started by main)

It does what an engine has to: acquire, then take memory; join before the worker takes any; say where it serves. What
happens to it is told in lines of JSON on its standard output. Both end when the demo does: they hold the leash, a pipe
whose other end only the demo has.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

from demo.lock.device import Allocation
from lockserver.client import RUN_DIR_VARIABLE, LockClient, join
from sidecar import host_usage

LEASH = "DEMO_LEASH"


def main_process(engine_id: str, device: str, needs: int) -> NoReturn:
    client = LockClient(os.environ[RUN_DIR_VARIABLE], engine_id).start()
    say(event="registered", pid=os.getpid(), tree=client.name)
    grant = client.acquire({f"host:{device}": needs})
    say(event="granted", token=grant.token)
    sys.stdin.readline()  # takes no memory before the demo has seen how much is free
    half = Allocation(file_of(device), needs // 2)
    leash = int(os.environ[LEASH])
    worker = subprocess.Popen(
        [sys.executable, "-m", "demo.lock.contender", "worker", device, str(needs - needs // 2)],
        env={**os.environ, **client.environment()},
        pass_fds=(leash,),
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    client.serving(f"http://{engine_id}.demo")
    say(event="awake", worker=worker.pid)
    stay(half)


def worker_process(device: str, size: int) -> NoReturn:
    member = join()  # no memory before this has returned
    half = Allocation(file_of(device), size)
    say(event="ready")
    stay(member, half)


def file_of(device: str) -> Path:
    return host_usage.devices_directory() / device


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def stay(*_: object) -> NoReturn:
    """Keeps what it is given, for as long as the process lives."""
    while True:
        signal.pause()


def end_with_the_demo() -> None:
    leash = int(os.environ[LEASH])

    def wait() -> None:
        os.read(leash, 1)  # nothing is ever written: it returns when the demo has gone
        os._exit(0)

    threading.Thread(target=wait, name="leash", daemon=True).start()


if __name__ == "__main__":
    end_with_the_demo()
    if sys.argv[1] == "main":
        main_process(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    worker_process(sys.argv[2], int(sys.argv[3]))

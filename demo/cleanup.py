"""Runs the demo's pair, and removes all of it when the demo ends, however that does: `python -m demo.cleanup DIRECTORY
COMMAND...`, with a pipe that only the demo has the other end of.

At the pipe's end the pair is told to end, then killed, and its directory is removed. The word "keep" before that end
leaves the pair as it is: the directory goes when the pair ends, by `failover down` say. When the pair ends by itself
its standard output is closed, and the demo can still read what the pair said.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from sidecar.kernel import process_setup, process_tree

KEEP = b"keep"
LOG = "up.log"
END_S = 10.0
ROUNDS = 20
PAUSE_S = 0.1
"""The pair's processes die with it, but not all in the same moment; one may still write something."""


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(mode=0o700)
    (directory / "devices").mkdir(mode=0o700)
    here = os.getpid()
    with open(directory / LOG, "wb") as log:
        up = subprocess.Popen(
            sys.argv[2:],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: process_setup.die_with_parent(here),
        )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pidfd = os.pidfd_open(up.pid)
    kept = ended = False
    while not ended:
        ready = select.select([pidfd] if kept else [pidfd, 0], [], [])[0]
        if pidfd in ready:
            ended = True
        elif os.read(0, len(KEEP)) == KEEP:
            kept = True
        else:
            _end(up)
            ended = True
    up.wait()
    os.close(1)
    while not kept and os.read(0, 1):
        pass
    for _ in range(ROUNDS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            break
        time.sleep(PAUSE_S)


def _end(up: subprocess.Popen[bytes]) -> None:
    pidfds = []
    for pid in process_tree.descendants(up.pid):
        try:
            pidfds.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        up.send_signal(number)
        try:
            up.wait(END_S)
            break
        except subprocess.TimeoutExpired:
            continue
    for pidfd in pidfds:
        select.select([pidfd], [], [], END_S)


if __name__ == "__main__":
    main()

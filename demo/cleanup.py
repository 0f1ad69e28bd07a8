"""Removes the demo's directory when the demo itself was killed: `python demo/cleanup.py DIRECTORY`, with a pipe that
only the demo has the other end of. Where the demo could tidy up itself, there is nothing left to do.
"""

import shutil
import signal
import sys
import time
from pathlib import Path

ROUNDS = 20
PAUSE_S = 0.1
"""The pair's processes die with the demo, but not all in the same moment; one may still write something."""


def main() -> None:
    directory = Path(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for _ in range(ROUNDS if directory.exists() else 0):
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()

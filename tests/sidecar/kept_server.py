"""A program that uses the keeper as servers do, for test_keeper.py:

    python -m tests.sidecar.kept_server DIRECTORY [--restart in-place] [--mood MOOD]

Each start of the server writes its pid into DIRECTORY/START. Moods: `ignores` (SIGTERM does nothing), `wrong` (exit
code 64), `refuses` (exit code 1), `orphan` (it leaves a process that ends by itself), `plain` (no signal is handled).
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from sidecar.machine import keeper
from sidecar.terminal.logs import Log
from sidecar.terminal.settings import Parser

GRACE_S = 0.5
ORPHAN = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]]).pid)"


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="kept")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--mood", default="")
    keeper.declare(parser)
    options = parser.parse_args(argv)
    if options.restart == keeper.IN_PLACE:
        return keeper.keep("tests.sidecar.kept_server", argv, Log("kept"), GRACE_S)
    return serve(options.directory, options.mood)


def serve(directory: Path, mood: str) -> int:
    told: list[int] = []
    over = threading.Event()

    def on_signal(number: int, _: object) -> None:
        told.append(number)
        (directory / f"told-{number}").touch()
        if number == signal.SIGTERM and mood != "ignores":
            over.set()

    if mood != "plain":
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, on_signal)
    if mood == "orphan":
        end = f"import time, pathlib; time.sleep(0.05); pathlib.Path({str(directory / 'orphan-ended')!r}).touch()"
        said = subprocess.check_output([sys.executable, "-c", ORPHAN, end], stderr=subprocess.DEVNULL)
        (directory / "orphan").write_bytes(said)
    _note(directory)
    if mood in ("wrong", "refuses"):
        print(f"kept: the mood is {mood}", file=sys.stderr)
        return 64 if mood == "wrong" else 1
    while not over.is_set():
        over.wait(0.02)  # a signal handler runs between two waits
    return 0


def _note(directory: Path) -> None:
    number = len(list(directory.glob("start-*"))) + 1
    early = directory / ".early"
    early.write_text(str(os.getpid()))
    early.rename(directory / f"start-{number}")


if __name__ == "__main__":
    sys.exit(main())

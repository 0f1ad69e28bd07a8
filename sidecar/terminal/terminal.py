"""What the house's commands for people have in common: the standard output, and exit codes that mean the same.

A reader that has left (`| head`), a full disk, a terminal with colours or without: each is one rule, here. What this
file may not do: know what is said. Tones, times and sizes: `formatting.py`. Settings: `settings.py`.
"""

import os
import select
import signal
import sys
import threading

from sidecar.terminal.formatting import Paint
from sidecar.wire.observer import Busy, Incompatible, ObserverError, Refused

NO_SERVER, OUTPUT_LOST, NO_ROOM, OTHER_VERSION, NO_PERMISSION = 2, 74, 75, 76, 77
READER_LEFT = 128 + signal.SIGPIPE


class OutputLost(Exception):
    """What is printed is read no more, or can't be written."""

    def exit_code(self, program: str) -> int:
        if isinstance(self.__cause__, BrokenPipeError):
            return READER_LEFT
        print(f"{program}: can't write to the standard output: {self}", file=sys.stderr)
        return OUTPUT_LOST


def say(line: str) -> None:
    try:
        print(line, flush=True)
    except OSError as error:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # else the interpreter's last flush complains too
        raise OutputLost(error.strerror) from error


def end_with_the_reader() -> None:
    """For a command that may be silent for long: it ends when its output is read no more, and not at its next word."""

    def watch() -> None:
        poll = select.poll()
        # That its reader has left is told unasked; a file or a terminal tells nothing.
        poll.register(sys.stdout.fileno(), 0)
        poll.poll()
        os._exit(READER_LEFT)

    if sys.stdout is not None:  # it was closed
        threading.Thread(target=watch, daemon=True).start()


def observer_exit_code(error: ObserverError) -> int:
    """Why nothing could be seen."""
    kinds = {Refused: NO_PERMISSION, Busy: NO_ROOM, Incompatible: OTHER_VERSION}
    return kinds.get(type(error), NO_SERVER)


def terminal_paint() -> Paint:
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Paint(wanted)

"""`lockctl hold`: a command under the lock. As flock(1) is to files, for two programs and one GPU.

Here is what may be said on its command line, and what can be known to be wrong before the lock is asked for; what it
promises stands in `lockctl_help.py`, how it goes in `held_command.py`.
"""

import argparse
import os
import sys

from lockserver.rules import messages as m
from sidecar.terminal.exit_codes import EX_CANT_RUN
from sidecar.terminal.settings import BadValue, Parser, name, seconds_or_zero, size_bytes, valued

NOT_FOUND = 127


def declare(command: Parser) -> None:
    command.usage = "lockctl hold --engine-id ID [--needs DEVICE=BYTES]... [--serving URL] [...] -- COMMAND..."
    command.setting("--engine-id", parse=name, required=True, metavar="ID", help="what this is called in status")
    command.add_argument(
        "--needs",
        type=_need,
        action="append",
        default=[],
        metavar="DEVICE=BYTES",
        help="memory that must be free for the grant, such as host:0=4GiB; may be repeated",
    )
    command.add_argument(
        "--serving",
        default="",
        metavar="URL",
        help="where the command serves, for all that watch; said when it is started",
    )
    command.add_argument(
        "--timeout-s",
        type=valued(seconds_or_zero),
        default=None,
        metavar="S",
        help="how long to wait for the lock; default: for ever",
    )
    command.add_argument("--no-wait", action="store_true", help="don't wait at all")
    command.add_argument(
        "--grace-s",
        type=valued(seconds_or_zero),
        default=5.0,
        metavar="S",
        help="between SIGTERM and SIGKILL in a switchover; default 5",
    )
    command.add_argument("--quiet", action="store_true", help="say nothing while waiting")
    command.add_argument("words", nargs="*", metavar="COMMAND", help="what to run, and its arguments")


def hold(options: argparse.Namespace) -> int:
    if not options.words:
        options.parser.error("which command? Put it behind --")
    needs = dict(options.needs)
    if len(needs) < len(options.needs):
        options.parser.error("--needs names a device twice")
    try:
        m.check(m.Acquire(needs=needs))
        m.check(m.Serving(url=options.serving))
    except ValueError as error:
        options.parser.error(str(error))
    try:
        program = find(options.words[0])
    except CantRun as error:
        print(f"lockctl hold: {error}", file=sys.stderr)
        return error.code
    from lockserver.cli.held_command import HeldCommand

    return HeldCommand(options, program, needs).run()


class CantRun(Exception):
    """Why the command can't be started, and the shell's exit code for that."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def find(word: str) -> str:
    """The file that would be run, by the shell's rules."""
    if "/" in word:
        candidates = [word]
    else:
        places = os.environ.get("PATH", os.defpath).split(os.pathsep)
        candidates = [os.path.join(place or ".", word) for place in places]
    there = [path for path in candidates if os.path.exists(path)]
    for path in there:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    if not there:
        raise CantRun(NOT_FOUND, f"{word}: there is no such command" + ("" if "/" in word else " in PATH"))
    why = "is a directory" if os.path.isdir(there[0]) else "is not executable (chmod +x)"
    raise CantRun(EX_CANT_RUN, f"{there[0]} {why}")


# -- values --------------------------------------------------------------------------------------------------------


def _need(text: str) -> tuple[str, int]:
    device, equals, count = text.rpartition("=")
    if not equals or not device or len(device) > 128:
        raise argparse.ArgumentTypeError(f"{text!r} is no need of memory; allowed: DEVICE=BYTES such as host:0=4GiB")
    try:
        return device, size_bytes(count)
    except BadValue as error:
        raise argparse.ArgumentTypeError(str(error)) from None

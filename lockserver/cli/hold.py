"""`lockctl hold`: a command under the lock. As flock(1) is to files, for two programs and one GPU.

Here is what may be said on its command line, and what can be known to be wrong before the lock is asked for; what it
promises stands in `lockctl_help.py`, how it goes in `held_command.py`.
"""

import argparse
import sys

from evidence.cli import held_options
from lockserver.rules import messages as m
from sidecar.terminal.settings import Parser, name


def declare(command: Parser) -> None:
    command.usage = "lockctl hold --engine-id ID [--needs DEVICE=BYTES]... [--serving URL] [...] -- COMMAND..."
    command.setting("--engine-id", parse=name, required=True, metavar="ID", help="what this is called in status")
    command.add_argument(
        "--serving",
        default="",
        metavar="URL",
        help="where the command serves, for all that watch; said when it is started",
    )
    held_options.declare(
        command,
        needs="memory that must be free for the grant",
        waits_for="the lock",
        grace="in a switchover",
    )


def hold(options: argparse.Namespace) -> int:
    needs = held_options.needs(options)
    try:
        m.check(m.Acquire(needs=needs))
        m.check(m.Serving(url=options.serving))
    except ValueError as error:
        options.parser.error(str(error))
    from sidecar.machine.guarded import CantRun, find

    try:
        program = find(options.words[0])
    except CantRun as error:
        print(f"lockctl hold: {error}", file=sys.stderr)
        return error.code
    from lockserver.cli.held_command import HeldCommand

    return HeldCommand(options, program, needs).run()

"""What the commands for people that look at a server have in common (`lockctl`, `gmsctl`): their settings, and what
becomes of what can't be seen or said.

What this file may not do: know a command.
"""

import argparse
import sys
from collections.abc import Callable

from sidecar.terminal import starting
from sidecar.terminal.exit_codes import EX_INTERRUPTED
from sidecar.terminal.settings import Parser, seconds
from sidecar.terminal.terminal import OutputLost, observer_exit_code
from sidecar.wire.observer import TIMEOUT_S, ObserverError

Command = Callable[[argparse.Namespace], int]


class Commands:
    def __init__(self, prog: str, what: str, epilog: str, *, run_dir: str, answers: str) -> None:
        """`run_dir`: what the run directory is; `answers`: who answers; both in words."""
        self.parser = Parser(prog=prog, usage="%(prog)s [--run-dir DIR] COMMAND ...", description=what, epilog=epilog)
        self._run_dir = run_dir
        self.parser.run_dir(run_dir)
        how_long = f"how long {answers} may take to answer"
        self.parser.setting("--answer-timeout-s", default=TIMEOUT_S, parse=seconds, metavar="S", help=how_long)
        self._added = self.parser.add_subparsers(
            dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog=prog
        )

    def add(self, name: str, run: Command, what: str, epilog: str, *, prints: bool = True) -> Parser:
        command: Parser = self._added.add_parser(name, description=what, epilog=epilog)
        command.set_defaults(run=run, parser=command)
        command.run_dir(self._run_dir)
        if prints:
            command.add_argument("--json", action="store_true", help="for programs")
        return command


def run(prog: str, command: Callable[[], int]) -> int:
    """Returns the exit code."""
    try:
        starting.loaded()
        return command()
    except ObserverError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return observer_exit_code(error)
    except OutputLost as error:
        return error.exit_code(prog)
    except KeyboardInterrupt:
        return EX_INTERRUPTED


def with_command(parser: Callable[[], Parser], words: list[str]) -> int:
    """For a program of which `hold` runs what stands behind the first `--`. Returns the exit code."""
    at = words.index("--") if "--" in words else len(words)
    own, command = (words[:at], words[at + 1 :]) if "hold" in words[:at] else (words, [])
    options, unknown = parser().parse_known_args(own)
    if unknown:
        hint = "; the command that is to run stands behind --" if options.command == "hold" else ""
        options.parser.error(f"not known here: {' '.join(unknown)}{hint}")
    options.words = [*getattr(options, "words", []), *command]
    return int(options.run(options))

"""What the commands for people that look at a server have in common (`lockctl`, `gmsctl`): their settings, and what
becomes of what can't be seen or said.

What this file may not do: know a command.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from sidecar.terminal.exit_codes import EX_INTERRUPTED
from sidecar.terminal.settings import Parser, seconds, valued
from sidecar.terminal.terminal import OutputLost, observer_exit_code
from sidecar.wire.observer import TIMEOUT_S, ObserverError

Command = Callable[[argparse.Namespace], int]


class Commands:
    def __init__(
        self, prog: str, what: str, epilog: str, *, parse: Callable[[str], Path], run_dir: str, answers: str
    ) -> None:
        """`parse`, `run_dir`: how the run directory is read, and what it is; `answers`: who answers, in words."""
        self.parser = Parser(prog=prog, usage="%(prog)s [--run-dir DIR] COMMAND ...", description=what, epilog=epilog)
        self._run_dir = run_dir
        self._parse = parse
        self.parser.setting("--run-dir", parse=parse, metavar="DIR", help=run_dir)
        how_long = f"how long {answers} may take to answer"
        self.parser.setting("--answer-timeout-s", default=TIMEOUT_S, parse=seconds, metavar="S", help=how_long)
        self._added = self.parser.add_subparsers(
            dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog=prog
        )

    def add(self, name: str, run: Command, what: str, epilog: str, *, prints: bool = True) -> Parser:
        """One more. The run directory may stand before or after its name."""
        command: Parser = self._added.add_parser(name, description=what, epilog=epilog)
        command.set_defaults(run=run, parser=command)
        command.add_argument(
            "--run-dir",
            type=valued(self._parse),
            metavar="DIR",
            default=argparse.SUPPRESS,
            help=f"{self._run_dir} [FAILOVER_RUN_DIR]",
        )
        if prints:
            command.add_argument("--json", action="store_true", help="for programs")
        return command


def run(prog: str, options: argparse.Namespace, command: Callable[[], int]) -> int:
    """Returns the exit code."""
    if options.run_dir is None:
        options.parser.error("which run directory? Give --run-dir DIR, or set FAILOVER_RUN_DIR")
    try:
        return command()
    except ObserverError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return observer_exit_code(error)
    except OutputLost as error:
        return error.exit_code(prog)
    except KeyboardInterrupt:
        return EX_INTERRUPTED

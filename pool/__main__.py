"""`pool`: the command. Settings and a sentence for what a person can put right; the work is in `shell/server.py`."""

from sidecar.terminal import starting

if starting.is_command(__name__, "pool"):
    starting.die_of_ctrl_c()

import argparse
import contextlib
import sys
from pathlib import Path

from sidecar.terminal import server_command
from sidecar.terminal.logs import Log
from sidecar.terminal.settings import Parser, directory

EXAMPLES = """\
examples:
  failover models up models.yaml                         starts this, and all that it needs
  pool --run-dir DIR --models models.yaml --metrics :9404

It runs until SIGTERM or SIGINT; SIGHUP: models.yaml is read again. Without it nothing swaps, and every engine serves
on; the next one finds how things stand.
"""


def parser() -> Parser:
    p = Parser(
        prog="pool", description="Says which of many models should be awake next. It only wishes.", epilog=EXAMPLES
    )
    p.setting("--run-dir", required=True, parse=directory, metavar="DIR", help="the host directory")
    p.setting("--models", required=True, parse=Path, metavar="FILE", help="models.yaml")
    p.setting(
        "--devices",
        default="",
        parse=lambda text: tuple(filter(None, text.split(","))),
        metavar="DEVICE,...",
        shown_default="all that the ledger knows",
        help="where models run whose entry names none",
    )
    server_command.declare(p)
    return p


def main(argv: list[str] | None = None) -> int:
    return server_command.run("pool", parser(), _serve, argv)


def _serve(options: argparse.Namespace, log: Log) -> int:
    from pool.models_file import BadFile
    from pool.shell.metrics import Metrics
    from pool.shell.server import Options, Server

    def server(counted: Metrics | None) -> Server:
        wanted = Options(options.run_dir, options.models, options.devices, options.socket_mode, options.allow_uid)
        return Server(wanted, log, counted)

    return server_command.serve(options, log, Metrics, server, signals=Server.heed_signals, wrong=BadFile)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

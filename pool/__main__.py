"""`pool`: the command. Settings and a sentence for what a person can put right; the work is in `shell/server.py`."""

from sidecar.terminal import starting

if starting.is_command(__name__, "pool"):
    starting.die_of_ctrl_c()

import argparse
import contextlib
import sys
from pathlib import Path

from sidecar.kernel import process_setup
from sidecar.terminal import server_command
from sidecar.terminal.cannot_start import CannotStart
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
    server_command.declare(p, "serve Prometheus metrics there (/metrics), and /live for a liveness probe")
    return p


def main(argv: list[str] | None = None) -> int:
    return server_command.run("pool", parser(), _serve, argv)


def _serve(options: argparse.Namespace, log: Log) -> int:
    from pool.models_file import BadFile
    from pool.shell.metrics import Metrics
    from pool.shell.server import Options, Server
    from sidecar.http import metrics
    from sidecar.kernel.durable import AlreadyLocked
    from sidecar.machine.shell import STOPPED_BY_SIGNAL

    process_setup.raise_descriptor_limit()
    try:
        counted = Metrics() if options.metrics is not None else None
        wanted = Options(options.run_dir, options.models, options.devices, options.socket_mode, options.allow_uid)
        server = Server(wanted, log, counted)
        try:
            if counted is not None:
                metrics.serve(options.metrics, counted.registry, server.loop)
            server.start()
        except (CannotStart, metrics.MetricsUnavailable):
            server.close()
            raise
    except (CannotStart, AlreadyLocked, BadFile, metrics.MetricsUnavailable) as error:
        print(f"pool: {'; '.join(str(argument) for argument in error.args)}", file=sys.stderr)
        return 1
    why = server.run()
    log.info("stopped", why=why)
    return 0 if why in STOPPED_BY_SIGNAL else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

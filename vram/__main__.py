"""`vram`: the command. Settings and a sentence for what a person can put right; the work is in `shell/server.py`."""

from sidecar.terminal import starting

if starting.is_command(__name__, "vram"):
    starting.die_of_ctrl_c()

import argparse
import contextlib
import sys

from evidence.cli import server_options
from evidence.cli.held_options import device_bytes
from sidecar.terminal import server_command
from sidecar.terminal.logs import Log
from sidecar.terminal.settings import Parser, directory, seconds, seconds_or_zero, size_bytes

EXAMPLES = """\
examples:
  vram --run-dir DIR                                    memory by NVML where there is one
  vram --run-dir /tmp/try --memory none --total host:0=8GiB
  vram --run-dir DIR --keep-free 512MiB --metrics :9403

It runs until SIGTERM or SIGINT. Leases outlive it: their holders go on, and find the next server by themselves.
"""


def parser() -> Parser:
    p = Parser(
        prog="vram",
        description="The ledger of device memory: leases in bytes, which end when their holders are proven gone.",
        epilog=EXAMPLES,
    )
    help = "the host directory: the ledger is in DIR/vram; on tmpfs if possible"
    p.setting("--run-dir", required=True, parse=directory, metavar="DIR", help=help)
    p.add_argument(
        "--total",
        type=device_bytes,
        action="append",
        default=[],
        metavar="DEVICE=BYTES",
        help="lease no more than this of a device; where no reader shows it this is all that is known. May be repeated",
    )
    help = "of each device, for what no lease counts"
    p.setting("--keep-free", default="0", parse=size_bytes, metavar="BYTES", help=help)
    help = "how long a holder may take to give back what it is asked for, before the next one is asked"
    p.setting("--ask-s", default=30, parse=seconds, metavar="S", help=help)
    help = "a lease that hasn't been used since it was granted isn't asked for sooner"
    p.setting("--least-held-s", default=10, parse=seconds_or_zero, metavar="S", help=help)
    help = "how long what was given back may stay in use before that is an alarm"
    p.setting("--patience-s", default=5, parse=seconds, metavar="S", help=help)
    server_options.declare(
        p,
        window="how long an end may take to be proven before that is an alarm",
        settle="how long a new server waits for holders that it can't know of",
    )
    server_command.declare(p)
    return p


def main(argv: list[str] | None = None) -> int:
    return server_command.run("vram", parser(), _serve, argv)


def _serve(options: argparse.Namespace, log: Log) -> int:
    from vram.rules.events import Config
    from vram.shell.metrics import Metrics
    from vram.shell.server import Server

    def server(counted: Metrics | None) -> Server:
        reader, memory_why = server_options.reader(options)
        config = Config(
            window_s=options.window_s,
            settle_s=options.settle_s,
            ask_s=options.ask_s,
            least_held_s=options.least_held_s,
            patience_s=options.patience_s,
            keep_free=options.keep_free,
            totals=dict(options.total),
            memory_why=memory_why,
        )
        observe = counted.observe if counted is not None else None
        return Server(options.run_dir, config, server_command.access(options), reader, log, observe)

    return server_command.serve(options, log, Metrics, server)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

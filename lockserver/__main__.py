"""`lockserver`: the command. Settings and a sentence for what a person can put right; the work is in `server.py`."""

from sidecar.terminal import starting

if starting.is_command(__name__, "lockserver"):
    starting.die_of_ctrl_c()

import argparse
import contextlib
import math
import sys
from pathlib import Path

from evidence.cli import server_options
from sidecar.terminal import server_command
from sidecar.terminal.logs import Log
from sidecar.terminal.settings import Parser, directory, seconds

EXAMPLES = """\
examples:
  lockserver --run-dir DIR                              in the pod; memory by NVML where there is one
  lockserver --run-dir /tmp/try --memory none           on a laptop, to try it out
  lockserver --run-dir DIR --metrics :9400              with Prometheus metrics
  lockserver --locks DIR                                a lock for each directory in DIR, as they come and go

It runs until SIGTERM or SIGINT. The lock outlives it: a holder goes on, and finds the next server by itself; with
--restart in-place that one is there within a second.
"""


def parser() -> Parser:
    p = Parser(
        prog="lockserver",
        description="Decides which engine may be awake, and grants the next one only when the last is proven gone.",
        epilog=EXAMPLES,
    )
    p.setting(
        "--run-dir",
        parse=directory,
        metavar="DIR",
        help="where the socket, the holder file and the life files are; on tmpfs if possible",
    )
    p.setting(
        "--locks",
        parse=directory,
        metavar="DIR",
        help="instead of a run directory: one for each lock in it. A lock that is new there is at rest",
    )
    server_options.declare(
        p,
        window="how long a new server waits for the holder that it finds in the file",
        settle="how long a server without a holder file waits for a holder that it can't know of",
    )
    p.setting(
        "--memory-bound-s",
        parse=seconds,
        metavar="S",
        shown_default="never",
        help="after so long grant though the memory that is needed is not free, once everything else is proven",
    )
    p.setting(
        "--prepare-timeout-s",
        default=1,
        parse=seconds,
        metavar="S",
        help="how long the next engine may take to look at itself before it is passed over",
    )
    server_command.declare(p)
    p.switch(
        "--grant-unproven",
        help="after the window take a free life lock for proof, where nothing proves the end of every process",
    )
    p.switch(
        "--unsafe-presume-dead",
        help="after the window take a silent holder for dead: two may be awake. For filesystems without OFD locks",
    )
    return p


def main(argv: list[str] | None = None) -> int:
    p = parser()

    def check(options: argparse.Namespace) -> str:
        if options.run_dir is None and options.locks is None:
            return "the following arguments are required: --run-dir (or --locks)"
        both = options.locks is not None and options.run_dir is not None and p.get_default("run_dir") is None
        return "give --run-dir or --locks, and not both" if both else ""

    return server_command.run("lockserver", p, _serve, argv, check)


def _serve(options: argparse.Namespace, log: Log) -> int:
    from evidence.shell.record_shell import ENDING_S
    from lockserver.rules.events import Config
    from lockserver.shell.locks import Locks
    from lockserver.shell.metrics import Page
    from lockserver.shell.server import Server

    many = options.locks is not None

    def server(counted: Page | None) -> Server | Locks:
        reader, memory_why = server_options.reader(options)
        config = Config(
            window_s=options.window_s,
            settle_s=options.settle_s,
            memory_bound_s=options.memory_bound_s or math.inf,
            prepare_timeout_s=options.prepare_timeout_s,
            presume_dead=options.unsafe_presume_dead,
            grant_unproven=options.grant_unproven,
            memory_why=memory_why,
            at_rest=many,
        )

        def lock(run_dir: Path) -> Server:
            return Server(
                run_dir,
                config,
                server_command.access(options),
                reader,
                log.with_fields(run_dir=run_dir) if many else log,
                counted.of(run_dir) if counted is not None else None,
                host_devices=server_options.host_devices(options),
                patience_s=0.0 if many else ENDING_S,
            )

        return Locks(options.locks, lock, log, ENDING_S) if many else lock(options.run_dir)

    return server_command.serve(options, log, lambda: Page(many=many), server)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

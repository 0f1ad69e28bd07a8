"""`vram`: the command. Settings and a sentence for what a person can put right; the work is in `shell/server.py`."""

from sidecar.terminal import starting

if starting.is_command(__name__, "vram"):
    starting.die_of_ctrl_c()

import argparse
import contextlib
import sys
from pathlib import Path

from evidence.cli.held_options import device_bytes
from evidence.shell import memory
from sidecar.kernel import host_usage, process_setup
from sidecar.terminal import server_command
from sidecar.terminal.cannot_start import CannotStart
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
    p.setting("--memory", default="auto", choices=memory.KINDS, help="who says how much device memory is free")
    p.setting(
        "--host-devices",
        parse=Path,
        shown_default="/dev/shm/gpu-failover-UID",
        metavar="DIR",
        env=host_usage.ENVIRONMENT,
        help="where host devices are (--memory host)",
    )
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
    help = "how long an end may take to be proven before that is an alarm"
    p.setting("--window-s", default=10, parse=seconds, metavar="S", help=help)
    help = "how long a new server waits for holders that it can't know of"
    p.setting("--settle-s", default=2, parse=seconds, metavar="S", help=help)
    server_command.declare(p, "serve Prometheus metrics there (/metrics), and /live for a liveness probe")
    return p


def main(argv: list[str] | None = None) -> int:
    return server_command.run("vram", parser(), _serve, argv)


def _serve(options: argparse.Namespace, log: Log) -> int:
    from sidecar.http import metrics
    from sidecar.kernel.durable import AlreadyLocked
    from sidecar.machine.shell import STOPPED_BY_SIGNAL
    from vram.shell.server import Options, Server

    process_setup.raise_descriptor_limit()
    try:
        reader, memory_why = memory.reader_in_time(
            options.memory, options.host_devices or host_usage.devices_directory()
        )
        counted = None
        if options.metrics is not None:
            from vram.shell.metrics import Metrics

            counted = Metrics()
        server = Server(
            Options(
                host_dir=options.run_dir,
                window_s=options.window_s,
                settle_s=options.settle_s,
                ask_s=options.ask_s,
                least_held_s=options.least_held_s,
                patience_s=options.patience_s,
                keep_free=options.keep_free,
                totals=dict(options.total),
                socket_mode=options.socket_mode,
                allow_uids=options.allow_uid,
                pidfds=options.pidfds,
                memory_why=memory_why,
            ),
            reader,
            log,
            counted.observe if counted is not None else None,
        )
        try:
            if counted is not None:
                metrics.serve(options.metrics, counted.registry, server.loop)
            server.start()  # last, because it says that it is ready
            server.loop.stop_on_signals()
        except (CannotStart, metrics.MetricsUnavailable):
            server.close()
            raise
    except (CannotStart, memory.NoReader, AlreadyLocked, metrics.MetricsUnavailable) as error:
        print(f"vram: {error}", file=sys.stderr)
        return 1
    why = server.run()
    log.info("stopped", why=why)
    return 0 if why in STOPPED_BY_SIGNAL else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

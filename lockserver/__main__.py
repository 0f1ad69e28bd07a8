"""`lockserver`: the command. Settings and a sentence for what a person can put right; the work is in `server.py`."""

from sidecar.terminal import starting

if starting.is_command(__name__, "lockserver"):
    starting.die_of_ctrl_c()

import argparse
import contextlib
import math
import sys
from pathlib import Path

from evidence.shell import memory
from sidecar.kernel import host_usage, process_setup
from sidecar.terminal import server_command
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.logs import Log
from sidecar.terminal.settings import Parser, directory, seconds

ENDING_S = 1.0
"""How long a server that was killed may take to end."""

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
    p.setting(
        "--window-s",
        default=10,
        parse=seconds,
        metavar="S",
        help="how long a new server waits for the holder that it finds in the file",
    )
    p.setting(
        "--settle-s",
        default=2,
        parse=seconds,
        metavar="S",
        help="how long a server without a holder file waits for a holder that it can't know of",
    )
    p.setting("--memory", default="auto", choices=memory.KINDS, help="who says how much device memory is free")
    p.setting(
        "--memory-bound-s",
        parse=seconds,
        metavar="S",
        shown_default="never",
        help="after so long grant though the memory that is needed is not free, once everything else is proven",
    )
    p.setting(
        "--host-devices",
        parse=Path,
        shown_default="/dev/shm/gpu-failover-UID",
        metavar="DIR",
        env=host_usage.ENVIRONMENT,
        help="where host devices are (--memory host)",
    )
    p.setting(
        "--prepare-timeout-s",
        default=1,
        parse=seconds,
        metavar="S",
        help="how long the next engine may take to look at itself before it is passed over",
    )
    server_command.declare(p, "serve Prometheus metrics there (/metrics), and /live for a liveness probe")
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
    from lockserver.shell.locks import Locks
    from lockserver.shell.server import Options, Server
    from sidecar.http import metrics
    from sidecar.kernel.durable import AlreadyLocked
    from sidecar.machine.shell import STOPPED_BY_SIGNAL

    process_setup.raise_descriptor_limit()
    many = options.locks is not None
    try:
        reader, memory_why = memory.reader_in_time(
            options.memory, options.host_devices or host_usage.devices_directory()
        )
        counted = None
        if options.metrics is not None:
            from lockserver.shell.metrics import Page

            counted = Page(many=many)

        def lock(run_dir: Path) -> Server:
            chosen = Options(
                run_dir=run_dir,
                window_s=options.window_s,
                settle_s=options.settle_s,
                memory_bound_s=options.memory_bound_s or math.inf,
                prepare_timeout_s=options.prepare_timeout_s,
                presume_dead=options.unsafe_presume_dead,
                grant_unproven=options.grant_unproven,
                socket_mode=options.socket_mode,
                allow_uids=options.allow_uid,
                pidfds=options.pidfds,
                host_devices=options.host_devices,
                memory_why=memory_why,
                at_rest=many,
                patience_s=0.0 if many else ENDING_S,
            )
            said = log.with_fields(run_dir=run_dir) if many else log
            return Server(chosen, reader, said, counted.of(run_dir) if counted is not None else None)

        served = Locks(options.locks, lock, log, ENDING_S) if many else lock(options.run_dir)
        try:
            if counted is not None:
                metrics.serve(options.metrics, counted.registry, served.loop)
            served.start()  # last, because it says that it is ready
            served.loop.stop_on_signals()
        except (CannotStart, metrics.MetricsUnavailable):
            served.close()
            raise
    except (CannotStart, memory.NoReader, AlreadyLocked, metrics.MetricsUnavailable) as error:
        print(f"lockserver: {error}", file=sys.stderr)
        return 1
    why = served.run()
    log.info("stopped", why=why)
    return 0 if why in STOPPED_BY_SIGNAL else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

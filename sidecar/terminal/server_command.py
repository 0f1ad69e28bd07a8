"""What the commands of all servers have in common: settings, and a keeper.

What a server needs is loaded only where it is served: its keeper has no use for it, and a restart waits for the keeper
first.
"""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sidecar.kernel import process_setup
from sidecar.machine import keeper
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.logs import FORMATS, Log
from sidecar.terminal.settings import Parser, host_port, mode, uids

if TYPE_CHECKING:
    from sidecar.wire.connections import Access

METRICS = "serve Prometheus metrics there (/metrics), and /live for a liveness probe"


def declare(p: Parser, metrics: str = METRICS) -> None:
    """`metrics`: what is served there."""
    p.setting("--metrics", parse=host_port, metavar="HOST:PORT", help=metrics)
    keeper.declare(p)
    p.setting("--socket-mode", default="600", parse=mode, metavar="MODE", help="permissions of the sockets")
    p.setting(
        "--allow-uid", default="", parse=uids, metavar="UID,...", help="further users whose processes may connect"
    )
    p.setting(
        "--pidfds",
        default="auto",
        choices=("auto", "peer", "sent", "none"),
        help="how processes are seen; other than auto: as an older kernel would (5.15: sent)",
    )
    p.setting("--log-format", default="text", choices=FORMATS, help="how log lines look")


def run(
    module: str,
    p: Parser,
    serve: Callable[[argparse.Namespace, Log], int],
    argv: list[str] | None,
    check: Callable[[argparse.Namespace], str] = lambda options: "",
) -> int:
    """Returns the exit code. `module` is what a keeper starts. `check`: what is wrong with the settings together."""
    options = p.parse_args(argv)
    if wrong := check(options):
        p.error(wrong)
    log = Log(module, json=options.log_format == "json")
    return keeper.keep(module, argv, log) if options.restart == keeper.IN_PLACE else serve(options, log)


def access(options: argparse.Namespace) -> "Access":
    from sidecar.wire.connections import Access

    return Access(options.socket_mode, options.allow_uid, options.pidfds)


def serve(
    options: argparse.Namespace,
    log: Log,
    new_metrics: Callable[[], Any],
    new_server: Callable[[Any], Any],
    *,
    signals: Callable[[Any], object] = lambda server: server.loop.stop_on_signals(),
    wrong: type[Exception] = CannotStart,
) -> int:
    """Until a signal comes; returns the exit code. The server is made with its metrics, or None where none are wanted.
    Both may raise CannotStart, or `wrong`: something that a person can put right. `signals`: it heeds them from now on.
    """
    from sidecar.http import metrics
    from sidecar.kernel.durable import AlreadyLocked
    from sidecar.machine.shell import STOPPED_BY_SIGNAL

    process_setup.raise_descriptor_limit()
    try:
        counted = new_metrics() if options.metrics is not None else None
        server = new_server(counted)
        try:
            if counted is not None:
                metrics.serve(options.metrics, counted.registry, server.loop)
            server.start()  # last, because it says that it is ready
            signals(server)
        except (CannotStart, metrics.MetricsUnavailable):
            server.close()
            raise
    except (CannotStart, AlreadyLocked, metrics.MetricsUnavailable, wrong) as error:
        print(f"{log.program}: {'; '.join(str(argument) for argument in error.args)}", file=sys.stderr)
        return 1
    why: str = server.run()
    log.info("stopped", why=why)
    return 0 if why in STOPPED_BY_SIGNAL else 1

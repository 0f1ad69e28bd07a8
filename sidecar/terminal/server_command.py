"""What the commands of all servers have in common: settings, and a keeper.

What a server needs is loaded only where it is served: its keeper has no use for it, and a restart waits for the keeper
first.
"""

import argparse
from collections.abc import Callable

from sidecar.machine import keeper
from sidecar.terminal.logs import FORMATS, Log
from sidecar.terminal.settings import Parser, host_port, mode, uids


def declare(p: Parser, metrics: str) -> None:
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

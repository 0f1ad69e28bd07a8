"""What may be said on the command line of a server that binds trees and reads device memory, beside what every server's
command has (`sidecar/terminal/server_command.py`).
"""

import argparse
from pathlib import Path

from evidence.shell import memory
from sidecar.kernel import host_usage
from sidecar.terminal.settings import Parser, seconds


def declare(p: Parser, *, window: str, settle: str) -> None:
    """What the two times are, in words."""
    p.setting("--window-s", default=10, parse=seconds, metavar="S", help=window)
    p.setting("--settle-s", default=2, parse=seconds, metavar="S", help=settle)
    p.setting("--memory", default="auto", choices=memory.KINDS, help="who says how much device memory is free")
    p.setting(
        "--host-devices",
        parse=Path,
        shown_default="/dev/shm/gpu-failover-UID",
        metavar="DIR",
        env=host_usage.ENVIRONMENT,
        help="where host devices are (--memory host)",
    )


def host_devices(options: argparse.Namespace) -> Path:
    return options.host_devices or host_usage.devices_directory()


def reader(options: argparse.Namespace) -> tuple[memory.Reader | None, str]:
    """And why there is none. Raises NoReader."""
    return memory.reader_in_time(options.memory, host_devices(options))

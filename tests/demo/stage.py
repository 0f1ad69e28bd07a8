"""What the demo's children have in their environment, and a demo of which something is made to be missing or wrong."""

import os
import sys
from pathlib import Path

import pytest

from tests.lockctl.programs import House
from tests.support.processes import Program
from tests.support.waiting import until

needs_shm = pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="the demo needs /dev/shm")
PLAY = """
import sys
from pathlib import Path
import demo.machine
{}
from demo.__main__ import main
sys.exit(main({!r}))
"""


def play_with(house: House, change: str, *arguments: str) -> Program:
    """The demo, after this statement."""
    return house.run(sys.executable, "-c", PLAY.format(change, list(arguments)))


def environment_of(pid: str) -> list[str]:
    try:
        return Path("/proc", pid, "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []  # it has ended, or is another user's


def processes_of(directory: str) -> list[str]:
    """Those that have this directory in their environment."""
    pids = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if any(directory in line for line in environment_of(pid))]


def directory_of(demo: Program) -> str:
    """Where it plays: its children have that in their environment, once each has executed its program."""
    return os.path.dirname(until(lambda: _run_dir(demo), "its children have begun"))


def _run_dir(demo: Program) -> str:
    children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    name = "FAILOVER_RUN_DIR="
    found = {line.removeprefix(name) for pid in children for line in environment_of(pid) if line.startswith(name)}
    assert len(found) < 2, found
    return "".join(found)

"""`python -m demo`: it plays to its end, shows what it says, and leaves nothing behind however it ends."""

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.lockctl.house import House, Program, until

SHM = Path("/dev/shm")
pytestmark = pytest.mark.skipif(not os.access(SHM, os.W_OK), reason="the demo needs /dev/shm")


@pytest.fixture
def demo(house: House) -> Program:
    return house.run(sys.executable, "-m", "demo")


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
    """Where it plays: its children have that in their environment."""
    children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    name = "FAILOVER_RUN_DIR="
    run_dirs = {line.removeprefix(name) for pid in children for line in environment_of(pid) if line.startswith(name)}
    (run_dir,) = run_dirs
    return os.path.dirname(run_dir)


def test_it_plays_to_its_end(demo: Program) -> None:
    demo.out.with_words("$ lockctl status")
    directory = directory_of(demo)
    said = demo.out.rest()
    assert demo.ends() == 0, demo.err.rest()
    old, new = map(int, re.findall(r"The fencing token grew: (\d+) -> (\d+)", said)[0])
    assert new > old
    assert said.count("is dead, says its pidfd") == 2
    assert re.search(r"engine-b is granted: acquire\(\) returns token \d+ +free +\d+ MiB free", said)
    assert re.search(r"token +(\d+) +\1 +the same", said)
    assert re.search(r"holder +engine-b +engine-b +the same", said)
    assert len(said[said.index("What was shown") :].strip().splitlines()) == 2 + 3
    assert not Path(directory).exists()
    until(lambda: not processes_of(directory), "all its processes end")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_leaves_nothing(demo: Program, number: signal.Signals) -> None:
    demo.out.with_words("seen from outside")
    directory = directory_of(demo)
    demo.send(number)
    assert demo.ends() == 130
    assert demo.err.rest() == "\ndemo: stopped; nothing is left of it"
    assert not Path(directory).exists()
    until(lambda: not processes_of(directory), "all its processes end")


def test_killed_it_leaves_no_process(demo: Program) -> None:
    demo.out.with_words("seen from outside")
    directory = directory_of(demo)
    demo.kill()
    until(lambda: not processes_of(directory), "all its processes end")
    shutil.rmtree(directory)


PLAY = """
import sys
from pathlib import Path
import demo.stage
{}
from demo.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ("demo.stage.SHARED_MEMORY = Path('/nowhere')", "/nowhere can't be used (No such file or directory): mount a"),
        ("demo.stage._memory_left = lambda: 1 << 20", "1 MiB are left in /dev/shm and memory; make it 64"),
        ("sys.platform = 'darwin'", "it needs Linux (pidfds, OFD locks), and here is darwin: use a Linux machine"),
        ("sys.modules['msgspec'] = None", "it needs the package msgspec: `make demo` installs it"),
    ],
)
def test_what_is_missing_is_said_in_a_line(house: House, lacking: str, words: str) -> None:
    program = house.run(sys.executable, "-c", PLAY.format(lacking))
    assert program.ends() == 1
    said = program.err.rest()
    assert said.startswith(f"demo: {words}")
    assert "\n" not in said

"""`python -m demo --lock`: it plays to its end, shows what it says, and leaves nothing behind however it ends."""

import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.demo.stage import directory_of, needs_shm, play_with, processes_of
from tests.lockctl.house import House
from tests.support.processes import Program
from tests.support.waiting import until

pytestmark = needs_shm


@pytest.fixture
def demo(house: House) -> Program:
    return house.run(sys.executable, "-m", "demo", "--lock")


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


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        (
            "demo.machine.SHARED_MEMORY = Path('/nowhere')",
            "/nowhere can't be used (No such file or directory): ",
        ),
        ("demo.machine._memory_left = lambda: 1 << 20", "1 MiB are left in /dev/shm and memory; make it 64"),
        ("sys.platform = 'darwin'", "it needs Linux (pidfds, OFD locks), and here is darwin: use a Linux machine"),
        ("sys.modules['msgspec'] = None", "it needs the package msgspec: `make demo` installs it"),
    ],
)
def test_what_is_missing_is_said_in_a_line(house: House, lacking: str, words: str) -> None:
    program = play_with(house, lacking, "--lock")
    assert program.ends() == 1
    said = program.err.rest()
    assert said.startswith(f"demo: {words}")
    assert "\n" not in said

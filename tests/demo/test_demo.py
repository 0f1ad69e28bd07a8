"""`python -m demo`: it plays to its end, shows what it says, and leaves nothing behind however it ends."""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.demo.stage import directory_of, needs_shm, play_with, processes_of
from tests.lockctl.programs import House
from tests.support.processes import Program
from tests.support.waiting import until

pytest.importorskip("numpy")
pytest.importorskip("httptools")
pytest.importorskip("uvloop")
chaos = pytest.mark.chaos
pytestmark = needs_shm
FIRST, SECOND = "one engine serves", "is ready again"
"""Words of the first act, and of the second."""


@pytest.fixture
def demo(house: House) -> Program:
    return house.run(sys.executable, "-m", "demo")


@chaos
def test_it_plays_to_its_end(house: House) -> None:
    demo = house.run(sys.executable, "-m", "demo", "--json")
    demo.out.with_words(FIRST)
    demo.out.with_words("engine   state")
    directory = directory_of(demo)
    said = demo.out.rest()
    assert demo.ends() == 0, demo.err.rest()
    assert len(re.findall(r"^    [1-5] +[ab] +\d+ +", said, re.MULTILINE)) == 5
    assert re.search(r"fencing token +(\d+) +\1 +the same", said)
    figures = json.loads(said.splitlines()[-1])
    assert (figures["kills"], figures["failed"], figures["mismatched"]) == (5, 0, 0)
    assert figures["requests"] >= 16 and 0 < figures["pause_ms"]["p50"] <= figures["pause_ms"]["max"]
    assert figures["cold_start_ms"] > 0 and {"granted", "serves", "reading"} <= set(figures["phases_ms"])
    assert max(map(len, demo.out.said[:-1])) <= 115
    assert not Path(directory).exists()
    until(lambda: not processes_of(directory), "all its processes end")


@chaos
@pytest.mark.parametrize("words", [FIRST, SECOND])
def test_stopped_it_leaves_nothing(demo: Program, words: str) -> None:
    demo.out.with_words(words)
    until(lambda: bool(_children(demo)), "it has started its pair")
    directory = directory_of(demo)
    demo.send(signal.SIGINT)
    assert demo.ends() == 130
    assert demo.err.rest() == "\ndemo: stopped; nothing is left of it"
    assert not Path(directory).exists()
    until(lambda: not processes_of(directory), "all its processes end")


@chaos
def test_killed_it_leaves_nothing(demo: Program) -> None:
    demo.out.with_words(SECOND)
    directory = directory_of(demo)
    demo.kill()
    until(lambda: not processes_of(directory), "all its processes end")
    until(lambda: not Path(directory).exists(), "its files are removed")


@chaos
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "import demo.crowd as c; c._write_down = lambda event, said: said.update({0: repr(id(said)).encode()})",
            "the client with",
        ),
        (
            "import demo.pair; demo.pair.LARGE = demo.pair.SMALL = demo.pair.Size(8, 4, ('--wrong',))",
            "failover up has ended by",
        ),
        ("import demo.pair; demo.pair.PATIENCE_S = 0.1", "not within 0.1 s: one engine serves"),
    ],
)
def test_what_is_not_as_it_should_be_is_said_in_a_sentence(house: House, change: str, words: str) -> None:
    demo = play_with(house, change)
    assert demo.ends() == 1
    said = demo.err.rest()
    assert said.startswith(f"demo: {words}")
    assert "\n" not in said


@pytest.mark.parametrize("package", ["msgspec", "numpy", "uvloop"])
def test_a_missing_package_is_named(house: House, package: str) -> None:
    demo = play_with(house, f"sys.modules[{package!r}] = None")
    assert demo.ends() == 1
    assert demo.err.rest().startswith(f"demo: it needs the package {package}: `make demo` installs it")


def test_a_wrong_argument_is_answered_with_the_usage(house: House) -> None:
    demo = house.run(sys.executable, "-m", "demo", "--loud")
    assert demo.ends() == 64
    assert demo.err.rest().startswith("usage: python -m demo [--json]")


def _children(demo: Program) -> str:
    return Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text()

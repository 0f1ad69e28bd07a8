"""`python -m demo`: it plays to its end, shows what it says, and leaves nothing behind however it ends."""

import json
import re
import signal
import socket
import sys
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest

from demo.crowd import LOADS, Answer, ask
from demo.measured import PHASES
from tests.demo.stage import directory_of, needs_shm, play_with, processes_of
from tests.lockctl.programs import House
from tests.support.processes import ROOT, Program
from tests.support.waiting import until

pytest.importorskip("numpy")
pytest.importorskip("httptools")
pytest.importorskip("uvloop")
chaos = pytest.mark.chaos
pytestmark = needs_shm
FIRST, SECOND = "one engine serves", "is ready again"
"""Words of the first act, and of the second."""
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def demo(house: House) -> Program:
    return house.run(sys.executable, "-m", "demo")


@chaos
def test_it_plays_to_its_end_and_its_report_and_its_recording_say_what_was_seen(house: House, tmp_path: Path) -> None:
    report, record = tmp_path / "made" / "demo.html", tmp_path / "demo.svg"
    demo = house.run(sys.executable, "-m", "demo", "--json", "--report", str(report), "--record", str(record))
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
    story = demo.out.said[: demo.out.said.index("What was shown") + 10]
    assert max(map(len, story)) <= 115
    assert not Path(directory).exists()
    until(lambda: not processes_of(directory), "all its processes end")
    _report_is(report.read_text(), figures)
    _recording_is(record.read_text(), story)


def _report_is(page: str, figures: dict[str, Any]) -> None:
    assert f"5 engines killed, {figures['requests']} answers, 0 failed" in page
    assert "<script" not in page and not re.search(r"(src|href)=|https?://|@import|url\(", page), "it needs a network"
    assert "prefers-color-scheme:dark" in page.replace(" ", "") and "width=device-width" in page
    pictures = [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    curve, lanes, bars = ("".join(one.itertext()) for one in pictures)
    for number in range(1, 6):
        assert f"kill {number}: " in curve and f"kill {number}: " in lanes and f"kill {number}: " in bars
    for kind, *_ in LOADS["reference"].questions:
        assert kind in lanes and f"<td>{kind}</td>" in page
    for _, phase in PHASES:
        assert f"<th>{phase}</th>" in page


def _recording_is(picture: str, story: list[str]) -> None:
    assert len(picture) < 200_000 and "<script" not in picture and "prefers-reduced-motion" in picture
    told = [" ".join("".join(line.itertext()).split()) for line in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    words = [line.replace(" ", "") for line in story if line.strip()]
    assert [line for line in words if line not in {one.replace(" ", "") for one in told}] == []
    shares = [float(share) for share in re.findall(r"@keyframes l\d+\{0%\{opacity:0\}([\d.]+)%", picture)]
    assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] < 100
    assert len(set(shares)) > 10, "it comes as it came"


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_it_plays_with_vllm_too(house: House) -> None:
    pytest.importorskip("vllm")
    demo = play_with(house, "import demo.story; demo.story.KILLS = {'vllm': 1}", "--engine", "vllm", "--json")
    said = demo.out.rest()
    assert demo.ends() == 0, demo.err.rest()
    figures = json.loads(said.splitlines()[-1])
    assert (figures["kills"], figures["failed"], figures["mismatched"]) == (1, 0, 0)


@pytest.mark.slow
@chaos
def test_without_the_proof_an_engine_is_woken_too_early_and_has_no_memory(house: House) -> None:
    demo = house.run(sys.executable, "-m", "demo", "--no-proof")
    said = demo.out.rest()
    if "can't be played here" in (error := demo.err.rest()):
        pytest.skip(error)
    assert demo.ends() == 0, error
    assert re.search(r"the memory was still taken then +no +yes", said)
    assert re.search(r"wakes that ended for want of memory +0 +[1-9]", said)
    assert "OutOfMemory" in said


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (b'data: {"error": {"message": "no engine"}}\n\n', "it broke off: {'message': 'no engine'}"),
        (b'data: {"choices": []}\n\n', "it broke off"),
        (b'data: {"choices": []}\n\ndata: [DONE]\n\n', ""),
    ],
)
def test_an_answer_that_broke_off_says_why(told: bytes, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answers() -> None:
            client, _ = door.accept()
            with client, client.makefile("rb") as said:
                while not (line := said.readline()).startswith(b"Content-Length:"):
                    pass
                while said.readline().strip():
                    pass
                said.read(int(line.split()[1]))
                client.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + told)

        thread = Thread(target=answers)
        thread.start()
        answer = Answer([])
        ask(door.getsockname(), "/v1/completions", {}, answer, "one", text_only=True)
        thread.join()
    assert (answer.why, answer.whole) == (why, not why)


@chaos
@pytest.mark.parametrize(("words", "more"), [(FIRST, ()), (SECOND, ("--keep",))])
def test_stopped_it_leaves_nothing(house: House, words: str, more: tuple[str, ...]) -> None:
    demo = house.run(sys.executable, "-m", "demo", *more)
    demo.out.with_words(words)
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
            "import demo.crowd as c; c._write_down = lambda event, said, _: said.update({0: repr(id(said)).encode()})",
            "the client with",
        ),
        (
            "import demo.pair; demo.pair.LARGE = demo.pair.SMALL = demo.pair.Size(8, 4, ('--wrong',))",
            "failover up has ended by",
        ),
        ("import demo.pair; demo.pair.PATIENCE_S = 0.1", "not within 0.1 s: "),
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
    assert demo.err.rest().startswith("usage: python -m demo [-h] [--json]")


def test_the_readmes_recording_is_there_and_its_words_are_those_of_the_picture() -> None:
    (words, file) = re.findall(r"!\[(make demo: [^]]*)\]\((\S+\.svg)\)", (ROOT / "README.md").read_text())[0]
    assert f'aria-label="{words}"' in (ROOT / file).read_text()

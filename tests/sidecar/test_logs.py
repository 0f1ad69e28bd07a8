"""One line an event, whatever is in it, and never an exception."""

import ast
import enum
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.terminal.formatting import key_values, unquoted
from sidecar.terminal.logs import Log, complain
from tests.support.processes import ROOT

NOW = 1795168800.1239
CALL = re.compile(r"\.(info|warning|alarm|_note)\(")
FIELD = re.compile(r"\b(time|level|program|event)=")


class State(enum.Enum):
    HELD = "held"


def line(event: str, *, as_json: bool = False, **fields: object) -> str:
    stream = io.StringIO()
    Log("lockserver", json=as_json, stream=stream, clock=lambda: NOW).info(event, **fields)
    said = stream.getvalue()
    assert said.endswith("\n")
    return said[:-1]


def test_a_line_for_a_person() -> None:
    assert line("granted", engine="a", token=7) == "2026-11-20T10:00:00.123Z info lockserver granted engine=a token=7"


def test_values_that_would_be_read_wrongly_are_quoted() -> None:
    said = line("x", why="two words", equals="a=b", none="", quote='"', lines="a\nb", path=Path("/run/x"))
    assert said.endswith(r'x why="two words" equals="a=b" none="" quote="\"" lines="a\nb" path=/run/x')


def test_values_of_other_kinds_read_as_what_they_are() -> None:
    said = line("x", yes=True, nothing=None, state=State.HELD, pids=[1, 2], time_s=0.5, error=OSError(2, "gone"))
    assert said.endswith('x yes=true nothing=null state=held pids=1,2 time_s=0.5 error="[Errno 2] gone"')


def test_a_line_for_a_collector() -> None:
    said = json.loads(line("granted", as_json=True, engine="a", token=7, state=State.HELD, path=Path("/x"), level=3))
    assert said == {
        "time": "2026-11-20T10:00:00.123Z",
        "level": "info",
        "program": "lockserver",
        "event": "granted",
        "engine": "a",
        "token": 7,
        "state": "held",
        "path": "/x",
        "level_": 3,
    }


def test_no_program_has_a_field_that_the_line_itself_has() -> None:
    """For a collector it would be called `program_`."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / path for path in listed.split() if not path.startswith("tests/")]
    sources = {path: path.read_text() for path in paths if path.exists()}
    assert sum(len(CALL.findall(source)) for source in sources.values()) > 100
    calls = [
        (path, node.lineno, keyword.arg)
        for path, source in sources.items()
        if CALL.search(source) and FIELD.search(source)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and CALL.fullmatch(f".{getattr(node.func, 'attr', '')}(")
        for keyword in node.keywords
    ]
    assert [call for call in calls if call[2] in ("time", "level", "program", "event")] == []


def test_levels() -> None:
    stream = io.StringIO()
    log = Log("x", stream=stream, clock=lambda: NOW)
    log.info("a")
    log.warning("b")
    log.alarm("c")
    assert [said.split()[1] for said in stream.getvalue().splitlines()] == ["info", "warning", "alarm"]


@given(st.text(max_size=50))
def test_one_event_is_one_line_whatever_is_in_it(text: str) -> None:
    assert line("x", text=text).splitlines() == [line("x", text=text)]
    assert json.loads(line("x", as_json=True, text=text))["text"] == text


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=30))
def test_a_shell_reads_back_what_was_quoted(text: str) -> None:
    if "\\" not in text and '"' not in text and "$" not in text and "`" not in text:
        assert shlex.split(line("x", text=text).split(" x ", 1)[1]) == [f"text={text}"]


def closed_file() -> TextIO:
    stream = io.StringIO()
    stream.close()
    return stream


def broken_pipe() -> TextIO:
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "w")


def test_nowhere_to_write_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Log("x", stream=closed_file()).alarm("a")
    stream = broken_pipe()
    Log("x", stream=stream).alarm("a")
    with pytest.raises(BrokenPipeError):
        stream.close()
    with pytest.raises(OSError), open("/dev/full", "w") as full:
        Log("x", stream=full).alarm("a")
    monkeypatch.setattr(sys, "stderr", None)
    Log("x").alarm("a")


@contextmanager
def unread() -> Iterator[int]:
    """A pipe as the standard error, which no process reads: its other end."""
    reading, writing = os.pipe()
    before = sys.stderr
    try:
        with os.fdopen(writing, "w") as sys.stderr:
            yield reading
    finally:
        sys.stderr = before
        os.close(reading)


def read(fd: int) -> str:
    """What is there; it doesn't wait."""
    os.set_blocking(fd, False)
    try:
        return os.read(fd, 1 << 20).decode()
    except BlockingIOError:
        return ""


@pytest.mark.parametrize("reopens", [True, False], ids=["reopened", "asked whether there is room"])
def test_a_log_that_is_not_read_drops_lines_and_tells_how_many(monkeypatch: pytest.MonkeyPatch, reopens: bool) -> None:
    if not reopens:

        def refused(path: object, *_: object) -> int:
            raise PermissionError(path)

        monkeypatch.setattr(os, "open", refused)
    with unread() as reading:
        log = Log("x", clock=lambda: NOW)
        for number in range(2000):
            log.info("event", number=number, text="t" * 90)  # three times what a pipe takes
        came = read(reading)
        log.info("again")
        came += read(reading)
    told = [line.split() for line in came.splitlines()]
    numbers = [int(words[4].split("=")[1]) for words in told if words[3] == "event"]
    dropped = [int(words[4].split("=")[1]) for words in told if words[3] == "log_lines_dropped"]
    assert numbers == list(range(len(numbers))), "what was written is whole, and in order"
    assert dropped == [2000 - len(numbers)]
    assert told[-1][3] == "again"


def test_a_line_that_is_longer_than_a_pipe_is_never_torn_by_the_next_one() -> None:
    with unread() as reading:
        log = Log("x", clock=lambda: NOW)
        log.info("long", text="t" * 200_000)
        came = ""
        for _ in range(100):
            log.info("short")
            came += read(reading)
    lengths = [(line.split()[3], len(line) > 200_000) for line in came.splitlines()]
    assert lengths[0] == ("long", True)
    assert ("log_lines_dropped", False) in lengths and lengths[-1] == ("short", False)


def test_a_last_word_never_waits() -> None:
    with unread():
        for _ in range(2000):
            complain("this process ends" + "." * 90)


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


def test_a_value_that_cant_be_printed_is_no_error() -> None:
    assert line("x", value=Unprintable(), number=7).endswith(
        'value="<Unprintable: can\'t be printed, RuntimeError>" number=7'
    )
    assert "can't be printed" in json.loads(line("x", as_json=True, value=Unprintable()))["value"]
    within_itself: list[object] = []
    within_itself.append(within_itself)
    assert json.loads(line("x", as_json=True, value=within_itself))["value"] == "[[...]]"
    assert json.loads(line("x", as_json=True, value="\ud800"))["value"] == "\ud800"
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Log("x", stream=stream, clock=lambda: NOW).info("x", name="ä")
    stream.seek(0)
    assert "name=" in stream.read()


def test_stderr_is_where_it_goes_when_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Log("x").info("a")
    captured = capsys.readouterr()
    assert (captured.out, captured.err.split()[1:]) == ("", ["info", "x", "a"])


@given(st.text(min_size=1))
def test_what_a_line_quotes_is_read_back_as_it_was(text: str) -> None:
    written = key_values({"why": text, "more": "x y"}).partition("=")[2]
    assert unquoted(written) == text or not written.startswith('"')


@pytest.mark.parametrize(("text", "said"), [('"cut off', "cut off"), ("plain", "plain"), ("", ""), ("'x'", "x")])
def test_other_text_loses_its_quotes(text: str, said: str) -> None:
    assert unquoted(text) == said

"""The walks of the architecture page name files and functions that are there."""

import re

import pytest

from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "inside" / "architecture.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^\| \d+ \| [^|]+ \| ([^|]+) \|$", PAGE, re.M)


def missing(step: str) -> list[str]:
    """A word in backquotes is a file, or is defined in the file before it."""
    found, source, folder = [], "", ROOT
    for word in re.findall(r"`([^`]+)`", step):
        if word.endswith(".py"):
            path = ROOT / word if "/" in word else folder / word
            folder = path.parent
            source = path.read_text(encoding="utf-8") if path.is_file() else ""
            found += [] if source else [word]
        elif not all(re.search(rf"\b(?:def|class) {name}\b", source) for name in word.split(".")):
            found.append(word)
    return found


def test_what_is_not_there_is_seen() -> None:
    step = "`sidecar/wire/frames.py` `Channel`, `gone`; `none.py` `x`; `sockets.py`"
    assert missing(step) == ["gone", "none.py", "x"]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_names_what_is_there(step: str) -> None:
    assert missing(step) == []

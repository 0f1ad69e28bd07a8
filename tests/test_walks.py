"""The walks of the architecture page name files and functions that are there."""

import re

import pytest

from tests.support.processes import ROOT

PAGE = (ROOT / "docs" / "inside" / "architecture.md").read_text(encoding="utf-8")
STEP = r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$"
STEPS = [where for _, where in re.findall(STEP, PAGE, re.M)]


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


@pytest.mark.parametrize(
    ("title", "last_step", "most"),
    [
        ("One kill", 10, 20),  # until the other engine is awake
        ("A crash of GMS", 99, 14),
        ("A broken stream", 99, 14),
    ],
)
def test_a_walk_is_short(title: str, last_step: int, most: int) -> None:
    """Each file that a reader has to open for it is one more that has to be found."""
    walk = PAGE.partition(f"\n## {title}, followed through the files\n")[2].partition("\n## ")[0]
    steps = [where for number, where in re.findall(STEP, walk, re.M) if int(number) <= last_step]
    prose = re.sub(r"^(Beside the way: (.+\n)+|\| .+\n)", "", walk + "\n", flags=re.M)
    files = {word for text in [*steps, prose] for word in re.findall(r"`([\w/]+\.py)`", text)}
    assert steps and len(files) <= most, sorted(files)

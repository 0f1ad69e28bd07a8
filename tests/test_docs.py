"""What all pages of the documentation keep to."""

from pathlib import Path

import pytest

from tests.support.processes import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MOST_COLUMNS = 120


def too_long(text: str) -> list[int]:
    """The numbers of the lines that are too long. Tables and blocks between fences may be as long as they like."""
    found: list[int] = []
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if len(line) > MOST_COLUMNS and not fenced and not line.startswith("|"):
            found.append(number)
    return found


def test_a_line_that_is_too_long_is_seen() -> None:
    long = "x " * 61
    assert too_long(f"fits\n{long}\n| {long}\n```\n{long}\n```\n    {long}") == [2, 7]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_too_long(page: Path) -> None:
    assert too_long(page.read_text(encoding="utf-8")) == []

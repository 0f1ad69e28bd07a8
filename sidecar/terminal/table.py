"""Rows of words as lines whose columns stand below each other. Pure.

lines([("a", "Active", "unix:/x"), ("b", "Standby", "")])
"""

import re
from collections.abc import Collection, Sequence

GAP = "  "
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def lines(rows: Sequence[Sequence[object]], *, right: Collection[int] = (), least: Sequence[int] = ()) -> list[str]:
    """A line for each row. A column is as wide as its widest word, and at least as wide as `least` says, so that tables
    of the same kind agree; the columns in `right` are aligned to the right, as figures want it. Rows may differ in
    length. Colours take no room.
    """
    columns = max((len(row) for row in rows), default=0)
    words = [[str(cell) for cell in row] for row in rows]
    widths = [
        max([*least[column : column + 1], *(_width(row[column]) for row in words if column < len(row))])
        for column in range(columns)
    ]
    return [
        GAP.join(_padded(cell, widths[column], column in right) for column, cell in enumerate(row)).rstrip()
        for row in words
    ]


def _padded(cell: str, width: int, to_the_right: bool) -> str:
    room = " " * (width - _width(cell))
    return room + cell if to_the_right else cell + room


def _width(cell: str) -> int:
    return len(_ESCAPES.sub("", cell))

"""Which process has descriptors of which memory, and which was asked to drop those of memory that is gone.

Pure. Memory is named by its generation, of which no two on a device are the same. A descriptor keeps its memory alive
in whatever process it lies, and can't be taken away from there. So a process that has memory of a layout or a pool that
is gone is asked to drop it, and is named for as long as it hasn't: its drop is pending.

What this file may not do: speak to a process (`drops.py`), or know what a process does.
"""

from typing import NamedTuple

MOST_LAYOUTS = 8
"""How many layouts one process may have descriptors of: as a rule one, and another while one replaces the other."""
TOO_MANY_LAYOUTS = "this process says that it has more layouts than one process can have"
"""It is thrown out with that."""


class PendingDrop(NamedTuple):
    conn: int
    generation: int
    asked_at: float


class Holders:
    def __init__(self) -> None:
        self._holds: dict[int, set[int]] = {}
        """Connection -> generations."""
        self._asked: dict[int, dict[int, float]] = {}
        """Connection -> generation -> when it was asked to drop that one. Each of them is in `_holds`, too."""

    def layouts(self, conn: int) -> list[int]:
        """Generations of which this process has descriptors, the oldest first."""
        return sorted(self._holds.get(conn, ()))

    def has(self, conn: int, generation: int) -> bool:
        """And was not asked to drop it."""
        return generation in self._holds.get(conn, ()) and generation not in self._asked.get(conn, {})

    def keeps_some(self, conn: int) -> bool:
        """It has descriptors that it was not asked to drop."""
        return len(self._holds.get(conn, ())) > len(self._asked.get(conn, ()))

    def who_has(self, generation: int) -> list[int]:
        return [conn for conn, generations in self._holds.items() if generation in generations]

    @property
    def pending(self) -> list[PendingDrop]:
        return [
            PendingDrop(conn, generation, asked_at)
            for conn, asked in self._asked.items()
            for generation, asked_at in asked.items()
        ]

    def got(self, conn: int, generation: int) -> None:
        """It was given these descriptors, or came back with them."""
        self._holds.setdefault(conn, set()).add(generation)

    def keep_only(self, conn: int, generation: int) -> None:
        """So it says. What it was asked to drop it has until it says that it has dropped it."""
        still = {generation} | self._asked.get(conn, {}).keys()
        self._put(conn, self._holds.get(conn, set()) & still)

    def ask(self, conn: int, generation: int, now: float) -> bool:
        """It is asked to drop these. False: it claims to have more layouts than one process can."""
        self.got(conn, generation)
        self._asked.setdefault(conn, {})[generation] = now
        return len(self._holds[conn]) <= MOST_LAYOUTS

    def dropped(self, conn: int, generation: int) -> bool:
        """So it says. True: it was asked to."""
        asked = self._asked.get(conn, {})
        was_asked = asked.pop(generation, None) is not None
        if not asked:
            self._asked.pop(conn, None)
        self._put(conn, self._holds.get(conn, set()) - {generation})
        return was_asked

    def gone(self, conn: int) -> None:
        """A process's end gives back everything."""
        self._holds.pop(conn, None)
        self._asked.pop(conn, None)

    def _put(self, conn: int, generations: set[int]) -> None:
        if generations:
            self._holds[conn] = generations
        else:
            self._holds.pop(conn, None)

"""Whether the time of an exclusive lease was clean: what the doors of the host have counted meanwhile.

A door counts each request that was with an engine while the door had no lease for it, and says so before it has its
next lease; when an exclusive lease ends it reports at once. A door that doesn't may have let anything through.
"""

import time
from collections.abc import Collection, Mapping

from fleet.rules.leases import Mode, Wish, utc
from fleet.shell.store import Row, StoreError, ask, open_store

PATIENCE_S = 10.0


def not_heard_of(doors: Mapping[str, Row], token: int) -> set[str]:
    """Doors that haven't said how many they have let through, counted when they knew that this lease has ended."""
    return {name for name, row in doors.items() if row["knows"] < token and not row["ended"]}


def taints(before: Mapping[str, Row], doors: Mapping[str, Row], late: Collection[str]) -> list[str]:
    """What the doors say about the time between two looks at them."""
    why = []
    for name, row in doors.items():
        if row["uncovered"] > before.get(name, {"uncovered": 0})["uncovered"]:
            why.append(f"{name} had requests with an engine that no lease covered, or ended without a word")
        elif name in late:
            why.append(f"{name} hasn't been heard of since {utc(row['seen_at'])}: start it again, and end it in order")
    return why + [f"{name} isn't there any more" for name in before.keys() - doors.keys()]


class DoorsSeen:
    def __init__(self, database: str, wish: Wish) -> None:
        """To be made when the lease is granted, before anything runs under it."""
        self._store, self._wish = open_store(database), wish
        self._before: dict[str, Row] = {}
        self._unseen = ""
        try:
            self._before = self._look() if wish.mode is Mode.EXCLUSIVE else {}
        except StoreError as error:
            self._unseen = str(error)

    def why_tainted(self, token: int) -> str:
        """To be asked when the lease has been given back. Empty: it was clean."""
        if self._wish.mode is Mode.SHARED:
            return ""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                doors = self._look()
                late = not_heard_of(doors, token)
                if not late or time.monotonic() >= end:
                    break
            except StoreError as error:
                if time.monotonic() >= end:
                    return f"the doors' counts can't be read: {error}"
            time.sleep(0.2)
        why = [f"the doors' counts couldn't be read when it began: {self._unseen}"] if self._unseen else []
        return "; ".join(why + taints(self._before, doors, late))

    def in_words(self) -> str:
        count = sum(not row["ended"] for row in self._before.values())
        if not count:
            return "not checked: no door enforces this lease"
        return f"clean: {count} door{'s' * (count != 1)} let through none but its own requests"

    def _look(self) -> dict[str, Row]:
        try:
            return {row["door"]: row for row in ask(self._store, "doors", host=self._wish.host)}
        finally:
            self._store.close()  # what is idle for long may be cut on the way, and no side hears of it

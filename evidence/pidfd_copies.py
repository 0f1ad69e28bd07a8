"""A server's memory across its own crash: copies of pidfds that its clients keep, and hand to its successor (rule E8 of
the package).

Pure. A main process keeps those of its own incarnation; those of others it keeps where its server wants that (`give`).
It is given what is new, and says when it has taken it. One that doesn't (it is stopped) is given no more after so
many: what is sent and not received counts against what the kernel lets this user send to any process.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from evidence.events import Config
from evidence.incarnation import MAIN, Incarnation, Member
from evidence.incarnations import Incarnations


@dataclass(frozen=True, slots=True)
class Give:
    """To be sent: copies of these processes' pidfds, one for each number."""

    conn: int
    whose: Incarnation
    numbers: list[int]
    processes: tuple[int, ...]
    more: bool
    """In addition to those that it was given of this incarnation before, and not instead of them."""
    gone: list[int]
    """Members of which no copy is needed any more."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a keeper has been given of one incarnation."""

    mark: int
    """What the server said with it. It is all given anew where that changes."""
    copies: dict[int, int]
    """Number as a member -> handle."""


@dataclass(slots=True)
class Keeper:
    """A main process that keeps copies, on one connection."""

    who: Incarnation
    given: dict[str, Given] = field(default_factory=dict)
    """Incarnation -> what it has of it."""
    under_way: int = 0
    """So many copies it has not said yet to have taken."""


class PidfdCopies:
    def __init__(self, config: Config, incarnations: Incarnations) -> None:
        self.config = config
        self.incarnations = incarnations
        self._keepers: dict[int, Keeper] = {}
        """By their connections."""
        self._under_way = 0
        """With all of them together."""
        self._wait: dict[str, None] = {}
        """Incarnations whose main process waits for room: it hasn't been given all of its own."""

    def give_own(self) -> Iterator[Give]:
        """Each main process gets those of its own that are new, and those for which there was no room before."""
        for name in sorted(self.incarnations.regrouped):
            yield from self._give_its_own(name)
        self.incarnations.regrouped.clear()
        for name in list(self._wait) if self._room > 0 else ():
            if self._room <= 0:
                break
            yield from self._give_its_own(name)

    def _give_its_own(self, name: str) -> Iterator[Give]:
        own = self.incarnations.known.get(name)
        self._wait.pop(name, None)
        if own is None or own.conn is None or own.numbered <= MAIN:
            return
        yield from self.give(own.conn, own, own, [m for m in own.members.values() if m is not own.main], 0)
        if not self._has_all(own):
            self._wait[name] = None

    def _has_all(self, own: Incarnation) -> bool:
        given = self._keepers[own.conn].given[own.name].copies if own.conn is not None else {}
        wanted = {m.number: m.process for m in own.members.values() if m.process is not None and m is not own.main}
        return given == wanted

    def give(self, conn: int, to: Incarnation, whose: Incarnation, members: list[Member], mark: int) -> Iterator[Give]:
        """What it hasn't yet, as far as there is room."""
        keeper = self._keepers.setdefault(conn, Keeper(to))
        wanted = {member.number: member.process for member in members if member.process is not None}
        before = keeper.given.get(whose.name)
        more = before is not None and before.mark == mark
        has = before.copies if before is not None and more else {}
        new = [number for number, process in wanted.items() if has.get(number) != process]
        gone = [number for number, process in has.items() if wanted.get(number) != process]
        if more and not (new or gone):
            return
        room = min(self.config.copies_under_way - keeper.under_way, self._room)
        if before is not None and room <= 0:
            return
        batch = new[: max(0, room)]
        if whose is not to:
            keeper.given = {name: given for name, given in keeper.given.items() if name == to.name}  # as it does itself
        copies = {number: process for number, process in has.items() if number not in gone}
        keeper.given[whose.name] = Given(mark, copies | {number: wanted[number] for number in batch})
        keeper.under_way += len(batch)
        self._under_way += len(batch)
        yield Give(conn, whose, batch, tuple(wanted[number] for number in batch), more, gone)

    @property
    def _room(self) -> int:
        return self.config.most_copies_under_way - self._under_way

    def under_way_with(self, conn: int | None) -> int | None:
        """None: it keeps nothing."""
        keeper = self._keepers.get(conn) if conn is not None else None
        return keeper.under_way if keeper is not None else None

    def taken(self, conn: int, copies: int) -> None:
        """A keeper has received so many."""
        keeper = self._keepers.get(conn)
        if keeper is not None:
            self._under_way -= min(copies, keeper.under_way)
            keeper.under_way = max(0, keeper.under_way - copies)

    def left(self, conn: int) -> None:
        """This connection has ended, and what was under way on it."""
        keeper = self._keepers.pop(conn, None)
        if keeper is not None:
            self._under_way -= keeper.under_way

"""A server's memory across its own crash: copies of pidfds that its clients keep, and hand to its successor (rule E8 of
the package).

Pure. A main process keeps those of its own incarnation; those of others it keeps where its server wants that (`give`).
It is given what is new, and says when it has taken it. One that doesn't (it is stopped) is given no more after so
many: what is sent and not received counts against what the kernel lets this user send to any process.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from evidence.rules.events import Config
from evidence.rules.incarnation import MAIN, Incarnation, Member
from evidence.rules.incarnations import Incarnations


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
    """What a recipient has been given of one incarnation."""

    mark: int
    """What the server said with it. It is all given anew where that changes."""
    copies: dict[int, int]
    """Number as a member -> handle."""


@dataclass(slots=True)
class Recipient:
    """A main process that keeps copies, on one connection."""

    who: Incarnation
    given: dict[str, Given] = field(default_factory=dict)
    """Incarnation -> what it has of it."""
    under_way: int = 0
    """How many copies it has been sent and hasn't said to have taken."""


class PidfdCopies:
    def __init__(self, config: Config, incarnations: Incarnations) -> None:
        self.config = config
        self.incarnations = incarnations
        self._recipients: dict[int, Recipient] = {}
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
        given = self._recipients[own.conn].given[own.name].copies if own.conn is not None else {}
        wanted = {m.number: m.process for m in own.members.values() if m.process is not None and m is not own.main}
        return given == wanted

    def give(self, conn: int, to: Incarnation, whose: Incarnation, members: list[Member], mark: int) -> Iterator[Give]:
        """What it hasn't yet, as far as there is room."""
        recipient = self._recipients.setdefault(conn, Recipient(to))
        wanted = {member.number: member.process for member in members if member.process is not None}
        before = recipient.given.get(whose.name)
        more = before is not None and before.mark == mark
        has = before.copies if before is not None and more else {}
        new = [number for number, process in wanted.items() if has.get(number) != process]
        gone = [number for number, process in has.items() if wanted.get(number) != process]
        if more and not (new or gone):
            return
        room = min(self.config.copies_under_way - recipient.under_way, self._room)
        if before is not None and room <= 0:
            return
        batch = new[: max(0, room)]
        if whose is not to:
            recipient.given = {
                name: given for name, given in recipient.given.items() if name == to.name
            }  # as it does itself
        copies = {number: process for number, process in has.items() if number not in gone}
        recipient.given[whose.name] = Given(mark, copies | {number: wanted[number] for number in batch})
        recipient.under_way += len(batch)
        self._under_way += len(batch)
        yield Give(conn, whose, batch, tuple(wanted[number] for number in batch), more, gone)

    @property
    def _room(self) -> int:
        return self.config.most_copies_under_way - self._under_way

    def under_way_with(self, conn: int | None) -> int | None:
        """None: it keeps nothing."""
        recipient = self._recipients.get(conn) if conn is not None else None
        return recipient.under_way if recipient is not None else None

    def taken(self, conn: int, copies: int) -> None:
        """A recipient has received so many."""
        recipient = self._recipients.get(conn)
        if recipient is not None:
            self._under_way -= min(copies, recipient.under_way)
            recipient.under_way = max(0, recipient.under_way - copies)

    def left(self, conn: int) -> None:
        """This connection has ended, and what was under way on it."""
        recipient = self._recipients.pop(conn, None)
        if recipient is not None:
            self._under_way -= recipient.under_way

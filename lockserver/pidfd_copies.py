"""The server's memory across its own crash: copies of pidfds that its clients keep, and hand to its successor (rule 7
of `machine.py`).

Pure. A main process keeps those of its own incarnation, the first few waiters keep the holder's. They are given what is
new, and say when they have taken it. One that doesn't (it is stopped) is given no more after so many: what is sent and
not received counts against what the kernel lets this user send to anybody.
"""

from dataclasses import dataclass, field

from lockserver import events as e
from lockserver import messages as m
from lockserver.context import Context
from lockserver.incarnation import MAIN, Incarnation, Member, Stage
from lockserver.incarnations import Incarnations
from lockserver.lock import Doubt, Found, Lock, Phase
from lockserver.queue import Queue


@dataclass(frozen=True, slots=True)
class Given:
    """What a keeper has been given of one incarnation."""

    token: int
    copies: dict[int, int]
    """Number as a member -> handle."""


@dataclass(slots=True)
class Keeper:
    who: Incarnation
    given: dict[str, Given] = field(default_factory=dict)
    """Incarnation -> what it has of it."""
    under_way: int = 0
    """So many copies it has not said yet to have taken."""


class PidfdCopies:
    def __init__(self, config: e.Config, context: Context, incarnations: Incarnations, queue: Queue) -> None:
        self.config = config
        self.context = context
        self.incarnations = incarnations
        self.queue = queue
        self._keepers: dict[int, Keeper] = {}
        """By their connections."""

    def hand_out(self, active: Lock) -> None:
        """Each keeper gets those copies that are new, and those for which there was no room before."""
        for conn, keeper in list(self._keepers.items()):
            if keeper.who.conn != conn:
                del self._keepers[conn]
        for name in sorted(self.incarnations.regrouped):
            own = self.incarnations.known[name]
            given = True
            if own.conn is not None and own.numbered > MAIN:
                members = [m for m in own.members.values() if m is not own.main]
                given = self._give(own.conn, own, own, members, active.token)
            if given:
                self.incarnations.regrouped.discard(name)
        holder = active.holder
        if active.phase is not Phase.HELD or holder is None:
            return
        for waiter in self.queue.first(self.config.keepers):
            who = waiter.incarnation
            if who.conn is not None:
                self._give(who.conn, who, holder, list(holder.members.values()), active.token)

    def taken(self, conn: int, copies: int) -> None:
        """A keeper has received so many."""
        keeper = self._keepers.get(conn)
        if keeper is not None:
            keeper.under_way = max(0, keeper.under_way - copies)

    def _give(self, conn: int, to: Incarnation, whose: Incarnation, members: list[Member], token: int) -> bool:
        """What it hasn't yet, as far as there is room. Returns whether it has been given all now."""
        keeper = self._keepers.setdefault(conn, Keeper(to))
        wanted = {member.number: member.process for member in members if member.process is not None}
        before = keeper.given.get(whose.name)
        more = before is not None and (before.token == token or whose is to)
        has = before.copies if before is not None and more else {}
        new = [number for number, process in wanted.items() if has.get(number) != process]
        gone = [number for number, process in has.items() if wanted.get(number) != process]
        if before is not None and (not (new or gone) if more else (before.token, before.copies) == (token, wanted)):
            return True
        room = self._room_for(keeper)
        if before is not None and room <= 0:
            return False
        batch = new[: max(0, room)]
        if whose is not to:
            keeper.given = {name: given for name, given in keeper.given.items() if name == to.name}  # as it does itself
        copies = {number: process for number, process in has.items() if number not in gone}
        keeper.given[whose.name] = Given(token, copies | {number: wanted[number] for number in batch})
        keeper.under_way += len(batch)
        keep = m.Keep(token=token, tree=whose.name, numbers=batch, more=more, gone=gone, answer=bool(batch))
        self.context.out.append(e.Send(conn, keep, tuple(wanted[number] for number in batch)))
        return len(batch) == len(new)

    def _room_for(self, keeper: "Keeper") -> int:
        under_way = sum(each.under_way for each in self._keepers.values())
        config = self.config
        return min(config.copies_under_way - keeper.under_way, config.most_copies_under_way - under_way)

    def hand_back(self, event: e.Received, caller: Incarnation, active: Lock, newest: int) -> None:
        """Somebody brings what the last server gave it to keep. Who the holder is it may know better than the file.
        `newest`: the newest token that is known to have been granted.
        """
        message = event.message
        assert isinstance(message, m.HandBack)
        whose = self._whose(message, event.peers, caller, active, newest)
        own = whose is caller
        from_file = not own and active.doubt is not None and active.recorded_by == 0  # the file names this very holder
        for number, peer in zip(message.numbers, event.peers, strict=False):
            if whose is not None:
                self.incarnations.hand_back(whose, number, peer, from_file=from_file)
            else:
                self.incarnations.forget((peer,))
        self.incarnations.forget(event.peers[len(message.numbers) :])

    def _whose(
        self, message: m.HandBack, peers: tuple[e.Peer, ...], caller: Incarnation, active: Lock, newest: int
    ) -> Incarnation | None:
        """Whose processes they are. None: somebody's who doesn't matter any more."""
        named = self.incarnations.known.get(message.tree)
        if named is None and self.incarnations.full:
            return None
        if self._tells_of_the_holder(message, named, active, message.token > newest):
            return self._hear_of(message, active)
        if named is not None and (named is caller or (named is active.holder and active.token == message.token)):
            return named
        if active.phase is Phase.FREE and message.token == newest and not all(peer.dead for peer in peers):
            return self._awaited(message.tree)  # it was proven gone by a file that doesn't name all of it
        return None

    def _tells_of_the_holder(self, message: m.HandBack, named: Incarnation | None, active: Lock, newer: bool) -> bool:
        """The file names no holder, or one with an older token; the newest that anybody knows of must come back, or be
        proven gone. That is so, too, when the older one is proven gone already and nobody has been granted since.
        """
        if named is not None and named.stage is not Stage.AWAITED:
            return False
        if message.tree in self.incarnations.pending_unlinks:
            return False
        if active.phase is Phase.FREE:
            return newer
        if active.phase is not Phase.IN_DOUBT:
            return False
        if active.holder is None:
            return active.unnamed
        return message.token > active.token and message.tree != active.holder.name

    def _awaited(self, name: str) -> Incarnation:
        engine_id, _, random = name.rpartition(".")
        return self.incarnations.awaited(engine_id, random)

    def _hear_of(self, message: m.HandBack, active: Lock) -> Incarnation:
        holder = self._awaited(message.tree)
        if active.phase is Phase.FREE:
            now = self.context.now
            active.suspect(Doubt(Found.HOLDER, now, now + self.config.window_s))
        active.hear_of(holder, message.token)
        self.context.note(
            "awaiting_holder", engine=holder.engine_id, lock=active.name, token=active.token, known_from="a waiter"
        )
        return holder

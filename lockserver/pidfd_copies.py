"""The server's memory across its own crash: copies of pidfds that its clients keep, and hand to its successor (rule 7
of `machine.py`).

Pure. A main process keeps those of its own incarnation, the first few waiters keep the holder's.
"""

from lockserver import events as e
from lockserver import messages as m
from lockserver.context import Context
from lockserver.incarnation import MAIN, Incarnation, Member, Stage
from lockserver.incarnations import Incarnations
from lockserver.lock import Doubt, Found, Lock, Phase
from lockserver.queue import Queue


class PidfdCopies:
    def __init__(self, config: e.Config, context: Context, incarnations: Incarnations, queue: Queue) -> None:
        self.config = config
        self.context = context
        self.incarnations = incarnations
        self.queue = queue
        self._kept: tuple[int, tuple[tuple[int, int | None], ...]] = (0, ())
        self._keepers: set[int] = set()

    def hand_out(self, active: Lock) -> None:
        """Whoever keeps copies gets those that are new."""
        for name in sorted(self.incarnations.regrouped):
            own = self.incarnations.known[name]
            if own.conn is not None and own.numbered > MAIN:
                self._give(own.conn, own, [m for m in own.members.values() if m is not own.main], active.token)
        self.incarnations.regrouped.clear()
        holder = active.holder
        if active.phase is not Phase.HELD or holder is None:
            return
        current = (active.token, tuple((number, member.process) for number, member in holder.members.items()))
        if current != self._kept:
            self._kept, self._keepers = current, set()
        first = self.queue.first(self.config.keepers)
        keepers = {waiter.incarnation.conn for waiter in first if waiter.incarnation.conn is not None}
        for conn in sorted(keepers - self._keepers):
            self._give(conn, holder, list(holder.members.values()), active.token)
        self._keepers = keepers

    def _give(self, conn: int, whose: Incarnation, members: list[Member], token: int) -> None:
        members = [member for member in members if member.process is not None]
        keep = m.Keep(token=token, tree=whose.name, numbers=[member.number for member in members])
        processes = tuple(member.process for member in members if member.process is not None)
        self.context.out.append(e.Send(conn, keep, processes))

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

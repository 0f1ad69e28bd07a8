"""What a waiter tells of a holder by the copies that it hands back: which holder it is it may know better than the file
(rule 7 of `machine.py`). The copies themselves: `evidence/rules/pidfd_copies.py`.

Pure.
"""

from evidence.rules.evidence import Evidence
from evidence.rules.incarnation import Incarnation, Stage
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.context import Context
from lockserver.rules.lock import Doubt, Found, Lock, Phase


class Hearsay:
    def __init__(self, config: e.Config, context: Context, evidence: Evidence) -> None:
        self.config = config
        self.context = context
        self.evidence = evidence
        self.incarnations = evidence.incarnations

    def handed_back(
        self, message: m.HandBack, peers: tuple[e.Peer, ...], caller: Incarnation, active: Lock, newest: int
    ) -> None:
        """A client brings what the last server gave it to keep. `newest`: the newest token that is known to have been
        granted.
        """
        whose = self._whose(message, peers, caller, active, newest)
        in_file = whose is not caller and active.doubt is not None and active.recorded_by == 0  # this very holder
        self.evidence.handed_back(whose, message.numbers, peers, from_file=in_file)

    def _whose(
        self, message: m.HandBack, peers: tuple[e.Peer, ...], caller: Incarnation, active: Lock, newest: int
    ) -> Incarnation | None:
        """Which incarnation's processes they are. None: of one that doesn't matter any more."""
        named = self.incarnations.known.get(message.tree)
        if named is None and self.incarnations.full:
            return None
        if self._tells_of_the_holder(message, named, active, message.mark > newest):
            return self._hear_of(message, active)
        if named is not None and (named is caller or (named is active.holder and active.token == message.mark)):
            return named
        over = message.mark > newest or (message.mark == newest and active.phase is Phase.FREE)
        if over and not all(peer.dead for peer in peers):
            return self.incarnations.hear_of_name(message.tree)  # the file was older, and didn't name all of it
        return None

    def _tells_of_the_holder(self, message: m.HandBack, named: Incarnation | None, active: Lock, newer: bool) -> bool:
        """The file names no holder, or one with an older token; the newest that is known of must come back, or be
        proven gone. That is so, too, when the older one is being proven gone, or is already, and no waiter has been
        granted since. One that has come to this server itself isn't taken for older by hearsay.
        """
        if named is not None and named.stage is not Stage.AWAITED:
            return False
        if message.tree in self.incarnations.pending_unlinks:
            return False
        if active.phase is Phase.FREE:
            return newer
        if active.doubt is None:
            return False
        if active.holder is None:
            return active.unnamed
        return not active.holder.came and message.mark > active.token and message.tree != active.holder.name

    def _hear_of(self, message: m.HandBack, active: Lock) -> Incarnation:
        holder = self.incarnations.hear_of_name(message.tree)
        if active.phase is Phase.FREE:
            now = self.context.now
            active.suspect(Doubt(Found.HOLDER, now, now + self.config.window_s))
        active.hear_of(holder, message.mark)
        self.context.note(
            "awaiting_holder", engine=holder.engine_id, lock=active.name, token=active.token, known_from="a waiter"
        )
        return holder

"""Which processes may belong to an incarnation, and how they come to (rules E2 and E3 of the package).

Pure. An answer is empty where nothing speaks against it, else a sentence for the process that is turned away. What it
is told, and when, is its server's business.
"""

from evidence.rules.events import Peer
from evidence.rules.incarnation import Incarnation, Member
from evidence.rules.incarnations import MOST_MEMBERS, Incarnations
from evidence.rules.messages import Join
from sidecar.terminal.names import incarnation_name

NO_LIFE = "the life file that you named isn't in its place, or you have no lock on it"
"""It may have been removed in this moment: then it is made anew, and named at the next try."""
NOT_BACK = "your main process hasn't come to this server yet"
"""It may be dead. A process that was never let in before touches no device until it is there."""


class Joining:
    def __init__(self, incarnations: Incarnations) -> None:
        self.incarnations = incarnations

    # -- questions -------------------------------------------------------------------------------------------------

    def why_not_register(self, name: str, peer: Peer, secret: str, *, life_held: bool) -> str:
        """A main process: the first one to say so, or the same as before."""
        who = self.incarnations.known.get(name)
        if why := self.incarnations.why_condemned(name):
            return why
        if not life_held:
            return NO_LIFE
        if who is None:
            return self._why_full()
        if not self.incarnations.is_main(who, peer, secret):
            return f"{name} is another process (pid {who.pid})"
        return ""

    def why_not_join(self, hello: Join, peer: Peer, *, life_held: bool) -> str:
        name = incarnation_name(hello.engine_id, hello.incarnation)
        who = self.incarnations.known.get(name)
        if other := self.incarnations.other_that_it_leads(peer.identity, name):
            return f"this process is the main process of {other}"
        if why := self.incarnations.why_closed(name):
            return why
        if not life_held:
            return NO_LIFE
        if who is None and (why := self._why_full()):
            return why
        if not hello.number and (who is None or not who.came):  # one that an earlier server let in is let in again
            return NOT_BACK
        if who is not None and _full(who, peer, hello.number):
            return f"{name} has {MOST_MEMBERS} processes already"
        return ""

    def is_evidence(self, hello: Join, peer: Peer, *, life_held: bool) -> bool:
        """It may not join, for its incarnation is being fenced, or its main process isn't here. It lives all the same,
        and says so by its pidfd.
        """
        name = incarnation_name(hello.engine_id, hello.incarnation)
        who = self.incarnations.known.get(name)
        if peer.process is None or not life_held:
            return False
        if self.incarnations.other_that_it_leads(peer.identity, name):
            return False  # it was started with the variables of that one in its environment: it isn't killed
        if who is None:
            return not self.incarnations.full and not self.incarnations.why_condemned(name)
        return (who.fenced or not who.came) and not _full(who, peer, hello.number)

    def why_not_vouch(self, who: Incarnation, peers: tuple[Peer, ...]) -> str:
        """A main process vouches for a child that can't join by itself."""
        full = len(who.members) >= MOST_MEMBERS
        known = bool(peers) and who.find(peers[0], 0) is not None
        if len(peers) != 1 or peers[0].process is None or (full and not known):
            return f"Vouch takes one pidfd, and an engine has at most {MOST_MEMBERS} processes"
        return ""

    def passes(self, why: str, name: str) -> bool:
        """What speaks against it now may be otherwise in a moment."""
        return why in (NO_LIFE, NOT_BACK) or self.incarnations.may_open_again(name)

    def _why_full(self) -> str:
        return "there are too many engines here" if self.incarnations.full else ""

    # -- what is done ----------------------------------------------------------------------------------------------

    def register(
        self, engine_id: str, random: str, peer: Peer, pid: int, conn: int, secret: str, fresh: str, mapped: bool
    ) -> tuple[Incarnation, int | None]:
        """Its main process is here. Returns its connection before this one. `fresh`: its secret, if it has none."""
        who = self.incarnations.arrives(engine_id, random, secret)
        who.secret = who.secret or secret or fresh
        before = who.conn
        self.incarnations.enter_main(who, peer, pid, conn).mapped = mapped
        return who, before

    def join(self, hello: Join, peer: Peer, conn: int | None) -> tuple[Incarnation, Member]:
        """Its main process may not be back yet, after a restart of this server; its life file tells that it isn't
        condemned.
        """
        who = self.incarnations.hear_of(hello.engine_id, hello.incarnation)
        member = self.incarnations.enter(who, peer, hello.pid, hello.number, conn=conn)
        member.mapped = hello.mapped
        return who, member


def _full(who: Incarnation, peer: Peer, number: int) -> bool:
    """For this process, unless it is one of its members already."""
    return len(who.members) >= MOST_MEMBERS and who.find(peer, number) is None

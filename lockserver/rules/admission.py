"""What a claim is worth, and who may come in with it (rules 7, 8 and 10 of `machine.py`). Which processes may belong
to an incarnation at all: `evidence/rules/joining.py`.

Pure. A process that is admitted belongs to its incarnation from then on, and a holder that is back holds again. What
follows (the write, the welcome) is `machine.py`'s business. Why a process may not come in is said in a sentence.
"""

from dataclasses import dataclass

from evidence.rules.evidence import Evidence
from evidence.rules.incarnation import MAIN, Incarnation
from evidence.rules.joining import NO_LIFE
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.callers import spoken
from lockserver.rules.context import Context
from lockserver.rules.lock import Doubt, Found, Lock, Phase
from lockserver.rules.messages import ACTIVE, INIT
from sidecar.terminal.names import incarnation_name


@dataclass(frozen=True, slots=True)
class Admitted:
    who: Incarnation
    number: int
    """As a member of its incarnation."""
    version: int
    """The version of the protocol that both sides speak."""
    replaced: int | None = None
    """The same main process's older connection."""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    why: str
    for_good: bool = True


class Admission:
    def __init__(self, context: Context, evidence: Evidence, active: Lock, permit: Lock) -> None:
        self.context = context
        self.joining = evidence.joining
        self.incarnations = evidence.incarnations
        self.active = active
        self.permit = permit

    # -- main processes --------------------------------------------------------------------------------------------

    def register(self, event: e.Received, hello: m.Register, newest: int) -> Admitted | TurnedAway:
        """`newest`: the newest token that is known to have been granted, this claim apart."""
        name, token = incarnation_name(hello.engine_id, hello.incarnation), hello.claims.get(ACTIVE)
        why = self._why_not_register(event, hello)
        if not why and token is not None and (why := self._why_no_claim(name, token, newest)):
            self.incarnations.reject(name, "claimed a lock that it does not hold")
        if why is NO_LIFE and token is not None:
            why = self._why_no_claim(name, token, newest) or why
        if why:
            return TurnedAway(why, for_good=why is not NO_LIFE)
        who, replaced = self.joining.register(
            hello.engine_id,
            hello.incarnation,
            event.peers[0],
            hello.pid,
            event.conn,
            hello.secret,
            event.secret,
            hello.mapped,
        )
        if token is not None and self.active.holder is not who:
            self._claim(self.active, who, token)
        if INIT in hello.claims and self.permit.holder is None:
            self._claim(self.permit, who, 0)
        for lock in (self.active, self.permit):
            if lock.holder is not who or lock.phase not in (Phase.IN_DOUBT, Phase.FENCING):
                continue
            if lock is self.active and lock.phase is Phase.IN_DOUBT and token is None:
                self._release_untold(lock, who)
            else:
                lock.come_back()
                self._note_back("back", lock, who)
        return Admitted(who, MAIN, spoken().agreed(hello), replaced)

    def _why_not_register(self, event: e.Received, hello: m.Register) -> str:
        name = incarnation_name(hello.engine_id, hello.incarnation)
        return self.joining.why_not_register(name, event.peers[0], hello.secret, life_held=event.life_held)

    def _why_no_claim(self, name: str, token: int, newest: int) -> str:
        """A main process says that it was granted the lock with this token. Empty if nothing speaks against it.

        Of a claim and a file the newer token is the true one: its holder was granted the lock when the other one's
        end had been proven. (The file may have been lost, or an old one restored.) A holder that has come to this
        server and is seen alive is never put in doubt by a claim, and one that it has lost only by the proof of its
        end. A process may live that only the file calls the holder: it can have begun anew since, as another one.
        """
        lock, holder = self.active, self.active.holder
        if holder is not None and holder.name == name:
            return "" if token == lock.token else f"the token is {lock.token}, not {token}"
        being_proven = lock.phase is Phase.FENCING and lock.doubt is None
        is_here = holder is not None and holder.came and holder.seen_alive
        if holder is not None and (token <= lock.token or lock.phase is Phase.GRANTING or being_proven or is_here):
            return f"{holder.engine_id} was granted the lock with token {lock.token}"
        if lock.phase is Phase.FREE and token <= newest:
            return f"token {token} has ended: its holder was taken for gone"
        return ""

    def _claim(self, lock: Lock, who: Incarnation, token: int) -> None:
        lock.claimed(who, token)
        if who.older:  # no file names its processes: one that hasn't come yet may be dying when all others have ended
            who.outlived_at = self.context.now
        self._note_back("claimed", lock, who)

    def _release_untold(self, lock: Lock, who: Incarnation) -> None:
        """The last server died between the write and the word. What goes with the lock (its names) went with it, and
        another engine may have those by now: so it is granted in the ordinary way, or another engine is.
        """
        self.context.note("never_told", engine=who.engine_id, lock=lock.name, token=lock.token)
        lock.release(lock.doubt if lock.unnamed else None)

    def _note_back(self, how: str, lock: Lock, who: Incarnation) -> None:
        self.context.note(how, engine=who.engine_id, lock=lock.name, token=lock.token)
        self.context.calm("unproven", "record", "strangers", "version", "names", "awaited")

    # -- the other processes ---------------------------------------------------------------------------------------

    def join(self, event: e.Received, hello: m.Join) -> Admitted | TurnedAway:
        if why := self._why_not_join(event, hello):
            name = incarnation_name(hello.engine_id, hello.incarnation)
            return TurnedAway(why, for_good=not self.joining.passes(why, name))
        who, member = self.joining.join(hello, event.peers[0], event.conn)
        return Admitted(who, member.number, spoken().agreed(hello))

    def _why_not_join(self, event: e.Received, hello: m.Join) -> str:
        return self.joining.why_not_join(hello, event.peers[0], life_held=event.life_held)

    # -- another version -------------------------------------------------------------------------------------------

    def keep_what_it_holds(self, event: e.Received, hello: m.Register | m.Join, why: str) -> bool:
        """It can't talk with this server. It lives, and its pidfd says so: what it holds it keeps until that says
        otherwise. True if it is watched from now on.
        """
        who, peer = self.incarnations.known.get(incarnation_name(hello.engine_id, hello.incarnation)), event.peers[0]
        if isinstance(hello, m.Join):
            if who is None or self._why_not_join(event, hello):
                return False
            self.incarnations.enter(who, peer, hello.pid, hello.number)
            return True
        token, lock = hello.claims.get(ACTIVE), self.active
        if token is None or lock.phase in (Phase.HELD, Phase.GRANTING) or self._why_not_register(event, hello):
            return False
        if self._why_no_claim(incarnation_name(hello.engine_id, hello.incarnation), token, 0):
            return False
        who = self.incarnations.hear_of(hello.engine_id, hello.incarnation)
        self.incarnations.enter_main(who, peer, hello.pid, None)
        self.incarnations.note_cannot_talk(who, why)
        if lock.holder is not who:
            if lock.phase is Phase.FREE:
                lock.suspect(Doubt(Found.NOTHING, self.context.now, self.context.now))
            lock.hear_of(who, token)
        self.context.alarm("version", f"{who.engine_id} holds the lock and serves on, but {why}: finish the upgrade")
        return True

"""What a claim is worth (rules 7, 8 and 10 of `machine.py`). Who may come in with it: `evidence/rules/admission.py`.

Pure. A holder that is back holds again. What follows (the write, the welcome) is `machine.py`'s business.
"""

from collections.abc import Callable

from evidence.rules.incarnation import Incarnation
from lockserver.rules import messages as m
from lockserver.rules.context import Context
from lockserver.rules.lock import Doubt, Found, Lock, Phase
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.rules.rest import Rest
from sidecar.terminal.names import incarnation_name


class Claims:
    untrue = "claimed a lock that it does not hold"

    def __init__(
        self,
        context: Context,
        active: Lock,
        permit: Lock,
        rest: Rest,
        newest: Callable[[], int],
        give_back: Callable[[Incarnation, str], None],
    ) -> None:
        """`newest`: the newest token that is known to have been granted, the claim in question apart. `give_back`: the
        holder has given the lock back.
        """
        self.context = context
        self.rest = rest
        self.active = active
        self.permit = permit
        self._newest = newest
        self._give_back = give_back

    def why_not(self, hello: m.Register) -> str:
        return self._why_no_claim(hello, self._newest())

    def let_in(self, who: Incarnation, hello: m.Register) -> None:
        token = hello.claims.get(ACTIVE)
        if token is not None and (self.active.holder is not who or token > self.active.token):
            self._claim(self.active, who, token)
        if INIT in hello.claims and self.permit.holder is None:
            self._claim(self.permit, who, 0)
        for lock in (self.active, self.permit):
            if lock.holder is not who:
                continue
            # what it said of it over an earlier connection was lost
            gave_back = lock is self.active and 0 < hello.gave_back == lock.token
            if lock is self.active and lock.phase is Phase.IN_DOUBT and token is None:
                self._release_untold(lock, who, "given_back" if gave_back else "never_told")
            elif lock.phase in (Phase.IN_DOUBT, Phase.FENCING):
                lock.come_back()
                self._note_back("back", lock, who)
            if gave_back and lock.held_by(who):
                self._give_back(who, "")
            elif gave_back:
                self.rest.begin("its holder gave it back")

    def _why_no_claim(self, hello: m.Register, newest: int) -> str:
        """A main process says that it was granted the lock with this token. Empty if nothing speaks against it.

        Of a claim and a file the newer token is the true one: its holder was granted the lock when the other one's
        end had been proven. (The file may have been lost, or an old one restored.) A holder of which nothing is in
        doubt here is never put in doubt by a claim, nor is one that has come to this server and is seen alive. A
        process may live that only the file calls the holder: it can have begun anew since, as another one.
        """
        token, lock, holder = hello.claims.get(ACTIVE), self.active, self.active.holder
        if token is None:
            return ""
        if holder is not None and holder.name == incarnation_name(hello.engine_id, hello.incarnation):
            newer = token > lock.token and lock.doubt is not None  # an older file: it gave back and was granted again
            return "" if newer or token == lock.token else f"the token is {lock.token}, not {token}"
        is_here = holder is not None and holder.came and holder.seen_alive
        if holder is not None and (token <= lock.token or lock.doubt is None or is_here):
            return f"{holder.engine_id} was granted the lock with token {lock.token}"
        if lock.phase is Phase.FREE and token <= newest:
            return f"token {token} has ended: its holder was taken for gone"
        return ""

    def _claim(self, lock: Lock, who: Incarnation, token: int) -> None:
        lock.claimed(who, token)
        # no file names its processes: one that hasn't come yet may be dying when all others have ended
        who.outlived_at = self.context.now
        self._note_back("claimed", lock, who)

    def _release_untold(self, lock: Lock, who: Incarnation, note: str) -> None:
        """The last server died between the write and the word. What goes with the lock (its names) went with it, and
        another engine may have those by now: so it is granted in the ordinary way, or another engine is.
        """
        self.context.note(note, engine=who.engine_id, lock=lock.name, token=lock.token)
        lock.release(lock.doubt if lock.unnamed else None)

    def _note_back(self, how: str, lock: Lock, who: Incarnation) -> None:
        self.context.note(how, engine=who.engine_id, lock=lock.name, token=lock.token)
        if lock is self.active and self.rest.why:
            self.rest.end()  # its engine is awake
        self.context.calm("unproven", "record", "strangers", "version", "names", "awaited")

    # -- another version -------------------------------------------------------------------------------------------

    def may_keep(self, hello: m.Register) -> bool:
        granted = self.active.phase in (Phase.HELD, Phase.GRANTING)
        return ACTIVE in hello.claims and not granted and not self._why_no_claim(hello, 0)

    def keep(self, who: Incarnation, hello: m.Register, why: str) -> None:
        lock = self.active
        if lock.holder is not who:
            if lock.phase is Phase.FREE:
                lock.suspect(Doubt(Found.NOTHING, self.context.now, self.context.now))
            lock.hear_of(who, hello.claims[ACTIVE])
        self.context.alarm("version", f"{who.engine_id} holds the lock and serves on, but {why}: finish the upgrade")

"""The state of one lock, and every transition of it.

Pure. Nothing else in the server assigns these fields: a rule that wants the lock in another state calls one of the
transitions, and each of them moves along the table or raises. What makes a transition due is `machine.py`'s business.

    FREE       no engine holds it.
    IN_DOUBT   this server is new: a holder was found in the file, or none could be excluded. It comes back, or its end
               is proven, or (without a name) enough time passes.
    GRANTING   a waiter was chosen, and the grant isn't on disk yet: it hasn't been told.
    HELD       the holder's main process is there and has been told (or told us: it came back with its claim).
    FENCING    the holder was lost. It must be proven gone, unless the same process comes back.

The ordinary way is FREE ──grant──► GRANTING ──hold──► HELD ──lose──► FENCING ──release──► FREE. All ways there are:

    from       to         by
    FREE       GRANTING   `grant`: a waiter was chosen
               HELD       `claimed`: a main process says that it holds the lock, and nothing speaks against it
               IN_DOUBT   `found`, `suspect`: what a new server finds; a waiter tells of a newer holder than the file
    IN_DOUBT   HELD       `come_back`, `claimed`
               FENCING    `lose`: the holder that was found is dead
               FREE       `release`: it is proven gone; `settle`: no engine holds it
               IN_DOUBT   `hear_of`: another holder; `release`: it is proven gone, and there may be another
    GRANTING   HELD       `hold`: the grant is on disk
               FREE       `take_back`: it can't be written
               FENCING    `lose`: the waiter that was chosen is dead
    HELD       FENCING    `lose`
               FREE       `give_back`: its holder says that nothing of it is on a device any more
    FENCING    FREE       `release`: the holder is proven gone
               HELD       `come_back`, `claimed`
               IN_DOUBT   `hear_of`, `release`: as above
               FENCING    `lose`: its connection had ended, and now it is dead
"""

import enum
from dataclasses import dataclass

from evidence.rules.incarnation import Incarnation, Stage
from lockserver.rules import messages as m
from lockserver.rules.queue import Waiter
from lockserver.rules.record import Tenure


class Phase(enum.Enum):
    FREE = "free"
    IN_DOUBT = "in doubt"
    GRANTING = "granting"
    HELD = "held"
    FENCING = "fencing"


_F, _D, _G, _H, _X = Phase
MAY_FOLLOW: dict[Phase, frozenset[Phase]] = {
    _F: frozenset({_G, _H, _D}),
    _D: frozenset({_F, _H, _X, _D}),
    _G: frozenset({_F, _H, _X}),
    _H: frozenset({_X, _F}),
    _X: frozenset({_F, _H, _D, _X}),
}


class State(enum.Enum):
    """What the public status calls it: what a person wants to know first."""

    FREE = "FREE"
    HELD = "HELD"
    FENCING = "FENCING"
    """A waiter waits, or a holder has to be proven gone."""
    RECOVERING = "RECOVERING"
    """The server is new, and the holder has time to come back."""


class Found(enum.Enum):
    """What a new server found that keeps it from granting."""

    HOLDER = "a holder"
    UNREADABLE = "a holder file that can't be read"
    NOTHING = "no holder file"


@dataclass(frozen=True, slots=True)
class Doubt:
    """What isn't settled yet, and until when it may settle itself."""

    found: Found
    since: float
    until: float

    @property
    def unnamed(self) -> bool:
        """An incarnation that no file names may hold the lock."""
        return self.found is not Found.HOLDER


class WrongTransition(Exception):
    """The rules in `machine.py` ask for something that the table doesn't have: a bug."""


@dataclass(slots=True)
class Lock:
    name: m.LockName
    phase: Phase = Phase.FREE
    holder: Incarnation | None = None
    """It holds the lock, or must be proven gone before any other does."""
    token: int = 0
    """The holder's."""
    granted_at: str = ""
    """Empty: by an earlier server, and its file is lost."""
    endpoint: str | None = None
    kept: m.KeptRoom | None = None
    """What it says with its endpoint that it has taken over. It isn't in the file."""
    verified: bool = False
    """Its memory was seen to be free at the grant."""
    proven: bool = False
    """Beside `verified`: each process of the holder before was seen to have ended, or it gave the lock back."""
    doubt: Doubt | None = None
    """Set by a new server, and kept while a holder from the file is fenced: that end may need another proof."""
    fencing_since: float = 0.0
    """On the clock on the wall; 0 while it isn't fencing."""
    waiter: Waiter | None = None
    """What the holder was, until it is told: its place, should the grant come to nothing."""
    recorded_by: int | None = None
    """The first write that names this holder: no client is told before it is on disk. 0: it was in the file. None: no
    write has been asked for yet.
    """

    # -- questions -------------------------------------------------------------------------------------------------

    @property
    def unnamed(self) -> bool:
        return self.doubt is not None and self.doubt.unnamed

    def state(self, now: float, *, wanted: bool) -> State:
        """`wanted`: a waiter that is ready waits for it."""
        if self.phase is Phase.HELD:
            return State.HELD
        awaited = self.holder is None or self.holder.stage is Stage.AWAITED
        if self.phase is Phase.IN_DOUBT and self.doubt is not None and now < self.doubt.until and awaited:
            return State.RECOVERING
        return State.FREE if self.phase is Phase.FREE and not wanted else State.FENCING

    def held_by(self, incarnation: Incarnation | None) -> bool:
        """It holds the lock and knows it."""
        return self.phase is Phase.HELD and self.holder is incarnation

    # -- transitions -----------------------------------------------------------------------------------------------

    def found(self, holder: Incarnation, tenure: Tenure, doubt: Doubt) -> None:
        """The file names a holder."""
        self._move(Phase.IN_DOUBT, _F)
        self.holder, self.doubt = holder, doubt
        self.token, self.granted_at = tenure.token, tenure.granted_at
        self.endpoint, self.verified = tenure.endpoint, tenure.verified
        self.recorded_by = 0 if holder.members else None

    def suspect(self, doubt: Doubt) -> None:
        """There is no file that could be read, or an older one: an incarnation that it doesn't name may hold."""
        self._move(Phase.IN_DOUBT, _F)
        self.doubt = doubt

    def hear_of(self, holder: Incarnation, token: int) -> None:
        """A waiter tells of a holder that the file doesn't name, or of a newer one."""
        if self.doubt is None:
            raise WrongTransition(f"{self.name}: {holder.name} is heard of, and nothing is in doubt")
        self._move(Phase.IN_DOUBT, _D, _X)
        self.holder, self.token, self.granted_at, self.endpoint, self.kept = holder, token, "", None, None
        self.verified, self.proven, self.fencing_since, self.recorded_by = False, False, 0.0, None

    def grant(
        self,
        holder: Incarnation,
        token: int,
        at: str,
        waiter: Waiter | None,
        verified: bool,
        proven: bool = False,
    ) -> None:
        self._move(Phase.GRANTING, _F)
        self.holder, self.token, self.granted_at = holder, token, at
        self.waiter, self.verified, self.endpoint, self.recorded_by = waiter, verified, None, None
        self.proven, self.kept = proven, None

    def written_by(self, number: int) -> None:
        """The write with this number says how the lock stands. It counts if it is the first that names the holder, and
        its processes: of one that was only heard of the file knows too little.
        """
        if self.phase in (Phase.GRANTING, Phase.HELD) and self.recorded_by is None:
            self.recorded_by = number

    def hold(self) -> None:
        """The grant is on disk."""
        self._move(Phase.HELD, _G)
        self.waiter = None

    def token_on_disk(self, on_disk: int) -> int:
        """The holder is about to be told (again) that it holds. Returns its token; raises if the disk doesn't know."""
        if self.phase is not Phase.HELD or self.recorded_by is None or self.recorded_by > on_disk:
            raise WrongTransition(f"{self.name}: told before it is on disk ({self.recorded_by} of {on_disk})")
        return self.token

    def take_back(self) -> tuple[Incarnation | None, Waiter | None]:
        """The grant can't be written, and the waiter wasn't told."""
        holder, waiter = self.holder, self.waiter
        self._move(Phase.FREE, _G)
        self._clear()
        return holder, waiter

    def claimed(self, holder: Incarnation, token: int) -> None:
        """A main process says that it holds the lock, and nothing speaks against it. No file says since when."""
        self._move(Phase.HELD, _F, _D, _X)
        self.holder, self.token, self.granted_at = holder, token, ""
        self.endpoint = self.kept = self.doubt = self.waiter = None
        self.fencing_since = 0.0
        self.verified, self.proven, self.recorded_by = False, False, None

    def come_back(self) -> None:
        """The holder's main process is here (again)."""
        self._move(Phase.HELD, _D, _X)
        self.doubt, self.fencing_since = None, 0.0

    def lose(self, wall: float, doubt: Doubt | None) -> None:
        """The holder's main process is dead, or its connection ended. `doubt`: not all of the proof can be had."""
        self._move(Phase.FENCING, _D, _G, _H, _X)
        self.fencing_since, self.waiter = wall, None
        self.doubt = self.doubt or doubt

    def give_back(self) -> None:
        """The holder has put its engine to sleep (or, of a permit, has initialised), and lives on."""
        self._move(Phase.FREE, _H)
        self._clear()

    def release(self, remaining: Doubt | None = None) -> Incarnation:
        """The holder is proven gone. `remaining`: there may be another."""
        holder = self.holder
        if holder is None:
            raise WrongTransition(f"{self.name}: no engine holds it, so none can be proven gone")
        self._move(Phase.FREE if remaining is None else Phase.IN_DOUBT, _D, _X)
        self._clear()
        self.doubt = remaining
        return holder

    def settle(self) -> None:
        """It is settled that no unknown holder has it."""
        self._move(Phase.FREE, _D)
        self._clear()

    def serve_at(self, endpoint: str | None, kept: m.KeptRoom | None = None) -> bool:
        """The holder says where it serves. True if that is news."""
        news = (endpoint, kept) != (self.endpoint, self.kept)
        self.endpoint, self.kept = endpoint, kept
        return news

    def _clear(self) -> None:
        self.holder = self.endpoint = self.kept = self.doubt = self.waiter = None
        self.granted_at, self.verified, self.fencing_since, self.recorded_by = "", False, 0.0, None

    def _move(self, to: Phase, *since: Phase) -> None:
        """`since`: the phases in which this transition may be made."""
        if self.phase not in since or to not in MAY_FOLLOW[self.phase]:
            raise WrongTransition(f"{self.name}: from {self.phase.value} there is no way to {to.value}")
        self.phase = to

    # -- what must hold --------------------------------------------------------------------------------------------

    def broken_rule(self) -> str:
        """Which of its own rules this state breaks; empty as it should be."""
        holder, phase = self.holder, self.phase
        who = "no engine" if holder is None else holder.name
        if phase is not Phase.IN_DOUBT and (holder is None) is not (phase is Phase.FREE):
            return f"{self.name}: {phase.value}, and {who} is its holder"
        if (phase is Phase.IN_DOUBT and self.doubt is None) or (
            phase in (Phase.FREE, Phase.GRANTING, Phase.HELD) and self.doubt is not None
        ):
            return f"{self.name}: {phase.value}, and its doubt is {self.doubt}"
        there = holder is not None and holder.stage is Stage.PRESENT
        if holder is not None and there is (phase in (Phase.FENCING, Phase.IN_DOUBT)):
            return f"{self.name}: {phase.value}, and its holder is {holder.stage.value}"
        return ""

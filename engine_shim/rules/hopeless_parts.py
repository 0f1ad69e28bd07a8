"""What becomes of a pair when one of its programs ends in a way that another start won't mend
(`sidecar/machine/restarts.py`). Pure: `up.py` has the processes.

    before an engine has served     everything ends with its exit code: a person has made a mistake, and is there
    lock                            everything ends
    gms, door, ledger, pool         tried again, after longer and longer pauses, with an alarm
    an engine                       is given up, with an alarm; SIGUSR1 has it started again
    the last engine                 everything ends

So such a program never takes an engine that serves with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

LOCK, GMS, DOOR, LEDGER, POOL = "lock", "gms", "door", "ledger", "pool"
AGAIN_FIRST_S, AGAIN_MOST_S = 5.0, 60.0
"""The pauses before GMS, the door, the ledger or the pool is tried again."""
WITHOUT = {
    GMS: "no engine can start or wake until then",
    DOOR: "clients reach no engine through it until then",
    LEDGER: "no engine can wake until then; what is awake serves on",
    POOL: "no engine is waked or put to sleep until then; what is awake serves on",
}


@dataclass(frozen=True)
class EndAll:
    """Nothing is left that could serve, or nothing has served yet."""


@dataclass(frozen=True)
class TryAgain:
    pause_s: float
    meanwhile: str


@dataclass(frozen=True)
class GiveUp:
    left: tuple[str, ...]
    """The engines that go on."""


@dataclass
class HopelessParts:
    engines: Sequence[str]
    given_up: set[str] = field(default_factory=set)
    """Engines."""
    _tries: dict[str, int] = field(default_factory=dict)
    """How often GMS and the door were tried since they were seen to be hopeless."""

    def met(self, name: str, *, served: bool, steady: bool) -> EndAll | TryAgain | GiveUp:
        """This program is hopeless. `served`: an engine has served since the pair began. `steady`: the program ran for
        a while before, so it isn't the mistake that it was.
        """
        if name == LOCK or not served:
            return EndAll()
        if name in WITHOUT:
            tries = 0 if steady else self._tries.get(name, 0)
            self._tries[name] = tries + 1
            return TryAgain(min(AGAIN_FIRST_S * 2**tries, AGAIN_MOST_S), WITHOUT[name])
        self.given_up.add(name)
        left = tuple(engine for engine in self.engines if engine not in self.given_up)
        return GiveUp(left) if left else EndAll()

    def put_right(self) -> set[str]:
        """A person says that what was wrong is put right. Returns the engines that are to be started again."""
        again, self.given_up = self.given_up, set()
        return again

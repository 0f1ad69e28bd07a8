"""What the tests of single parts share: one turn with a time, processes, incarnations. There is no machine here."""

from typing import Any, TypeVar

from lockserver import events as e
from lockserver import messages as m
from lockserver.context import Context
from lockserver.incarnation import MAIN, Incarnation, Life, Stage
from lockserver.incarnations import Incarnations
from lockserver.lock import Doubt, Found, Lock
from lockserver.messages import ACTIVE
from lockserver.record import Member as Recorded
from lockserver.record import Tenure
from sidecar.context import Time

K = TypeVar("K")
DOUBT = Doubt(Found.HOLDER, 0.0, 10.0)
UNNAMED = Doubt(Found.NOTHING, 0.0, 2.0)
NAME = "a.00000000"
TENURE = Tenure("a", "0" * 8, 7, "then", NAME, [Recorded(1, "pidfs:1", 1, 51, True), Recorded(2, "pidfs:2", 2, 52)])


class Turns:
    """A context, its time, and what was asked for in this turn."""

    def __init__(self, **config: Any) -> None:
        self.config = e.Config("s1", **config)
        self.context = Context(50)
        self.now = 0.0
        self.at(0.0)

    def at(self, now: float) -> None:
        """The next turn begins."""
        self.now = now
        self.context.changed = False
        self.context.begin(Time(now, 1e9 + now))

    def asked(self, kind: type[K]) -> list[K]:
        return [effect for effect in self.context.out if isinstance(effect, kind)]

    def said(self, conn: int) -> list[m.ServerMessage]:
        return [send.message for send in self.asked(e.Send) if send.conn == conn]

    def noted(self, words: str) -> bool:
        return any(words in note.event or words in str(note.detail) for note in self.asked(e.Note))

    def alarm(self, key: str) -> str:
        return self.context.alarms.get(key, "")


def peer(number: int, *, inode: bool = True) -> e.Peer:
    """A process with a pidfd, whose handle is its number."""
    return e.Peer(number, f"pidfs:{number}" if inode else "", number, number)


def incarnation(engine_id: str = "a", *, members: int = 1, stage: Stage = Stage.PRESENT) -> Incarnation:
    """It lives, and its life lock is held. Its processes are 1, 2, ...; its connection is the engine's letter."""
    made = Incarnation(engine_id, "0" * 8, stage, conn=ord(engine_id), life=Life.HELD)
    for number in range(MAIN, MAIN + members):
        member = made.add(f"pidfs:{number}", number, number)
        member.process, member.kept = number, True
    return made


def killed(who: Incarnation, *, life: Life = Life.FREE) -> Incarnation:
    """Every process has ended."""
    for member in who.members.values():
        member.dead = True
        member.conns.clear()
    who.stage, who.life, who.conn = Stage.DOOMED, life, None
    return who


def registered(known: Incarnations, engine_id: str, number: int, *, conn: int | None = None) -> Incarnation:
    """Its main process is here: process `number`, on a connection of its own."""
    who = known.known.setdefault(f"{engine_id}.{'0' * 8}", Incarnation(engine_id, "0" * 8, Stage.PRESENT))
    known.enter_main(who, peer(number), number, conn if conn is not None else 100 + number)
    return who


def held_by(who: Incarnation, token: int = 7) -> Lock:
    lock = Lock(ACTIVE)
    lock.grant(who, token, "then", None, verified=True)
    lock.recorded_by = 1
    lock.tell()
    return lock


class Known(Turns):
    def __init__(self, **config: int) -> None:
        super().__init__(**config)
        self.incarnations = Incarnations(self.context)

    def a(self, *, members: int = 1) -> Incarnation:
        """Registered, with its children: processes 1, 2, ..."""
        who = registered(self.incarnations, "a", 1)
        for number in range(2, members + 1):
            self.incarnations.enter(who, peer(number), number, 0)
        return who

    def from_file(self, *, look_up: bool = True) -> Incarnation:
        return self.incarnations.from_file(TENURE, look_up=look_up)

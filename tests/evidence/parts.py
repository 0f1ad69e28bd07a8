"""What the tests of single parts share: one turn with a time, processes, incarnations. There is no machine here."""

from typing import Any, TypeVar

from evidence.rules.events import Config, Peer
from evidence.rules.evidence import Evidence
from evidence.rules.incarnation import MAIN, Incarnation, Life, Stage
from evidence.rules.record import Known as OnFile
from evidence.rules.record import Member
from sidecar.machine.context import Context, Note, Time

K = TypeVar("K")
NAME = "a.00000000"
ON_FILE = OnFile("a", "0" * 8, [Member(1, "pidfs:1", 1, 51, True), Member(2, "pidfs:2", 2, 52)])


class Turns:
    """A context, its time, and what was asked for in this turn."""

    def __init__(self, context: Context[Any] | None = None) -> None:
        self.context: Context[Any] = context if context is not None else Context(50)
        self.now = 0.0
        self.at(0.0)

    def at(self, now: float) -> None:
        """The next turn begins."""
        self.now = now
        self.context.changed = False
        self.context.begin(Time(now, 1e9 + now))

    def asked(self, kind: type[K]) -> list[K]:
        return [effect for effect in self.context.out if isinstance(effect, kind)]

    def noted(self, words: str) -> bool:
        return any(words in note.event or words in str(note.detail) for note in self.asked(Note))

    def alarm(self, key: str) -> str:
        return self.context.alarms.get(key, "")


def peer(number: int, *, inode: bool = True) -> Peer:
    """A process with a pidfd, whose handle is its number."""
    return Peer(number, f"pidfs:{number}" if inode else "", number, number)


def incarnation(engine_id: str = "a", *, members: int = 1, stage: Stage = Stage.PRESENT) -> Incarnation:
    """It lives, and its life lock is held. Its processes are 1, 2, ...; its connection is the engine's letter."""
    made = Incarnation(engine_id, "0" * 8, stage, conn=ord(engine_id[0]), life=Life.HELD)
    for number in range(MAIN, MAIN + members):
        member = made.add(f"pidfs:{number}", number, number)
        member.process, member.mapped = number, True
    return made


def unaccounted(*, members: int = 1, life: Life = Life.FREE, mapped: bool = True) -> Incarnation:
    """From the file only: its processes weren't seen since this server started."""
    who = incarnation(members=members)
    who.life = life
    for member in who.members.values():
        member.process, member.mapped = None, mapped
    return who


def killed(who: Incarnation, *, life: Life = Life.FREE) -> Incarnation:
    """Every process has ended."""
    for member in who.members.values():
        member.dead = True
        member.conns.clear()
    who.stage, who.life, who.conn = Stage.DOOMED, life, None
    return who


class Known(Turns):
    """All that a server knows of processes."""

    def __init__(self, config: Config | None = None, context: Context[Any] | None = None) -> None:
        super().__init__(context)
        self.evidence = Evidence(config or Config(), self.context)
        self.incarnations = self.evidence.incarnations

    def registered(self, engine_id: str, number: int, *, conn: int | None = None) -> Incarnation:
        """Its main process is here: process `number`, on a connection of its own."""
        who = self.incarnations.arrives(engine_id, "0" * 8, "")
        self.incarnations.enter_main(who, peer(number), number, conn if conn is not None else 100 + number)
        return who

    def a(self, *, members: int = 1) -> Incarnation:
        """Registered, with its children: processes 1, 2, ..."""
        who = self.registered("a", 1)
        for number in range(2, members + 1):
            self.incarnations.enter(who, peer(number), number, 0)
        return who

    def from_file(self, *, look_up: bool = True) -> Incarnation:
        return self.incarnations.from_file(ON_FILE, look_up=look_up)

    def bind(self, *which: Incarnation) -> None:
        self.incarnations.bind({who.name: who for who in which})

    def carry_out(self) -> list[int]:
        """Everything that is due now. Returns the connections that end with it."""
        ended: list[int] = []
        while (plan := self.incarnations.plan(self.now)).looks:
            ended += self.incarnations.carry_out(plan)
        return ended

    @property
    def again(self) -> float:
        """When something is due next."""
        return self.incarnations.plan(self.now).again

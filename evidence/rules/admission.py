"""Who comes in, with which claim, and how a caller leaves for a mistake. Which processes may belong to an incarnation
at all: `joining.py`.

Pure. A process that is admitted belongs to its incarnation from then on. Why it may not come in is said in a sentence.
What was granted to it is its server's business, which is asked what a claim is worth (`Claims`), and what follows
(`Host`).
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

from evidence.rules import messages as m
from evidence.rules.callers import MOST_OBSERVERS, Caller, Callers
from evidence.rules.events import Received
from evidence.rules.evidence import Evidence
from evidence.rules.incarnation import MAIN, Incarnation
from evidence.rules.joining import NO_LIFE
from evidence.rules.pidfd_copies import Give
from sidecar.machine.context import Close, Context
from sidecar.terminal.names import incarnation_name
from sidecar.wire.versions import Spoken

NOT_INTRODUCED = "introduce yourself first: Register, Join or Observe"


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
    watched: Incarnation | None = None
    """It may not join this one, which is being fenced; but the end of this process is awaited, too, from now on."""


class Claims(Protocol):
    """What main processes say that they were granted."""

    untrue: str
    """What one has done whose claim isn't true."""

    def why_not(self, hello: Any) -> str:
        """Empty if nothing speaks against what it claims, or it claims nothing."""

    def let_in(self, who: Incarnation, hello: Any) -> None: ...

    def may_keep(self, hello: Any) -> bool:
        """It can't talk with this server. May it have been granted what it claims?"""

    def keep(self, who: Incarnation, hello: Any, why: str) -> None:
        """It keeps that, until its pidfd says otherwise. `why`: it can't talk."""


class Admission:
    def __init__(self, evidence: Evidence, spoken: Spoken, claims: Claims) -> None:
        self.joining = evidence.joining
        self.incarnations = evidence.incarnations
        self.spoken = spoken
        self.claims = claims

    def register(self, event: Received, hello: Any) -> Admitted | TurnedAway:
        """A main process."""
        name = incarnation_name(hello.engine_id, hello.incarnation)
        why = self._why_not_register(event, hello)
        if not why and (why := self.claims.why_not(hello)):
            self.incarnations.reject(name, self.claims.untrue)
        if why is NO_LIFE:
            why = self.claims.why_not(hello) or why
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
        self.claims.let_in(who, hello)
        return Admitted(who, MAIN, self.spoken.agreed(hello), replaced)

    def _why_not_register(self, event: Received, hello: Any) -> str:
        name = incarnation_name(hello.engine_id, hello.incarnation)
        return self.joining.why_not_register(name, event.peers[0], hello.secret, life_held=event.life_held)

    def join(self, event: Received, hello: m.Join) -> Admitted | TurnedAway:
        """Another process."""
        if why := self._why_not_join(event, hello):
            name = incarnation_name(hello.engine_id, hello.incarnation)
            turned_away = TurnedAway(why, for_good=not self.joining.passes(why, name))
            if not self.joining.is_evidence(hello, event.peers[0], life_held=event.life_held):
                return turned_away
            who, _ = self.joining.join(hello, event.peers[0], None)
            return replace(turned_away, watched=who)
        who, member = self.joining.join(hello, event.peers[0], event.conn)
        return Admitted(who, member.number, self.spoken.agreed(hello))

    def _why_not_join(self, event: Received, hello: m.Join) -> str:
        return self.joining.why_not_join(hello, event.peers[0], life_held=event.life_held)

    def keep_what_it_holds(self, event: Received, hello: Any, why: str) -> bool:
        """It can't talk with this server. It lives, and its pidfd says so: what it holds it keeps until that says
        otherwise. True if it is watched from now on.
        """
        name, peer = incarnation_name(hello.engine_id, hello.incarnation), event.peers[0]
        who = self.incarnations.known.get(name)
        if isinstance(hello, m.Join):
            may_join = not self._why_not_join(event, hello)
            if who is None or not (may_join or self.joining.is_evidence(hello, peer, life_held=event.life_held)):
                return False
            self.incarnations.enter(who, peer, hello.pid, hello.number)
            return True
        if not self.claims.may_keep(hello) or self._why_not_register(event, hello):
            return False
        who = self.incarnations.hear_of(hello.engine_id, hello.incarnation)
        self.incarnations.enter_main(who, peer, hello.pid, None)
        self.incarnations.note_cannot_talk(who, why)
        self.claims.keep(who, hello, why)
        return True


class Host(Protocol):
    def introduced(self, event: Received, outcome: Admitted | TurnedAway) -> None:
        """A process that was admitted is to be welcomed; one that was turned away is told so next."""

    def watch_unheard(self, hello: Any) -> None:
        """This process can't talk, and keeps what it has: it is watched from now on."""

    def record_member(self, who: Incarnation) -> int:
        """It has one more. Returns the write that must be on disk before that process counts; 0 if there is none."""

    def say_on_disk(self, conn: int, message: Any, after: int) -> None: ...

    def send(self, conn: int, message: Any, processes: tuple[int, ...] = ()) -> None: ...

    def closed(self, conn: int) -> None: ...


class Reception:
    def __init__(
        self,
        context: Context[Any],
        evidence: Evidence,
        callers: Callers,
        spoken: Spoken,
        claims: Claims,
        host: Host,
    ) -> None:
        self.context = context
        self.evidence = evidence
        self.callers = callers
        self.spoken = spoken
        self.host = host
        self.admission = Admission(evidence, spoken, claims)

    # -- questions of the shell ------------------------------------------------------------------------------------

    def knows(self, incarnation: str) -> bool:
        return incarnation in self.evidence.incarnations.known

    def why_not_show_lives(self, conn: int, incarnation: str) -> str:
        """Only a process of this incarnation has life files of it to show. Empty if that is the caller."""
        caller = self.callers.by_conn.get(conn)
        if caller is None:
            return NOT_INTRODUCED
        if caller.incarnation is None or caller.incarnation.name != incarnation:
            return f"you are no process of {incarnation}, so you can't show its life files"
        return ""

    # -- what is done ----------------------------------------------------------------------------------------------

    def introduce(self, event: Received, hello: Any) -> None:
        if event.conn in self.callers.by_conn:
            self.throw_out(event, "this connection has introduced itself already")
        elif not self.spoken.agreed(hello):
            self._cannot_talk(event, hello)
        elif isinstance(hello, m.Join):
            self._enter(event, self.admission.join(event, hello), main=False)
        elif isinstance(hello, m.Introduction):
            self._enter(event, self.admission.register(event, hello), main=True)
        elif self.callers.full_of_observers:
            self._part(event, m.Busy(why=f"{MOST_OBSERVERS} observers are connected already"))
        else:
            self.callers.enter(Caller(event.conn))

    def _enter(self, event: Received, outcome: Admitted | TurnedAway, *, main: bool) -> None:
        if isinstance(outcome, Admitted):
            if outcome.replaced is not None:
                self.callers.end(outcome.replaced)
            self.callers.enter(Caller(event.conn, outcome.who, main))
        self.host.introduced(event, outcome)
        if isinstance(outcome, TurnedAway):
            self._turn_away(event, outcome)

    def vouch(self, event: Received, message: m.Vouch, who: Incarnation) -> None:
        if why := self.evidence.joining.why_not_vouch(who, event.peers):
            self.throw_out(event, why)
            return
        self.evidence.incarnations.enter(who, event.peers[0], message.pid, 0)
        self.host.say_on_disk(event.conn, m.Vouched(child=message.child), self.host.record_member(who))

    def hand_out(self, mark: int) -> None:
        """Copies of pidfds: of its own incarnation to each main process."""
        for give in self.evidence.copies.give_own():
            self.give(give, mark)

    def give(self, give: Give, mark: int) -> None:
        keep = m.Keep(
            mark=mark,
            tree=give.whose.name,
            numbers=give.numbers,
            more=give.more,
            gone=give.gone,
            answer=bool(give.numbers),
        )
        self.host.send(give.conn, keep, give.processes)

    def throw_out(self, event: Received, why: str) -> None:
        """A mistake: it costs the sender this connection."""
        self._part(event, m.Problem(why=why))

    def _cannot_talk(self, event: Received, hello: Any) -> None:
        """There is no version that both speak (rule E10)."""
        why = self.spoken.why_none(hello)
        kept = isinstance(hello, m.Introduction) and self.admission.keep_what_it_holds(event, hello, why)
        if kept:
            self.host.watch_unheard(hello)
        oldest, newest = self.spoken
        self._part(event, m.Incompatible(oldest=oldest, newest=newest, why=why), forget=not kept)

    def _turn_away(self, event: Received, outcome: TurnedAway) -> None:
        if outcome.watched is not None:
            self.host.record_member(outcome.watched)
        last_word = m.Refused(why=outcome.why) if outcome.for_good else m.Busy(why=outcome.why)
        if outcome.for_good:
            self.context.note("refused", engine=event.message.engine_id, why=outcome.why)
        self._part(event, last_word, forget=outcome.watched is None)

    def _part(self, event: Received, last_word: Any, *, forget: bool = True) -> None:
        if forget:
            self.evidence.incarnations.forget(event.peers)
        self.host.send(event.conn, last_word)
        self.context.out.append(Close(event.conn))
        self.host.closed(event.conn)

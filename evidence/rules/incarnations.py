"""All incarnations that a server knows: which processes belong to which, and how their ends are watched (rules E1 to E7
of the package).

Pure. It arms the pidfds of all members, asks for life locks once they can be free, kills what outlives its main
process, and forgets an incarnation when its end is proven. `plan` says what is due, and changes nothing; `carry_out`
does it. What an end means is its user's business.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeVar

from evidence.rules.events import ForgetProcess, Kill, LookedUp, LookUp, Peer, ProbeLife, Unlink, WatchDeath
from evidence.rules.incarnation import MAIN, PROBE_ALIVE_MOST_S, PROBE_FIRST_S, Incarnation, Life, Member, Stage
from evidence.rules.looks import Looks
from evidence.rules.record import Known, Processes
from evidence.rules.record import Member as Recorded
from sidecar.machine.context import Context
from sidecar.terminal.names import incarnation_name

MOST_MEMBERS = 200
MOST_INCARNATIONS = 5000
MOST_REMEMBERED = 1000
BOTH_BACK_S = 2.0
"""A process that is the main process of two incarnations is back with both of them by then."""
MOST_UNLINKS = 1000
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Look:
    """What is due for one incarnation."""

    who: Incarnation
    elsewhere_since: float = math.inf
    ended_as_another: bool = False
    """Its main process runs another program by now."""
    kill: tuple[Member, ...] = ()
    probe: bool = False
    ends: bool = False
    """Nothing is left of it."""
    again: float = math.inf
    rests: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    looks: tuple[Look, ...]
    again: float
    """When something is due next, if nothing happens before."""


class Incarnations:
    def __init__(self, context: Context[Any]) -> None:
        self.context = context
        self.known: dict[str, Incarnation] = {}
        self.absent: dict[str, Incarnation] = {}
        """Every incarnation that isn't PRESENT: its end is awaited, or its return."""
        self.living_unheard: dict[str, Incarnation] = {}
        """Those of which a process lives, and whose main process hasn't come and said what was granted to it."""
        self.bound: dict[str, Incarnation] = {}
        """Those that the server has granted something."""
        self.pending_unlinks: dict[str, int] = {}
        """Life files of those proven gone that the directory may still have -> the write that says so (0: none yet)."""
        self.gone: dict[str, None] = {}
        """Those that were bound, and whose end this server has seen proven: no process joins them any more."""
        self.rejected: dict[str, str] = {}
        """Those whose main process was turned away for good, and why: its children may not follow it."""
        self.regrouped: dict[str, None] = {}
        """Those whose members have changed since their main processes were given copies of the pidfds."""
        self._by_process: dict[int, tuple[Incarnation, Member]] = {}
        self._of_main: dict[str, dict[str, None]] = {}
        """A main process's identity -> all incarnations that it is, or was, the main process of."""
        self._looks = Looks()

    @property
    def full(self) -> bool:
        return len(self.known) >= MOST_INCARNATIONS

    # -- which belong ----------------------------------------------------------------------------------------------

    def hear_of(self, engine_id: str, random: str) -> Incarnation:
        """One that this server has only heard of: its end has to be proven, or it comes back."""
        name = incarnation_name(engine_id, random)
        incarnation = self.known.get(name)
        if incarnation is None:
            incarnation = self.known[name] = self.absent[name] = Incarnation(engine_id, random, Stage.AWAITED)
            incarnation.older = True
            self._touch(incarnation)
        return incarnation

    def hear_of_name(self, name: str) -> Incarnation:
        """The same, by its full name."""
        engine_id, _, random = name.rpartition(".")
        return self.hear_of(engine_id, random)

    def arrives(self, engine_id: str, random: str, secret: str) -> Incarnation:
        """Its main process is about to enter. With a secret: another server gave it that."""
        name = incarnation_name(engine_id, random)
        incarnation = self.known.get(name)
        if incarnation is None:
            incarnation = self.known[name] = Incarnation(engine_id, random, Stage.PRESENT)
            incarnation.older = bool(secret)
        return incarnation

    def from_file(self, recorded: Known, *, look_up: bool) -> Incarnation:
        """One of which the file tells. Its processes are looked up where that means anything."""
        incarnation = self.hear_of(recorded.engine_id, recorded.incarnation)
        incarnation.secret = recorded.secret
        for known in recorded.members:
            if known.number not in incarnation.members:
                member = incarnation.add(known.identity, known.pid, known.number)
                member.local_pid, member.mapped = known.local_pid, known.mapped
        self._touch(incarnation)
        asked = tuple((m.number, m.local_pid, m.identity) for m in incarnation.members.values() if m.local_pid)
        if look_up and asked:
            self.context.out.append(LookUp(incarnation.name, asked))
        return incarnation

    def looked_up(self, event: LookedUp) -> None:
        incarnation = self.known.get(event.incarnation)
        for number in event.gone:
            member = incarnation.members.get(number) if incarnation is not None else None
            if incarnation is not None and member is not None and not member.seen_alive:
                member.dead = self.context.changed = True
                self._touch(incarnation)
        for number, peer in event.alive:
            member = incarnation.members.get(number) if incarnation is not None else None
            if incarnation is None or member is None or member.process is not None:
                self.forget((peer,))
            else:
                self.attach(incarnation, member, peer, 0)

    def why_condemned(self, name: str) -> str:
        """Why no process may belong to this incarnation any more; empty while they may."""
        if name in self.pending_unlinks or name in self.gone:
            return f"{name} is gone: its end was proven"
        if name in self.rejected:
            return f"{name} {self.rejected[name]}"
        incarnation = self.known.get(name)
        if incarnation is not None and incarnation.stage is Stage.DOOMED:
            return f"{name} is being fenced"
        return ""

    def why_closed(self, name: str) -> str:
        """Why no process may join this incarnation now. A main process whose connection broke may come back; children
        may not slip in meanwhile.
        """
        incarnation = self.known.get(name)
        if incarnation is not None and incarnation.fenced:
            return f"{name} is being fenced"
        return self.why_condemned(name)

    def may_open_again(self, name: str) -> bool:
        """Only the connection of its main process has ended, as far as is known: it may be back in a moment."""
        incarnation = self.known.get(name)
        if incarnation is None or incarnation.stage is not Stage.LOST or incarnation.main is None:
            return False
        return not incarnation.main.dead and not self.why_condemned(name)

    def reject(self, name: str, why: str) -> None:
        """Its main process is turned away for good: what it did, as the rest of a sentence."""
        _remember(self.rejected, name, why)

    def note_cannot_talk(self, incarnation: Incarnation, why: str) -> None:
        """Its main process is here and lives, and this server can't talk with it."""
        incarnation.cannot_talk = why

    def is_main(self, incarnation: Incarnation, peer: Peer, secret: str) -> bool:
        """Is this the same main process as before? (Or the first to say so.)"""
        main = incarnation.main
        if main is None:
            return True
        if main.identity or peer.identity:
            return main.identity == peer.identity
        if incarnation.secret:
            return secret == incarnation.secret
        # Known by hearsay only, which doesn't tell secrets, nor pids across PID namespaces.
        return not main.dead and main.pid in (0, peer.pid)

    def other_that_it_leads(self, identity: str, name: str) -> str:
        """Another incarnation that is here with this process as its main process, whichever came last: what a process
        said before it executed another program may be read after what the other program says. Empty if there is none.
        """
        its = self._of_main.get(identity, ())
        return next((other for other in its if other != name and self.known[other].stage is Stage.PRESENT), "")

    def enter_main(self, incarnation: Incarnation, peer: Peer, pid: int, conn: int | None) -> Member:
        """Its main process is here. Without a connection: it lives, and this server can't talk with it."""
        main = incarnation.main or incarnation.add(peer.identity, pid, MAIN)
        self.attach(incarnation, main, peer, pid)
        incarnation.life, incarnation.came, incarnation.elsewhere_since = Life.HELD, True, math.inf
        self.context.changed = True
        if conn is None:
            incarnation.stage = Stage.LOST
            self.absent[incarnation.name] = incarnation
            self._touch(incarnation)
            return main
        incarnation.conn = conn
        main.conns = {conn}
        incarnation.stage, incarnation.cannot_talk = Stage.PRESENT, ""
        self.absent.pop(incarnation.name, None)
        self._looks.forget(incarnation.name)
        self._touch(incarnation)
        self._touch_others(incarnation)
        return main

    def enter(self, incarnation: Incarnation, peer: Peer, pid: int, number: int, *, conn: int | None = None) -> Member:
        """The process becomes a member, or is recognised as one."""
        member = incarnation.find(peer, number) or incarnation.add(
            peer.identity, pid, 0 if number <= MAIN or number in incarnation.members else number
        )
        if conn is not None:
            member.conns.add(conn)
        self.attach(incarnation, member, peer, pid)
        incarnation.life = Life.HELD
        self.context.changed = True
        return member

    def attach(self, incarnation: Incarnation, member: Member, peer: Peer, pid: int) -> None:
        """From here on this member's end is seen."""
        if peer.process is not None:
            self._let_go(member)
            member.process = peer.process
            member.was_alive = member.was_alive or not peer.dead
            member.dead = member.dead and peer.dead  # whatever a look-up said: here it is
            self._by_process[peer.process] = (incarnation, member)
            self.regrouped[incarnation.name] = None
            self.context.out.append(WatchDeath(peer.process))
        member.identity = member.identity or peer.identity
        member.pid = peer.pid or pid or member.pid
        member.local_pid = peer.local_pid or member.local_pid
        self._touch(incarnation)

    def handed_back(self, incarnation: Incarnation, number: int, peer: Peer, *, from_file: bool) -> None:
        """A pidfd of which a client kept a copy for the last server. Where the file tells which the members are, it is
        one of them; or it lives and has a number that the file doesn't know: then the file is older than this member.
        """
        member = incarnation.find(peer, number)
        if member is None and not peer.identity:
            member = incarnation.members.get(number)  # an older kernel doesn't tell the pid of the dead
            member = None if member is not None and member.process is not None else member
        ended = peer.dead and (from_file or incarnation.stage is Stage.PRESENT)
        number_taken = from_file and number in incarnation.members and (number == MAIN or not peer.identity)
        wanted = not ended and not number_taken  # of one that has ended no proof is needed any more
        if member is None and wanted and len(incarnation.members) < MOST_MEMBERS:
            member = incarnation.add(peer.identity, peer.pid, 0 if number in incarnation.members else number)
        if member is None or member.process is not None or member.identity != peer.identity:
            self.forget((peer,))
        else:
            self.attach(incarnation, member, peer, 0)

    # -- ends ------------------------------------------------------------------------------------------------------

    def closed(self, incarnation: Incarnation, conn: int) -> bool:
        """A connection of one of its processes ended. True if it was the main process's."""
        for member in incarnation.members.values():
            if conn in member.conns:
                member.conns.discard(conn)
                if member.process is None and not member.conns:
                    member.dead = True  # no pidfd to be had: the connection and the life lock are all there is
        self._touch(incarnation)
        if incarnation.conn != conn:
            return False
        incarnation.conn = None
        return True

    def died(self, process: int) -> tuple[Incarnation, bool] | None:
        """A pidfd is readable. Returns whose it was, and whether of the main process."""
        found = self._by_process.get(process)
        if found is None:
            return None
        incarnation, member = found
        member.dead = self.context.changed = True
        self._touch(incarnation)
        return incarnation, member is incarnation.main

    def drop_dead(self, name: str) -> None:
        """Members that have ended: they are forgotten."""
        incarnation = self.known.get(name)
        for member in list(incarnation.members.values()) if incarnation is not None else []:
            if incarnation is not None and member.dead and member is not incarnation.main:
                self._let_go(member)
                del incarnation.members[member.number]
                self.regrouped[name] = None
                self.context.changed = True
                self._touch(incarnation)

    def lose(self, incarnation: Incarnation, stage: Stage) -> bool:
        """The main process's connection or life has ended. True if that is news to the user."""
        if incarnation.stage is Stage.DOOMED or incarnation.stage is stage:
            return False
        news = incarnation.stage is not Stage.LOST
        incarnation.stage = stage
        incarnation.probe_at, incarnation.probe_wait_s = -math.inf, PROBE_FIRST_S
        self.absent[incarnation.name] = incarnation
        self.context.changed = True
        self._touch(incarnation)
        self._touch_others(incarnation)
        return news

    def kill_living(self, incarnation: Incarnation) -> None:
        """What lives of it has no right to the device any more. (Killing is the engine's own job first, and
        done by the kernel as a rule.)
        """
        for member in incarnation.to_kill:
            member.killed = True
            if member.process is not None:
                self.context.out.append(Kill(member.process))

    def out_of_reach(self, process: int, why: str) -> None:
        if process in self._by_process:
            self._by_process[process][1].out_of_reach, self.context.changed = why, True

    def bind(self, incarnations: dict[str, Incarnation]) -> None:
        """These, and no others, have been granted something."""
        if incarnations.keys() == self.bound.keys():
            return
        before, self.bound = self.bound, incarnations
        for who in (*before.values(), *incarnations.values()):
            who.bound = who.name in incarnations
            self._touch(who)

    def plan(self, now: float) -> Plan:
        """What is due now; asked again after `carry_out`, until nothing is."""
        due = self._looks.due(now)
        return Plan(tuple([self._look(self.absent[name], now) for name in due]), self._looks.again)

    def _look(self, who: Incarnation, now: float) -> Look:
        main = who.main
        elsewhere = self._runs_something_else(who)
        since = min(who.elsewhere_since, now) if elsewhere else who.elsewhere_since
        if elsewhere and now >= since + BOTH_BACK_S:
            return Look(who, since, ended_as_another=True)
        kill = who.to_kill if main is not None and main.dead else ()
        if who.ends and not who.bound:
            return Look(who, since, kill=kill, ends=True)
        again, probe, rests = since + BOTH_BACK_S if elsewhere else math.inf, False, False
        may_be_free = not who.seen_alive or (who.may_have_left and not who.bound)
        if may_be_free and not who.probing and who.life is not Life.FREE:
            probe = now >= who.probe_at
            # No timer runs for this look while the main process lives: the next event brings it.
            rests = not probe and who.seen_alive and who.probe_wait_s >= PROBE_ALIVE_MOST_S
            again = again if probe or rests else min(again, who.probe_at)
        return Look(who, since, kill=kill, probe=probe, again=again, rests=rests)

    def carry_out(self, plan: Plan) -> list[int]:
        """Returns the connections that end with it."""
        ended: list[int] = []
        for look in plan.looks:
            who = look.who
            who.elsewhere_since = look.elsewhere_since
            self._looks.looked(who.name, look.again, who.probe_at if look.rests else math.inf)
            if look.ended_as_another and who.main is not None:
                who.main.dead = self.context.changed = True
                self._touch(who)
            if look.kill:
                self.kill_living(who)
            if look.probe:
                who.probing = True
                self.context.out.append(ProbeLife(who.name))
            if look.ends:
                ended += self.remove(who, was_bound=False)
        return ended

    def _runs_something_else(self, incarnation: Incarnation) -> bool:
        """The main process of this incarnation is here as another one: it has executed a program anew. Nothing of the
        old program is left in it then; whatever else belongs to the incarnation is watched as before.
        """
        main = incarnation.main
        if incarnation.stage is Stage.PRESENT or main is None or main.dead or incarnation.cannot_talk:
            return False
        return bool(self.other_that_it_leads(main.identity, incarnation.name))

    def probed(self, name: str, held: bool | None) -> None:
        incarnation = self.known.get(name)
        if incarnation is None:
            return
        incarnation.probing = False
        self._touch(incarnation)
        if incarnation.stage is not Stage.PRESENT:
            before = incarnation.life
            incarnation.probed(held, self.context.now)
            self.context.changed = self.context.changed or incarnation.life is not before

    def remove(self, incarnation: Incarnation, *, was_bound: bool) -> list[int]:
        """The proof is complete. Returns the connections that end with it.

        The life file of one that was bound goes only when the disk knows that it is gone (`written`): else a child that
        comes late, to a server that has restarted in between, could still join it.
        """
        name = incarnation.name
        self._touch_others(incarnation)
        del self.known[name]
        for index in (self.regrouped, self.absent, self.living_unheard, self.bound):
            index.pop(name, None)
        self._looks.forget(name)
        self.context.changed = True
        for member in incarnation.members.values():
            self._let_go(member)
        if incarnation.main is not None:
            self._of_main.get(incarnation.main.identity, {}).pop(name, None)
            if not self._of_main.get(incarnation.main.identity, True):
                del self._of_main[incarnation.main.identity]
        if was_bound:
            self.pending_unlinks[name] = 0
            _remember(self.gone, name, None)
        elif name not in self.pending_unlinks:
            self.context.out.append(Unlink(name))
        return sorted(conn for member in incarnation.members.values() for conn in member.conns)

    def unlink_later(self, names: tuple[str, ...]) -> None:
        """Once a write says that they are gone. A few at a time; what is left is found again."""
        for name in names:
            if name not in self.known and len(self.pending_unlinks) < MOST_UNLINKS:
                self.pending_unlinks[name] = 0

    def unlink_at_once(self, name: str) -> None:
        self.context.out.append(Unlink(name))

    def begin(self, found: Processes, *, same_boot: bool, look_up: bool) -> None:
        """What the last server wrote down."""
        self.pending_unlinks = dict.fromkeys(found.gone, 0)
        for known in found.known:
            if same_boot:
                self.from_file(known, look_up=look_up)
            else:
                self.pending_unlinks[known.name] = 0

    def record(self, boot_id: str, pid_namespace: str) -> Processes:
        """What the file has to say now."""
        known = [_recorded(who) for who in self.bound.values()]
        return Processes(boot_id, known, list(self.pending_unlinks), pid_namespace)

    def unlink_after(self, number: int) -> None:
        """The write with this number says which are gone."""
        self.pending_unlinks = dict.fromkeys(self.pending_unlinks, number)

    def written(self, number: int) -> None:
        """A write has reached the disk; the files that it names can go."""
        for name, by in list(self.pending_unlinks.items()):
            if 0 < by <= number:
                del self.pending_unlinks[name]
                self.context.out.append(Unlink(name))

    def forget(self, peers: tuple[Peer, ...]) -> None:
        for peer in peers:
            if peer.process is not None:
                self.context.out.append(ForgetProcess(peer.process))

    def _touch(self, who: Incarnation) -> None:
        """Something new is known of it."""
        if who.main is not None and who.main.identity:
            self._of_main.setdefault(who.main.identity, {})[who.name] = None
        if who.name in self.absent:
            self._looks.touch(who.name)
        if who.seen_alive and not who.came:
            self.living_unheard[who.name] = who
        else:
            self.living_unheard.pop(who.name, None)

    def _touch_others(self, who: Incarnation) -> None:
        """Whether its main process runs as this one tells of all others that it was the main process of."""
        for name in self._of_main.get(who.main.identity, ()) if who.main is not None else ():
            if name != who.name and name in self.absent:
                self._looks.touch(name)

    def _let_go(self, member: Member) -> None:
        if member.process is not None:
            self._by_process.pop(member.process, None)
            self.context.out.append(ForgetProcess(member.process))
            member.process = None


def _recorded(who: Incarnation) -> Known:
    left = [one for one in who.members.values() if not one.dead or one is who.main]
    members = [Recorded(one.number, one.identity, one.pid, one.local_pid, one.mapped) for one in left]
    return Known(who.engine_id, who.random, members, who.secret)


def _remember(names: dict[str, V], name: str, what: V) -> None:
    """The last so many."""
    names[name] = what
    if len(names) > MOST_REMEMBERED:
        del names[next(iter(names))]

"""All incarnations that this server knows: who belongs to which, and how their ends are watched (rules 1, 2 and 6 of
`machine.py`).

Pure. It arms the pidfds of all members, asks for life locks once they can be free, kills what outlives its main
process, and forgets an incarnation when its end is proven. It knows nothing of the lock: what an end means for that is
`machine.py`'s business.
"""

import math

from lockserver.context import Context
from lockserver.events import Forget, Kill, LookedUp, LookUp, Peer, ProbeLife, Unlink, WatchDeath
from lockserver.incarnation import MAIN, PROBE_ALIVE_MOST_S, PROBE_FIRST_S, Incarnation, Life, Member, Stage
from lockserver.record import Tenure
from sidecar.names import incarnation_name

MOST_MEMBERS = 200
MOST_INCARNATIONS = 5000
MOST_REMEMBERED = 1000
BOTH_BACK_S = 2.0
"""A process that is the main process of two incarnations is back with both of them by then."""
MOST_UNLINKS = 1000


class Incarnations:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.known: dict[str, Incarnation] = {}
        self.absent: dict[str, Incarnation] = {}
        """Every incarnation that isn't PRESENT: its end is awaited, or its return."""
        self.pending_unlinks: dict[str, int] = {}
        """Life files of those proven gone that the directory may still have -> the write that says so (0: none yet)."""
        self.gone: dict[str, None] = {}
        """Former holders whose end this server has seen proven: nobody joins them any more."""
        self.rejected: dict[str, None] = {}
        """Whose main process claimed a lock that it doesn't hold: it ends, and its children may not follow it."""
        self.regrouped: set[str] = set()
        """Whose members have changed since their main processes were given copies of the pidfds."""
        self._by_process: dict[int, tuple[Incarnation, Member]] = {}
        self._runs: dict[str, str] = {}
        """A main process's identity -> the incarnation that it is now."""

    @property
    def full(self) -> bool:
        return len(self.known) >= MOST_INCARNATIONS

    # -- who belongs -----------------------------------------------------------------------------------------------

    def awaited(self, engine_id: str, random: str) -> Incarnation:
        """One that this server has only heard of: its end has to be proven, or it comes back."""
        name = incarnation_name(engine_id, random)
        incarnation = self.known.get(name)
        if incarnation is None:
            incarnation = self.known[name] = self.absent[name] = Incarnation(engine_id, random, Stage.AWAITED)
            incarnation.older = True
        return incarnation

    def from_file(self, tenure: Tenure, *, look_up: bool) -> Incarnation:
        """One of which the file tells. Its processes are looked up where that means anything."""
        incarnation = self.awaited(tenure.engine_id, tenure.incarnation)
        incarnation.secret = tenure.secret
        for known in tenure.members:
            if known.number not in incarnation.members:
                member = incarnation.add(known.identity, known.pid, known.number)
                member.local_pid, member.kept = known.local_pid, known.kept
        asked = tuple((m.number, m.local_pid, m.identity) for m in incarnation.members.values() if m.local_pid)
        if look_up and asked:
            self.context.out.append(LookUp(incarnation.name, asked))
        return incarnation

    def looked_up(self, event: LookedUp) -> None:
        incarnation = self.known.get(event.incarnation)
        for number in event.gone:
            member = incarnation.members.get(number) if incarnation is not None else None
            if member is not None and not member.seen_alive:
                member.dead = self.context.changed = True
        for number, peer in event.alive:
            member = incarnation.members.get(number) if incarnation is not None else None
            if incarnation is None or member is None or member.process is not None:
                self.forget((peer,))
            else:
                self.attach(incarnation, member, peer, 0)

    def why_condemned(self, name: str) -> str:
        """Why nobody may belong to this incarnation any more; empty while they may."""
        if name in self.pending_unlinks or name in self.gone:
            return f"{name} is gone: its end was proven"
        if name in self.rejected:
            return f"{name} claimed a lock that it does not hold"
        incarnation = self.known.get(name)
        if incarnation is not None and incarnation.stage is Stage.DOOMED:
            return f"{name} is being fenced"
        return ""

    def why_closed(self, name: str) -> str:
        """Why nobody may join this incarnation now. A main process whose connection broke may come back; children may
        not slip in meanwhile.
        """
        incarnation = self.known.get(name)
        if incarnation is not None and incarnation.stage is Stage.LOST and not incarnation.cannot_talk:
            return f"{name} is being fenced"
        return self.why_condemned(name)

    def may_open_again(self, name: str) -> bool:
        """Only the connection of its main process has ended, as far as is known: it may be back in a moment."""
        incarnation = self.known.get(name)
        if incarnation is None or incarnation.stage is not Stage.LOST or incarnation.main is None:
            return False
        return not incarnation.main.dead and not self.why_condemned(name)

    def reject(self, name: str) -> None:
        _remember(self.rejected, name)

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

    def enter_main(self, incarnation: Incarnation, peer: Peer, pid: int, conn: int | None) -> Member:
        """Its main process is here. Without a connection: it lives, and this server can't talk with it."""
        main = incarnation.main or incarnation.add(peer.identity, pid, MAIN)
        self.attach(incarnation, main, peer, pid)
        incarnation.life, incarnation.came = Life.HELD, True
        self.context.changed = True
        if conn is None:
            incarnation.stage = Stage.LOST
            self.absent[incarnation.name] = incarnation
            return main
        incarnation.conn = conn
        main.conns = {conn}
        incarnation.stage, incarnation.cannot_talk = Stage.PRESENT, ""
        self.absent.pop(incarnation.name, None)
        if main.identity:
            self._runs[main.identity] = incarnation.name
        return main

    def enter(self, incarnation: Incarnation, peer: Peer, pid: int, number: int) -> Member:
        """The process becomes a member, or is recognised as one."""
        member = incarnation.find(peer, number) or incarnation.add(
            peer.identity, peer.pid or pid, 0 if number <= MAIN or number in incarnation.members else number
        )
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
            self.regrouped.add(incarnation.name)
            self.context.out.append(WatchDeath(peer.process))
        member.identity = member.identity or peer.identity
        member.pid = peer.pid or pid or member.pid
        member.local_pid = peer.local_pid or member.local_pid

    def hand_back(self, incarnation: Incarnation, number: int, peer: Peer, *, from_file: bool) -> None:
        """A pidfd that the last server gave to somebody to keep. Where the file tells who the members are, it is one of
        them; or it lives and has a number that the file doesn't know: then the file is older than this member.
        """
        member = incarnation.find(peer, number)
        if member is None and not peer.identity:
            member = incarnation.members.get(number)  # an older kernel doesn't tell the pid of the dead
            member = None if member is not None and member.process is not None else member
        ended = peer.dead and (from_file or incarnation.stage is Stage.PRESENT)
        number_taken = from_file and number in incarnation.members and (number == MAIN or not peer.identity)
        wanted = not ended and not number_taken  # who has ended needs no proof of it any more
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
        if incarnation.conn != conn:
            return False
        incarnation.conn = None
        return True

    def died(self, process: int) -> tuple[Incarnation, bool] | None:
        """A pidfd is readable: whose is it, and was it the main process?"""
        found = self._by_process.get(process)
        if found is None:
            return None
        incarnation, member = found
        member.dead = self.context.changed = True
        return incarnation, member is incarnation.main

    def drop_dead(self, name: str) -> None:
        """Members that have ended: nobody needs to know of them any more."""
        incarnation = self.known.get(name)
        for member in list(incarnation.members.values()) if incarnation is not None else []:
            if incarnation is not None and member.dead and member is not incarnation.main:
                self._let_go(member)
                del incarnation.members[member.number]
                self.regrouped.add(name)
                self.context.changed = True

    def lose(self, incarnation: Incarnation, stage: Stage) -> bool:
        """The main process's connection or life has ended. True if that is news to the lock."""
        if incarnation.stage is Stage.DOOMED or incarnation.stage is stage:
            return False
        news = incarnation.stage is not Stage.LOST
        incarnation.stage = stage
        incarnation.probe_at, incarnation.probe_wait_s = -math.inf, PROBE_FIRST_S
        self.absent[incarnation.name] = incarnation
        self.context.changed = True
        return news

    def kill_rest(self, incarnation: Incarnation) -> None:
        """What outlives its main process has no right to the device any more. (Killing is the engine's own job first,
        and done by the kernel as a rule.)
        """
        for member in incarnation.members.values():
            if not member.dead and member.process is not None and not member.out_of_reach and not member.killed:
                member.killed = True
                self.context.out.append(Kill(member.process))

    def out_of_reach(self, process: int, why: str) -> None:
        if process in self._by_process:
            self._by_process[process][1].out_of_reach, self.context.changed = why, True

    def pursue(self, incarnation: Incarnation, *, holds: bool) -> None:
        """Asks for the life lock where it can be free: after the last member's end, or at once where members are only
        known from the file, or where one that holds nothing may have left.
        """
        if not self._runs_something_else(incarnation) or incarnation.main is None:
            incarnation.elsewhere_since = math.inf
        else:
            incarnation.elsewhere_since = min(incarnation.elsewhere_since, self.context.now)
            if self.context.reached(incarnation.elsewhere_since + BOTH_BACK_S):
                incarnation.main.dead = self.context.changed = True
        if incarnation.main is not None and incarnation.main.dead:
            self.kill_rest(incarnation)
        if incarnation.seen_alive and (holds or not incarnation.may_have_left):
            return
        if incarnation.probing or incarnation.life is Life.FREE:
            return
        at_rest = incarnation.seen_alive and incarnation.probe_wait_s >= PROBE_ALIVE_MOST_S
        # A server at rest sleeps: then it looks when something else happens, and only what happens can cost it more.
        due = self.context.now >= incarnation.probe_at if at_rest else self.context.reached(incarnation.probe_at)
        if due:
            incarnation.probing = True
            self.context.out.append(ProbeLife(incarnation.name))

    def _runs_something_else(self, incarnation: Incarnation) -> bool:
        """The main process of this incarnation is here as another one: it has executed a program anew. Nothing of the
        old program is left in it then; whatever else belongs to the incarnation is watched as before.
        """
        main = incarnation.main
        if incarnation.stage is Stage.PRESENT or main is None or main.dead or incarnation.cannot_talk:
            return False
        other = self.known.get(self._runs.get(main.identity, ""))
        return other is not None and other is not incarnation and other.stage is Stage.PRESENT

    def probed(self, name: str, held: bool | None) -> None:
        incarnation = self.known.get(name)
        if incarnation is None:
            return
        incarnation.probing = False
        if incarnation.stage is not Stage.PRESENT:
            before = incarnation.life
            incarnation.probed(held, self.context.now)
            self.context.changed = self.context.changed or incarnation.life is not before

    def remove(self, incarnation: Incarnation, *, held_a_lock: bool) -> list[int]:
        """The proof is complete. Returns the connections that end with it.

        The life file of a former holder goes only when the disk knows that it is gone (`written`): else a child that
        comes late, to a server that has restarted in between, could still join it.
        """
        name = incarnation.name
        del self.known[name]
        self.regrouped.discard(name)
        self.absent.pop(name, None)
        self.context.changed = True
        for member in incarnation.members.values():
            self._let_go(member)
        if incarnation.main is not None and self._runs.get(incarnation.main.identity) == name:
            del self._runs[incarnation.main.identity]
        if held_a_lock:
            self.pending_unlinks[name] = 0
            _remember(self.gone, name)
        elif name not in self.pending_unlinks:
            self.context.out.append(Unlink(name))
        return sorted(conn for member in incarnation.members.values() for conn in member.conns)

    def unlink_later(self, names: tuple[str, ...]) -> None:
        """Once a write says that they are gone. So many at a time; who is left is found again."""
        for name in names:
            if name not in self.known and len(self.pending_unlinks) < MOST_UNLINKS:
                self.pending_unlinks[name] = 0

    def unlink_at_once(self, name: str) -> None:
        self.context.out.append(Unlink(name))

    def written(self, number: int) -> None:
        """A write has reached the disk; the files that it names can go."""
        for name, by in list(self.pending_unlinks.items()):
            if 0 < by <= number:
                del self.pending_unlinks[name]
                self.context.out.append(Unlink(name))

    def forget(self, peers: tuple[Peer, ...]) -> None:
        for peer in peers:
            if peer.process is not None:
                self.context.out.append(Forget(peer.process))

    def _let_go(self, member: Member) -> None:
        if member.process is not None:
            self._by_process.pop(member.process, None)
            self.context.out.append(Forget(member.process))
            member.process = None


def _remember(names: dict[str, None], name: str) -> None:
    """The last so many."""
    names[name] = None
    if len(names) > MOST_REMEMBERED:
        del names[next(iter(names))]

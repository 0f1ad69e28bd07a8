"""Who belongs to which engine's tree, and what is known of their ends (rules 1, 2 and 6 of `machine.py`).

Pure. It arms the pidfds of all members, asks for life locks once they can be free, kills what outlives its main
process, and buries a tree when its end is proven. It knows nothing of locks: what an end means for the lock is
`machine.py`'s business.
"""

import math

from lockserver.context import Context
from lockserver.events import Forget, Kill, Peer, ProbeLife, Unlink, WatchDeath
from lockserver.record import Tenure
from lockserver.tree import MAIN, PROBE_FIRST_S, Life, Member, Stage, Tree


class Forest:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.trees: dict[str, Tree] = {}
        self.ending: dict[str, Tree] = {}
        """Every tree that isn't PRESENT: its end is awaited, or its return."""
        self.graves: dict[str, int] = {}
        """Life files of the proven dead that the directory may still have -> the write that says so (0: none yet)."""
        self.outcast: set[str] = set()
        """Trees whose main process claimed a lock that it doesn't hold: it ends, and its children may not come in
        after it.
        """
        self.regrouped: set[str] = set()
        """Trees whose members have changed since their main processes were given copies of the pidfds."""
        self._by_process: dict[int, tuple[Tree, Member]] = {}

    # -- who belongs -----------------------------------------------------------------------------------------------

    def awaited(self, tenure: Tenure) -> Tree:
        """A tree of which only the file tells."""
        tree = Tree(tenure.engine_id, tenure.incarnation, Stage.AWAITED, tenure.secret)
        tree = self.ending[tree.name] = self.trees.setdefault(tree.name, tree)
        for member in tenure.members:
            if member.number not in tree.members:
                tree.add(member.identity, member.pid, member.number)
        return tree

    def why_condemned(self, name: str) -> str:
        """Why nobody may belong to this tree any more; empty while they may."""
        if name in self.graves:
            return f"{name} is gone: its end was proven"
        if name in self.outcast:
            return f"{name} claimed a lock that it does not hold"
        tree = self.trees.get(name)
        if tree is not None and tree.stage is Stage.DOOMED:
            return f"{name} is being fenced"
        return ""

    def why_closed(self, name: str) -> str:
        """Why nobody may join this tree now. A main process whose connection broke may come back; children may not
        slip in meanwhile.
        """
        tree = self.trees.get(name)
        if tree is not None and tree.stage is Stage.LOST:
            return f"{name} is being fenced"
        return self.why_condemned(name)

    def is_main(self, tree: Tree, peer: Peer, secret: str) -> bool:
        """Is this the same main process as before? (Or the first to say so.)"""
        main = tree.main
        if main is None:
            return True
        if main.identity or peer.identity:
            return main.identity == peer.identity
        if tree.secret:
            return secret == tree.secret
        return not main.dead and 0 < main.pid == peer.pid  # known by hearsay only, which doesn't tell secrets

    def enter_main(self, tree: Tree, peer: Peer, pid: int, conn: int) -> None:
        main = tree.main or tree.add(peer.identity, pid, MAIN)
        self.attach(tree, main, peer, pid)
        tree.conn = main.conn = conn
        tree.stage, tree.life = Stage.PRESENT, Life.HELD
        self.ending.pop(tree.name, None)
        self.context.changed = True

    def enter(self, tree: Tree, peer: Peer, pid: int, number: int) -> Member:
        """The process becomes a member of the tree, or is recognised as one."""
        member = tree.find(peer, number) or tree.add(
            peer.identity, peer.pid or pid, 0 if number <= MAIN or number in tree.members else number
        )
        self.attach(tree, member, peer, pid)
        tree.life = Life.HELD
        self.context.changed = True
        return member

    def attach(self, tree: Tree, member: Member, peer: Peer, pid: int) -> None:
        """From here on this member's end is seen."""
        if peer.process is not None:
            self._let_go(member)
            member.process = peer.process
            self._by_process[peer.process] = (tree, member)
            self.regrouped.add(tree.name)
            self.context.out.append(WatchDeath(peer.process))
        member.identity = member.identity or peer.identity
        member.pid = peer.pid or pid or member.pid

    def hand_back(self, tree: Tree, number: int, peer: Peer, *, from_file: bool) -> None:
        """A pidfd that the last server gave to somebody to keep. Where the file tells who the members are, it must be
        one of them.
        """
        member = tree.find(peer, number)
        if member is None and not peer.identity:
            member = tree.members.get(number)  # an older kernel doesn't tell the pid of the dead
            member = None if member is not None and member.process is not None else member
        if member is None and not from_file:
            member = tree.add(peer.identity, peer.pid, 0 if number in tree.members else number)
        if member is None or member.process is not None or member.identity != peer.identity:
            self.forget((peer,))
        else:
            self.attach(tree, member, peer, 0)

    # -- ends ------------------------------------------------------------------------------------------------------

    def closed(self, tree: Tree, conn: int) -> bool:
        """A connection of the tree ended. True if it was the main process's."""
        for member in tree.members.values():
            if member.conn == conn:
                member.conn = None
                if member.process is None:
                    member.dead = True  # no pidfd to be had: the connection and the life lock are all there is
        if tree.conn != conn:
            return False
        tree.conn = None
        return True

    def died(self, process: int) -> tuple[Tree, bool] | None:
        """A pidfd is readable: whose tree is it, and was it the main process?"""
        found = self._by_process.get(process)
        if found is None:
            return None
        tree, member = found
        member.dead = self.context.changed = True
        if member is tree.main:
            return tree, True
        self._let_go(member)
        del tree.members[member.number]
        self.regrouped.add(tree.name)
        return tree, False

    def lose(self, tree: Tree, stage: Stage) -> bool:
        """The main process's connection or life has ended. True if that is news to the lock."""
        if tree.stage is Stage.DOOMED or tree.stage is stage:
            return False
        news = tree.stage is not Stage.LOST
        tree.stage = stage
        tree.probe_at, tree.probe_wait_s = -math.inf, PROBE_FIRST_S
        self.ending[tree.name] = tree
        self.context.changed = True
        return news

    def kill_rest(self, tree: Tree) -> None:
        """What outlives its main process has no right to the device any more. (Killing is the engine's own job first,
        and done by the kernel as a rule.)
        """
        for member in tree.members.values():
            if not member.dead and member.process is not None and not member.out_of_reach:
                self.context.out.append(Kill(member.process))

    def out_of_reach(self, process: int) -> None:
        if process in self._by_process:
            self._by_process[process][1].out_of_reach = self.context.changed = True

    def pursue(self, tree: Tree) -> None:
        """Asks for the life lock where it can be free: after the last member's end, or at once where members are only
        known from the file.
        """
        if tree.seen_alive or tree.probing or tree.life is Life.FREE:
            return
        if self.context.reached(tree.probe_at):
            tree.probing = True
            self.context.out.append(ProbeLife(tree.name))

    def probed(self, name: str, held: bool | None) -> None:
        tree = self.trees.get(name)
        if tree is None:
            return
        tree.probing = False
        if tree.stage is not Stage.PRESENT:
            before = tree.life
            tree.probed(held, self.context.now)
            self.context.changed = self.context.changed or tree.life is not before

    def bury(self, tree: Tree, *, held_a_lock: bool) -> list[int]:
        """The proof is complete. Returns the connections that end with it.

        The life file of a former holder goes only when the disk knows that it is gone (`written`): else a child that
        comes late, to a server that has restarted in between, could still join it.
        """
        del self.trees[tree.name]
        self.regrouped.discard(tree.name)
        self.ending.pop(tree.name, None)
        self.context.changed = True
        for member in tree.members.values():
            self._let_go(member)
        if held_a_lock:
            self.graves[tree.name] = 0
        elif tree.name not in self.graves:
            self.context.out.append(Unlink(tree.name))
        return [member.conn for member in tree.members.values() if member.conn is not None]

    def written(self, seq: int) -> None:
        """A write has reached the disk; the graves that it names can be closed."""
        for name, by in list(self.graves.items()):
            if 0 < by <= seq:
                del self.graves[name]
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

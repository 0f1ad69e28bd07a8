"""The server's memory across its own crash: copies of pidfds that its clients keep, and hand to its successor (rule 7
of `machine.py`).

Pure, a part of the machine. A main process keeps its own tree's, the first few waiters keep the holder's.
"""

from typing import TYPE_CHECKING

from lockserver import events as e
from lockserver import messages as m
from lockserver.lock import Caller
from lockserver.tree import MAIN, Member, Stage, Tree

if TYPE_CHECKING:
    from lockserver.machine import Machine


class Copies:
    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.context = machine.context
        self.forest = machine.forest
        self.queue = machine.queue
        self.config = machine.config
        self._kept: tuple[int, tuple[int, ...]] = (0, ())
        self._keepers: set[int] = set()

    def hand_out(self) -> None:
        """A main process keeps its own tree's pidfds, and the first few waiters keep the holder's."""
        for name in sorted(self.forest.regrouped):
            tree = self.forest.trees[name]
            if tree.conn is not None and tree.numbered > MAIN:
                self._give(tree.conn, tree, [member for member in tree.members.values() if member is not tree.main])
        self.forest.regrouped.clear()
        lock = self.machine.active
        if not lock.held or lock.holder is None:
            return
        current = (lock.token, tuple(lock.holder.members))
        if current != self._kept:
            self._kept, self._keepers = current, set()
        keepers = {waiter.tree.conn for waiter in self.queue.first(self.config.keepers) if waiter.tree.conn is not None}
        for conn in sorted(keepers - self._keepers):
            self._give(conn, lock.holder, list(lock.holder.members.values()))
        self._keepers = keepers

    def _give(self, conn: int, tree: Tree, members: list[Member]) -> None:
        members = [member for member in members if member.process is not None]
        keep = m.Keep(token=self.machine.active.token, tree=tree.name, numbers=[member.number for member in members])
        self.context.out.append(
            e.Send(conn, keep, tuple(member.process for member in members if member.process is not None))
        )

    def hand_back(self, event: e.Received, caller: Caller) -> None:
        message, lock = event.message, self.machine.active
        assert isinstance(message, m.HandBack)
        if lock.recovery is not None:
            self.machine.token = max(self.machine.token, message.token)
        tree = self.forest.trees.get(message.tree)
        if lock.in_doubt and (tree is None or tree.stage is Stage.AWAITED):
            tree = self._hearsay(message)
        own = tree is caller.tree
        known = own or (tree is lock.holder and lock.token == message.token)
        from_file = not own and lock.recovery is not None and not lock.in_doubt
        for number, peer in zip(message.numbers, event.peers, strict=False):
            if tree is not None and known:
                self.forest.hand_back(tree, number, peer, from_file=from_file)
            else:
                self.forest.forget((peer,))
        self.forest.forget(event.peers[len(message.numbers) :])

    def _hearsay(self, message: m.HandBack) -> Tree | None:
        """The file tells of no holder, or can't be read; a waiter tells. The newest that any of them knows of must
        come back, or be proven gone.
        """
        lock = self.machine.active
        if message.tree in self.forest.graves or (lock.holder is not None and message.token <= lock.token):
            return self.forest.trees.get(message.tree)
        engine_id, _, incarnation = message.tree.rpartition(".")
        tree = self.forest.trees.get(message.tree)
        if tree is None:
            tree = Tree(engine_id, incarnation, Stage.AWAITED)
            self.forest.trees[message.tree] = self.forest.ending[message.tree] = tree
        lock.holder, lock.told, lock.token = tree, True, message.token
        self.context.note("awaiting_holder", engine=engine_id, lock=lock.name, token=lock.token, known_from="a waiter")
        return tree

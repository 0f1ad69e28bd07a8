"""Who comes in: introductions, and what a connection may ask for (rules 2 and 7 of `machine.py`).

Pure, a part of the machine. Three kinds of caller: an engine's main process registers, another process of its tree
joins, an observer observes. A final no is `Refused`, a mistake is `Problem`; both end the connection and disturb
nobody else.
"""

from typing import TYPE_CHECKING

from lockserver import events as e
from lockserver import messages as m
from lockserver.lock import Caller
from lockserver.messages import ACTIVE, INIT
from lockserver.tree import MAIN, Stage, Tree
from sidecar.context import rfc3339

if TYPE_CHECKING:
    from lockserver.machine import Machine

MEMBERS_MAX = 200


class Desk:
    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.context = machine.context
        self.forest = machine.forest
        self.config = machine.config
        self.callers: dict[int, Caller] = {}

    def watchers(self) -> list[int]:
        return [caller.conn for caller in self.callers.values() if caller.watching]

    def introduce(self, event: e.Received, message: m.Register | m.Join | m.Observe) -> None:
        if event.conn in self.callers:
            self.throw_out(event, "this connection has introduced itself already")
        elif message.protocol != m.PROTOCOL:
            self._turn_away(event, f"protocol {message.protocol} is not spoken here; this server speaks {m.PROTOCOL}")
        elif isinstance(message, m.Observe):
            self.callers[event.conn] = Caller(event.conn)
        elif isinstance(message, m.Register):
            self._register(event, message)
        else:
            self._join(event, message)

    def _register(self, event: e.Received, message: m.Register) -> None:
        name, peer = f"{message.engine_id}.{message.incarnation}", event.peers[0]
        tree = self.forest.trees.get(name)
        why = self.forest.why_condemned(name)
        if not why and not event.life_held:
            why = "the life file that you named isn't in its place, or you have no lock on it"
        if not why and tree is not None and not self.forest.is_main(tree, peer, message.secret):
            why = f"{name} is another process (pid {tree.pid})"
        if not why and ACTIVE in message.claims:
            why = self._why_no_claim(name, message.claims[ACTIVE])
            if why:
                self.forest.outcast.add(name)
        if why:
            self._turn_away(event, why)
            return
        if tree is None:
            tree = self.forest.trees[name] = Tree(message.engine_id, message.incarnation, Stage.PRESENT)
        tree.secret = tree.secret or message.secret or event.secret
        if tree.conn is not None:
            self.end_caller(tree.conn)
        self.callers[event.conn] = Caller(event.conn, tree, main=True)
        self.forest.enter_main(tree, peer, message.pid, event.conn)
        active = self.machine.active
        claimed = ACTIVE in message.claims and active.holder is not tree
        if claimed:
            active.holder, active.told, active.token = tree, True, message.claims[ACTIVE]
            active.granted_at = rfc3339(self.context.wall)
            self.machine.token = max(self.machine.token, active.token)
            self.context.note("claimed", engine=tree.engine_id, token=active.token)
        elif active.holder is tree and active.in_doubt:
            claimed = True  # no file tells of it yet, only a waiter did
        if INIT in message.claims and self.machine.init.holder is None:
            self.machine.init.holder, self.machine.init.told, claimed = tree, True, True
        welcome = self._welcome(tree, MAIN)
        if claimed:
            self.machine.write()
        self.machine.answer(event.conn, welcome, on_disk=claimed)

    def _welcome(self, tree: Tree, number: int) -> m.Welcome:
        """Says what the process holds; a holder that is back has been told everything with it."""
        holds: dict[str, int] = {}
        for lock in (self.machine.active, self.machine.init) if number == MAIN else ():
            if lock.holder is tree and lock.told:
                holds[lock.name] = lock.token
                if lock.recovery is not None or lock.fencing_since:
                    self.context.note("back", engine=tree.engine_id, lock=lock.name, token=lock.token)
                lock.recovery, lock.fencing_since = None, 0.0
                self.context.calm("unproven", "record", "strangers")
        policy = m.Policy(self.config.presume_dead, self.config.window_s, self.config.settle_s)
        secret = tree.secret if number == MAIN else ""
        return m.Welcome(
            server_incarnation=self.config.server_incarnation, number=number, policy=policy, secret=secret, holds=holds
        )

    def _why_no_claim(self, name: str, token: int) -> str:
        """A main process says that it holds the lock. Empty if that may be."""
        lock = self.machine.active
        if lock.in_doubt and token > lock.token:
            return ""  # a waiter told of an older holder
        if lock.holder is not None and lock.holder.name != name:
            return f"{lock.holder.engine_id} was granted the lock with token {lock.token}"
        if lock.holder is not None:
            return "" if lock.token == token else f"the token is {lock.token}, not {token}"
        if lock.recovery is None and token <= self.machine.token:
            return f"token {token} has ended: its holder was taken for gone"
        return ""

    def _join(self, event: e.Received, message: m.Join) -> None:
        name = f"{message.engine_id}.{message.incarnation}"
        tree = self.forest.trees.get(name)
        why = self.forest.why_closed(name)
        if not why and not event.life_held:
            why = "the life file that you named isn't in its place, or you have no lock on it"
        if not why and tree is not None and len(tree.members) >= MEMBERS_MAX:
            why = f"{name} has {MEMBERS_MAX} processes already"
        if why:
            self._turn_away(event, why)
            return
        if tree is None:
            # Its main process isn't back yet, after a restart of this server. Its life file tells that it isn't
            # condemned.
            tree = Tree(message.engine_id, message.incarnation, Stage.AWAITED)
            self.forest.trees[name] = self.forest.ending[name] = tree
        member = self.forest.enter(tree, event.peers[0], message.pid, message.number)
        if member.conn is not None:
            self.end_caller(member.conn)
        member.conn = event.conn
        self.callers[event.conn] = Caller(event.conn, tree)
        self._acknowledge(tree, event.conn, self._welcome(tree, member.number))

    def adopt(self, event: e.Received, caller: Caller) -> None:
        tree, message = caller.tree, event.message
        assert tree is not None and isinstance(message, m.Adopt)
        if len(event.peers) != 1 or event.peers[0].process is None or len(tree.members) >= MEMBERS_MAX:
            self.throw_out(event, f"Adopt takes one pidfd, and a tree at most {MEMBERS_MAX} processes")
            return
        self.forest.enter(tree, event.peers[0], message.pid, 0)
        self._acknowledge(tree, event.conn, m.Adopted(child=message.child))

    def _acknowledge(self, tree: Tree, conn: int, answer: m.ServerMessage) -> None:
        """No device access before this answer; and no answer before others have copies of the process's pidfd, and
        the file knows it if its tree holds.
        """
        self.machine.copies.hand_out()
        if self.machine.holds(tree):
            self.machine.write()
        self.machine.answer(conn, answer, on_disk=self.machine.holds(tree))

    def _turn_away(self, event: e.Received, why: str) -> None:
        """A final no."""
        message = event.message
        who = message.engine_id if isinstance(message, m.Register | m.Join) else "a caller"
        self.context.note("refused", engine=who, why=why)
        self._part(event, m.Refused(why=why))

    def throw_out(self, event: e.Received, why: str) -> None:
        """A mistake: it costs the sender this connection."""
        self._part(event, m.Problem(why=why))

    def _part(self, event: e.Received, last_word: m.ServerMessage) -> None:
        self.forest.forget(event.peers)
        self.context.send(event.conn, last_word)
        self.context.out.append(e.Close(event.conn))
        self.machine.closed(event.conn)

    def end_caller(self, conn: int) -> None:
        self.callers.pop(conn, None)
        self.context.out.append(e.Close(conn))

"""What a new server finds, and whether the holder that it finds is really gone (rule 7 of `machine.py`).

Pure, a part of the machine. In ordinary fencing nothing less than the whole proof counts (`Tree.gone`). A server that
has restarted may not be able to get all of it; what it takes instead, and what it doesn't, stands here.
"""

import math
from typing import TYPE_CHECKING

from lockserver import events as e
from lockserver.lock import Found, Lock, Recovery
from lockserver.messages import INIT
from lockserver.tree import Life, Stage

if TYPE_CHECKING:
    from lockserver.machine import Machine

STRANGERS_EVERY_S = 0.1
RETURN_S = 0.25
"""A holder whose server went away knocks every 0.1 s (`client_machine.py`): by then a live one is back."""


class Inquest:
    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.context = machine.context
        self.forest = machine.forest
        self.queue = machine.queue
        self.config = machine.config
        self.strangers: e.StrangersProbed | None = None
        """Who has a life lock here and has not registered with this server."""
        self._asked = False
        self._asked_at = -math.inf
        self._held_at = -math.inf

    def begin(self, event: e.Started) -> None:
        record, now = event.record, self.context.now
        if record is None:
            self.machine.token = event.token_floor
            self._doubt(Found.UNREADABLE if event.unreadable else Found.NOTHING, event.unreadable)
            return
        self.machine.token = record.token
        self.forest.graves = dict.fromkeys(record.gone, 0)
        for lock, tenure in ((self.machine.active, record.active), (self.machine.init, record.permits.get(INIT))):
            if tenure is None:
                continue
            if record.boot_id != self.config.boot_id:
                self.context.note("died_with_its_boot", engine=tenure.engine_id, lock=lock.name, token=tenure.token)
                self.forest.graves[tenure.life_file] = 0
                continue
            lock.holder, lock.told, lock.token = self.forest.awaited(tenure), True, tenure.token
            lock.granted_at, lock.endpoint, lock.verified = tenure.granted_at, tenure.endpoint, tenure.verified
            lock.recovery = Recovery(Found.HOLDER, now, now + self.config.window_s)
            self.context.note("awaiting_holder", engine=tenure.engine_id, lock=lock.name, token=tenure.token)
        if record.doubt in Found.__members__ and record.boot_id == self.config.boot_id:
            self._doubt(Found[record.doubt], "an earlier server could not read it")
        if self.forest.graves:
            self.machine.write()
        self._probe()

    def _doubt(self, found: Found, why: str) -> None:
        """Somebody unknown may hold the lock."""
        if found is Found.UNREADABLE:
            self.context.alarm(
                "record",
                f"holder.json can't be read ({why}); it was kept aside, and somebody unknown may hold the lock",
            )
        now = self.context.now
        until = now + (self.config.window_s if found is Found.UNREADABLE else self.config.settle_s)
        self.machine.active.recovery = Recovery(found, now, until)
        if self.machine.init.holder is None:
            self.machine.init.recovery = Recovery(found, now, until)

    def gone(self, lock: Lock) -> bool:
        """The holder is gone by the proof; or, for a server that restarted and can't get all of it, by what rule 7
        takes instead.
        """
        tree, recovery = lock.holder, lock.recovery
        assert tree is not None
        if tree.gone:
            return True
        if recovery is None:
            return False
        over = self.context.reached(recovery.until)
        if over and self.config.presume_dead:
            self.context.shout(
                f"{tree.engine_id} is presumed dead after the window, without proof (--unsafe-presume-dead)"
            )
            return True
        free = tree.life is Life.FREE or (tree.life is Life.MISSING and over)
        if tree.seen_alive or not free:
            return False
        if lock is self.machine.init or tree.members_gone or self.queue.memory_proves():
            return True
        if over and self.config.grant_unproven:
            self.context.shout(
                f"{tree.engine_id} is taken for gone because its life lock is free; "
                "pidfds and memory don't prove it (--grant-unproven)"
            )
            return True
        if over:
            self.context.alarm(
                "unproven",
                f"the life lock of {tree.engine_id} is free, but neither pidfds nor memory prove its end; "
                "once you know that it is gone, start the server with --grant-unproven",
            )
        return False

    def nobody_holds(self, recovery: Recovery) -> bool:
        """There was no holder file that could be read. Nobody unknown has a life lock here; and memory proves it, or
        time has passed.
        """
        over = self.context.reached(recovery.until)
        if over and self.config.presume_dead:
            return True
        probed = self.strangers
        stale = probed is None or probed.held or (over and self._asked_at < recovery.until)
        if stale and not self._asked and self.context.reached(self._asked_at + STRANGERS_EVERY_S):
            self._probe()
        if probed is None or stale:
            if over and probed is not None and probed.held:
                self.context.alarm(
                    "strangers", f"a life lock is held by somebody who doesn't come: {', '.join(probed.held[:3])}"
                )
            return False
        if any(tree.stage is Stage.AWAITED and tree.seen_alive for tree in self.forest.ending.values()):
            return False
        if not self.context.reached(self._held_at + self.config.settle_s):
            return False  # who let go of its life lock may be dying, and hold memory a little longer
        if not (self.context.reached(recovery.since + RETURN_S) and self.queue.memory_proves()):
            if not over:
                return False
            if recovery.found is Found.UNREADABLE and not self.config.grant_unproven:
                self.context.alarm(
                    "unproven",
                    "holder.json could not be read, and neither memory nor a returning holder tells more; "
                    "once you know that no engine is awake, start the server with --grant-unproven",
                )
                return False
        self.forest.graves.update({name: 0 for name in probed.free if name not in self.forest.trees})
        return True

    def _probe(self) -> None:
        """Everybody who has a life lock here, and has not registered with this server."""
        self._asked, self._asked_at = True, self.context.now
        known = tuple(
            name
            for name, tree in self.forest.trees.items()
            if tree.stage is not Stage.AWAITED or self.machine.holds(tree)
        )
        self.context.out.append(e.ProbeStrangers(known))

    def strangers_probed(self, event: e.StrangersProbed) -> None:
        self.strangers, self._asked = event, False
        recovery = self.machine.active.recovery
        if recovery is not None and recovery.found is not Found.HOLDER:
            if event.held:
                self._held_at = self.context.now
        else:
            for name in event.free:
                if name not in self.forest.trees and name not in self.forest.graves:
                    self.context.out.append(e.Unlink(name))

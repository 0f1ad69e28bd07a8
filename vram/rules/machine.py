"""The rules of the ledger: which tree was promised which bytes of a device.

Pure: an event and the time go in, effects come out (`events.py`); `shell/server.py` has the sockets. What is known of
processes is in the package `evidence`, which has its own rules, with an E. This file takes events in and composes;
the parts know neither it nor the sockets.

A tree's main process says `Reserve`, and is told `Granted`; the lease belongs to a name and is held by the tree. The
rules, and where they stand:

 V1. A lease counts with all its bytes from the decision until it has ended. One holder of a name at a time; its number
     is no other lease's, nor another holder's, ever (`leases.py`, `grants.py`).
 V2. It is granted only if, on every device that it names, what counts, what is foreign, what is kept free and the need
     fit into the device; and, where memory can be read, as much is seen to be free in that moment. All devices or none
     (`queue.py`).
 V3. First on disk, then told: `Persist`, `Persisted`, `Granted` (`grants.py`). While that can't be written nothing more
     is granted.
 V4. What a tree had that has died is free as soon as its end is proven (rule E1), and not before; nothing is waited out
     (`ends.py`). What other processes keep (it `outlives` its holder) is not: it counts as returning, all of it as far
     as it can be in use, and after the window as in V5 (`returns.py`, `devices.py`). The next holder of the name needs
     no room for what it has `found` of it, as far as that was kept so, is foreign, or is overdue of another (V5)
     (`queue.py`, `grants.py`).
 V5. What a living tree gives back counts as `returning` until its device shows that it is free. If it doesn't, an alarm
     names the tree, and says what is missing. Where no program can read, a word is enough, and status says `unverified`
     (`returns.py`, `devices.py`).
     What is overdue so is lacking to all but the tree that still has it: that tree may lease it again under the same
     name, where it has no room without it (`queue.py`).
 V6. What is in use and leased by none is foreign: it is measured, and taken off. A claim that no file knows takes its
     bytes out of that, and so does what a holder has found. What no reading has shown for a minute is foreign no more
     (`devices.py`).
 V7. When a holder has died, and an heir of the name lives, the bytes stay with the name, and are the heir's for the
     asking. Not if they were to be given back; an heir that waits for more than these keeps them from none before it,
     and from none that it would wait for in vain; and one that doesn't ask keeps them from none for long (`heirs.py`,
     `queue.py`).
 V8. Waiters are served by time and priority in one order, which ages; one gets nothing that keeps those before it
     waiting longer (`queue.py`).
 V9. For a waiter that has no room holders of evictable leases are asked to give back: none that are more urgent than
     it, the least urgent and least recently used first, no more than it takes, and none where that leads to nothing.
     One that doesn't in time is named in an alarm, and the next one is asked. Nothing is killed (`asking.py`).
V10. After a restart the file rules: its leases count, and come back with their holders. A lease that its holder doesn't
     know of was never told, and ends; one that only its holder knows is true (`claims.py`). Nothing is granted while a
     tree that no file names may have a lease (`recovery.py`).
V11. What can never fit is denied, with the figures (`devices.py`). A waiter that gives up isn't granted it; unless the
     grant came first (`requests.py`).
"""

from functools import partial
from typing import Any

from evidence.rules.admission import Admitted, Reception
from evidence.rules.events import MemoryRead, Persist, Received, StrangersProbed
from evidence.rules.incarnation import MAIN, Incarnation, Stage
from evidence.rules.incarnations import Plan as EvidencePlan
from evidence.rules.tree_machine import TreeMachine
from sidecar.machine.context import PersistFailed, Publish, Time
from sidecar.machine.plan import Circle, Plan, conclude
from sidecar.terminal.formatting import size
from sidecar.wire.versions import Spoken
from vram.rules import messages as m
from vram.rules.asking import Asking
from vram.rules.books import Books
from vram.rules.claims import Claims
from vram.rules.ends import Ends
from vram.rules.events import Config, Started
from vram.rules.grants import Grants, Telling
from vram.rules.leases import Lease, some
from vram.rules.queue import Queue
from vram.rules.record import Record
from vram.rules.recovery import Recovery
from vram.rules.requests import Requests
from vram.rules.returns import Returns
from vram.rules.status import status_of

LOOK_EVERY_S = 2.0
"""While there are leases memory is read so often: what others take is to be known before it is needed."""
MOST_ROUNDS = 5000
"""Plans that may follow from one event: more is a circle."""


class Machine(TreeMachine):
    def __init__(self, config: Config) -> None:
        self.books = books = Books(config)
        super().__init__(books.context, books.evidence, books.disk)
        self.config, self.memory, self.devices = config, books.memory, books.devices
        self.leases, self.heirs = books.leases, books.heirs
        self.returns = returns = Returns(books)
        self.asking = Asking(books, returns)
        self.queue = Queue(books, returns, self.asking)
        self.grants = grants = Grants(books, self.queue, returns)
        self.ends = Ends(books, self.callers, returns)
        claims = Claims(books, grants, self.asking, self.ends)
        spoken = Spoken(m.OLDEST, m.PROTOCOL)
        self.reception = Reception(self.context, self.evidence, self.callers, spoken, claims, self)
        self.asked_for = Requests(books, self.reception, self.queue, returns, grants)
        self.recovery = Recovery(config, self.evidence)
        self.broken = ""
        """Its own rules go round in a circle: a bug. Nothing is granted any more then."""

    # -- the one door ----------------------------------------------------------------------------------------------

    def handle(self, event: Any, time: Time) -> list[Any]:
        context = self.context
        context.begin(time)
        self.handlers[type(event)](self, event)
        if self.is_started:
            self._conclude()
        if context.changed:
            context.changed = False
            self.hand_out()
            context.out.append(Publish())
        return context.out

    @property
    def deadline(self) -> float:
        return self.context.deadline

    @property
    def status(self) -> m.Status:
        return status_of(self.books, self.queue, self.recovery)

    # -- what follows ----------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        try:
            plan = conclude(self._ask, MOST_ROUNDS)
        except Circle as circle:
            plan, self.broken = circle.newest, str(circle)
            self.context.alarm(
                "broken", f"a bug of the ledger: nothing is granted any more; report this: {self.broken}"
            )
        self.memory.forget()
        self.queue.taken.clear()
        self.context.wake(plan.again)
        self.context.changed = self.context.changed or self.leases.altered
        self.write_if_due()

    def _ask(self) -> Plan:
        self.ends.bind()
        return self.plan()

    def plan(self) -> Plan:
        """What is to be done now, and when to look again. Each part speaks once those before it have nothing to do."""
        plan = Plan(self.context.now, self.context.alarms)
        evidence = self.incarnations.plan(plan.now)
        if evidence.looks:
            plan.do(self._carry_out, evidence)
            return plan
        plan.again = evidence.again
        returns = partial(self.returns.plan, found={w.name for w in self.queue.waiters.values() if w.found})
        asking = partial(self.asking.plan, any_waits=bool(self.queue.waiters))
        for part in (self.ends.plan, returns, asking):
            part(plan)
            if plan.steps:
                return plan
        for device in self.devices.totals:
            over = -self.devices.room(device)
            text = f"of {device} {size(over)} more are taken than there are" if over > 0 else ""
            self._plan_alarm(plan, f"over {device}", text)
        settled, awaited = self.recovery.plan(plan)
        self._plan_alarm(plan, "unsettled", self._why_unsettled(plan, awaited))
        if settled and not plan.steps and not self.disk.failing and not self.broken:
            self.queue.plan(plan, self.grants.grant)
        if not plan.steps and self.memory.is_read and (self.leases.all or self.queue.waiters or not self.devices.used):
            self.memory.plan(plan, LOOK_EVERY_S)
        return plan

    def _why_unsettled(self, plan: Plan, awaited: list[str]) -> str:
        """What is being started may take a while to come: a person is told once the window is over, too."""
        late_at = self.recovery.until + self.config.window_s
        late = awaited and self.recovery.lost_file and not plan.wait_until(late_at)
        return f"nothing is leased: {self.recovery.lost_file}, and {awaited[0]}" if late else ""

    def _plan_alarm(self, plan: Plan, key: str, text: str) -> None:
        if text:
            plan.say(self.context.alarm, key, text)
        else:
            plan.calm(self.context.calm, key)

    def _carry_out(self, plan: EvidencePlan) -> None:
        self.end(self.incarnations.carry_out(plan))

    # -- callers ---------------------------------------------------------------------------------------------------

    def lost(self, who: Incarnation, stage: Stage, seen_by: str) -> None:
        self.queue.lost(who)
        self.ends.lost(who, stage, seen_by)

    def welcome(self, event: Received, admitted: Admitted) -> None:
        who, main = admitted.who, isinstance(event.message, m.Register)
        after = 0
        if not main:
            after = self.record_member(who)
        elif self.must_write:
            self.write()
            after = self.disk.asked
        said = m.Welcome(
            server_incarnation=self.config.server_incarnation,
            number=admitted.number,
            settle_s=self.config.settle_s,
            secret=who.secret if admitted.number == MAIN else "",
            protocol=admitted.version,
        )
        self.say_on_disk(event.conn, said, after)

    def _on_ask_status(self, event: Received, message: m.AskStatus, caller: object) -> None:
        self.send(event.conn, self.status)

    def _on_ask_history(self, event: Received, message: m.AskHistory, caller: object) -> None:
        events, left_out = self.context.recent()
        self.send(event.conn, m.History(events=events, left_out=left_out))

    # -- the disk --------------------------------------------------------------------------------------------------

    @property
    def must_write(self) -> bool:
        return self.leases.altered or super().must_write

    def persist(self, number: int) -> None:
        self.ends.bind()
        record = Record(
            self.evidence.record(),
            [lease.recorded() for lease in self.leases.all.values()],
            self.heirs.recorded(),
            some(self.devices.foreign),
            self.devices.used,
            self.recovery.lost_file,
        )
        self.leases.altered = False
        self.context.out.append(Persist(number, record))

    def on_disk(self, owed: Telling) -> None:
        self.grants.say(owed)

    def _on_persist_failed(self, event: PersistFailed) -> None:
        if self.on_persist_failed(event):
            self.context.alarm("persist", f"vram.json can't be written ({event.why}): nothing is leased until it can")

    def _on_started(self, event: Started) -> None:
        self.is_started, record, self.grants.newest = True, event.record, event.number_floor
        same_boot = record is not None and self.evidence.begin(record.processes)
        self.recovery.begin(event, self.context.now, same_boot=same_boot)
        if record is None:
            return
        if self.incarnations.pending_unlinks:
            self.disk.now()
        if not same_boot:
            return
        known = self.incarnations.known
        self.devices.begin(record.foreign, record.used)
        for found in record.leases:
            tree = known[found.tree] if found.tree else None
            lease = Lease(found.lease, found.name, tree, found.bytes, found.priority, found.evictable, found.granted_at)
            lease.returning, lease.inherited, lease.outlives = found.returning, found.inherited, found.outlives
            lease.used_at = lease.returning_since = self.context.now
            lease.fresh_until = self.context.now + self.config.window_s if tree is None else 0.0
            self.leases.add(lease)
        for name, trees in record.heirs.items():
            for each in trees:
                self.heirs.add(name, known[each])
        self.leases.altered = False
        self.ends.await_all()

    # -- the rest --------------------------------------------------------------------------------------------------

    def _on_memory_read(self, event: MemoryRead) -> None:
        self.memory.came(event)
        if self.memory.is_known:
            self.devices.came(event, self.context.now)
            self.context.changed = True


Machine.handlers = {
    **TreeMachine.handlers,
    Started: Machine._on_started,
    MemoryRead: Machine._on_memory_read,
    StrangersProbed: lambda machine, event: machine.evidence.strangers.probed(
        event, keep=bool(machine.recovery.lost_file)
    ),
    PersistFailed: Machine._on_persist_failed,
}
Machine.requests = {
    **TreeMachine.requests,
    m.Reserve: lambda machine, *said: machine.asked_for.reserve(*said),
    m.Resize: lambda machine, *said: machine.asked_for.resize(*said),
    m.Withdraw: lambda machine, *said: machine.asked_for.withdraw(*said),
    m.Set: lambda machine, *said: machine.asked_for.set(*said),
    m.Heir: lambda machine, *said: machine.asked_for.heir(*said),
}
Machine.of_any_caller = {
    m.Watch: TreeMachine.watch,
    m.AskStatus: Machine._on_ask_status,
    m.AskHistory: Machine._on_ask_history,
}

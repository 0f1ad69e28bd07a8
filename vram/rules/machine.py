"""The rules of the ledger: who was promised which bytes of a device.

Pure: an event and the time go in, effects come out (`events.py`); `shell/server.py` has the sockets. What is known of
processes is in the package `evidence`, which has its own rules, with an E. This file takes events in and composes.

A tree's main process says `Reserve`, and is told `Granted`; the lease belongs to a name and is held by the tree. The
rules, and where they stand:

 V1. A lease counts with all its bytes from the decision until it has ended. One holder of a name at a time; its number
     is no other lease's, ever (`leases.py`).
 V2. It is granted only if, on every device that it names, what counts, what is foreign, what is kept free and the need
     fit into the device; and, where memory can be read, as much is seen to be free in that moment. All devices or none
     (`queue.py`).
 V3. First on disk, then told: `Persist`, `Persisted`, `Granted`. A grant that can't be written isn't made.
 V4. What a tree had that has died is free as soon as its end is proven (rule E1), and not before; nothing is waited
     out.
 V5. What a living tree gives back counts as `returning` until its device shows that it is free. If it doesn't, an alarm
     says who said so, and what is missing. Where no program can read, a word is enough, and status says `unverified`
     (`devices.py`).
     What is overdue so is lacking to all but the tree that still has it, which may have it again where it has no room
     without that, under the same name.
 V6. What is in use and leased by none is foreign: it is measured, and taken off (`devices.py`).
 V7. When a holder has died, and an heir of the name lives, the bytes stay with the name, and are the heir's for the
     asking. Not if they were to be given back; and an heir that waits for more than these keeps them from none before
     it, and from none that it would wait for in vain (`queue.py`).
 V8. Waiters are served by time and priority in one order, which ages; one gets nothing that keeps those before it
     waiting longer (`queue.py`).
 V9. For a waiter that has no room holders of evictable leases are asked to give back: none that are more urgent than
     it, the least urgent and least recently used first, no more than it takes, and none where that leads to nothing.
     One that doesn't in time is named in an alarm, and the next one is asked. Nothing is killed (`queue.py`).
V10. After a restart the file rules: its leases count, and come back with their holders. A lease that its holder doesn't
     know of was never told, and ends; one that only its holder knows is true. Nothing is granted while a tree that no
     file names may have a lease (`recovery.py`).
V11. What can never fit is denied, with the figures (`devices.py`). A waiter that gives up isn't granted it; unless the
     grant came first.
V12. What a lease was resized to is remembered for its name: that is what it needs (`Machine._on_resize`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evidence.rules.admission import Admitted
from evidence.rules.events import MemoryRead, Persist, Received, StrangersProbed
from evidence.rules.free_memory import FreeMemory
from evidence.rules.incarnation import MAIN, Incarnation, Life, Stage
from evidence.rules.incarnations import Plan as EvidencePlan
from evidence.rules.proof import Verdict, what_is_missing
from evidence.rules.tree_machine import Answer, TreeMachine
from sidecar.machine.context import (
    DirectoryReplaced,
    Hindered,
    PathWatched,
    PersistFailed,
    Publish,
    Stop,
    Tick,
    Time,
    rfc3339,
)
from sidecar.machine.plan import Plan
from sidecar.wire.versions import Spoken
from vram.rules import messages as m
from vram.rules.devices import Devices
from vram.rules.events import Config, Started
from vram.rules.leases import Asked, Lease, Leases, minus, plus, some
from vram.rules.messages import Bytes
from vram.rules.queue import MOST_OF_ONE, MOST_WAITERS, Deeds, Queue, Waiter, pace
from vram.rules.record import Record
from vram.rules.recovery import Recovery
from vram.rules.status import status_of

LOOK_EVERY_S = 2.0
"""While there are leases memory is read so often: what others take is to be known before it is needed."""
MOST_ROUNDS = 5000
"""Plans that may follow from one event: more is a circle."""
MOST_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Telling:
    """What a lease has is on disk; then its holder is told."""

    tree: Incarnation
    number: int
    lease: Lease
    waiter: Waiter | None = None
    """Which was granted it. None: its holder has given back a part, and that stands."""
    before: Bytes | None = None
    """What it had. None: it is new. (An heir's is what it has inherited.)"""
    again: Sequence[tuple[Lease, Bytes]] = ()
    """What was returning of these, and is the holder's again."""


class Machine(TreeMachine):
    untrue = "claimed a lease that it does not have"

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.history_size, Spoken(m.OLDEST, m.PROTOCOL))
        self.config = config
        self.leases = Leases()
        self.devices = Devices(config, self.leases)
        self.memory = FreeMemory(config, self.context)
        deeds = Deeds(self._grant, self._deny, self._ask, self._say)
        self.queue = Queue(config, self.leases, self.devices, self.memory, deeds)
        self.recovery = Recovery(config, self.evidence)
        self.newest = 0
        """The number of the lease that was granted last."""
        self.remembered: dict[str, Bytes] = {}
        self.broken = ""
        """Its own rules go round in a circle: a bug. Nothing is granted any more then."""
        self._started = False
        self._heirs_changed = False
        self._to_tell: list[Telling | Answer] = []
        """Once it is on disk: what the next write says first."""
        self._lost_at: dict[str, float] = {}
        """Since when the end, or the return, of a tree is awaited."""

    # -- the one door ----------------------------------------------------------------------------------------------

    def handle(self, event: Any, time: Time) -> list[Any]:
        context = self.context
        context.begin(time)
        self.handlers[type(event)](self, event)
        if self._started:
            self._conclude()
        if context.changed:
            context.changed = False
            self.reception.hand_out(0)
            context.out.append(Publish())
        return context.out

    @property
    def deadline(self) -> float:
        return self.context.deadline

    @property
    def status(self) -> m.Status:
        return status_of(
            self.config, self.context, self.leases, self.devices, self.queue, self.recovery, self.remembered
        )

    # -- what follows ----------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        for _ in range(MOST_ROUNDS):
            self._bind()
            plan = self.plan()
            if not plan.carry_out():
                break
        else:
            self.broken = f"the rules go round in a circle: {plan.steps[:3]}"
            self.context.alarm(
                "broken", f"a bug of the ledger: nothing is granted any more; report this: {self.broken}"
            )
        self.memory.forget()
        self.queue.taken.clear()
        self.context.wake(plan.again)
        self.write_if_due()

    def _bind(self) -> None:
        if self.leases.trees_changed or self._heirs_changed:
            self.leases.trees_changed = self._heirs_changed = False
            heirs = {name: tree for named in self.queue.heirs.values() for name, tree in named.items()}
            self.evidence.bind(heirs | self.leases.trees())

    def plan(self) -> Plan:
        """What is to be done now, and when to look again. Each part speaks once those before it have nothing to do."""
        plan = Plan(self.context.now, self.context.alarms)
        evidence = self.evidence.plan(plan.now)
        if evidence.looks:
            plan.do(self._carry_out, evidence)
            return plan
        plan.again = evidence.again
        for part in (self._plan_ends, self._plan_estates, self._plan_returning, self._plan_asked):
            part(plan)
            if plan.steps:
                return plan
        for device in self.devices.totals:
            over = -self.devices.room(device)
            text = f"of {device} {over} bytes more are taken than there are" if over > 0 else ""
            self._plan_alarm(plan, f"over {device}", text)
        settled, awaited = self.recovery.plan(plan)
        self._plan_alarm(plan, "unsettled", self._why_unsettled(plan, awaited))
        if settled and not plan.steps and not self.disk.failing and not self.broken:
            self.queue.plan(
                plan, [lease for name in self._ending() for lease in self.leases.of_tree(name) if lease.ends]
            )
        if not plan.steps and self.memory.is_read and (self.leases.all or self.queue.waiters or not self.devices.used):
            self.memory.plan(plan, LOOK_EVERY_S)
        return plan

    def _why_unsettled(self, plan: Plan, awaited: list[str]) -> str:
        late = awaited and self.recovery.lost_file and not plan.wait_until(self.recovery.until)
        return f"nothing is leased: {self.recovery.lost_file}, and {awaited[0]}" if late else ""

    def _plan_alarm(self, plan: Plan, key: str, text: str) -> None:
        if text:
            plan.say(self.context.alarm, key, text)
        else:
            plan.calm(self.context.calm, key)

    # -- ends (V4, V7) ---------------------------------------------------------------------------------------------

    def lost(self, who: Incarnation, stage: Stage, seen_by: str) -> None:
        for key, waiter in list(self.queue.waiters.items()):
            if waiter.tree is who:
                del self.queue.waiters[key]
        if self.incarnations.lose(who, stage):
            self._lost_at[who.name] = self.context.now
            if who.bound:
                self.context.note("lost", tree=who.name, seen_by=seen_by)

    def _is_gone(self, who: Incarnation, now: float) -> Verdict:
        mine = self.leases.of_tree(who.name)
        found = not who.came or who.unaccounted
        return self.evidence.is_gone(
            who,
            found=found,
            over=now >= self._lost_at.get(who.name, now) + self.config.window_s,
            memory_is_free=self.memory.is_known and self.devices.shows_free(mine),
            life_lock_is_enough=not mine,
            unknown_may_be_dying=bool(mine) and now < who.outlived_at + self.config.settle_s,
        )

    def _ending(self) -> list[str]:
        """Trees that have something, and aren't here."""
        return sorted(self.incarnations.bound.keys() & self.incarnations.absent.keys())

    def _ending_leases(self) -> list[Lease]:
        return [lease for name in self._ending() for lease in self.leases.of_tree(name) if lease.ends]

    def _plan_ends(self, plan: Plan) -> None:
        for name in self._ending():
            who = self.incarnations.bound[name]
            verdict = self._is_gone(who, plan.now)
            if verdict.enough:
                plan.do(self._end_tree, who, verdict)
                continue
            waits = plan.wait_until(self._lost_at.get(name, plan.now) + self.config.window_s)
            dying = plan.wait_until(who.outlived_at + self.config.settle_s)
            if who.life is Life.FREE and not who.seen_alive and (dying or not who.gone) and self.memory.is_read:
                self.memory.plan(plan, pace(plan.now - self._lost_at.get(name, plan.now)))
            if not waits and who.stage is not Stage.LOST:
                why = verdict.alarm or "; ".join(what_is_missing(who, new_server=not who.came)[:5])
                plan.say(self.context.alarm, f"end {name}", f"{name} is not proven gone, and its leases count: {why}")

    def _end_tree(self, who: Incarnation, verdict: Verdict) -> None:
        for lease in self.leases.of_tree(who.name):
            if lease.bytes and self.queue.inherited(lease):
                self.context.note("kept_for_heir", lease=lease.number, name=lease.name)
                self._gone(lease.returning)
                self.leases.change(lease, returning={})
                self.leases.pass_on(lease, None)
            else:
                self._end(lease, "ended", by=verdict.by)
        for name in [name for name, heirs in self.queue.heirs.items() if heirs.pop(who.name, None)]:
            if not self.queue.heirs[name]:
                del self.queue.heirs[name]
        self._forget_telling(who)
        self._lost_at.pop(who.name, None)
        self.context.calm(f"end {who.name}")
        self._bind()
        self.end(self.evidence.remove(who))
        self.must_write = self.context.changed = True

    def _end(self, lease: Lease, how: str, **more: str) -> None:
        self.context.note(how, lease=lease.number, name=lease.name, **more)
        self._gone(lease.counted)
        self.context.calm(f"returning {lease.number}", f"asked {lease.number}")
        self.leases.end(lease)
        self.must_write = self.context.changed = True

    def _gone(self, bytes: Bytes) -> None:
        self.devices.ended(bytes)
        self.memory.something_ended()
        self.queue.changed_at = self.context.now

    def _plan_estates(self, plan: Plan) -> None:
        for lease in self.leases.of_tree(""):
            if not self.queue.heirs.get(lease.name):
                plan.do(self._end, lease, "ended")

    def _carry_out(self, plan: EvidencePlan) -> None:
        self.end(self.evidence.carry_out(plan))

    # -- what is given back (V5) -----------------------------------------------------------------------------------

    def _plan_returning(self, plan: Plan) -> None:
        leases = list(self.leases.returning.values())
        if not leases:
            return
        readable = any(self.devices.can_be_read(device) for lease in leases for device in lease.returning)
        if self.memory.is_known or not readable:
            for lease, still in self.devices.returned():
                plan.do(self._returned, lease, still)
        if plan.steps:
            return
        since = [lease.returning_since for lease in leases]
        self.memory.plan(plan, pace(plan.now - max(since)))
        for lease in leases:
            if not plan.wait_until(lease.returning_since + self.config.patience_s):
                if not lease.overdue:
                    plan.do(self._overdue, lease)
                plan.say(self.context.alarm, f"returning {lease.number}", self._not_back(lease))

    def _overdue(self, lease: Lease) -> None:
        lease.overdue = True

    def _not_back(self, lease: Lease) -> str:
        who = f"{lease.tree.engine_id} (process {lease.tree.pid})" if lease.tree is not None else "its holder"
        missing = ", ".join(f"{count} bytes of {device}" for device, count in sorted(lease.returning.items()))
        return f"{who} said that it has given back {lease.name}, and {missing} are still in use"

    def _returned(self, lease: Lease, still: Bytes) -> None:
        back = minus(lease.returning, still)
        self.devices.ended(back)
        if still:
            self.leases.change(lease, returning=still)
            self.must_write = self.context.changed = True
        else:
            self.context.calm(f"returning {lease.number}")
            self.context.note("returned", lease=lease.number, name=lease.name)
            self.leases.change(lease, returning={})
            self.must_write = self.context.changed = True

    def _give_back(self, lease: Lease, left: Bytes, *, unused: bool) -> None:
        """The holder has only so much from now on."""
        back = minus(lease.bytes, left)
        if not back:
            return
        self.context.note("gave_back", lease=lease.number, name=lease.name, whole=not left)
        asked = lease.asked
        if asked is not None:
            rest = minus(asked.bytes, back)
            self.leases.ask(lease, Asked(rest, asked.until, asked.for_name, asked.late) if rest and left else None)
        if lease.asked is None:
            self.context.calm(f"asked {lease.number}")
        lease.returning_since, lease.overdue = self.context.now, False
        returning = lease.returning if unused else plus(lease.returning, back)
        self._gone({})
        self.leases.change(lease, bytes=left, returning=returning)
        self.must_write = self.context.changed = True

    # -- grants (V2, V3) -------------------------------------------------------------------------------------------

    def _grant(self, waiter: Waiter) -> None:
        now = self.context.now
        del self.queue.waiters[waiter.tree.name, waiter.number]
        lease = waiter.lease or self.queue.estate(waiter)
        lacks = self.queue.lacks(waiter)
        again = self.queue.again(waiter)
        self.queue.taken.update(lacks)
        before = dict(lease.bytes) if lease is not None else None
        for old, part in again:
            self._has_again(waiter, old, part)
        if lease is None:
            self.newest += 1
            while self.newest in self.leases.all:
                self.newest += 1
            lease = self.leases.add(Lease(self.newest, waiter.name, waiter.tree, dict(some(waiter.needs))))
        elif lease.tree is None:  # an heir; what it doesn't need is free
            self._gone(minus(lease.bytes, waiter.needs))
            self.leases.change(lease, bytes=waiter.needs)
            self.leases.pass_on(lease, waiter.tree)
            lease.inherited = True
        else:
            self.leases.change(lease, bytes=waiter.needs)
        if waiter.lease is None:
            lease.priority, lease.evictable = waiter.priority, waiter.evictable
            lease.granted_at, lease.used_at = rfc3339(self.context.wall), now
            lease.fresh_until = now + self.config.least_held_s
        if waiter.lease is not None:
            self._remember(lease)
        self._to_tell.append(Telling(waiter.tree, waiter.number, lease, waiter, before, again))
        self.must_write = self.context.changed = True

    def _has_again(self, waiter: Waiter, lease: Lease, part: Bytes) -> None:
        self.leases.change(lease, returning=minus(lease.returning, part))
        if not lease.returning:
            self.context.calm(f"returning {lease.number}")
        for device, count in part.items():
            self.context.note("has_again", name=lease.name, tree=waiter.tree.name, device=device, bytes=count)

    def _remember(self, lease: Lease) -> None:
        self.remembered.pop(lease.name, None)
        self.remembered[lease.name] = dict(lease.bytes)
        if len(self.remembered) > MOST_REMEMBERED:
            del self.remembered[next(iter(self.remembered))]

    def on_disk(self, owed: Telling) -> None:
        tree, lease = owed.tree, owed.lease
        if owed.waiter is not None:
            self.context.note("granted", lease=lease.number, name=lease.name, tree=tree.name)
        if tree.conn is not None:
            self.send(tree.conn, m.Granted(number=owed.number, lease=lease.number, bytes=lease.bytes))

    def _forget_telling(self, who: Incarnation) -> None:
        """It is gone, or has come anew and says what it knows."""
        self._to_tell = [each for each in self._to_tell if not (isinstance(each, Telling) and each.tree is who)]
        self.disk.take_back(lambda owed: isinstance(owed, Telling) and owed.tree is who)

    def _on_persist_failed(self, event: PersistFailed) -> None:
        if not self.on_persist_failed(event):
            return
        untold = [owed for owed in self.disk.owed if isinstance(owed, Telling) and owed.waiter is not None]
        self.disk.take_back(lambda owed: owed in untold)
        for telling in reversed(untold):
            if telling.waiter is not None:
                self._take_back(telling, telling.waiter)
        self.context.alarm("persist", f"vram.json can't be written ({event.why}): nothing is leased until it can")

    def _take_back(self, telling: Telling, waiter: Waiter) -> None:
        """It isn't on disk, and was not told: it is decided anew."""
        lease, before = telling.lease, telling.before
        for old, part in telling.again:
            self.leases.change(old, returning=plus(old.returning, part))
        if before is None:
            self.leases.end(lease)
        else:
            self.leases.change(lease, bytes=before)
            if waiter.lease is None:
                self.leases.pass_on(lease, None)
        if waiter.tree.stage is Stage.PRESENT:
            self.queue.waiters[waiter.tree.name, waiter.number] = waiter

    def persist(self, number: int) -> None:
        for each in self._to_tell:
            self.disk.owe(each)
        self._to_tell.clear()
        self._bind()
        record = Record(
            self.evidence.record(),
            [lease.recorded() for lease in self.leases.all.values()],
            {name: list(heirs) for name, heirs in self.queue.heirs.items()},
            some(self.devices.foreign),
            self.devices.used,
            self.remembered,
            self.recovery.lost_file,
        )
        self.context.out.append(Persist(number, record))

    # -- asking for memory (V9) ------------------------------------------------------------------------------------

    def _ask(self, waiter: Waiter, chosen: list[tuple[Lease, Bytes]]) -> None:
        for lease, part in chosen:
            if lease.tree is None:  # its holder is gone
                self._end(lease, "left_to_others", wanted_for=waiter.name)
                continue
            self.leases.ask(lease, Asked(part, self.context.now + self.config.ask_s, waiter.name))
            self.context.note("asked", lease=lease.number, name=lease.name, wanted_for=waiter.name)
            self._say_asked(lease)
        self.context.changed = True

    def _say_asked(self, lease: Lease) -> None:
        asked, tree = lease.asked, lease.tree
        if asked is not None and tree is not None and tree.conn is not None:
            left_s = max(0.0, asked.until - self.context.now)
            why = f"{asked.for_name} waits for it"
            self.send(tree.conn, m.Asked(lease=lease.number, bytes=asked.bytes, timeout_s=left_s, why=why))

    def _plan_asked(self, plan: Plan) -> None:
        self.queue.plan_asked(plan, self._late)

    def _late(self, lease: Lease) -> None:
        """What it was asked for hasn't come in time; or no waiter wants it any more."""
        asked, tree = lease.asked, lease.tree
        if asked is None or tree is None or asked.late or not self.queue.waiters:
            self.leases.ask(lease, None)
            self.context.calm(f"asked {lease.number}")
            return
        self.leases.ask(lease, Asked(asked.bytes, asked.until, asked.for_name, late=True))
        self.context.alarm(
            f"asked {lease.number}",
            f"{tree.engine_id} (process {tree.pid}) was asked to give back {lease.name} for {asked.for_name}, "
            f"and has not within {self.config.ask_s:g} s",
        )

    def _deny(self, waiter: Waiter, why: str) -> None:
        del self.queue.waiters[waiter.tree.name, waiter.number]
        self.context.note("denied", name=waiter.name, why=why)
        self.context.changed = True
        if waiter.tree.conn is not None:
            self.send(waiter.tree.conn, m.Denied(number=waiter.number, why=why))

    def _say(self, waiter: Waiter, text: str) -> None:
        waiter.waits_for = text
        self.context.changed = True

    # -- requests --------------------------------------------------------------------------------------------------

    def _on_reserve(self, event: Received, message: m.Reserve, who: Incarnation) -> None:
        named = self.leases.named(message.name)
        needs = some(message.needs)
        if not needs:
            self._deny_at_once(event, message.number, "no bytes are asked for")
        elif named is not None and named.tree is who:
            self._deny_at_once(event, message.number, f"{message.name} is this tree's already: resize it")
        else:
            self._wait(event, message, who, message.name, needs, message.priority, message.evictable, None)

    def _on_resize(self, event: Received, message: m.Resize, who: Incarnation) -> None:
        lease = self.leases.all.get(message.lease)
        if lease is None or lease.tree is not who:
            self._deny_at_once(event, message.number, f"lease {message.lease} is not this tree's")
            return
        for key, waiter in list(self.queue.waiters.items()):
            if waiter.lease is lease:
                del self.queue.waiters[key]
                self._deny_at_once(event, waiter.number, f"{lease.name} is to have another size by now")
        wanted, lease.inherited = some(message.bytes), False
        left = {device: min(count, wanted.get(device, 0)) for device, count in lease.bytes.items()}
        self._give_back(lease, some(left), unused=message.unused)
        if minus(wanted, lease.bytes):
            self._wait(event, message, who, lease.name, wanted, lease.priority, lease.evictable, lease)
            return
        if wanted:
            self._remember(lease)
        self._to_tell.append(Telling(who, message.number, lease))
        self.must_write = True

    def _wait(
        self,
        event: Received,
        message: m.Reserve | m.Resize,
        who: Incarnation,
        name: str,
        needs: Bytes,
        priority: int,
        evictable: bool,
        lease: Lease | None,
    ) -> None:
        waiters, now = self.queue.waiters, self.context.now
        waiting, has = sum(waiter.tree is who for waiter in waiters.values()), len(self.leases.of_tree(who.name))
        if (
            waiting >= MOST_OF_ONE
            or (lease is None and waiting + has >= m.MOST_LEASES_OF_ONE)
            or len(waiters) >= MOST_WAITERS
        ):
            self._deny_at_once(event, message.number, "too many leases, or too many that wait")
            return
        since = now - message.waited_s
        wall = self.context.wall - message.waited_s
        waiter = Waiter(who, message.number, name, needs, priority, evictable, since, wall, lease)
        waiters[who.name, message.number] = waiter
        self.context.note("waiting", name=name, tree=who.name)
        self.context.changed = True

    def _deny_at_once(self, event: Received, number: int, why: str) -> None:
        self.context.note("denied", why=why)
        self.send(event.conn, m.Denied(number=number, why=why))

    def _on_withdraw(self, event: Received, message: m.Withdraw, who: Incarnation) -> None:
        self.queue.waiters.pop((who.name, message.number), None)
        self.context.changed = True
        told = [*self._to_tell, *self.disk.owed]
        if not any(isinstance(each, Telling) and (each.tree, each.number) == (who, message.number) for each in told):
            self.send(event.conn, m.Withdrawn(number=message.number))

    def _on_set(self, event: Received, message: m.Set, who: Incarnation) -> None:
        lease = self.leases.all.get(message.lease)
        if lease is None or lease.tree is not who:
            return  # it was given back a moment ago
        lease.priority = lease.priority if message.priority is None else message.priority
        lease.evictable = lease.evictable if message.evictable is None else message.evictable
        if message.used:
            lease.used_at, lease.fresh_until = self.context.now, 0.0
        self.context.changed = self.context.changed or message.priority is not None or message.evictable is not None

    def _on_heir(self, event: Received, message: m.Heir, who: Incarnation) -> None:
        of_this = sum(who.name in heirs for heirs in self.queue.heirs.values())
        if of_this >= m.MOST_HEIRED:
            self.reception.throw_out(event, f"a tree is heir of at most {m.MOST_HEIRED} names")
            return
        self._name_heir(message.name, who)
        self._to_tell.append(Answer(event.conn, m.Named(name=message.name)))

    def _name_heir(self, name: str, who: Incarnation) -> None:
        self.queue.heirs.setdefault(name, {})[who.name] = who
        self._heirs_changed = self.must_write = True

    def _on_ask_status(self, event: Received, message: m.AskStatus, caller: object) -> None:
        self.send(event.conn, self.status)

    def _on_ask_history(self, event: Received, message: m.AskHistory, caller: object) -> None:
        events, left_out = self.context.recent()
        self.send(event.conn, m.History(events=events, left_out=left_out))

    # -- who comes in (V10) ----------------------------------------------------------------------------------------

    def why_not(self, hello: m.Register) -> str:
        name = f"{hello.engine_id}.{hello.incarnation}"
        for claim in hello.claims:
            lease = self.leases.all.get(claim.lease)
            if lease is not None and (lease.tree is None or lease.tree.name != name):
                return f"lease {claim.lease} is another tree's: its holder was proven gone"
        return ""

    def comes_in(self, who: Incarnation, hello: m.Register) -> None:
        """What it claims is so. What it has besides by the file it was never told of: it ends, or shrinks to that."""
        self._lost_at.pop(who.name, None)
        self.context.calm(f"end {who.name}")
        self._forget_telling(who)
        claimed = {claim.lease: claim for claim in hello.claims}
        for lease in self.leases.of_tree(who.name):
            bytes = some(claimed[lease.number].bytes) if lease.number in claimed else {}
            if bytes == lease.bytes:
                continue
            self.context.note("never_told", lease=lease.number, name=lease.name)
            if lease.inherited and not bytes:
                self.leases.pass_on(lease, None)
                continue
            returning = minus(lease.returning, minus(bytes, lease.bytes))  # what it takes for its own isn't on its way
            self.leases.change(lease, bytes=bytes, returning=returning)
            self.must_write = self.context.changed = True
        for claim in hello.claims:
            self._take_up(who, claim)
        for name in hello.heirs:
            if who.name not in self.queue.heirs.get(name, {}):
                self._name_heir(name, who)

    def _take_up(self, who: Incarnation, claim: m.Claim) -> None:
        lease = self.leases.all.get(claim.lease)
        if lease is None and some(claim.bytes):
            lease = self.leases.add(Lease(claim.lease, claim.name, who, some(claim.bytes)))
            self.context.note("claimed", lease=lease.number, name=lease.name)
            self.must_write = self.context.changed = True
        if lease is not None:
            lease.priority, lease.evictable = claim.priority, claim.evictable
            lease.used_at, lease.inherited = self.context.now - claim.unused_s, False
            self._say_asked(lease)

    def may_keep(self, hello: Any) -> bool:
        return isinstance(hello, m.Register) and bool(hello.claims) and not self.why_not(hello)

    def keep(self, who: Incarnation, hello: m.Register, why: str) -> None:
        for claim in hello.claims:
            self._take_up(who, claim)
        self.context.alarm("version", f"{who.engine_id} has its leases and goes on, but {why}: finish the upgrade")

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

    # -- the rest --------------------------------------------------------------------------------------------------

    def _on_started(self, event: Started) -> None:
        self._started, record, self.newest = True, event.record, event.number_floor
        same_boot = record is not None and self.evidence.begin(record.processes)
        self.recovery.begin(event, self.context.now, same_boot=same_boot)
        if record is None:
            return
        self.remembered = dict(record.remembered)
        self.must_write = bool(self.incarnations.pending_unlinks)
        if not same_boot:
            return
        known = self.incarnations.known
        self.devices.begin(record.foreign, record.used)
        for found in record.leases:
            tree = known[found.tree] if found.tree else None
            lease = Lease(found.lease, found.name, tree, found.bytes, found.priority, found.evictable, found.granted_at)
            lease.returning, lease.used_at = found.returning, self.context.now
            lease.inherited = found.inherited
            lease.returning_since = self.context.now
            self.leases.add(lease)
        self.queue.heirs = {name: {tree: known[tree] for tree in trees} for name, trees in record.heirs.items()}
        self._heirs_changed = True
        self._bind()
        self._lost_at = dict.fromkeys(self.incarnations.bound, self.context.now)

    def _on_memory_read(self, event: MemoryRead) -> None:
        self.memory.came(event)
        if self.memory.is_known:
            self.devices.came(event)
            self.context.changed = True

    def _on_directory_replaced(self, event: DirectoryReplaced) -> None:
        """A client that opens this path doesn't find this server: it must not grant, and can only make room."""
        self._started = False
        self.context.out.append(Stop(event.why))

    def _on_hindered(self, event: Hindered) -> None:
        self.context.alarm("connections", event.why) if event.why else self.context.calm("connections")


Machine.handlers = {
    **TreeMachine.handlers,
    Started: Machine._on_started,
    MemoryRead: Machine._on_memory_read,
    StrangersProbed: lambda machine, event: machine.evidence.strangers.probed(
        event, keep=bool(machine.recovery.lost_file)
    ),
    PersistFailed: Machine._on_persist_failed,
    DirectoryReplaced: Machine._on_directory_replaced,
    Hindered: Machine._on_hindered,
    PathWatched: lambda machine, event: machine.context.path_watched(event),
    Tick: lambda machine, event: None,  # time has passed; the conclusions follow
}
Machine.requests = {
    **TreeMachine.requests,
    m.Reserve: Machine._on_reserve,
    m.Resize: Machine._on_resize,
    m.Withdraw: Machine._on_withdraw,
    m.Set: Machine._on_set,
    m.Heir: Machine._on_heir,
}
Machine.of_any_caller = {
    m.Watch: TreeMachine.watch,
    m.AskStatus: Machine._on_ask_status,
    m.AskHistory: Machine._on_ask_history,
}

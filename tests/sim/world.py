"""One schedule of the simulator: engines, a lock server, a client that asks for switchovers, faults from one seed; and
what must hold.

What must hold, by policy:

 1. Never two: when `Granted` goes out (and when it arrives), no process of any earlier holder's tree lives. With the
    kernel's evidence it must be *gone* (its pidfd readable), unless memory proved it to a server that had restarted;
    where only end-of-file can be seen, or a person asked for `--grant-unproven`, it may be dying, but runs no more.
    Under `--unsafe-presume-dead` only this holds: no earlier main process that is not stopped still thinks that it
    holds.
 2. No process of a former holder's tree takes device memory after its successor's grant.
 3. Where memory can be read, what the new holder needs is free when it is granted; or there was an alarm.
 4. Tokens strictly grow, also when the directory or the file is lost, unless the clock went back, too.
 5. Once the faults stop, a waiter is granted within a bound; or the server says in an alarm what it can't prove. Where
    the server sees all processes and their inodes, and no file was lost, it can prove everything.
 6. With proof, a holder that is not stopped or killed never loses the lock, whatever happens to the server or the
    holder file.
 7. Who is granted has looked at its engine since the last holder was lost.
 8. The permit: one at a time, and none between a holder's death and its successor's Active.
 9. The server keeps no pidfd that the machine doesn't know, and no machine waits for a pidfd that the server doesn't
    have.
10. First on disk, then told: an engine that is told that it holds stands in the file, with its token.
11. The machine never finds one of its own rules broken.
12. A takeover that is withheld for longer than the window, because a process doesn't end, is an alarm; until it ends.
13. A grant that crosses a waiter's giving up ends no engine, as long as its connection and its server live.
15. After the word that the lock is at rest, which is on disk then, no waiter is granted until a wake is asked for, or
    the holder is back; unless the file is lost.
14. No more copies of pidfds are under way to clients than the server may have; and in the
    end a client that keeps copies has one of each of the holder's processes.
"""

import errno
import random
from collections.abc import Callable, Iterable

from evidence.rules.incarnation import Incarnation
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules import record
from lockserver.rules.client_machine import GIVEN_UP
from lockserver.rules.lock import Phase
from tests.sim.actors import HOLDER, LIFE, SimServer
from tests.sim.engines import CAPACITY, DEVICE, Slot, Tree
from tests.sim.faults import Faults
from tests.sim.kernel import Kernel, ReleaseOrder
from tests.sim.path_faults import ABOVE, LINK, PathFaults
from tests.sim.process import Process
from tests.sim.schedule import FAULTS_END_S, Schedule

WINDOW_S = 1.0
SETTLE_S = 0.3
READER_S = 0.2
PREPARE_S = 0.1
SETTLED_S = 3.0
FORGOTTEN_S = 5.0
OVERDUE_S = 0.5
"""Once the window is over an alarm takes a look at /proc, or the time in which that doesn't come."""
MOST_COPIES = 5


class World(Schedule[SimServer]):
    calm_s = 12.0
    most_events = 20_000

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        super().__init__(seed, trace=trace)
        rng = self.rng
        policy = rng.random()
        self.presume_dead = policy < 0.06
        self.grant_unproven = 0.06 <= policy < 0.2
        self.reads_memory = rng.random() < 0.5
        self.memory_bound_s = rng.choice((1.0, float("inf")))
        self.evidence = rng.choices(("peer", "sent", "none"), (7, 2, 1))[0]
        self.apart = rng.random() < 0.5
        """The server is in a container of its own, and sees no other process's number."""
        self.maps = rng.random() < 0.9
        """Life files can be mapped: no process can let go of its life lock while it lives."""
        self.skew = rng.choice((0.0, 0.0, 0.0, 0.0, 0.3))
        """So often a server is of a version that can't talk with any process here."""
        self.cut_rate = rng.choice((0.0, 0.0, 0.0, 0.001, 0.01)) if self.evidence != "none" else 0.0
        """So often something raises in the middle of a client's turn, which costs it its connection. (Where there are
        no pidfds, that is its end.)
        """
        self.kernel = Kernel(
            rng,
            order=rng.choice((ReleaseOrder.HIGHEST_FIRST, ReleaseOrder.ANY)),
            release_step_s=rng.choice((0.0005, 0.005, 0.1)),
            has_peer_pidfd=self.evidence == "peer",
            has_pidfs=self.evidence == "peer" and rng.random() < 0.85,
            reuses_pids=rng.random() < 0.3,
        )
        self.kernel.orphans_wait_s = random.Random(f"zombies of {seed}").choice((0.0, 0.0, 5.0))
        self.sees_all = self.kernel.has_pidfs and not self.apart
        self.kernel.add_device(DEVICE, CAPACITY)
        self.kernel.make_directories(ABOVE)
        self.kernel.files.symlink(ABOVE, LINK)
        self.kernel.make_directories(LIFE)
        self.shim = self.kernel.spawn("shim")
        self.trees: dict[str, Tree] = {}
        self.spawned: list[Process] = []
        self.slots = [Slot(self, number) for number in range(rng.choice((2, 2, 3)))]
        self.crash_rate = rng.choice((0.0, 0.0, 0.002, 0.02))
        self.last_token = self.greatest_token = 0
        self.tokens: set[int] = set()
        self.repeated: set[int] = set()
        """Granted twice: the clock was set back, and the file was an older one."""
        self.alarms: set[str] = set()
        self.memory_alarm = False
        self.fenced_at = self.drained_at = -1.0
        self.gap = False
        """Between a holder's death and its successor's Active."""
        self.directory_lost = self.life_lost = self.file_lost = self.spoiled = self.clock_went_back = False
        self.older_file = False
        self.went_back = False
        """The path leads to a directory again in which an older file is."""
        self.rests = False
        """A caller was told that the lock is at rest, and none has asked for a wake since."""
        self.met: set[Process] = set()
        """Those of whom a server has had a pidfd since an older holder file was put back, and could write its file."""
        self.reader_hangs_until = 0.0
        self.silent: set[Process] = set()
        """Whom a server in a new directory can't know of, without a memory reader: see `lose_sight`."""
        self.frozen: set[Process] = set()
        """A kill of these waited, or waits, for their thaw."""
        self.one_stays_stopped = False
        """To a server that never heard of any engine, it may be the holder."""
        self.others = random.Random(-1 - seed)
        """For what came later: the schedules of a seed stay what they were without it."""
        if self.others.random() < 0.1:
            self.kernel.pidfd_kill_errno = errno.EPERM
        self.server_went_on_at = -1.0
        """A server that was stopped has not done what was due meanwhile."""
        self.server_was_stopped = False
        self._faults = Faults(self)
        self.paths = PathFaults(self)

    # -- what the server is told -----------------------------------------------------------------------------------

    def server_config(self, incarnation: str) -> e.Config:
        return e.Config(
            server_incarnation=incarnation,
            boot_id=self.kernel.boot_id,
            pid_namespace=incarnation if self.apart else "the only one",
            evidence=self.evidence,
            window_s=WINDOW_S,
            settle_s=SETTLE_S,
            memory_bound_s=self.memory_bound_s,
            memory_patience_s=0.5,
            reader_s=READER_S,
            prepare_timeout_s=PREPARE_S,
            exit_timeout_s=0.3,
            presume_dead=self.presume_dead,
            grant_unproven=self.grant_unproven,
            reads_memory=self.reads_memory,
            history_size=10,
            copies_under_way=2,
            most_copies_under_way=MOST_COPIES,
        )

    def leaves_undone(self) -> bool:
        if self.cut_rate and self.rng.random() < self.cut_rate and self.kernel.now < FAULTS_END_S:
            self.note_fault("something raises in a client's turn")
            return True
        return False

    # -- what must hold --------------------------------------------------------------------------------------------

    def granting(self, server: SimServer, conn: int, *, back: bool = False) -> None:
        """The server tells an engine that it holds: for the first time, or because it is back."""
        caller, token = server.machine.callers.by_conn.get(conn), server.machine.active.token
        if caller is None or caller.incarnation is None:
            return
        tree = self.trees[caller.incarnation.name]
        on_disk = server.holder_on_disk()
        if (tree.name, token) != on_disk:
            self.fail(f"{tree.name} is told that it holds with token {token}, and on disk is {on_disk}")
        if back:
            self.rests = False
        if back or tree.announced == token:
            return
        if self.rests and not (self.file_lost or self.spoiled or self.life_lost):
            self.fail(f"{tree.name} is granted while the lock is at rest")
        tree.announced = token
        if tree.holds:
            return
        self._no_other(tree)
        if tree.looked_at < self.fenced_at:
            self.fail(f"{tree.name} is granted, and has not looked at its engine since the last holder was lost")
        free = max(self.kernel.devices[DEVICE].free_bytes, server.free_when_read)
        if self.reads_memory and tree.needs > free and not self.memory_alarm:
            self.fail(f"{tree.name} is granted with {free} bytes free, and needs {tree.needs}")
        self.memory_alarm = False
        self._faults.back_up()

    def at_rest(self, server: SimServer) -> None:
        """A caller is told so."""
        self.rests = bool(server.machine.succession.rest.why)
        if self.rests and not server.rests_on_disk():
            self.fail("a caller is told that the lock is at rest, and the file doesn't say so")

    def copies_sent(self, under_way: int) -> None:
        if under_way > MOST_COPIES:
            self.fail(f"{under_way} copies of pidfds are under way, and at most {MOST_COPIES} may be")

    def _check_copies(self, server: SimServer) -> None:
        machine = server.machine
        holder, copies = machine.active.holder, machine.evidence.copies
        clients = {slot.client.name: slot.client for slot in self.slots if slot.client is not None}
        for waiter in machine.succession.queue.first(machine.config.recipients):
            client, conn = clients.get(waiter.incarnation.name), waiter.incarnation.conn
            if holder is None or client is None or copies.under_way_with(conn) != 0 or client.process.stopped:
                continue
            if conn is None or server.process.unread(server.conns[conn]):
                continue  # it is about to hear of an end
            there = {member.number for member in holder.members.values() if member.process is not None}
            kept = set(client.kept.get(holder.name, ()))
            if kept != there and not self.cut_rate:
                self.fail(f"{client.name} keeps copies of {sorted(kept)} of {holder.name}, which has {sorted(there)}")

    def got(self, tree: Tree, token: int) -> bool:
        """The new holder knows. True if that is news."""
        if tree.holds:
            return False  # it asked again, and was told the same
        self.grants += 1
        if tree.main in self.silent or (self.presume_dead and tree.was_stopped):
            tree.holds = True  # it was stopped, and finds the grant of a server that is gone
            return True
        self._no_other(tree)
        if token in self.tokens:
            self.repeated.add(token)
        self.tokens.add(token)
        if token <= self.last_token and not (self.clock_went_back and (self.spoiled or self.life_lost)):
            self.fail(f"{tree.name} got token {token} after token {self.last_token}")
        if not self.reads_memory:
            known = self._known()
            self.silent.update(process for process in tree.processes if not process.alive and process not in known)
        self.last_token, tree.granted, tree.holds, tree.gave_back = token, token, True, False
        self.greatest_token = max(self.greatest_token, token)
        return True

    def _known(self) -> set[Process]:
        """Of these the server has met a pidfd, or a client has a copy. Of one that isn't among them, and was killed
        before its tree was granted, nothing tells without a memory reader (docs/inside/lock.md, "Not covered").
        """
        clients = [slot.client for slot in self.slots if slot.client is not None and slot.client.process.alive]
        copies = {
            client.process.behind(fd) for client in clients for kept in client.kept.values() for fd in kept.values()
        }
        return copies | (self.server.met if self.server is not None else set())

    def _no_other(self, tree: Tree) -> None:
        for other in self.trees.values():
            if other is tree or not other.granted or (other.impostor and self.spoiled):
                continue  # (who is who was in the file)
            other.over = True
            if self.presume_dead:  # (which doesn't wait for the names of a path that led elsewhere, either)
                excused = other.was_stopped or other.let_go or self.directory_lost
                if other.main.alive and other.holds and not excused:
                    self.fail(f"{tree.name} is granted while {other.name} runs and thinks that it holds")
                continue
            if self.older_file:
                self.silent.update(other.forks)  # only a life lock tells of them (docs/inside/lock.md, "Not covered")
            for process in other.processes:
                if self.went_back and self.evidence == "none" and process is not other.main:
                    continue  # a known gap: an older file is there again, and only waiters know of a newer holder
                unnamed = process not in self.met or (self.clock_went_back and other.granted < self.greatest_token)
                if self.older_file and unnamed and (process.stopped or not process.alive):
                    continue  # it was stopped or killed before it could come again, and no file names it
                if process in self.silent or (
                    self.life_lost and tree.needs and self.reads_memory and process is not other.main
                ):
                    continue  # in a new directory, free memory is proof enough: the main process would hold more
                if self._is_frozen_out_of_sight(process, tree):
                    continue
                dying_will_do = self.grant_unproven or self.evidence == "none" or self.reads_memory
                if process.alive or not (process.gone or dying_will_do or process in other.forks):
                    self.fail(
                        f"{tree.name} is granted while {process} of {other.name} "
                        f"{'lives' if process.alive else 'is dying'}"
                    )

    def lose_sight(self) -> None:
        """What isn't covered without a memory reader, as the docs say.

        Where the holder file was lost: a former holder's process that is dying. Where the life files were: also one
        that is stopped, that never joined, or that has no room on the disk for its new life file; unless it has the
        names in the network namespace that came with the grant.
        """
        if not (self.life_lost or self.file_lost):
            return
        named = self._named()
        for tree in self.trees.values():
            for process in tree.processes:
                stuck = process.stopped or process in tree.forks or bool(self.kernel.files.disk_errno)
                unseen = self.life_lost and stuck and process not in named
                if not process.gone and (not process.alive or unseen):
                    self.silent.add(process)

    def _named(self) -> set[Process]:
        return {slot.client.process for slot in self.slots if slot.client is not None and slot.client.names}

    def _is_frozen_out_of_sight(self, process: Process, next_one: Tree) -> bool:
        """It couldn't come to the server in a new directory, and no memory is read, or none is asked for. While it
        lives the names tell of it, if it has them; once it dies they go before it is gone.
        """
        unread = self.life_lost and not (self.reads_memory and next_one.needs)
        return unread and process in self.frozen and not (process.alive and process in self._named())

    def touching(self, tree: Tree, process: Process) -> None:
        if tree.over and not (self.presume_dead or self.went_back) and process not in self.silent:
            self.fail(f"{process} of {tree.name} takes device memory after another was granted")

    def lost(self, tree: Tree, why: str) -> None:
        excused = tree.was_stopped or tree.told_to_end or self.directory_lost or (tree.impostor and self.spoiled)
        older_is_greater = tree.granted < self.greatest_token or tree.granted in self.repeated
        older_is_greater = older_is_greater and self.clock_went_back and self.spoiled
        crossed = why == GIVEN_UP and not (excused or self.cut_rate or self.server_was_stopped)
        if crossed:
            self.fail(f"{tree.name} is ended by a grant that crossed its giving up")
        if tree.holds and not self.presume_dead and not excused and not older_is_greater:
            self.fail(f"{tree.name} lost the lock though nothing was wrong with it: {why}")
        tree.holds = False
        if self.life_lost:
            self.silent.update(tree.processes)  # they begin to die

    def exiting(self, server: SimServer) -> None:
        """The holder is told to end, for a switchover."""
        plan = server.machine.succession.switchover.under_way
        if plan is None or plan.to is None:
            return
        self.trees[plan.old.name].told_to_end = True
        if self.trees[plan.to.name].looked_at < self.drained_at:
            self.fail(f"{plan.old.name} is told to end, and its successor has not looked at its engine since")

    def heard(self, tree: str, message: object) -> None:
        """The server hears from a waiter."""
        looked = (isinstance(message, m.Acquire) and not message.again) or (
            isinstance(message, m.Prepared | m.Ready) and bool(getattr(message, "ok", True))
        )
        if looked:
            self.trees[tree].looked_at = self.kernel.now

    def permitted(self, tree: Tree) -> None:
        tree.initialises = True
        if self.presume_dead:
            return
        for other in self.trees.values():
            unknown = self.life_lost or ((self.file_lost or self.spoiled) and other.main.stopped)
            if other is not tree and other.initialises and other.main.alive and not (unknown or other.let_go):
                self.fail(f"{tree.name} got the permit while {other.name} has it")

    def noted(self, server: SimServer, note: e.Note) -> None:
        if note.alarm:
            self.alarm(str(note.detail["text"]))
        elif note.detail.get("lock") == m.ACTIVE and note.event == "fencing":
            self.fenced_at, self.gap = self.kernel.now, True
            holder = server.machine.active.holder
            if note.detail["seen_by"] == "sleep" and holder is not None:
                self.trees[holder.name].told_to_end = True
            since = self.fenced_at
            self.kernel.after(WINDOW_S + OVERDUE_S, lambda: self._heard_of(server, since))
        elif note.event == "switchover":
            self.drained_at = self.kernel.now
        elif note.event == "serving" or (note.event == "back" and server.machine.active.endpoint is not None):
            self.gap = False
        elif (
            note.event == "granted"
            and note.detail["lock"] == m.INIT
            and self.gap
            and server.machine.succession.state.value != "FREE"
            and (self._holder_may_live(server) or self._able_waits(server))
        ):
            self.fail(f"{note.detail['engine']} may initialise between a holder's death and its successor's Active")

    def _heard_of(self, server: SimServer, since: float) -> None:
        """Rule 12."""
        lock, due = server.machine.active, since == self.fenced_at and server is self.server and server.process.alive
        if not due or server.stopped or server.process.stopped or self.server_went_on_at >= since:
            return
        holder, alarms = lock.holder, server.machine.context.alarms
        if lock.phase is Phase.FENCING and holder is not None and not holder.cannot_talk and not alarms:
            self.fail(f"{holder.name} isn't proven gone after {self.kernel.now - since:.1f} s, and there is no alarm")

    def _holder_may_live(self, server: SimServer) -> bool:
        """One that a restarted server can't prove gone may be initialised beside: if in truth it is, and a window has
        passed in which it would have come back. Only a waiter's need of memory can prove more, and all may be gone.
        Where the life files are lost, a process that is stopped and a forked child, which never connects, can't be
        seen; the lock isn't granted past them.
        """
        lock = server.machine.active
        if lock.holder is None:
            return False
        if lock.doubt is None or self.kernel.now < lock.doubt.until:
            return True
        tree = self.trees[lock.holder.name]
        unseen = tree.forks if self.life_lost else ()
        return any(
            process.alive and process not in unseen and not (self.life_lost and process.stopped)
            for process in tree.processes
        )

    def _able_waits(self, server: SimServer) -> bool:
        """Some waiter could take over, and never gave a reason not to count on it."""
        waiters = server.machine.succession.queue.waiters
        return any(
            waiters[slot.client.name].ready and not (slot.was_sickly or slot.tree.was_stopped or slot.tree.main.stopped)
            for slot in self.slots
            if slot.client is not None
            and slot.client.name in waiters
            and not slot.client.missed_a_question
            and slot.client.fd is not None  # (a child that it forked may have its socket when it hung up)
            and slot.tree is not None
            and slot.tree.main.alive
        )

    def alarm(self, text: str) -> None:
        self.alarms.add(text)
        if text.startswith("a bug of the lock server"):
            self.fail(text)
        if "is granted though" in text:
            self.memory_alarm = True

    @property
    def undecided(self) -> bool:
        """The server says in an alarm that nothing proves the last holder's end."""
        server = self.server
        return (
            server is not None
            and server.serves
            and (
                bool({"unproven", "strangers", "awaited"} & set(server.machine.context.alarms))
                or self._lives_as_another(server)
            )
        )

    def _lives_as_another(self, server: SimServer) -> bool:
        """An alarm says that a process of the holder lives, and so it is: its main process has executed its program
        anew, and left a child; or a child was believed to be the main process; or it is stopped, and has given back or
        hung up before. A person has to end it.
        """
        machine = server.machine
        late = {
            "overdue" if lock is machine.active else f"overdue {lock.name}": lock for lock in machine.succession.locks
        }
        holders = (lock.holder for alarm, lock in late.items() if alarm in machine.context.alarms)
        return any(holder is not None and self._is_another(server, holder) for holder in holders)

    def _is_another(self, server: SimServer, holder: Incarnation) -> bool:
        tree = self.trees[holder.name]
        if self._was_another_one(tree) or tree.main.stopped:
            return True
        living = [member for member in holder.members.values() if not member.dead]
        mains = {slot.tree.main for slot in self.slots if slot.tree is not None and slot.tree.name != holder.name}
        return bool(living) and all(
            member.out_of_reach and member.process is not None and server.process_behind(member.process) in mains
            for member in living
        )

    # -- the server's container ------------------------------------------------------------------------------------

    def _new_server(self) -> SimServer | None:
        try:
            self.kernel.make_directories(LIFE)
        except OSError:
            self.kernel.after(0.1, self.start_server)  # the disk is full, or there is no way to it
            return None
        return SimServer(self)

    # -- a schedule ------------------------------------------------------------------------------------------------

    def _clients(self) -> Iterable[Callable[[], None]]:
        return [slot.start for slot in self.slots]

    def _any_fault(self) -> None:
        self._faults.any()
        if self.others.random() < 0.05:
            self._faults.freeze_the_holder()
        if self.others.random() < 0.15:
            self._faults.rest()

    def _is_settled(self) -> bool:
        """An engine holds and serves, and nothing more is to be expected."""
        server = self.server
        return (
            self.kernel.now >= FAULTS_END_S + SETTLED_S
            and server is not None
            and server.serves
            and server.machine.active.phase is Phase.HELD
            and server.machine.active.endpoint is not None
        )

    def _calm(self) -> None:
        """What is stopped goes on, and orphans are killed as their containers would be."""
        kernel = self.kernel
        self.skew = 0.0
        self._faults.end()
        waiting = [
            slot.tree.main
            for slot in self.slots
            if slot.tree is not None
            and slot.client is not None
            and slot.tree.main.alive
            and m.ACTIVE in slot.client.machine.wants
            and not self._on_file(slot.tree)
            and not self._was_another_one(slot.tree)
        ]
        stays = self.rng.choice(waiting) if len(waiting) > 1 and self.rng.random() < 0.3 else None
        if self.server is not None and self.server.process.stopped:
            self.server_went_on_at = kernel.now
        for process in list(kernel.processes.values()):
            if process.frozen:
                kernel.thaw(process)
            elif process.stopped and process is not stays:
                kernel.cont(process)
        if stays is not None:
            self.say(f"{stays} stays stopped")
            self.one_stays_stopped = True
            kernel.stop(stays)
        if self.server is not None and self.server.speaks_another_version:
            kernel.kill(self.server.process)
        current = {slot.tree.name for slot in self.slots if slot.tree is not None and slot.tree.main.alive}
        for tree in self.trees.values():
            if tree.name not in current:
                for process in (*tree.processes, *tree.children):
                    kernel.kill(process)
        for slot in self.slots:
            slot.sickly, slot.shim_kills, slot.forks = False, True, False

    def _has_latecomer(self, server: SimServer, name: str) -> bool:
        """A worker came to it when its main process had closed the client: while that lives it has the life lock."""
        return server.life_is_locked(name) and any(worker.alive for worker in self.trees[name].workers)

    def _was_another_one(self, tree: Tree) -> bool:
        """Its main process executed its program anew: where only the old one is known, that process is alive."""
        return any(other is not tree and other.main is tree.main for other in self.trees.values())

    def _left_a_child(self) -> bool:
        """A main process lives on as another program, and a server that never met it as the old one met its child."""
        current = {slot.tree.name for slot in self.slots if slot.tree is not None}
        left = (tree for tree in self.trees.values() if tree.name not in current and self._was_another_one(tree))
        return any(worker.alive for tree in left for worker in tree.workers)

    def _on_file(self, tree: Tree) -> bool:
        """It holds, though it may not know."""
        try:
            found = record.decode(self.kernel.files.find(HOLDER).data)
        except (OSError, record.UnreadableRecord):
            return False
        return found.active is not None and found.active.life_file == tree.name

    def _check_the_end(self) -> None:
        server = self.server
        if server is None or not server.serves:
            self.fail("no server runs at the end")
        machine = server.machine
        can_prove = self.sees_all and not (self.spoiled or self.life_lost or self.one_stays_stopped)
        can_prove = can_prove and not self._left_a_child()
        undecided = self.undecided and not can_prove
        if machine.active.phase is not Phase.HELD and not undecided:
            self.fail(f"no engine was granted within {self.calm_s} s after the faults: {machine.status}")
        if machine.active.phase is Phase.HELD:
            if "overdue" in machine.context.alarms:
                self.fail(f"an engine holds, and an alarm says that none is granted: {machine.context.alarms}")
            self._check_copies(server)
        closed = {tree.name for tree in self.trees.values() if tree.closed_at < self.kernel.now - FORGOTTEN_S}
        for who in machine.evidence.incarnations.known.values():
            left = who.name in closed and who.may_have_left and not machine.succession.holds(who)
            if left and not self._has_latecomer(server, who.name):
                self.fail(f"{who.name} has closed its client, and the server still has a pidfd and a life file of it")
        known, kept = set(machine.evidence.incarnations._by_process), set(server.processes)
        if known != kept:
            self.fail(
                f"pidfds that only the machine knows: {sorted(known - kept)}; only the shell: {sorted(kept - known)}"
            )

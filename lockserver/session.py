"""One process's standing with the lock server: its machine, its connection, its life lock, where its path leads.

Both kinds of client are one of these (`client.py`). The rules are in `client_machine.py`; here are the socket, the
files, and the thread that watches them (`sidecar/client_loop.py`).

Two things are never let go of while the process lives, once it may touch a device: its life lock, and the names that
came with its grant. Whoever wants to know whether it is gone asks for these.
"""

import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from lockserver import client_events as c
from lockserver import messages as m
from lockserver.client_machine import ClientMachine, Me
from lockserver.messages import ACTIVE
from lockserver.rundir import LIFE, RunDir, RunDirGone, absolute, connect, names_of_path
from sidecar import exclusive_names, process_setup
from sidecar.client_connection import ClientConnection
from sidecar.client_loop import CannotWait, ClientLoop
from sidecar.exit_codes import EX_LOST
from sidecar.frames import Channel, close_all
from sidecar.lifelock import LifeFileExists, LifeFileGone, LifeLock, LocksUnsupported
from sidecar.logs import complain
from sidecar.names import incarnation_name
from sidecar.path_watch import CannotWatch, Leads, PathWatch, make_private_directory

_NOBODY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ECONNREFUSED)
_OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""This process can't look; that tells nothing of where its path leads."""
MOST_OLD_LIVES = 200


class LockError(Exception):
    """What went wrong between this process and the lock server."""


class Refused(LockError):
    """The server said no, and why."""


class Lost(LockError):
    """What was held is no longer held."""


class NotInTime(LockError, TimeoutError):
    """It did not happen within the time that the caller gave it."""


def end_process(why: str) -> NoReturn:
    """Ends this process at once, and with it whatever was armed to die with it."""
    complain(f"lock lost: {why}; this process ends")
    os._exit(EX_LOST)


class Session:
    def __init__(self, run_dir: Path | str, me: Me, on_lost: Callable[[str], object]) -> None:
        self.run_dir = absolute(run_dir)
        self.me = me
        self.name = incarnation_name(me.engine_id, me.incarnation)
        self._on_lost = on_lost
        self._machine = ClientMachine(me)
        self._directory: RunDir | None = None
        """The one that is ours: its server has welcomed this process."""
        self._there: RunDir | None = None
        """The one whose server is at the other end of the connection."""
        self._watch: PathWatch | None = None
        self._life: LifeLock | None = None
        self._old_lives: list[LifeLock] = []
        self._names: list[int] = []
        self._own_spelling = [exclusive_names.address(name) for name in names_of_path(self.run_dir)]
        """Taken in the network namespace for the path as this process has it, which needn't be the server's. Made here
        because a process's first hash takes as long as a quarter of a grant.
        """
        self._kept: dict[str, dict[int, int]] = {}
        """Incarnation -> number as a member -> a copy of its pidfd."""
        self._children: dict[int, int] = {}
        self.counted: set[int] = set()
        self.withdrawn: set[str] = set()
        """Locks whose withdrawal has been carried out."""
        self.joined = False
        self._refusal = ""
        self._loss = ""
        self.tokens: dict[str, int] = {}
        """What is held, by its name."""
        self.proven = False
        """The grant of `active` stands on the whole proof."""
        self._ever_held = False
        self.loop: ClientLoop[c.Event] = ClientLoop(
            "lock-client", self._feed, lambda: self._machine.deadline, c.Tick(), self._torn, self._deaf
        )
        self._connection = ClientConnection(
            self.loop,
            heard=lambda message: self._feed(c.Heard(message)),
            ended=lambda why: self._feed(self._disconnected()),
        )
        self.tell = self.loop.tell

    def begin(self) -> None:
        process_setup.forbid_core_dumps()
        self.loop.start()

    def wait(self, done: Callable[[], bool], timeout_s: float | None, first: c.Event | None = None) -> bool:
        try:
            return self.loop.wait(done, timeout_s, first)
        except CannotWait as error:
            raise LockError(str(error)) from None

    def close(self) -> None:
        """Leaves. What is held stays held until the process has ended: the server goes by that alone."""
        if not self.loop.stop():
            return
        self._connection.hang_up()
        if not self._must_be_seen or self.loop.forked:
            for lock in (*self._old_lives, *([self._life] if self._life else [])):
                lock.close()
            close_all(self._names)
        for copies in self._kept.values():
            close_all(copies.values())
        self._kept.clear()
        for pidfd in self._children.values():
            self.loop.remove(pidfd)
        close_all(self._children.values())
        self._children.clear()
        if self._watch is not None:
            self._watch.close()
        for directory in {self._directory, self._there} - {None}:
            directory.close()  # type: ignore[union-attr]
        self.loop.close()

    def life_descriptors(self) -> list[int]:
        """What a forked child keeps open that is to count as this process's as long as it lives."""
        return [lock.fd for lock in (*self._old_lives, *([self._life] if self._life else []))] + self._names

    @property
    def _must_be_seen(self) -> bool:
        """It may have something on a device, for as long as it lives."""
        return self._ever_held or (self.joined and not self.me.main)

    # -- the machine -----------------------------------------------------------------------------------------------

    def _feed(self, event: c.Event) -> None:
        pending: deque[c.Event] = deque([event])
        while pending:
            for effect in self._machine.handle(pending.popleft(), time.monotonic()):
                answer = self._do(effect)
                if answer is not None:
                    pending.append(answer)

    def _torn(self) -> None:
        """Something was cut short: the connection may be half made, an effect half done."""
        self._connection.hang_up()
        self._feed(c.Torn())

    def _deaf(self) -> None:
        """A holder that can't hear that another one was granted must not go on."""
        if ACTIVE in self.tokens:
            self._tell_program(c.Lost("this process has closed the descriptors of its lock client"))

    def _do(self, effect: c.Effect) -> c.Event | None:
        if isinstance(effect, c.Connect):
            return self._connect()
        if isinstance(effect, c.Say):
            return self._say(effect.message)
        if isinstance(effect, c.Check):
            return self.check(effect.round)
        if isinstance(effect, c.LookAtPath):
            return self._path_seen()
        if isinstance(effect, c.KeepCopies):
            if not effect.more:
                self._drop_copies(effect.tree, None)
            descriptors = self._connection.take_descriptors()
            close_all(descriptors[len(effect.numbers) :])
            self._kept.setdefault(effect.tree, {}).update(zip(effect.numbers, descriptors, strict=False))
        elif isinstance(effect, c.DropCopies):
            self._drop_copies(effect.tree, effect.numbers)
        elif isinstance(effect, c.WatchChild):
            self.loop.add(self._children[effect.child], lambda _: self._child_ended(effect.child))
        elif isinstance(effect, c.KeepNames):
            self._keep_names(self._connection.take_descriptors())
        elif isinstance(effect, c.ShowOldLives):
            if self._old_lives:
                newest = self._old_lives[-MOST_OLD_LIVES:]
                left_out = len(self._old_lives) - len(newest)
                shown = m.OldLives(incarnation=self.name, left_out=left_out)
                self._connection.say(shown, [life.fd for life in newest])
        elif isinstance(effect, c.HangUp):
            self._connection.hang_up()
        elif isinstance(effect, c.Warn):
            complain(f"{self.name}: {effect.text}")
        else:
            self._tell_program(effect)
            self.loop.announce()
        return None

    def _child_ended(self, child: int) -> None:
        pidfd = self._children.pop(child)
        self.loop.remove(pidfd)
        os.close(pidfd)
        self._feed(c.ChildEnded(child))

    def _drop_copies(self, tree: str, numbers: list[int] | None) -> None:
        copies = self._kept.get(tree, {})
        for number in list(copies) if numbers is None else numbers:
            if number in copies:
                os.close(copies.pop(number))
        if not copies:
            self._kept.pop(tree, None)

    def _keep_names(self, descriptors: tuple[int, ...]) -> None:
        """Each once: a server that has this process back hands them out again. This is within the grant, so it does no
        more than it must.
        """
        kept = {os.fstat(name).st_ino for name in self._names}
        for name in descriptors:
            if kept and os.fstat(name).st_ino in kept:
                os.close(name)
            else:
                self._names.append(name)
        for address in self._own_spelling:
            with contextlib.suppress(OSError):
                own = exclusive_names.take_address(address)
                if own is not None:
                    self._names.append(own.detach())

    def _tell_program(self, effect: c.Effect) -> None:
        if isinstance(effect, c.Joined):
            self.joined = True
            self._settle_in()
        elif isinstance(effect, c.Got):
            self._ever_held |= effect.lock == ACTIVE
            self.tokens[effect.lock] = effect.token
            if effect.lock == ACTIVE:
                self.proven = effect.proven
        elif isinstance(effect, c.Without):
            self.tokens.pop(effect.lock, None)
            self.withdrawn.add(effect.lock)
        elif isinstance(effect, c.ChildCounts):
            self.counted.add(effect.child)
        elif isinstance(effect, c.No):
            self._refusal = effect.why
        elif isinstance(effect, c.Lost):
            if not self._loss:
                self._loss = effect.why
                self._call_on_lost(effect.why)
        else:
            self.on_switchover(effect)

    def _call_on_lost(self, why: str) -> None:
        """Whoever wants the end gets it, in whatever thread this is; and what fails to end this process ends it."""
        try:
            self._on_lost(why)
        except SystemExit as error:
            os._exit(error.code if isinstance(error.code, int) else EX_LOST)
        except BaseException as error:
            complain(f"on_lost raised {type(error).__name__}: {error}")
            end_process(why)

    def check(self, round: int) -> c.Event | None:
        return c.Checked(round, True)

    def on_switchover(self, effect: c.Effect) -> None:
        """For main processes: `BeginDrain`, `ServeOn`, `End`."""

    # -- the connection --------------------------------------------------------------------------------------------

    def _connect(self) -> c.Event:
        """To whoever serves in the directory to which the path leads now; the life lock is taken in that very one."""
        try:
            there = RunDir(self.run_dir)
        except RunDirGone:
            return c.Disconnected(c.There.NOBODY)
        except OSError as error:
            if error.errno in _OUT_OF_ROOM and self._directory is not None:
                return self._disconnected()
            return c.Disconnected(c.There.NOBODY if error.errno in _NOBODY else c.There.ANOTHER)
        same = self._directory is None or self._directory.is_same(there)
        reached = False
        life: LifeLock | None = None
        try:
            life = self._take_life(there)
            channel = Channel(connect(there.inside), m.from_server)
            reached = True
        except LifeFileGone:
            if same and not self.me.main and not self.joined:
                return c.Hopeless(f"the life file of {self.name} isn't there: this engine's end was proven")
            return c.Disconnected(c.There.SAME if same else c.There.ANOTHER)
        except LocksUnsupported as error:
            return c.Hopeless(str(error))
        except OSError as error:
            nobody = error.errno in _NOBODY
            where = c.There.NOBODY if nobody else c.There.SAME if same else c.There.ANOTHER
            if life is None and not nobody:
                return c.Disconnected(where, f"can't make its file in {there.life}: {error.strerror}")
            return c.Disconnected(where)
        finally:
            if not reached:
                there.close()
        self._leave_there()
        self._there = there
        self._connection.open(channel)
        return c.Connected(life.inode, life.kept, c.There.SAME if same else c.There.ANOTHER)

    def _leave_there(self) -> None:
        if self._there is not None and self._there is not self._directory:
            self._there.close()
        self._there = None

    def _take_life(self, there: RunDir) -> LifeLock:
        """The life lock of this process. Where its file isn't (any more), it is made anew: in a directory that was made
        anew, or emptied, the old one shows nobody anything.
        """
        directory = there.inside / LIFE
        if self._life is not None and self._life.is_named(directory):
            return self._life
        if self.me.main or self.joined:  # who never counted must not bring back an engine that may be gone
            with contextlib.suppress(OSError):  # whoever can't make it is told by the next line
                make_private_directory(directory)
            try:
                life = LifeLock.create(directory, self.name)
            except LifeFileExists:
                life = LifeLock.join(directory, self.name)
        else:
            life = LifeLock.join(directory, self.name)
        if self._life is not None:
            self._old_lives.append(self._life)
        self._life = life
        return life

    def _settle_in(self) -> None:
        """Welcomed: the directory of the server that did it is the one to stay with."""
        if self._there is not None and self._there is not self._directory:
            if self._directory is not None:
                self._directory.close()
            self._directory = self._there
        if self._watch is None and self.me.main:
            with contextlib.suppress(CannotWatch):  # it looks every second, too
                self._watch = watch = PathWatch(self.run_dir)
                for fd, events in watch.descriptors():
                    self.loop.add(fd, lambda _: self._on_path(watch), events)

    def _on_path(self, watch: PathWatch) -> None:
        watch.look()
        if self._connection.up:
            self._feed(self._path_seen())

    def _path_seen(self) -> c.Event:
        there = self._there or self._directory
        return c.PathSeen(there is not None and there.leads() is Leads.ELSEWHERE)

    def _say(self, message: m.ClientMessage) -> c.Event | None:
        if not self._connection.up:
            return None  # it ended a moment ago, and the machine hears of it next
        if isinstance(message, m.Register | m.Join):
            said = self._connection.introduce(message)
        elif isinstance(message, m.Adopt):
            said = self._connection.say(message, [self._children[message.child]])
        elif isinstance(message, m.HandBack):
            kept = self._kept.get(message.tree, {})  # a turn that was cut short may have lost some
            message = msgspec.structs.replace(message, numbers=[number for number in message.numbers if number in kept])
            said = self._connection.say(message, [kept[number] for number in message.numbers])
        else:
            said = self._connection.say(message)
        return None if said else self._disconnected()

    def _disconnected(self) -> c.Event:
        leads = self._directory.leads() if self._directory is not None else Leads.HERE
        return c.Disconnected({Leads.HERE: c.There.SAME, Leads.NOWHERE: c.There.NOBODY}.get(leads, c.There.ANOTHER))

    # -- for callers -----------------------------------------------------------------------------------------------

    def welcomed(self, timeout_s: float | None) -> None:
        """Blocks until this process counts."""
        if not self.wait(lambda: self.joined or bool(self._refusal or self._loss), timeout_s, first=c.Tick()):
            raise NotInTime(f"no lock server answered at {self.run_dir} within {timeout_s:g} s")
        self.raise_if_over()

    @property
    def over(self) -> bool:
        """There is nothing to wait for any more; `raise_if_over` says why."""
        return bool(self._refusal or self._loss)

    def raise_if_over(self) -> None:
        if self._loss:
            raise Lost(self._loss)
        if self._refusal:
            why, self._refusal = self._refusal, ""
            raise Refused(why)

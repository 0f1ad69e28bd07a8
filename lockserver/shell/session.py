"""One process's standing with the lock server: its machine, its connection, its life lock, where its path leads.

Both kinds of client are one of these (`client.py`). The rules are in `client_machine.py`; here are the socket and the
files. What is the same for every client, and the thread in which all of this happens, is in
`sidecar/machine/client_shell.py`.

Two things are never let go of while the process lives, once it may touch a device: its life lock, and the names that
came with its grant. A server that wants to know whether the process is gone asks for these.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import msgspec

from lockserver.rules import client_events as c
from lockserver.rules import messages as m
from lockserver.rules.client_machine import ClientMachine, Me
from lockserver.rules.messages import ACTIVE
from lockserver.shell.rundir import LIFE, RunDir, RunDirGone, absolute, connect, names_of_path
from sidecar.kernel import exclusive_names, process_setup
from sidecar.kernel.lifelock import LifeFileExists, LifeFileGone, LifeLock, LocksUnsupported
from sidecar.kernel.path_watch import CannotWatch, Leads, PathWatch, make_private_directory
from sidecar.machine.client_shell import Ask, ClientShell, TimeIsOver
from sidecar.terminal.exit_codes import EX_LOST
from sidecar.terminal.logs import complain
from sidecar.terminal.names import incarnation_name
from sidecar.wire.frames import Channel, close_all

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


class Session(ClientShell):
    def __init__(self, run_dir: Path | str, me: Me, on_lost: Callable[[str], object]) -> None:
        self._machine = ClientMachine(me)
        super().__init__("lock-client", self._machine, LockError)
        self.run_dir = absolute(run_dir)
        self.me = me
        self.name = incarnation_name(me.engine_id, me.incarnation)
        self._on_lost = on_lost
        self._directory: RunDir | None = None
        """The directory that is ours: its server has welcomed this process."""
        self._there: RunDir | None = None
        """The directory whose server is at the other end of the connection."""
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
        self._asks: list[Ask] = []
        """Those that aren't answered."""
        self._joined = False
        self.holds: set[str] = set()
        self._ever_held = False

    def begin(self) -> None:
        process_setup.forbid_core_dumps()
        self.loop.start()

    def welcomed(self, timeout_s: float | None) -> None:
        """Blocks until this process counts."""
        answer = self.ask(Ask(c.Tick()), timeout_s)
        if isinstance(answer, TimeIsOver):
            raise NotInTime(f"no lock server answered at {self.run_dir} within {timeout_s:g} s")
        raise_if_over(answer)

    def life_descriptors(self) -> list[int]:
        """What a forked child keeps open that is to count as this process's as long as it lives."""
        return [lock.fd for lock in (*self._old_lives, *([self._life] if self._life else []))] + self._names

    def let_go(self) -> None:
        """What is held stays held until the process has ended: the server goes by that alone."""
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

    @property
    def _must_be_seen(self) -> bool:
        """It may have something on a device, for as long as it lives."""
        return self._ever_held or (self._joined and not self.me.main)

    def deaf(self) -> None:
        """A holder that can't hear that another one was granted must not go on."""
        if ACTIVE in self.holds:
            self._do_lost(c.Lost("this process has closed the descriptors of its lock client"))

    # -- what callers ask for --------------------------------------------------------------------------------------

    def on_ask(self, ask: Ask) -> None:
        if self._machine.last_word is not None:
            self.answer(ask, self._machine.last_word)
            return
        if isinstance(ask.about, c.Want):  # asked for again: what was late won't be withdrawn any more
            self._answer(c.Without(ask.about.lock), lambda other: other.late and _is_for(other, ask.about.lock))
        self._asks.append(ask)
        if isinstance(ask.about, c.Tick) and self._joined:
            self._answer(c.Joined(), lambda other: other is ask)
        else:
            self.feed(ask.about)

    def on_late(self, ask: Ask) -> None:
        """A lock may be granted in this very moment: then it is held. (A permit is given back.)"""
        if isinstance(ask.about, c.Want) and not self._others_want(ask):
            self.feed(c.Withdraw(ask.about.lock))
        else:
            self._answer(TimeIsOver(), lambda other: other is ask)

    def on_given_up(self, ask: Ask) -> None:
        if ask in self._asks:
            self._asks.remove(ask)
        if isinstance(ask.about, c.Want) and not self._others_want(ask):
            self.feed(c.Withdraw(ask.about.lock))

    def _others_want(self, ask: Ask) -> bool:
        return any(other is not ask and _is_for(other, ask.about.lock) for other in self._asks)

    def _answer(self, answer: object, to: Callable[[Ask], bool]) -> None:
        for ask in [ask for ask in self._asks if to(ask)]:
            self._asks.remove(ask)
            self.answer(ask, answer)

    # -- effects ---------------------------------------------------------------------------------------------------

    def disconnected(self, why: str) -> c.Event:
        leads = self._directory.leads() if self._directory is not None else Leads.HERE
        return c.Disconnected({Leads.HERE: c.There.SAME, Leads.NOWHERE: c.There.NOBODY}.get(leads, c.There.ANOTHER))

    def _do_keep_copies(self, effect: c.KeepCopies) -> None:
        if not effect.more:
            self._drop_copies(effect.tree, None)
        descriptors = self.connection.take_descriptors()
        close_all(descriptors[len(effect.numbers) :])
        self._kept.setdefault(effect.tree, {}).update(zip(effect.numbers, descriptors, strict=False))

    def _do_drop_copies(self, effect: c.DropCopies) -> None:
        self._drop_copies(effect.tree, effect.numbers)

    def _drop_copies(self, tree: str, numbers: list[int] | None) -> None:
        copies = self._kept.get(tree, {})
        for number in list(copies) if numbers is None else numbers:
            if number in copies:
                os.close(copies.pop(number))
        if not copies:
            self._kept.pop(tree, None)

    def _do_watch_child(self, effect: c.WatchChild) -> None:
        self.loop.add(self._children[effect.child], lambda _: self._child_ended(effect.child))

    def _child_ended(self, child: int) -> None:
        pidfd = self._children.pop(child)
        self.loop.remove(pidfd)
        os.close(pidfd)
        self.feed(c.ChildEnded(child))

    def _do_keep_names(self, effect: c.KeepNames) -> None:
        """Each once: a server that has this process back hands them out again. This is within the grant, so it does no
        more than it must.
        """
        kept = {os.fstat(name).st_ino for name in self._names}
        for name in self.connection.take_descriptors():
            if kept and os.fstat(name).st_ino in kept:
                os.close(name)
            else:
                self._names.append(name)
        for address in self._own_spelling:
            with contextlib.suppress(OSError):
                own = exclusive_names.take_address(address)
                if own is not None:
                    self._names.append(own.detach())

    def _do_show_old_lives(self, effect: c.ShowOldLives) -> None:
        if self._old_lives:
            newest = self._old_lives[-MOST_OLD_LIVES:]
            left_out = len(self._old_lives) - len(newest)
            shown = m.OldLives(incarnation=self.name, left_out=left_out)
            self.connection.say(shown, [life.fd for life in newest])

    def _do_hang_up(self, effect: c.HangUp) -> None:
        self.connection.hang_up()

    def _do_warn(self, effect: c.Warn) -> None:
        complain(f"{self.name}: {effect.text}")

    def _do_joined(self, effect: c.Joined) -> None:
        self._joined = True
        self._settle_in()
        self._answer(effect, lambda ask: isinstance(ask.about, c.Tick))

    def _do_got(self, effect: c.Got) -> None:
        self._ever_held |= effect.lock == ACTIVE
        self.holds.add(effect.lock)
        self._answer(effect, lambda ask: _is_for(ask, effect.lock))

    def _do_without(self, effect: c.Without) -> None:
        self.holds.discard(effect.lock)
        self._answer(effect, lambda ask: _is_for(ask, effect.lock))

    def _do_child_counts(self, effect: c.ChildCounts) -> None:
        self._answer(effect, lambda ask: isinstance(ask.about, c.VouchFor) and ask.about.child == effect.child)

    def _do_no(self, effect: c.No) -> None:
        self._answer(effect, lambda ask: True)

    def _do_lost(self, effect: c.Lost) -> None:
        """`sys.exit` in the callback ends the process, and so does a callback that fails to end it."""
        try:
            self._on_lost(effect.why)
        except SystemExit as error:
            os._exit(error.code if isinstance(error.code, int) else EX_LOST)
        except BaseException as error:
            complain(f"on_lost raised {type(error).__name__}: {error}")
            end_process(effect.why)
        self._answer(effect, lambda ask: True)

    # -- the connection --------------------------------------------------------------------------------------------

    def _do_connect(self, _: c.Connect) -> c.Event:
        """To the server in the directory to which the path leads now; the life lock is taken in that very one."""
        try:
            there = RunDir(self.run_dir)
        except RunDirGone:
            return c.Disconnected(c.There.NOBODY)
        except OSError as error:
            if error.errno in _OUT_OF_ROOM and self._directory is not None:
                return self.disconnected("")
            return c.Disconnected(c.There.NOBODY if error.errno in _NOBODY else c.There.ANOTHER)
        same = self._directory is None or self._directory.is_same(there)
        reached = False
        life: LifeLock | None = None
        try:
            life = self._take_life(there)
            channel = Channel(connect(there.inside), m.from_server)
            reached = True
        except LifeFileGone:
            if same and not self.me.main and not self._joined:
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
        self.connection.open(channel)
        return c.Connected(life.inode, life.mapped, c.There.SAME if same else c.There.ANOTHER)

    def _leave_there(self) -> None:
        if self._there is not None and self._there is not self._directory:
            self._there.close()
        self._there = None

    def _take_life(self, there: RunDir) -> LifeLock:
        """The life lock of this process. Where its file isn't (any more), it is made anew: in a directory that was made
        anew, or emptied, the old file shows no server anything.
        """
        directory = there.inside / LIFE
        if self._life is not None and self._life.is_named(directory):
            return self._life
        if self.me.main or self._joined:  # a process that never counted must not bring back an engine that may be gone
            with contextlib.suppress(OSError):  # where that isn't possible, the next line says so
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
        if self.connection.up:
            self.feed(self._path_seen())

    def _path_seen(self, _: c.LookAtPath | None = None) -> c.Event:
        there = self._there or self._directory
        return c.PathSeen(there is not None and there.leads() is Leads.ELSEWHERE)

    def _do_say(self, effect: c.Say) -> c.Event | None:
        message = effect.message
        if not self.connection.up:
            return None  # it ended a moment ago, and the machine hears of it next
        if isinstance(message, m.Register | m.Join):
            said = self.connection.introduce(message)
        elif isinstance(message, m.Vouch):
            said = self.connection.say(message, [self._children[message.child]])
        elif isinstance(message, m.HandBack):
            kept = self._kept.get(message.tree, {})  # something unexpected may have lost some
            message = msgspec.structs.replace(message, numbers=[number for number in message.numbers if number in kept])
            said = self.connection.say(message, [kept[number] for number in message.numbers])
        else:
            said = self.connection.say(message)
        return None if said else self.disconnected("")

    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        c.Connect: _do_connect,
        c.Say: _do_say,
        c.HangUp: _do_hang_up,
        c.LookAtPath: _path_seen,
        c.Warn: _do_warn,
        c.ShowOldLives: _do_show_old_lives,
        c.Joined: _do_joined,
        c.Got: _do_got,
        c.Without: _do_without,
        c.WatchChild: _do_watch_child,
        c.ChildCounts: _do_child_counts,
        c.No: _do_no,
        c.Lost: _do_lost,
        c.KeepCopies: _do_keep_copies,
        c.DropCopies: _do_drop_copies,
        c.KeepNames: _do_keep_names,
    }


def _is_for(ask: Ask, lock: str) -> bool:
    return isinstance(ask.about, c.Want) and ask.about.lock == lock


def raise_if_over(answer: object) -> None:
    if isinstance(answer, c.Lost):
        raise Lost(answer.why)
    if isinstance(answer, c.No):
        raise Refused(answer.why)

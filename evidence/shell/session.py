"""One process's session with a server that binds trees: its connection, its life lock, where its path leads, what it
keeps for the next server, and the children that it vouches for. The rules are in `evidence/rules/standing.py`; what is
the same for every client, and the thread in which all of this happens, is in `sidecar/machine/client_shell.py`.

A client derives from `ProcessSession`, and says how to connect and what its errors are. A life lock is never let go of
while the process lives, once it may touch a device: a server that wants to know whether the process is gone asks for
it.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

import msgspec

from evidence.rules import client_events as c
from evidence.rules import messages as m
from evidence.rules.standing import Standing
from evidence.shell.lifefiles import LIFE
from sidecar.kernel import process_setup
from sidecar.kernel.lifelock import LifeFileExists, LifeFileGone, LifeLock, LifeLockError, LocksUnsupported
from sidecar.kernel.path_watch import CannotWatch, Leads, OpenDirectory, PathWatch, make_private_directory
from sidecar.machine.client_shell import Ask, ClientShell, TimeIsOver
from sidecar.machine.turns import Machine
from sidecar.terminal.exit_codes import EX_LOST
from sidecar.terminal.logs import complain
from sidecar.terminal.names import incarnation_name
from sidecar.wire.frames import Channel, close_all

_NO_SERVER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ECONNREFUSED)
_OUT_OF_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""This process can't look; that tells nothing of where its path leads."""
MOST_OLD_LIVES = 200


class Errors(NamedTuple):
    """What a client raises."""

    any: type[Exception]
    refused: type[Exception]
    lost: type[Exception]
    not_in_time: type[Exception]


class ProcessSession(ClientShell):
    errors: ClassVar[Errors]
    server: ClassVar[str]
    """What it is called in sentences."""
    decoder: ClassVar[msgspec.msgpack.Decoder[Any]]
    """For what the server says."""

    def __init__(
        self, name: str, machine: Machine, standing: Standing, run_dir: Path, on_lost: Callable[[str], object]
    ) -> None:
        """`machine` has this standing. `run_dir` is absolute: in it are the server's socket and the life files."""
        super().__init__(name, machine, self.errors.any)
        self._standing = standing
        self.run_dir = run_dir
        self.me = standing.me
        self.name = incarnation_name(self.me.engine_id, self.me.incarnation)
        self._on_lost = on_lost
        self._directory: OpenDirectory | None = None
        """The directory that is ours: its server has welcomed this process."""
        self._there: OpenDirectory | None = None
        """The directory whose server is at the other end of the connection."""
        self._watch: PathWatch | None = None
        self._life: LifeLock | None = None
        self._old_lives: list[LifeLock] = []
        self._kept: dict[str, dict[int, int]] = {}
        """Incarnation -> number as a member -> a copy of its pidfd."""
        self._children: dict[int, int] = {}
        self._numbered = 0
        self._joined = False
        self.bound = False
        """Its server has granted it something: it may have something on a device, for as long as it lives."""

    def begin(self) -> None:
        process_setup.forbid_core_dumps()
        self.loop.start()

    def await_welcome(self, timeout_s: float | None) -> None:
        """Blocks until this process counts."""
        answer = self.ask(Ask(c.Tick()), timeout_s)
        if isinstance(answer, TimeIsOver):
            raise self.errors.not_in_time(f"no {self.server} answered at {self.run_dir} within {timeout_s:g} s")
        self.raise_if_over(answer)

    @property
    def unheard(self) -> str:
        """For a sentence about what hasn't come in time."""
        return "" if self._joined else f": no {self.server} answers at {self.run_dir}"

    def vouch_for(self, pid: int, timeout_s: float | None = None) -> None:
        """Makes a child a member that can't join by itself. Blocks until it counts: let it touch no device before.
        Only a main process does.
        """
        if not self.me.main:
            raise self.errors.any(
                f"only the main process of {self.name} vouches for a child; or the child joins itself"
            )
        self.loop.check_caller()
        self._numbered += 1
        child = self._numbered
        self._children[child] = os.pidfd_open(pid)
        try:
            answer = self.ask(Ask(c.VouchFor(child, pid)), timeout_s)
        finally:
            if self.closed:
                self.close()  # waits for its thread, which may have let go of all children before this one was there
                self._close_children()
        if isinstance(answer, TimeIsOver):
            raise self.errors.not_in_time(f"process {pid} was not acknowledged as a member within {timeout_s:g} s")
        self.raise_if_over(answer)

    def raise_if_over(self, answer: object) -> None:
        if isinstance(answer, c.Lost):
            raise self.errors.lost(answer.why)
        if isinstance(answer, c.No):
            raise self.errors.refused(answer.why)

    def life_descriptors(self) -> list[int]:
        """What a forked child keeps open that is to count as this process's as long as it lives."""
        return [lock.fd for lock in self._lives]

    @property
    def _lives(self) -> list[LifeLock]:
        return [*self._old_lives, *([self._life] if self._life else [])]

    def let_go(self) -> None:
        """What is held stays held until the process has ended: the server goes by that alone."""
        if self.may_let_go:
            for lock in self._lives:
                lock.close()
        for tree in list(self._kept):
            self._drop_copies(tree, None)
        self._close_children()
        if self._watch is not None:
            self._watch.close()
        for directory in {self._directory, self._there} - {None}:
            directory.close()  # type: ignore[union-attr]

    def _close_children(self) -> None:
        """Callers that vouch for a child do so, too: each is taken out before it is closed, and closed once."""
        with contextlib.suppress(KeyError):
            while True:
                _, pidfd = self._children.popitem()
                self.loop.remove(pidfd)
                os.close(pidfd)

    def deaf(self) -> None:
        """What was granted to it may be granted to another one, and it would not hear of that: it must not go on."""
        self._children.clear()  # and nothing is closed: other files of the program may have those numbers by now
        if self.bound:
            self._do_lost(c.Lost(f"this process has closed the descriptors by which it hears the {self.server}"))

    @property
    def may_let_go(self) -> bool:
        """It has nothing on a device; or this is a forked child, in which the client doesn't go on."""
        return self.loop.forked or not (self.bound or (self._joined and not self.me.main))

    # -- the client's ----------------------------------------------------------------------------------------------

    def connect(self, inside: Path) -> socket.socket:
        """To the server in this directory. Raises OSError when there is none, or none that takes it."""
        raise NotImplementedError

    def end_process(self, why: str) -> NoReturn:
        """Where `on_lost` has failed to."""
        raise NotImplementedError

    # -- what callers ask for --------------------------------------------------------------------------------------

    def on_ask(self, ask: Ask) -> None:
        if self._standing.last_word is not None:
            self.answer(ask, self._standing.last_word)
        elif isinstance(ask.about, c.Tick) and self._joined:
            self.answer(ask, c.Joined())
        else:
            self.feed(ask.about)

    def on_late(self, ask: Ask) -> None:
        self.answer(ask, TimeIsOver())

    # -- effects ---------------------------------------------------------------------------------------------------

    def disconnected(self, why: str) -> c.Event:
        leads = self._directory.leads() if self._directory is not None else Leads.HERE
        return c.Disconnected({Leads.HERE: c.There.SAME, Leads.NOWHERE: c.There.NO_SERVER}.get(leads, c.There.ANOTHER))

    def _do_keep_copies(self, effect: c.KeepCopies) -> None:
        if not effect.more:
            self._drop_copies(effect.tree, None)
        descriptors = self.connection.take_descriptors()
        close_all(descriptors[len(effect.numbers) :])
        for number, copy in zip(effect.numbers, descriptors, strict=False):
            self._drop_copies(effect.tree, [number])
            self._kept.setdefault(effect.tree, {})[number] = copy

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

    def _do_show_old_lives(self, effect: c.ShowOldLives) -> None:
        if self._old_lives:
            newest = self._old_lives[-MOST_OLD_LIVES:]
            left_out = len(self._old_lives) - len(newest)
            shown = m.OldLives(incarnation=self.name, left_out=left_out)
            self.connection.say(shown, [life.fd for life in newest])

    def _do_joined(self, effect: c.Joined) -> None:
        self._joined = True
        self._settle_in()
        self.answer_all(effect, lambda ask: isinstance(ask.about, c.Tick))

    def _do_child_counts(self, effect: c.ChildCounts) -> None:
        self.answer_all(effect, lambda ask: isinstance(ask.about, c.VouchFor) and ask.about.child == effect.child)

    def _do_lost(self, effect: c.Lost) -> None:
        """`sys.exit` in the callback ends the process, and so does a callback that raises."""
        try:
            self._on_lost(effect.why)
        except SystemExit as error:
            os._exit(error.code if isinstance(error.code, int) else EX_LOST)
        except BaseException as error:
            complain(f"on_lost raised {type(error).__name__}: {error}")
            self.end_process(effect.why)
        self.answer_all(effect, lambda ask: True)

    # -- the connection --------------------------------------------------------------------------------------------

    def _do_connect(self, _: c.Connect) -> c.Event:
        """To the server in the directory to which the path leads now; the life lock is taken in that very one."""
        try:
            there = OpenDirectory(self.run_dir)
        except OSError as error:
            if error.errno in _OUT_OF_ROOM and self._directory is not None:
                return self.disconnected("")
            return c.Disconnected(c.There.NO_SERVER if error.errno in _NO_SERVER else c.There.ANOTHER)
        same = self._directory is None or self._directory.is_same(there)
        reached = False
        life: LifeLock | None = None
        try:
            life = self._take_life(there)
            channel = Channel(self.connect(there.inside), self.decoder)
            reached = True
        except LifeFileGone:
            if same and not self.me.main and not self._joined:
                return c.Hopeless(f"the life file of {self.name} isn't there: this engine's end was proven")
            return c.Disconnected(c.There.SAME if same else c.There.ANOTHER)
        except LocksUnsupported as error:
            return c.Hopeless(str(error))
        except LifeLockError as error:
            return c.Disconnected(c.There.SAME if same else c.There.ANOTHER, str(error))
        except OSError as error:
            no_server = error.errno in _NO_SERVER
            where = c.There.NO_SERVER if no_server else c.There.SAME if same else c.There.ANOTHER
            if life is None and not no_server:
                return c.Disconnected(where, f"can't make its file in {self.run_dir / LIFE}: {error.strerror}")
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

    def _take_life(self, there: OpenDirectory) -> LifeLock:
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
        if isinstance(message, m.Introduction):
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
        c.HangUp: lambda session, effect: session.connection.hang_up(),
        c.LookAtPath: _path_seen,
        c.Warn: lambda session, effect: complain(f"{session.name}: {effect.text}"),
        c.ShowOldLives: _do_show_old_lives,
        c.Joined: _do_joined,
        c.WatchChild: _do_watch_child,
        c.ChildCounts: _do_child_counts,
        c.No: lambda session, effect: session.answer_all(effect, lambda ask: True),
        c.Lost: _do_lost,
        c.KeepCopies: _do_keep_copies,
        c.DropCopies: lambda session, effect: session._drop_copies(effect.tree, effect.numbers),
    }

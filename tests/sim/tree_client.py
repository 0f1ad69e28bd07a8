"""The simulator's shell for a client of whatever binds trees: what the real one does (`evidence/shell/session.py`), on
the simulated kernel, with the same order of calls. The lock's is in `actors.py`, the ledger's in `vram_actors.py`.
"""

import contextlib
import errno
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from msgspec.structs import replace

from evidence.rules import client_events as c
from evidence.rules import messages as m
from evidence.rules.standing import Link, Me
from sidecar.machine import context
from tests.sim.files import Lock
from tests.sim.kernel import Kernel
from tests.sim.process import Process
from tests.sim.shell import INF, Shell

_NO_SERVER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ECONNREFUSED)


class Where(Protocol):
    """What a world of trees says of them."""

    kernel: Kernel
    rng: Any
    apart: bool
    skew: float
    maps: bool
    evidence: str
    met: set[Process]
    reader_hangs_until: float
    directory_lost: bool

    def server_config(self, incarnation: str) -> Any: ...
    def leaves_undone(self) -> bool: ...
    def noted(self, server: Any, note: context.Note) -> None: ...


def leads(process: Process, run: str, directory: int) -> c.There | None:
    """Where the run directory's path leads now, as one sees it that has been there. None: it can't be seen."""
    try:
        there = process.stat(run)
    except OSError as error:
        return c.There.NO_SERVER if error.errno in _NO_SERVER else None
    return c.There.SAME if there == process.fstat(directory) else c.There.ANOTHER


class _LifeFileGone(Exception):
    """Its engine's end was proven, or the engine is elsewhere."""


class TreeClient(Shell[Any, Any]):
    """One process's client: the machine, its connection, its life lock. What it does is told to `on`."""

    machine: Any
    tick = context.Tick()
    run: ClassVar[str]
    socket_name: ClassVar[str]
    may_raise: ClassVar[tuple[type, ...]] = (c.Connect, c.Say, c.LookAtPath, c.KeepCopies)

    def __init__(self, world: Any, process: Process, me: Me, on: Callable[[Any], None]) -> None:
        super().__init__(world, process, process)
        self.where: Where = world
        self.me = me
        self.name = f"{me.engine_id}.{me.incarnation}"
        self.on = on
        self.directory: int | None = None
        """The one that is its own: its server has welcomed this process."""
        self.there: int | None = None
        """The one whose server is at the other end of the connection."""
        self.joined = False
        self.life: int | None = None
        self.lives: list[tuple[int, int | None]] = []
        """Every life file that it has had, and where it is mapped."""
        self.ever_held = False
        self.fd: int | None = None
        self.kept: dict[str, dict[int, int]] = {}
        self.arriving: tuple[int, ...] = ()
        self.children: dict[int, int] = {}

    def missed(self, effect: Any) -> None:
        """Something was raised instead."""

    def does(self, effect: Any) -> None:
        """What is the client's own. Then it is told to `on`."""

    def _handle(self, event: Any) -> Iterable[Any]:
        yield from self.machine.handle(event, self.where.kernel.now)

    def _is_left_undone(self, effect: Any) -> bool:
        """The connection is made anew: what was said or heard may be half."""
        if not isinstance(effect, self.may_raise) or not self.where.leaves_undone():
            return False
        self.missed(effect)
        self._hang_up()
        self.pending.append(self._disconnected())
        return True

    def _due(self) -> float:
        if self.machine.standing.link is Link.IN and not self.where.directory_lost:
            return INF  # all that is due is a look at the path, which leads where it led
        due: float = self.machine.deadline
        return due

    def look_now_and_then(self) -> None:
        """The path has changed for the first time."""
        if not self.pending and self.process.alive:
            self._set_timer()

    def _do(self, effect: Any) -> None:
        kind = type(effect)
        if isinstance(effect, c.Say):
            self._say(effect.message)
        elif kind is c.Connect:
            self.pending.append(self._connect())
        elif kind is c.LookAtPath:
            self.pending.append(self._path_seen())
        elif isinstance(effect, c.KeepCopies):
            if not effect.more:
                self._drop_copies(effect.tree, None)
            self.kept.setdefault(effect.tree, {}).update(zip(effect.numbers, self.arriving, strict=True))
            self.arriving = ()
        elif isinstance(effect, c.DropCopies):
            self._drop_copies(effect.tree, effect.numbers)
        elif kind is c.HangUp:
            self._hang_up()
        else:
            if kind is c.Joined:
                self.joined = True
                self._settle_in()
            self.does(effect)
            self.on(effect)

    def _drop_copies(self, tree: str, numbers: list[int] | None) -> None:
        copies = self.kept.setdefault(tree, {})
        for number in list(copies) if numbers is None else numbers:
            if number in copies:
                self.process.close(copies.pop(number))

    def _connect(self) -> Any:
        process = self.process
        try:
            there = process.open_directory(self.run)
        except OSError as error:
            return c.Disconnected(c.There.NO_SERVER if error.errno in _NO_SERVER else c.There.ANOTHER)
        same = self.directory is None or process.fstat(self.directory) == process.fstat(there)
        try:
            self._take_life(there)
            fd = process.connect(self.socket_name, at=there)
        except _LifeFileGone:
            process.close(there)
            if same and not self.me.main and not self.joined:
                return c.Hopeless("its life file is gone")
            return c.Disconnected(c.There.SAME if same else c.There.ANOTHER)
        except OSError as error:
            process.close(there)
            no_server = error.errno in _NO_SERVER
            return c.Disconnected(c.There.NO_SERVER if no_server else c.There.SAME if same else c.There.ANOTHER)
        self._leave_there()
        self.there, self.fd = there, fd
        process.on_readable(fd, self._on_ready)
        assert self.life is not None
        life = (1, process.fstat(self.life))
        return c.Connected(life, self.where.maps, c.There.SAME if same else c.There.ANOTHER)

    def _leave_there(self) -> None:
        if self.there is not None and self.there != self.directory:
            self.process.close(self.there)
        self.there = None

    def _settle_in(self) -> None:
        if self.there is not None and self.there != self.directory:
            if self.directory is not None:
                self.process.close(self.directory)
            self.directory = self.there

    def _take_life(self, there: int) -> None:
        process, path = self.process, f"life/{self.name}"
        if self.life is not None:
            with contextlib.suppress(OSError):
                if process.stat(path, at=there) == process.fstat(self.life):
                    return
        if self.me.main or self.joined:
            with contextlib.suppress(OSError):
                process.mkdir("life", at=there)
            try:
                fd = process.open(path, create=True, exclusive=True, at=there)
            except FileExistsError:
                fd = process.open(path, at=there)
            except FileNotFoundError:
                raise _LifeFileGone from None
        else:
            try:
                fd = process.open(path, at=there)
            except FileNotFoundError:
                raise _LifeFileGone from None
        process.lock(fd, Lock.READ)
        self.lives.append((fd, process.map(fd) if self.where.maps else None))
        self.life = fd  # an older one stays open

    def path_changed(self) -> None:
        """The kernel says that the path may lead elsewhere."""
        if self.fd is not None and self.me.main and self.joined:
            self.feed(self._path_seen())

    def _path_seen(self) -> Any:
        there = self.there if self.there is not None else self.directory
        return c.PathSeen(there is not None and leads(self.process, self.run, there) is c.There.ANOTHER)

    def _disconnected(self) -> Any:
        there = leads(self.process, self.run, self.directory) if self.directory is not None else c.There.SAME
        return c.Disconnected(there or c.There.ANOTHER)

    def _hang_up(self) -> None:
        if self.fd is not None:
            self.process.close(self.fd)
            self.fd = None

    def close(self) -> None:
        """`LockClient.close()`: whatever it may hold it holds until it ends."""
        self._hang_up()
        self.stopped = True
        for fd, mapping in [] if self.ever_held else self.lives:
            if mapping is not None:
                self.process.unmap(mapping)
            self.process.close(fd)
        for fd in (fd for copies in self.kept.values() for fd in copies.values()):
            self.process.close(fd)
        self.kept.clear()
        self.pending.clear()
        self._set_timer()

    def _say(self, message: Any) -> None:
        if self.fd is None:
            return
        process, own = self.process, -1
        passed: tuple[int, ...] = ()
        if isinstance(message, m.Introduction):
            own = process.pidfd_open(process.pid)
            passed = (own,)
        elif isinstance(message, m.HandBack):
            kept = self.kept.get(message.tree, {})
            message = replace(message, numbers=[number for number in message.numbers if number in kept])
            passed = tuple(kept[number] for number in message.numbers)
        elif isinstance(message, m.Vouch):
            passed = (self.children[message.child],)
        with contextlib.suppress(BrokenPipeError):  # its end of file is under way
            process.send(self.fd, message, passed)
        if own >= 0:
            process.close(own)

    def _has(self, file: Any) -> bool:
        """Another one may have the number by now. (Asked anew each time: a compiler would take it for settled.)"""
        return self.fd is not None and self.process.descriptors.get(self.fd) is file

    def _on_ready(self, fd: int) -> None:
        file = self.process.descriptors.get(fd)
        if fd != self.fd or file is None:
            return
        received, ended = self.process.receive(fd)
        for message, self.arriving in received:
            if self._has(file):
                self.feed(c.Heard(message))
            for passed in self.arriving:
                self.process.close(passed)
            self.arriving = ()
        if ended and self._has(file):
            self._hang_up()
            self.feed(self._disconnected())

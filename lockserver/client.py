"""The lock's client, for programs: be an engine that may be awake, or a process of one.

    engine = LockClient("/run/failover", "engine-a")
    engine.start()                                  # registered: this process counts
    with engine.permit():                           # one engine at a time initialises device memory
        ...
    grant = engine.acquire({"GPU-...": 40 << 30})   # blocks until it is this engine's turn
    engine.serving("http://...")                    # to everybody who watches
    ...                                             # dying releases it; nothing else does

    join()                                          # in every other process of the engine, before it touches a device

The rules are in `client_machine.py`; here are the socket and the life file. A thread (`sidecar/client_loop.py`) watches
the connection from `start` on: it sees a server that went away within milliseconds, comes back to the next one, and
calls `on_lost` when what was held is lost (by default the process ends).
"""

import contextlib
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from lockserver import client_events as c
from lockserver import messages as m
from lockserver.client_machine import ClientMachine, Me
from lockserver.messages import ACTIVE, INIT
from lockserver.rundir import LIFE, RunDir, RunDirGone, connect
from sidecar import process_setup
from sidecar.client_connection import ClientConnection
from sidecar.client_loop import ClientLoop
from sidecar.frames import Channel, close_all
from sidecar.lifelock import LifeFileExists, LifeFileGone, LifeLock, LocksUnsupported

RUN_DIR_VARIABLE = "FAILOVER_RUN_DIR"
TREE_VARIABLE = "FAILOVER_TREE"
EXIT_LOST = 70


class LockError(Exception):
    """What went wrong between this process and the lock server."""


class Refused(LockError):
    """The server said no, and why."""


class Lost(LockError):
    """What was held is no longer held."""


class NotInTime(LockError, TimeoutError):
    """It did not happen within the time that the caller gave it."""


@dataclass(frozen=True)
class Grant:
    lock: str
    token: int
    """Grows with every grant; it tells this one from every earlier one."""


def end_process(why: str) -> NoReturn:
    """Ends this process at once, and with it whatever was armed to die with it."""
    with contextlib.suppress(OSError, ValueError):
        print(f"lock lost: {why}; this process ends", file=sys.stderr, flush=True)
    os._exit(EXIT_LOST)


class _Session:
    """One process's standing with the lock server: its machine, its connection, its life lock, its thread."""

    def __init__(self, run_dir: Path | str, me: Me, on_lost: Callable[[str], object]) -> None:
        self.run_dir = Path(run_dir)
        self.me = me
        self.name = f"{me.engine_id}.{me.incarnation}"
        self._on_lost = on_lost
        self._machine = ClientMachine(me)
        self._directory: RunDir | None = None
        self._life: LifeLock | None = None
        self._old_lives: list[LifeLock] = []
        self._kept: dict[str, tuple[int, ...]] = {}
        self._children: dict[int, int] = {}
        self._counted: set[int] = set()
        self.joined = False
        self._refusal = ""
        self._loss = ""
        self.grants: dict[str, Grant] = {}
        self.loop: ClientLoop[c.Event] = ClientLoop("lock-client", self._feed, lambda: self._machine.deadline, c.Tick())
        self._link = ClientConnection(
            self.loop,
            heard=lambda message: self._feed(c.Heard(message)),
            ended=lambda why: self._feed(self._disconnected()),
        )
        self.tell = self.loop.tell
        self.wait = self.loop.wait

    def begin(self) -> None:
        process_setup.forbid_core_dumps()
        self.loop.start()

    def close(self) -> None:
        """Leaves. What is held stays held until the process has ended: the server goes by that alone."""
        if not self.loop.stop():
            return
        self._link.hang_up()
        for lock in (*self._old_lives, *([self._life] if self._life else [])):
            lock.close()
        for copies in self._kept.values():
            close_all(copies)
        self._kept.clear()
        if self._directory is not None:
            self._directory.close()
        self.loop.close()

    # -- the machine -----------------------------------------------------------------------------------------------

    def _feed(self, event: c.Event) -> None:
        pending: deque[c.Event] = deque([event])
        while pending:
            for effect in self._machine.handle(pending.popleft(), time.monotonic()):
                answer = self._do(effect)
                if answer is not None:
                    pending.append(answer)

    def _do(self, effect: c.Effect) -> c.Event | None:
        if isinstance(effect, c.Connect):
            return self._connect()
        if isinstance(effect, c.Say):
            return self._say(effect.message)
        if isinstance(effect, c.Check):
            return self.check(effect.round)
        if isinstance(effect, c.KeepCopies):
            close_all(self._kept.pop(effect.tree, ()))
            self._kept[effect.tree] = self._link.take_descriptors()
            return None
        if isinstance(effect, c.DropCopies):
            close_all(self._kept.pop(effect.tree, ()))
            return None
        if isinstance(effect, c.Joined):
            self.joined = True
            self._settle_in()
        elif isinstance(effect, c.Got):
            self.grants[effect.lock] = Grant(effect.lock, effect.token)
        elif isinstance(effect, c.ChildCounts):
            self._counted.add(effect.child)
        elif isinstance(effect, c.No):
            self._refusal = effect.why
        elif isinstance(effect, c.Lost):
            self._loss = effect.why
            self._on_lost(effect.why)
        else:
            self.on_switchover(effect)
        self.loop.announce()
        return None

    def check(self, round: int) -> c.Event | None:
        return c.Checked(round, True)

    def on_switchover(self, effect: c.Effect) -> None:
        """For main processes: `BeginDrain`, `ServeOn`, `End`."""

    # -- the connection --------------------------------------------------------------------------------------------

    def _connect(self) -> c.Event:
        same = True
        try:
            if self._directory is None:
                self._directory = RunDir(self.run_dir)
            same = not self._directory.replaced()
            life = self._take_life(same)
            sock = connect(self.run_dir)
        except LifeFileGone as error:
            if same and not self.me.main:
                return c.Hopeless(f"{error}: this engine's end was proven")
            return c.Disconnected(same)
        except LocksUnsupported as error:
            return c.Hopeless(str(error))
        except (OSError, RunDirGone):
            return c.Disconnected(same)
        self._link.open(Channel(sock, m.from_server))
        return c.Connected(life.inode, same)

    def _take_life(self, same: bool) -> LifeLock:
        """The life lock of this process. In a directory that was made anew it is taken anew: there the old one shows
        nobody anything.
        """
        if self._life is not None and (same or self._life.same_file()):
            return self._life
        directory = self.run_dir / LIFE
        if self.me.main or self.joined:  # who never counted must not bring back a tree that may be gone
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
        """Welcomed: the directory that its path names now is the one to stay with."""
        if self._directory is not None and self._directory.replaced():
            self._directory.close()
            self._directory = RunDir(self.run_dir)

    def _say(self, message: m.ClientMessage) -> c.Event | None:
        if not self._link.up:
            return None  # it ended a moment ago, and the machine hears of it next
        if isinstance(message, m.Register | m.Join):
            said = self._link.introduce(message)
        elif isinstance(message, m.Adopt):
            said = self._link.say(message, [self._children[message.child]])
        elif isinstance(message, m.HandBack):
            said = self._link.say(message, self._kept[message.tree])
        else:
            said = self._link.say(message)
        return None if said else self._disconnected()

    def _disconnected(self) -> c.Event:
        return c.Disconnected(self._directory is None or not self._directory.replaced())

    def welcomed(self, timeout_s: float | None) -> None:
        """Blocks until this process counts."""
        self.tell(c.Tick())
        if not self.wait(lambda: self.joined or bool(self._refusal or self._loss), timeout_s):
            raise NotInTime(f"no lock server answered at {self.run_dir} within {timeout_s:g} s")
        self.raise_if_over()

    def raise_if_over(self) -> None:
        if self._loss:
            raise Lost(self._loss)
        if self._refusal:
            why, self._refusal = self._refusal, ""
            raise Refused(why)


class LockClient(_Session):
    """The main process of an engine."""

    def __init__(
        self,
        run_dir: Path | str,
        engine_id: str,
        *,
        check: Callable[[], bool] = lambda: True,
        on_lost: Callable[[str], object] = end_process,
        on_drain: Callable[[float], object] | None = None,
        on_resume: Callable[[str], object] = lambda why: None,
        on_exit: Callable[[], object] = lambda: os._exit(0),
    ) -> None:
        """`check`: could this engine wake now? Asked before a grant. `on_drain(timeout_s)`: finish what was begun,
        for a switchover; `on_resume(why)`: it is off.
        `on_exit`: drained, and the successor is ready; by default the process ends. Callbacks run in the client's
        thread, `on_drain` in one of its own.
        """
        super().__init__(run_dir, Me(engine_id, secrets.token_hex(8), os.getpid(), True), on_lost)
        self._check = check
        self._on_drain = on_drain
        self._on_resume = on_resume
        self._on_exit = on_exit
        self._numbered = 0

    def start(self, timeout_s: float | None = None) -> "LockClient":
        """Makes this start's life file, registers, and watches from now on."""
        self.begin()
        self.welcomed(timeout_s)
        return self

    def acquire(self, needs: Mapping[str, int] | None = None, timeout_s: float | None = None) -> Grant:
        """Blocks until this engine holds the lock. `needs`: device -> bytes that must be free for it to wake."""
        return self._acquire(ACTIVE, dict(needs or {}), timeout_s)

    @contextlib.contextmanager
    def permit(self, timeout_s: float | None = None) -> Iterator[Grant]:
        """The permit to initialise device memory, for as long as the block takes."""
        grant = self._acquire(INIT, {}, timeout_s)
        try:
            yield grant
        finally:
            self.grants.pop(INIT, None)
            self.tell(c.Withdraw(INIT))

    def _acquire(self, lock: m.LockName, needs: dict[str, int], timeout_s: float | None) -> Grant:
        wanted = c.Want(lock, needs)
        if not self.wait(lambda: lock in self.grants or bool(self._refusal or self._loss), timeout_s, first=wanted):
            self.tell(c.Withdraw(lock))
            raise NotInTime(f"the lock {lock} was not granted within {timeout_s:g} s")
        self.raise_if_over()
        return self.grants[lock]

    def serving(self, url: str) -> None:
        """Says where the engine serves; an empty address takes it back."""
        self.tell(c.SetServing(url))

    def ready(self, ready: bool, needs: Mapping[str, int] | None = None) -> None:
        """A waiter's word about itself. One that isn't ready isn't granted."""
        self.tell(c.SetReady(ready, None if needs is None else dict(needs)))

    def adopt(self, pid: int, timeout_s: float | None = None) -> None:
        """Makes a child a member that can't join by itself. Blocks until it counts: let it touch no device before."""
        self._numbered += 1
        child = self._numbered
        self._children[child] = os.pidfd_open(pid)
        self.tell(c.AdoptChild(child, pid))
        if not self.wait(lambda: child in self._counted or bool(self._loss), timeout_s):
            raise NotInTime(f"process {pid} was not acknowledged as a member within {timeout_s:g} s")
        self.raise_if_over()

    def environment(self) -> dict[str, str]:
        """What a child needs in its environment for `join`."""
        return {RUN_DIR_VARIABLE: str(self.run_dir), TREE_VARIABLE: self.name}

    def check(self, round: int) -> c.Event:
        try:
            return c.Checked(round, bool(self._check()), "" if self.grants else "the engine's own check said no")
        except Exception as error:  # whatever it is: an engine whose check fails isn't well
            return c.Checked(round, False, f"{type(error).__name__}: {error}"[:1000])

    def on_switchover(self, effect: c.Effect) -> None:
        if isinstance(effect, c.BeginDrain):
            threading.Thread(target=self._drain, args=(effect,), name="lock-drain", daemon=True).start()
        elif isinstance(effect, c.ServeOn):
            self._on_resume(effect.why)
        elif isinstance(effect, c.End):
            self._on_exit()

    def _drain(self, effect: c.BeginDrain) -> None:
        try:
            if self._on_drain is not None:
                self._on_drain(effect.timeout_s)
        except Exception as error:  # the holder serves on, and the asker is told why
            self.tell(c.DrainEnded(effect.round, False, f"{type(error).__name__}: {error}"[:1000]))
        else:
            self.tell(c.DrainEnded(effect.round, True))


class Membership(_Session):
    """A process of an engine's tree, other than the main one. Keep it for as long as the process lives."""


def join(
    run_dir: Path | str | None = None,
    tree: str | None = None,
    *,
    on_lost: Callable[[str], object] = end_process,
    timeout_s: float | None = None,
) -> Membership:
    """Makes this process a member of its engine's tree; call it before it touches a device. Both names come from the
    environment as a rule.
    """
    run_dir = run_dir or os.environ.get(RUN_DIR_VARIABLE)
    tree = tree or os.environ.get(TREE_VARIABLE)
    if not run_dir or not tree:
        raise LockError(f"which engine's process is this? Neither given nor in {RUN_DIR_VARIABLE} and {TREE_VARIABLE}")
    engine_id, _, incarnation = tree.rpartition(".")
    membership = Membership(run_dir, Me(engine_id, incarnation, os.getpid(), False), on_lost)
    membership.begin()
    try:
        membership.welcomed(timeout_s)
    except LockError:
        membership.close()  # a process that was refused must not keep the life lock of a dead engine
        raise
    return membership


class AsyncLockClient:
    """`LockClient` for asyncio. Cancelling a wait gives up the place in the queue."""

    def __init__(self, run_dir: Path | str, engine_id: str, **callbacks: Any) -> None:
        self.client = LockClient(run_dir, engine_id, **callbacks)

    async def start(self) -> "AsyncLockClient":
        self.client.begin()
        await self.client.loop.until(lambda: self.client.joined, self.client.raise_if_over)
        return self

    async def acquire(self, needs: Mapping[str, int] | None = None) -> Grant:
        return await self._acquire(ACTIVE, dict(needs or {}))

    @contextlib.asynccontextmanager
    async def permit(self) -> AsyncIterator[Grant]:
        grant = await self._acquire(INIT, {})
        try:
            yield grant
        finally:
            self.client.grants.pop(INIT, None)
            self.client.tell(c.Withdraw(INIT))

    async def _acquire(self, lock: m.LockName, needs: dict[str, int]) -> Grant:
        self.client.tell(c.Want(lock, needs))
        try:
            await self.client.loop.until(lambda: lock in self.client.grants, self.client.raise_if_over)
        except BaseException:
            self.client.tell(c.Withdraw(lock))
            raise
        return self.client.grants[lock]

"""The lock's client, for programs: be an engine that may be awake, or a process of one.

    engine = LockClient(run_dir, "engine-a")
    engine.start()                                  # registered: this process counts
    with engine.permit():                           # one engine at a time initialises device memory
        ...
    grant = engine.acquire({"GPU-...": 40 << 30})   # blocks until it is this engine's turn
    engine.serving("http://...")                    # to all that watch the lock
    ...                                             # dying releases it; nothing else does

    join()                                          # in every other process of the engine, before it touches a device

From `start` on a thread watches the connection: it sees a server that went away within milliseconds, comes back to the
next one, and calls `on_lost` when what was held is lost (by default the process ends). How: `session.py`; by which
rules: `client_machine.py`.
"""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from evidence.rules.standing import Me
from lockserver.rules import client_events as c
from lockserver.rules import messages as m
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.shell.checking import Checking, said
from lockserver.shell.rundir import absolute
from lockserver.shell.session import LockError, Lost, NotInTime, Refused, Session, end_process
from sidecar.machine.client_shell import Ask
from sidecar.terminal.exit_codes import EX_LOST
from sidecar.terminal.logs import complain
from sidecar.terminal.names import NAME

__all__ = [
    "EX_LOST",
    "RUN_DIR_VARIABLE",
    "TREE_VARIABLE",
    "Grant",
    "LockClient",
    "LockError",
    "Lost",
    "Membership",
    "NotInTime",
    "Refused",
    "end_process",
    "join",
]

RUN_DIR_VARIABLE = "FAILOVER_RUN_DIR"
TREE_VARIABLE = "FAILOVER_TREE"


@dataclass(frozen=True)
class Grant:
    lock: str
    token: int
    """Grows with every grant; it tells this one from every earlier one."""
    proven: bool = False
    """Each single process of the holder before was seen to have ended, and what this one needs was seen to be free:
    no process writes to what the holder before has left.
    """


class LockClient(Session):
    """The main process of an engine."""

    def __init__(
        self,
        run_dir: Path | str,
        engine_id: str,
        *,
        check: Callable[[], bool] | None = None,
        on_lost: Callable[[str], object] = end_process,
        on_drain: Callable[[float], object] | None = None,
        on_resume: Callable[[str], object] = lambda why: None,
        on_exit: Callable[[], object] = lambda: os._exit(0),
    ) -> None:
        """`check`: could this engine wake now? Asked before a grant. `on_drain(timeout_s)`: finish what was begun,
        for a switchover; `on_resume(why)`: it is off. `on_exit`: drained, and the successor is ready; by default the
        process ends.

        `check` and `on_drain` run in threads of their own, and may take their time. The other callbacks run in the
        thread that watches the connection: they must be short, and can't wait for this client. `sys.exit()` in
        `on_lost` and `on_exit` ends the process. Another exception in `on_lost` ends it too; in `on_resume` it is told
        on stderr.
        """
        super().__init__(run_dir, Me(engine_id, os.urandom(8).hex(), os.getpid(), True), on_lost)
        self._checking = Checking(check, self._checked) if check is not None else None
        self._on_drain = on_drain
        self._on_resume = on_resume
        self._on_exit = on_exit

    def begin(self) -> None:
        super().begin()
        if self._checking is not None:
            self._checking.start()

    def let_go(self) -> None:
        super().let_go()
        if self._checking is not None and not self.loop.forked:
            self._checking.end()

    def start(self, timeout_s: float | None = None) -> "LockClient":
        """Makes this start's life file, registers, and watches from now on."""
        self.begin()
        self.welcomed(timeout_s)
        return self

    def acquire(self, needs: Mapping[str, int] | None = None, timeout_s: float | None = None) -> Grant:
        """Blocks until this engine holds the lock. `needs`: device -> bytes that must be free for it to wake.
        ValueError: the wire doesn't take them. NotInTime: it doesn't hold it, and isn't granted it until it asks again.
        A grant that came as the time ended is returned; the server says which, and has a moment more for that. What a
        signal handler raises gives up, too: a grant that came all the same is returned by the next call.
        """
        return self._acquire(ACTIVE, dict(needs or {}), timeout_s)

    @contextlib.contextmanager
    def permit(self, timeout_s: float | None = None) -> Iterator[Grant]:
        """The permit to initialise device memory, for as long as the block takes."""
        grant = self._acquire(INIT, {}, timeout_s)
        try:
            yield grant
        finally:
            self.tell(c.Withdraw(INIT))

    def _acquire(self, lock: m.LockName, needs: dict[str, int], timeout_s: float | None) -> Grant:
        m.check(m.Acquire(lock=lock, needs=needs))
        answer = self.ask(Ask(c.Want(lock, needs)), timeout_s)
        self.raise_if_over(answer)
        if not isinstance(answer, c.Got):
            raise NotInTime(f"the lock {lock} was not granted within {timeout_s:g} s")
        return Grant(lock, answer.token, answer.proven)

    def serving(self, url: str, kept: tuple[int, int] | None = None) -> None:
        """Says where the engine serves; an empty address takes it back. `kept`: it goes on with its predecessor's whole
        KV cache, which has room for so many tokens, in blocks of so many. ValueError: the wire doesn't take it.
        """
        room = None if kept is None else m.KeptRoom(*kept)
        m.check(m.Serving(url=url, kept=room))
        self.tell(c.SetServing(url, room))

    def ready(self, ready: bool, needs: Mapping[str, int] | None = None) -> None:
        """A waiter's word about itself: until it is ready it isn't granted."""
        new = None if needs is None else dict(needs)
        m.check(m.Ready(ready=ready, needs=new))
        self.tell(c.SetReady(ready, new))

    def environment(self) -> dict[str, str]:
        """What a child needs in its environment for `join`."""
        return {RUN_DIR_VARIABLE: str(self.run_dir), TREE_VARIABLE: self.name}

    def _do_check(self, effect: c.Check) -> c.Event | None:
        if self._checking is None:
            return c.Checked(effect.round, True)
        self._checking.ask(effect.round)
        return None

    def _checked(self, round: int, well: bool, why: str) -> None:
        said = "" if well or self.holds else "the engine's own check said no"
        self.tell(c.Checked(round, well, why or said))

    def _do_begin_drain(self, effect: c.BeginDrain) -> None:
        threading.Thread(target=self._drain, args=(effect,), name="lock-drain", daemon=True).start()

    def _do_serve_on(self, effect: c.ServeOn) -> None:
        self.call("on_resume", lambda: self._on_resume(effect.why))  # it still holds, and can still lose what it holds

    def _do_end(self, _: c.End) -> None:
        try:
            self._on_exit()
        except SystemExit as error:
            os._exit(error.code if isinstance(error.code, int) else 0)
        except Exception as error:
            complain(f"{self.name}: on_exit raised {said(error)}")
            end_process("the successor is ready, and this process was told to end")

    def _drain(self, effect: c.BeginDrain) -> None:
        try:
            if self._on_drain is not None:
                self._on_drain(effect.timeout_s)
        except BaseException as error:  # the holder serves on, and the asker is told why
            self.tell(c.DrainEnded(effect.round, False, said(error)))
        else:
            self.tell(c.DrainEnded(effect.round, True))

    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        **Session.effects,
        c.Check: _do_check,
        c.BeginDrain: _do_begin_drain,
        c.ServeOn: _do_serve_on,
        c.End: _do_end,
    }


class Membership(Session):
    """A process of an engine's tree, other than the main one. Keep it for as long as the process lives."""


_joined: dict[tuple[int, Path, str], Membership] = {}
"""This process's memberships: it needs one of each, however often it asks."""


def join(
    run_dir: Path | str | None = None,
    tree: str | None = None,
    *,
    on_lost: Callable[[str], object] = end_process,
    timeout_s: float | None = None,
) -> Membership:
    """Makes this process a member of its engine's tree; call it before it touches a device. Both names come from the
    environment as a rule. A process that has joined already gets the same membership again.
    """
    run_dir = run_dir or os.environ.get(RUN_DIR_VARIABLE)
    tree = tree or os.environ.get(TREE_VARIABLE)
    if not run_dir or not tree:
        raise LockError(f"which engine's process is this? Neither given nor in {RUN_DIR_VARIABLE} and {TREE_VARIABLE}")
    engine_id, _, incarnation = tree.rpartition(".")
    if not re.fullmatch(NAME, engine_id):
        raise LockError(f"{tree!r} is no start of an engine: its name is ENGINE_ID.RANDOM")
    key = (os.getpid(), absolute(run_dir), tree)
    membership = _joined.get(key)
    if membership is None or membership.closed:
        membership = _joined[key] = Membership(run_dir, Me(engine_id, incarnation, os.getpid(), False), on_lost)
        membership.begin()
    try:
        membership.welcomed(timeout_s)
    except LockError:
        del _joined[key]
        membership.close()  # a process that was refused must not keep the life lock of a dead engine
        raise
    return membership

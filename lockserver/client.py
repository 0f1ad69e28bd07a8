"""The lock's client, for programs: be an engine that may be awake, or a process of one.

    engine = LockClient(run_dir, "engine-a")
    engine.start()                                  # registered: this process counts
    with engine.permit():                           # one engine at a time initialises device memory
        ...
    grant = engine.acquire({"GPU-...": 40 << 30})   # blocks until it is this engine's turn
    engine.serving("http://...")                    # to all that watch the lock
    ...                                             # dying releases it, or
    engine.give_back()                              # once the engine is asleep; then `acquire` again

    join()                                          # in every other process of the engine, before it touches a device

From `start` on a thread watches the connection: it sees a server that went away within milliseconds, comes back to the
next one, and calls `on_lost` when what was held is lost (by default the process ends). By which rules:
`rules/client_machine.py`; the socket, the life lock and the path are in `evidence/shell/session.py`.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from evidence.rules.standing import Me
from evidence.shell.membership import Memberships
from evidence.shell.session import Errors, ProcessSession
from lockserver.rules import client_events as c
from lockserver.rules import messages as m
from lockserver.rules.client_machine import ClientMachine
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.shell.rundir import absolute, connect, names_of_path
from sidecar.kernel import exclusive_names
from sidecar.machine.client_shell import Ask
from sidecar.terminal.exit_codes import EX_LOST
from sidecar.terminal.logs import complain
from sidecar.wire.frames import close_all

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


@dataclass(frozen=True)
class Grant:
    lock: str
    token: int
    """Grows with every grant; it tells this one from every earlier one."""
    proven: bool = False
    """Each single process of the holder before was seen to have ended, and what this one needs was seen to be free:
    no process writes to what the holder before has left.
    """


class Session(ProcessSession):
    """What `LockClient` and `Membership` share: asks, grants, and copies of the server's names. A client keeps the
    names until its process ends or gives back: a server that finds them taken knows that a holder may live.
    """

    errors = Errors(LockError, Refused, Lost, NotInTime)
    server = "lock server"
    decoder = m.from_server

    def __init__(self, run_dir: Path | str, me: Me, on_lost: Callable[[str], object]) -> None:
        self._machine = ClientMachine(me)
        super().__init__("lock-client", self._machine, self._machine.standing, absolute(run_dir), on_lost)
        self._names: list[int] = []
        self._own_spelling = [exclusive_names.address(name) for name in names_of_path(self.run_dir)]
        """Taken in the network namespace for the path as this process has it, which needn't be the server's. Made here
        because a process's first hash takes as long as a quarter of a grant.
        """
        self.holds: set[str] = set()

    def connect(self, inside: Path) -> socket.socket:
        return connect(inside)

    def end_process(self, why: str) -> NoReturn:
        end_process(why)

    def life_descriptors(self) -> list[int]:
        return super().life_descriptors() + self._names

    def let_go(self) -> None:
        """A server that finds the names free before the life lock, or the other way round, may grant at once: only a
        process that has nothing on a device lets go of either, or a forked child, whose parent has both still.
        """
        if self.may_let_go:
            close_all(self._names)
        super().let_go()

    # -- what callers ask for --------------------------------------------------------------------------------------

    def on_ask(self, ask: Ask) -> None:
        if isinstance(ask.about, c.Want):  # asked for again: what was late won't be withdrawn any more
            self.answer_all(c.Without(ask.about.lock), lambda other: other.late and _is_for(other, ask.about.lock))
        super().on_ask(ask)

    def on_late(self, ask: Ask) -> None:
        """A lock may be granted in this very moment: then it is held. (A permit is given back.)"""
        if isinstance(ask.about, c.Want) and not self._others_want(ask):
            self.feed(c.Withdraw(ask.about.lock))
        else:
            super().on_late(ask)

    def on_given_up(self, ask: Ask) -> None:
        if isinstance(ask.about, c.Want) and not self._others_want(ask):
            self.feed(c.Withdraw(ask.about.lock))

    def _others_want(self, ask: Ask) -> bool:
        return any(other is not ask and _is_for(other, ask.about.lock) for other in self.unanswered())

    # -- effects ---------------------------------------------------------------------------------------------------

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

    def _do_got(self, effect: c.Got) -> None:
        self.bound |= effect.lock == ACTIVE
        self.holds.add(effect.lock)
        self.answer_all(effect, lambda ask: _is_for(ask, effect.lock))

    def _do_without(self, effect: c.Without) -> None:
        if effect.lock == ACTIVE:  # given back, or it never had it: nothing of it is on a device
            close_all(self._names)
            self._names.clear()
        self.holds.discard(effect.lock)
        self.answer_all(effect, lambda ask: _is_for(ask, effect.lock))

    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        **ProcessSession.effects,
        c.Got: _do_got,
        c.Without: _do_without,
        c.KeepNames: _do_keep_names,
    }


class Checking:
    """An engine's own check, in a thread of its own: it may take its time, or hang, and the client goes on hearing.

    A question that comes while a check is under way is answered by a further one: what was found before the question
    was asked may be older than what the server wants to know. Of several only the newest is answered.
    """

    def __init__(self, check: Callable[[], bool], checked: Callable[[int, bool, str], None]) -> None:
        """`checked` is told, in that thread: which question, whether the engine is well, what was raised."""
        self._check = check
        self._checked = checked
        self._round = 0
        self._asked = threading.Lock()
        """Free once a question is asked: an Event takes longer, and this is within a grant."""
        self._asked.acquire()
        self._thread = threading.Thread(target=self._run, name="lock-check", daemon=True)

    def start(self) -> None:
        """Before the first question, which is asked when an engine has died."""
        if self._thread.ident is None:
            self._thread.start()

    def ask(self, round: int) -> None:
        self._round = round
        with contextlib.suppress(RuntimeError):  # it has not come to the last one yet
            self._asked.release()

    def end(self) -> None:
        """A check that hangs ends with the process."""
        self.ask(-1)

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            round = self._round
            if round < 0:
                return
            try:
                well, why = bool(self._check()), ""
            except BaseException as error:  # whatever it is: an engine whose check fails isn't well
                well, why = False, said(error)
            self._checked(round, well, why)


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
        on_give_back: Callable[[], object] | None = None,
    ) -> None:
        """`check`: could this engine wake now? Asked before a grant. `on_drain(timeout_s)`: finish what was begun,
        for a switchover; `on_resume(why)`: it is off. `on_exit`: drained, and the successor is ready; by default the
        process ends. `on_give_back`: drained, and no successor: the engine is to be put to sleep, and then `give_back`
        to be called; by default what `on_exit` does.

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
        self._on_give_back = on_give_back or on_exit

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
        self.await_welcome(timeout_s)
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

    def give_back(self, why: str = "") -> None:
        """The engine is asleep: nothing of it is on a device any more. The lock isn't held from here on, and is at
        rest: no engine is granted until it is waked. `why`: where the server hasn't asked for it.
        """
        m.check(m.Release(why=why))
        self.tell(c.GaveBack(why))

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
        self._must(self._on_exit, "on_exit")

    def _do_give_it_back(self, _: c.GiveItBack) -> None:
        self._must(self._on_give_back, "on_give_back")

    def _must(self, obey: Callable[[], object], name: str) -> None:
        """There is no way back: what can't obey ends."""
        try:
            obey()
        except SystemExit as error:
            os._exit(error.code if isinstance(error.code, int) else 0)
        except Exception as error:
            complain(f"{self.name}: {name} raised {said(error)}")
            end_process("this process was told to leave the lock")

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
        c.GiveItBack: _do_give_it_back,
    }


class Membership(Session):
    """A process of an engine's tree, other than the main one. Keep it for as long as the process lives."""


_memberships = Memberships(Membership, RUN_DIR_VARIABLE, TREE_VARIABLE, absolute)


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
    membership: Membership = _memberships.join(LockError, run_dir, tree, on_lost, timeout_s)
    return membership


def _is_for(ask: Ask, lock: str) -> bool:
    return isinstance(ask.about, c.Want) and ask.about.lock == lock


def said(error: BaseException) -> str:
    """As the wire takes it: the name of a file, say, needn't be text."""
    return f"{type(error).__name__}: {error}"[:500].encode(errors="backslashreplace").decode()

"""One process's session with the lock server: what its callers ask for, its grants, and the names that come with them.

Both kinds of client are one of these (`client.py`). The rules are in `client_machine.py`; the socket, the life lock and
the path are in `evidence/shell/session.py`.

Like the life lock, the names that came with its grant are never let go of while the process lives. A server that wants
to know whether the process is gone asks for these.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from evidence.rules.standing import Me
from evidence.shell.session import Errors, ProcessSession
from lockserver.rules import client_events as c
from lockserver.rules import messages as m
from lockserver.rules.client_machine import ClientMachine
from lockserver.rules.messages import ACTIVE
from lockserver.shell.rundir import absolute, connect, names_of_path
from sidecar.kernel import exclusive_names
from sidecar.machine.client_shell import Ask
from sidecar.terminal.exit_codes import EX_LOST
from sidecar.terminal.logs import complain
from sidecar.wire.frames import close_all


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


class Session(ProcessSession):
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
        super().on_given_up(ask)
        if isinstance(ask.about, c.Want) and not self._others_want(ask):
            self.feed(c.Withdraw(ask.about.lock))

    def _others_want(self, ask: Ask) -> bool:
        return any(other is not ask and _is_for(other, ask.about.lock) for other in self._asks)

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
        self.holds.discard(effect.lock)
        self.answer_all(effect, lambda ask: _is_for(ask, effect.lock))

    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        **ProcessSession.effects,
        c.Got: _do_got,
        c.Without: _do_without,
        c.KeepNames: _do_keep_names,
    }


def _is_for(ask: Ask, lock: str) -> bool:
    return isinstance(ask.about, c.Want) and ask.about.lock == lock

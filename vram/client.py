"""The ledger's client, for programs: have memory of a device, on the record.

    ledger = LedgerClient(host_dir, "chat.a", on_asked=..., on_lost=...)
    ledger.start()                                          # registered: this process counts
    lease = ledger.reserve("chat", {"GPU-...": 40 << 30})   # blocks until so much is this tree's
    ledger.resize(lease, {"GPU-...": 35 << 30})             # more waits like a new one; less is back at once
    ledger.touch(lease)                                     # it was used: the least recently used is asked for first
    ledger.give_back(lease)                                 # after what had it is unmapped
    ledger.heir("chat")                                     # a standby: the holder's bytes are kept for it

    join()                                                  # in every other process of the tree, before it has memory

A lease ends by `give_back`, or when the whole tree is proven gone. A server that goes away costs nothing: this client
comes back to the next one with what it has. How: `evidence/shell/session.py`; by which rules: `client_machine.py`.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from msgspec import UNSET

from evidence.rules.standing import Me
from evidence.shell.membership import Memberships
from evidence.shell.session import Errors, ProcessSession
from sidecar.machine.client_shell import Ask, TimeIsOver
from sidecar.terminal.exit_codes import EX_LOST
from sidecar.terminal.logs import complain
from sidecar.wire import sockets
from vram.rules import messages as m
from vram.rules.client_machine import ClientMachine, GiveUp
from vram.shell.rundir import SOCKET, ledger_of

__all__ = [
    "HOST_DIR_VARIABLE",
    "MOST_PATIENT",
    "TREE_VARIABLE",
    "Lease",
    "LedgerClient",
    "LedgerError",
    "Lost",
    "Membership",
    "NotInTime",
    "Refused",
    "end_process",
    "join",
]

HOST_DIR_VARIABLE = "FAILOVER_HOST_DIR"
TREE_VARIABLE = "FAILOVER_LEDGER_TREE"
MOST_PATIENT = 1000
"""The priority of a wish that makes no engine give way: which model has a device, its pool decides."""


class LedgerError(Exception):
    """What went wrong between this process and the ledger."""


class Refused(LedgerError):
    """The ledger said no, and why."""


class Lost(LedgerError):
    """What was leased is leased no longer."""


class NotInTime(LedgerError, TimeoutError):
    """It did not happen within the time that the caller gave it."""


@dataclass(frozen=True)
class Lease:
    number: int
    """Which lease it is; no other has it, ever."""
    name: str
    bytes: Mapping[str, int]
    """Device -> bytes, when it was granted or resized."""


OnAsked = Callable[[Lease, dict[str, int], float, str], object]


def end_process(why: str) -> NoReturn:
    """Ends this process at once, and with it whatever was armed to die with it."""
    complain(f"lease lost: {why}; this process ends")
    os._exit(EX_LOST)


class Session(ProcessSession):
    errors = Errors(LedgerError, Refused, Lost, NotInTime)
    server = "ledger"
    decoder = m.from_server

    def __init__(self, run_dir: Path, me: Me, on_lost: Callable[[str], object]) -> None:
        self.machine = ClientMachine(me)
        super().__init__("ledger-client", self.machine, self.machine.standing, run_dir, on_lost)

    def connect(self, inside: Path) -> socket.socket:
        return sockets.connect(inside / SOCKET)

    def end_process(self, why: str) -> NoReturn:
        end_process(why)


class LedgerClient(Session):
    """The main process of a tree."""

    def __init__(
        self,
        host_dir: Path | str,
        name: str,
        *,
        on_asked: OnAsked | None = None,
        on_lost: Callable[[str], object] = end_process,
    ) -> None:
        """`name`: what this tree is called in status. `on_asked(lease, bytes, timeout_s, why)`: please give so much of
        it back within that time; called in a thread of its own, so it may take its time, and use this client.
        `on_lost` runs in the thread that watches the connection; by default the process ends.
        """
        super().__init__(ledger_of(host_dir), Me(name, os.urandom(8).hex(), os.getpid(), True), on_lost)
        self._on_asked = on_asked
        self._numbers = count(1)

    def start(self, timeout_s: float | None = None) -> "LedgerClient":
        """Makes this start's life file, registers, and watches from now on."""
        self.begin()
        self.await_welcome(timeout_s)
        return self

    def environment(self) -> dict[str, str]:
        """What a child needs in its environment for `join`."""
        return {HOST_DIR_VARIABLE: str(self.run_dir.parent), TREE_VARIABLE: self.name}

    def reserve(
        self,
        name: str,
        needs: Mapping[str, int],
        *,
        priority: int = 0,
        evictable: bool = True,
        outlives: bool = False,
        found: Mapping[str, int] | None = None,
        timeout_s: float | None = None,
        called_off: threading.Event | None = None,
    ) -> Lease:
        """Blocks until this tree has so many bytes of each device, all of them or none. The lowest priority is the most
        urgent. Raises NotInTime: then it has none of it; so it is where another thread says `call_off(called_off)`.
        Refused: it can never have it, and why. ValueError: the wire doesn't take it.

        `outlives`: other processes keep the memory, so this tree's end won't free it; it counts until it is seen to be
        free, or until the next tree reserves the name, with what it has `found` of it in use: that needs no room.
        """
        said = m.Reserve(
            number=next(self._numbers),
            name=name,
            needs=dict(needs),
            priority=priority,
            evictable=evictable,
            outlives=outlives or UNSET,
            found=dict(found) if found else UNSET,
        )
        return self._got(name, said, timeout_s, called_off)

    def resize(
        self,
        lease: Lease,
        needs: Mapping[str, int],
        timeout_s: float | None = None,
        called_off: threading.Event | None = None,
    ) -> Lease:
        """The lease is to have so much. Less is given back at once, and must not be in use any more; for more this
        waits like `reserve`, and raises the same.
        """
        said = m.Resize(number=next(self._numbers), lease=lease.number, bytes=dict(needs))
        return self._got(lease.name, said, timeout_s, called_off)

    def give_back(self, lease: Lease) -> None:
        """It ends; its memory must not be in use any more. Doesn't wait for the server."""
        self.resize(lease, {})

    def _got(
        self, name: str, wish: m.Reserve | m.Resize, timeout_s: float | None, called_off: threading.Event | None
    ) -> Lease:
        m.check(wish)
        answer = self.ask(Ask(wish, called_off), timeout_s)
        self.raise_if_over(answer)
        if isinstance(answer, m.Denied):
            raise Refused(answer.why)
        if not isinstance(answer, m.Granted):
            off = called_off is not None and called_off.is_set()
            until = "before that was called off" if off else f"within {timeout_s:g} s"
            raise NotInTime(f"{name} was not leased {until}{self.unheard}")
        return Lease(answer.lease, name, answer.bytes)

    def touch(self, lease: Lease) -> None:
        """It was used. As often as one likes: the server hears of it once a second at most."""
        self.tell(m.Set(lease=lease.number, used=True))

    def set(self, lease: Lease, *, priority: int | None = None, evictable: bool | None = None) -> None:
        said = m.Set(lease=lease.number, priority=priority, evictable=evictable)
        m.check(said)
        self.tell(said)

    def heir(self, name: str, timeout_s: float | None = None) -> None:
        """From now on, as long as this tree lives, the bytes of this name are kept for it when their holder dies: its
        `reserve` of that name has them as soon as that end is proven.
        """
        said = m.Heir(name=name)
        m.check(said)
        if name not in self.machine.heirs and len(self.machine.heirs) >= m.MOST_HEIRED:
            raise LedgerError(f"a tree is heir of at most {m.MOST_HEIRED} names")
        answer = self.ask(Ask(said), timeout_s)
        self.raise_if_over(answer)
        if isinstance(answer, TimeIsOver):
            raise NotInTime(f"the ledger did not say within {timeout_s:g} s that this is an heir of {name}")

    # -- what is asked and answered --------------------------------------------------------------------------------

    def on_late(self, ask: Ask) -> None:
        if isinstance(ask.about, m.Reserve | m.Resize):
            self.feed(GiveUp(ask.about.number))
        else:
            super().on_late(ask)

    def on_given_up(self, ask: Ask) -> None:
        if isinstance(ask.about, m.Reserve | m.Resize):
            self.feed(GiveUp(ask.about.number, gone=True))

    def _answer(self, effect: m.Granted | m.Denied | m.Withdrawn) -> None:
        self.bound = self.bound or isinstance(effect, m.Granted)
        number = effect.number
        self.answer_all(effect, lambda ask: getattr(ask.about, "number", None) == number)

    def _do_named(self, effect: m.Named) -> None:
        self.answer_all(effect, lambda ask: isinstance(ask.about, m.Heir) and ask.about.name == effect.name)

    def _do_asked(self, effect: m.Asked) -> None:
        asked = self._on_asked
        if asked is not None:
            held = self.machine.leases[effect.lease]
            lease = Lease(effect.lease, held.name, held.bytes)
            call = lambda: asked(lease, effect.bytes, effect.timeout_s, effect.why)  # noqa: E731
            threading.Thread(target=lambda: self.call("on_asked", call), name="ledger-asked", daemon=True).start()

    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        **Session.effects,
        m.Granted: _answer,
        m.Denied: _answer,
        m.Withdrawn: _answer,
        m.Named: _do_named,
        m.Asked: _do_asked,
    }


class Membership(Session):
    """A process of a tree, other than the main one. Keep it for as long as the process lives."""


_memberships = Memberships(Membership, HOST_DIR_VARIABLE, TREE_VARIABLE, ledger_of)


def join(
    host_dir: Path | str | None = None,
    tree: str | None = None,
    *,
    on_lost: Callable[[str], object] = end_process,
    timeout_s: float | None = None,
) -> Membership:
    """Makes this process a member of its tree; call it before it touches a device. Both names come from the environment
    as a rule. A process that has joined already gets the same membership again.
    """
    membership: Membership = _memberships.join(LedgerError, host_dir, tree, on_lost, timeout_s)
    return membership

"""The rules of a client of the ledger: what its tree has, and what is said again to a new server. Pure.

What its program wants and is told are the messages of the wire (`messages.py`). What every process does towards such a
server is in `evidence/rules/standing.py`. Beside that:

1. What a lease has is what the server has said last. The next server is told exactly that (`Claim`), and then every
   wish that isn't answered yet, in order: so a grant that was lost on the way ends, and what was given back is given
   back again.
2. A lease that is granted after its wish was given up was never used: it is given back at once, or as soon as the next
   wish for that lease is answered.
3. To give back never waits: the program goes on, and the server hears of it as soon as there is one.
4. One that has leases ends when its server may give them to others: the path leads to another server that doesn't take
   it back in time (C3).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from evidence.rules import client_events as c
from evidence.rules.standing import Link, Me, Standing
from sidecar.wire.versions import Spoken
from vram.rules import messages as m
from vram.rules.leases import both, minus, some
from vram.rules.messages import Bytes

ANSWER_S = 2.0
"""How long a program that gives up waits for the server's word; a server that is stopped says nothing."""
SAY_USED_EVERY_S = 1.0


@dataclass(slots=True)
class Held:
    name: str
    bytes: Bytes
    """As the server has said it last."""
    left: Bytes
    """What of it the program hasn't given back."""
    priority: int
    evictable: bool
    outlives: bool
    used_at: float
    said_used_at: float = -math.inf


@dataclass(slots=True)
class Wish:
    said: m.Reserve | m.Resize
    since: float
    awaited: bool
    """The program waits for the answer."""
    give_up_at: float = math.inf


@dataclass(frozen=True, slots=True)
class GiveUp:
    number: int
    gone: bool = False
    """No caller takes the answer any more."""


class ClientMachine:
    def __init__(self, me: Me) -> None:
        self.standing = Standing(me, Spoken(m.OLDEST, m.PROTOCOL), "ledger")
        self.leases: dict[int, Held] = {}
        self.wishes: dict[int, Wish] = {}
        """Those that aren't answered, in order."""
        self.heirs: dict[str, bool] = {}
        """Names of which it is an heir; and whether the server has said so."""
        self.deadline = 0.0
        self._out: list[Any] = []
        self._own = 1 << 40
        """Numbers of wishes of its own begin here."""

    def handle(self, event: Any, now: float) -> list[Any]:
        standing = self.standing
        self._out = standing.begin(now)
        if standing.last_word is not None:
            return self._out
        _HANDLERS[type(event)](self, event)
        for number, wish in list(self.wishes.items()):
            if now >= wish.give_up_at:
                self._without(number)
        give_up_at = min((wish.give_up_at for wish in self.wishes.values()), default=math.inf)
        end = standing.must_end_at() if self.leases else (math.inf, "")
        self.deadline = min(standing.step(*end), give_up_at)
        return self._out

    # -- the connection --------------------------------------------------------------------------------------------

    def _on_connected(self, event: c.Connected) -> None:
        standing = self.standing
        said = standing.connected(event)
        if not standing.me.main:
            return
        claims = [
            m.Claim(
                number,
                held.name,
                held.bytes,
                held.priority,
                held.evictable,
                standing.now - held.used_at,
                held.outlives or msgspec.UNSET,
            )
            for number, held in self.leases.items()
        ]
        standing.say(m.Register(claims=claims, heirs=list(self.heirs), secret=standing.secret, **said))

    # -- what the server says --------------------------------------------------------------------------------------

    def _on_heard(self, event: c.Heard) -> None:
        message = event.message
        if isinstance(message, m.Welcome):
            self._welcomed(message)
        elif isinstance(message, m.Granted):
            self._granted(message)
        elif isinstance(message, m.Denied):
            wish = self.wishes.pop(message.number, None)
            if wish is not None and wish.awaited:
                self._out.append(message)
                self._answered(wish)
        elif isinstance(message, m.Withdrawn):
            self._without(message.number)
        elif isinstance(message, m.Named):
            self._named(message.name)
        elif isinstance(message, m.Asked):
            if message.lease in self.leases:
                self._out.append(message)
        else:
            self.standing.hear(message)

    def _welcomed(self, message: m.Welcome) -> None:
        standing = self.standing
        standing.welcomed(message.number, message.secret, message.settle_s)
        standing.begin_to_count(message.server_incarnation)
        for name in self.heirs:
            self._named(name)
        for number, wish in list(self.wishes.items()):
            if wish.give_up_at < math.inf:
                self._without(number)
            else:
                standing.say(msgspec.structs.replace(wish.said, waited_s=standing.now - wish.since))

    def _named(self, name: str) -> None:
        if not self.heirs.get(name, True):
            self.heirs[name] = True
            self._out.append(m.Named(name=name))

    def _granted(self, message: m.Granted) -> None:
        number, lease, bytes = message.number, message.lease, message.bytes
        wish, held = self.wishes.pop(number, None), self.leases.get(lease)
        if wish is None:
            if held is None:
                self._change(lease, {}, unused=True)
            else:
                held.bytes = bytes
                self._spare(lease)
            return
        if not bytes:
            self.leases.pop(lease, None)
        elif isinstance(wish.said, m.Reserve):
            said, now = wish.said, self.standing.now
            self.leases[lease] = Held(said.name, bytes, bytes, said.priority, said.evictable, bool(said.outlives), now)
        elif held is not None:
            held.bytes, held.left = bytes, bytes if wish.awaited else held.left
        if wish.awaited:
            self._out.append(message)

    # -- what the program wants ------------------------------------------------------------------------------------

    def _on_resize(self, said: m.Resize) -> None:
        held, wanted = self.leases.get(said.lease), some(said.bytes)
        left = held.left if held is not None else {}
        if wanted and not left:
            self._deny(said.number, f"lease {said.lease} was given back")
        elif minus(wanted, left):
            rest = both(left, wanted)
            if not rest:
                self._deny(said.number, "none of it would stay: give it back, and reserve anew")
                return
            if held is not None and rest != left:  # that is given back whether the rest is granted or not
                held.left = rest
                self._change(said.lease, rest, unused=False)
            self._wish(said, awaited=True)
        else:
            if held is not None and wanted != left:
                held.left = wanted
                self._deny_growth(said.lease)
                self._change(said.lease, wanted, unused=False)
            self._out.append(m.Granted(number=said.number, lease=said.lease, bytes=wanted))

    def _deny(self, number: int, why: str) -> None:
        self._out.append(m.Denied(number=number, why=why))

    def _deny_growth(self, lease: int) -> None:
        """What was wished for before it was to be less."""
        for number, wish in list(self.wishes.items()):
            if wish.awaited and isinstance(wish.said, m.Resize) and wish.said.lease == lease:
                del self.wishes[number]
                self._deny(number, "the lease is to have another size by now")

    def _change(self, lease: int, bytes: Bytes, *, unused: bool) -> None:
        self._own += 1
        self._wish(m.Resize(number=self._own, lease=lease, bytes=bytes, unused=unused), awaited=False)

    def _wish(self, said: m.Reserve | m.Resize, *, awaited: bool) -> None:
        self.wishes[said.number] = Wish(said, self.standing.now, awaited)
        self.standing.say_if_in(said)

    def _on_give_up(self, event: GiveUp) -> None:
        wish = self.wishes.get(event.number)
        if wish is None:
            return
        self.standing.say_if_in(m.Withdraw(number=event.number))
        if event.gone or self.standing.link is not Link.IN:
            self._without(event.number)
        else:
            wish.give_up_at = self.standing.now + ANSWER_S

    def _without(self, number: int) -> None:
        wish = self.wishes.pop(number, None)
        if wish is not None:
            self._out.append(m.Withdrawn(number=number))
            self._answered(wish)

    def _answered(self, wish: Wish) -> None:
        if isinstance(wish.said, m.Resize):
            self._spare(wish.said.lease)

    def _spare(self, lease: int) -> None:
        """What was granted too late was never used. It goes back, but not behind the back of another wish for it."""
        held = self.leases.get(lease)
        wished = any(isinstance(wish.said, m.Resize) and wish.said.lease == lease for wish in self.wishes.values())
        if held is not None and not wished and minus(held.bytes, held.left):
            self._change(lease, held.left, unused=True)

    def _on_set(self, said: m.Set) -> None:
        held, now = self.leases.get(said.lease), self.standing.now
        if held is None:
            return
        held.priority = held.priority if said.priority is None else said.priority
        held.evictable = held.evictable if said.evictable is None else said.evictable
        if said.used:
            held.used_at = now
            if said.priority is None and said.evictable is None and now < held.said_used_at + SAY_USED_EVERY_S:
                return
            held.said_used_at = now
        self.standing.say_if_in(said)

    def _on_heir(self, said: m.Heir) -> None:
        if self.heirs.setdefault(said.name, False):
            self._out.append(m.Named(name=said.name))
        else:
            self.standing.say_if_in(said)


_HANDLERS: dict[type, Callable[[ClientMachine, Any], object]] = {
    c.Connected: ClientMachine._on_connected,
    c.Disconnected: lambda machine, event: machine.standing.disconnected(event),
    c.Hopeless: lambda machine, event: machine.standing.refused(event.why),
    c.Heard: ClientMachine._on_heard,
    m.Reserve: lambda machine, said: machine._wish(said, awaited=True),
    m.Resize: ClientMachine._on_resize,
    GiveUp: ClientMachine._on_give_up,
    m.Set: ClientMachine._on_set,
    m.Heir: ClientMachine._on_heir,
    c.VouchFor: lambda machine, event: machine.standing.vouch_for(event),
    c.ChildEnded: lambda machine, event: machine.standing.child_ended(event),
    c.PathSeen: lambda machine, event: machine.standing.path_seen(event),
    c.Tick: lambda machine, event: None,  # time has passed; `handle` looks what follows
}

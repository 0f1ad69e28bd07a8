"""A process's side of one pool: the memory of which it has descriptors, and what it wants of it.

Pure. What it has in common with a process's side of weights: `region_client.py`. The server's side: `exclusive.py`.

 1. A process that has descriptors keeps them while the server is away, and brings them to the next one that waits for
    them.
 2. An owner goes on whatever the server says: its memory is mapped. If a server won't have it as the owner any more it
    is told so (`Disowned`), and only its successor loses by it.
 3. A process that isn't the owner lets go of what the server has given up.
 4. A claim, and a release, are said again on the next connection if this one ends before the answer. Every claim ends
    in time.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

import msgspec

from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.region_client import RegionClient

RELEASE_AGAIN_S = 0.5


class There(msgspec.Struct, frozen=True):
    """A pool, as far as this process was told."""

    generation: int
    shape: m.Shape
    owner: str = ""
    """In words; empty: no process may write."""


class Awaiting(Enum):
    """Which answer."""

    NONE = "none"
    BACK = "back"
    CLAIM = "claim"
    RELEASE = "release"


class PoolClientMachine(RegionClient):
    policy = "exclusive"

    def __init__(self, engine_id: str, pid: int, key: str, *, writes_end: bool) -> None:
        super().__init__(engine_id, pid, key)
        self.writes_end = writes_end
        self.kept: There | None = None
        """The memory of which the shell has the descriptors."""
        self.there: There | None = None
        self.token = 0
        """The owner's; 0: this process isn't the owner."""
        self._awaiting = Awaiting.NONE
        self._said: m.ClaimPool | None = None
        """What was claimed last: its answer may come when it isn't wanted any more."""
        self._releasing = False
        self._release_at = 0.0
        """Not before that: the server's disk failed."""
        self._back = False
        """This server doesn't know yet what we have."""
        self._brings = False
        """And waits for it."""

    @property
    def has(self) -> int:
        return self.kept.generation if self.kept is not None else 0

    # -- what follows ----------------------------------------------------------------------------------------------

    def ask_next(self) -> None:
        if self._awaiting is not Awaiting.NONE:
            return
        if self._back and self.kept is not None:
            self._back, self._awaiting, shape = False, Awaiting.BACK, self.kept.shape
            sizes = [*shape.sizes, shape.table_size]
            message = m.HandBack(
                generation=self.kept.generation, hash=shape.digest, sizes=sizes, table=True, token=self.token
            )
            self._out.append(c.Say(message, self.kept.generation, 0, len(sizes) if self._brings else 0))
        elif self._releasing:
            if self._now < self._release_at:
                self.deadline = min(self.deadline, self._release_at)
                return
            self._awaiting = Awaiting.RELEASE
            self._say(m.ReleasePool())
        elif isinstance(self._want, m.ClaimPool):
            self._awaiting, self._said, want = Awaiting.CLAIM, self._want, self._want
            self._say(msgspec.structs.replace(want, timeout_s=max(0.0, self._want_until - self._now)))

    def in_vain(self, no: c.No) -> None:
        """The server may have let us in meanwhile, on this connection or on one that ended: that is taken back."""
        want, self._want = self._want, None
        self._out.append(no)
        if self._said is want:
            self._releasing = True
        if self._awaiting is Awaiting.CLAIM:
            self._awaiting = Awaiting.NONE

    # -- the connection --------------------------------------------------------------------------------------------

    def _on_connected(self, event: c.Connected) -> None:
        if self.kept is not None and self.kept.generation not in event.has:
            self.kept = None  # they were just arriving when a turn was cut short
        super()._on_connected(event)

    def ended(self, why: str) -> None:
        self._awaiting = Awaiting.NONE

    def came_in(self, message: m.Welcome) -> None:
        self._back = self.kept is not None
        self._brings = message.recovering and self.kept is not None and self.kept.generation == message.generation
        if not message.generation:
            self.there = None
        self._changed()

    def not_welcome(self, message: m.Problem, asked: m.Open | m.ClaimPool | None) -> None:
        if asked is not None:
            self.in_vain(c.No(message.why, "protocol" if message.about == "protocol" else "problem"))

    # -- what the server says --------------------------------------------------------------------------------------

    def heard(self, message: m.ServerMessage) -> None:
        if isinstance(message, m.PoolIs):
            self._is(message)
        elif isinstance(message, m.Drop):
            self._gone(message.generation)
        elif isinstance(message, m.HandedBack) and self._awaiting is Awaiting.BACK:
            self._awaiting = Awaiting.NONE
        elif isinstance(message, m.PoolOwned) and self._said is not None:
            self._owned(message, self._said)
        elif isinstance(message, m.PoolReleased) and self._awaiting is Awaiting.RELEASE:
            self._awaiting, self._releasing, self.token = Awaiting.NONE, False, 0
            self._out.append(message)
        elif isinstance(message, m.Refused):
            self._refused(message)

    def _is(self, message: m.PoolIs) -> None:
        if not message.generation:
            self.there = None
        else:
            self.there = There(message.generation, m.shape_of(message), message.owner)
            if message.fds:
                self._keep(self.there)
        self._changed()

    def _changed(self) -> None:
        there = self.there
        self._out.append(m.Changed(there.generation, there.shape.digest) if there is not None else m.Changed(0, ""))

    def _keep(self, there: There) -> None:
        old, self.kept = self.kept, there
        if old is not None and old.generation != there.generation:
            self._let_go(old.generation)
        self._out.append(c.Keep(there.generation, 0))

    def _gone(self, generation: int) -> None:
        """Given up. An owner's isn't, but for what it had before."""
        if self.kept is None or self.kept.generation != generation:
            self._let_go(generation)
        elif not self.token:
            self.kept = None
            self._let_go(generation)

    def _owned(self, message: m.PoolOwned, said: m.ClaimPool) -> None:
        """What came with it is kept, whether or not the claim is still wanted."""
        shape = m.shape_of(said)
        self.there = There(message.generation, shape, f"{self.engine_id} (pid {self.pid})")
        if message.fds:
            self._keep(self.there)
        if self._awaiting is Awaiting.CLAIM and self._want is said:
            self._want, self._awaiting, self.token = None, Awaiting.NONE, said.token
            self._out.append(c.Owned(message.generation, shape, message.adopted, message.why_empty))
        self._changed()

    def _refused(self, message: m.Refused) -> None:
        asked = self._awaiting
        if asked is Awaiting.RELEASE and message.reason != "disk":
            return  # the answer to a claim that isn't wanted any more
        self._awaiting = Awaiting.NONE
        if asked is Awaiting.CLAIM:
            self._want = None
            self._out.append(c.No(message.why, message.reason))
        elif asked is Awaiting.RELEASE:
            self._release_at = self._now + RELEASE_AGAIN_S
        elif asked is Awaiting.BACK and self.token:
            self.token = 0
            self._out.append(c.Disowned(message.why))
        elif asked is Awaiting.BACK and self.kept is not None:
            generation, self.kept = self.kept.generation, None
            self._let_go(generation)

    # -- what the program wants ------------------------------------------------------------------------------------

    def _on_claim(self, event: m.ClaimPool) -> None:
        if self._want != event:
            self._want, self._want_until = event, self._now + event.timeout_s

    def _on_release(self, event: c.Release) -> None:
        self._want = None
        if self._awaiting is Awaiting.CLAIM:
            self._awaiting = Awaiting.NONE
        self._releasing = True

    handlers: ClassVar[dict[type, Callable[[Any, Any], None]]] = {m.ClaimPool: _on_claim, c.Release: _on_release}

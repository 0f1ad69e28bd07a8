"""A process's side of one pool: the memory of which it has descriptors, and what it wants of it.

Pure. What it has in common with a process's side of weights: `client_machine.py`. The server's side: `exclusive.py`.

 1. An owner goes on whatever the server says: its memory is mapped. If a server won't have it as the owner any more it
    is told so (`Disowned`), and only its successor loses by it.
 2. A process that isn't the owner lets go of what the server has given up.
 3. A claim, and a release, are said again on the next connection if this one ends before the answer.
"""

import msgspec

from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.client_machine import Awaiting, ClientMachine, Handlers
from sidecar.wire.frames import MAX_DESCRIPTORS

RELEASE_AGAIN_S = 0.5


class ExclusiveClient(ClientMachine):
    def __init__(self, engine_id: str, pid: int, key: str, batch: int = MAX_DESCRIPTORS, *, writes_end: bool) -> None:
        super().__init__("exclusive", engine_id, pid, key, batch, writes_end=writes_end)
        self.there: c.There | None = None
        self._said: m.ClaimPool | None = None
        """What was claimed last: its answer may come when it isn't wanted any more."""
        self._releasing = False
        self._release_at = 0.0
        """Not before that: the server's disk failed."""

    @property
    def handlers(self) -> Handlers:
        return _HANDLERS

    # -- what follows ----------------------------------------------------------------------------------------------

    def ask(self) -> None:
        if self._releasing:
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

    def came_in(self, message: m.Welcome) -> None:
        if not message.generation:
            self.there = None
        self._changed()

    def not_welcome(self, message: m.Problem, asked: m.Open | m.ClaimPool | None) -> None:
        if asked is not None:
            self.in_vain(c.No(message.why, "protocol" if message.about == "protocol" else "problem"))

    # -- what the server says --------------------------------------------------------------------------------------

    def heard(self, message: m.ServerMessage) -> None:
        if isinstance(message, m.PoolIs):
            self._on_pool_is(message)
        elif isinstance(message, m.Drop):
            self._gone(message.generation)
        elif isinstance(message, m.PoolOwned) and self._said is not None:
            self._owned(message, self._said)
        elif isinstance(message, m.PoolReleased) and self._awaiting is Awaiting.RELEASE:
            self._awaiting, self._releasing, self.token = Awaiting.NONE, False, 0
            self._out.append(message)
        elif isinstance(message, m.Refused):
            self._refused(message)

    def _on_pool_is(self, message: m.PoolIs) -> None:
        if not message.generation:
            self.there = None
        else:
            self.there = c.There(message.generation, m.shape_of(message), message.owner)
            if message.fds:
                self._keep_all(self.there)
        self._changed()

    def _changed(self) -> None:
        there = self.there
        self._out.append(m.Changed(there.generation, there.shape.digest) if there is not None else m.Changed(0, ""))

    def _keep_all(self, there: c.There) -> None:
        shape = there.shape
        self.keep(c.Kept(there.generation, shape.digest, [*shape.sizes, shape.table_size], table=True))
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
        self.there = c.There(message.generation, shape, f"{self.engine_id} (pid {self.pid})")
        if message.fds:
            self._keep_all(self.there)
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

    # -- coming back -----------------------------------------------------------------------------------------------

    def not_taken_back(self, why: str) -> None:
        if self.token:
            self.token = 0
            self._out.append(c.Disowned(why))
        elif self.kept is not None:
            generation, self.kept = self.kept.generation, None
            self._let_go(generation)

    # -- what the program wants ------------------------------------------------------------------------------------

    def _on_claim(self, event: m.ClaimPool) -> None:
        if self.token and not self._releasing:
            self._out.append(c.No(f"this process owns pool {self.key} already", "problem"))
        elif self._want != event:
            self._want, self._want_until = event, self._now + event.timeout_s

    def _on_release(self, event: c.Release) -> None:
        self._want = None
        if self._awaiting is Awaiting.CLAIM:
            self._awaiting = Awaiting.NONE
        self._releasing = True


_HANDLERS: Handlers = {m.ClaimPool: ExclusiveClient._on_claim, c.Release: ExclusiveClient._on_release}

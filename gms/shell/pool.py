"""One process's standing with one KV pool (docs/inside/gms.md, "KV pools"; here *pool*): its descriptors, and at most
one mapping.

    pool = client.pool("kv", rank)                               # on the active engine and on the standby
    mapping = pool.claim(shape, token=grant.token, proven=True)  # at the wake
    mapping.handles, mapping.table                               # to be mapped where they are wanted; shared memory
    mapping.release()                                            # a clean end; else the end of the process

The rules are in `exclusive_client.py`, what it has in common with weights in `region_shell.py`. What this file may not
do: look at what is in the memory or in the table.
"""

import ctypes
import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from gms.memory import Memory
from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.errors import GmsError, Lost, error_of
from gms.rules.exclusive_client import ExclusiveClient
from gms.rules.messages import Shape
from gms.shell.region_shell import RegionShell
from gms.shell.slabs import LayoutSlabs
from sidecar.kernel import io_uring
from sidecar.machine.client_shell import Ask
from sidecar.terminal.logs import complain

_MADV_DONTFORK = 10
RELEASE_S = 2.0
"""How long `release` waits for the server's word. It goes on being said after that."""


class PoolMapping:
    """The owner's. Until `release`, or the end of the process, no other process can have one."""

    def __init__(self, pool: "Pool", got: c.Owned, memory: Memory, descriptors: list[int]) -> None:
        self.generation = got.generation
        """The memory's number: other memory has another."""
        self.shape = got.shape
        self.adopted = got.adopted
        """Memory and table are as the last owner left them."""
        self.why_empty = got.why_empty
        """Why they aren't: `new`, `replaced`, `unproven`, `second_death`. They read as zeros."""
        self._slabs = LayoutSlabs(got.generation)
        *self._slabs.descriptors, table = descriptors
        self.handles = self._slabs.handles
        """One for each size."""
        self._pool = pool
        self._memory = memory
        self._released = False
        try:
            self._slabs.import_all(memory, got.shape.sizes)
            self._table = mmap.mmap(table, got.shape.table_size)
            self._table.madvise(_MADV_DONTFORK)  # a child that lives on must not be able to write
            # Never freed: in a forked child that would unmap what the child has there.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._table))
        except BaseException:
            self._let_go()
            raise
        self.table = memoryview(self._table)
        """Shared memory, writable."""

    def release(self, timeout_s: float = RELEASE_S) -> bool:
        """A clean end; its caller has unmapped it. True: the server has it on record, and a successor may claim. False:
        it was not there, and will be told. In a forked child it is not done: the table is the parent's.

        Raises GmsError while there are views of the table.
        """
        if self._released or self._pool.loop.forked:
            return True
        try:
            self.table.release()
            self._table.close()
        except BufferError:
            raise GmsError("there are still views of the pool's table: a released pool may not be written") from None
        self._released = True
        self._let_go()
        return self._pool._release(self, timeout_s)

    def _let_go(self) -> None:
        while self.handles:
            self._memory.release(self.handles.pop())


class Pool(RegionShell):
    def __init__(
        self,
        run_dir: Path,
        device: str,
        engine_id: str,
        key: str,
        memory: Callable[[], Memory],
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_change`: `there` may be another now. It runs in the client's thread, and must be short."""
        writes_end = bool(io_uring.why_impossible())
        self._machine = ExclusiveClient(engine_id, os.getpid(), key, writes_end=writes_end)
        super().__init__("gms-pool", run_dir, device, self._machine)
        self.key = key
        self._memory = memory
        self._on_change = on_change
        self._mapping: PoolMapping | None = None
        self.loop.start()

    @property
    def there(self) -> c.There | None:
        """The pool, as far as this process was told."""
        return self._machine.there

    @property
    def mapping(self) -> PoolMapping | None:
        """While this process owns it."""
        return self._mapping

    def await_server(self, timeout_s: float) -> bool:
        """Waits until a server has said what there is, or why it won't have this process."""
        return self.loop.wait(lambda: bool(self.incarnation or self.problem), timeout_s)

    def claim(
        self, shape: Shape, *, token: int, proven: bool, replace: bool = False, timeout_s: float = 5.0
    ) -> PoolMapping:
        """To be the owner, alone. Waits for the end of the owner before.

        `token` is the lock's; an older one than the newest that was ever let in is refused (PoolStale). `proven`: the
        lock's grant was founded on everything that has to be known of the predecessor; without it there is new memory.
        `replace`: what is there in another shape may go (else PoolDiffers).
        """
        memory = self._memory()
        wish = m.ClaimPool(shape.digest, list(shape.sizes), shape.table_size, token, proven, timeout_s, replace)
        answer = self.ask(Ask(wish), None)  # it ends in time by itself
        if isinstance(answer, c.No):
            where = self.where() if answer.reason == "time_out" else ""
            raise error_of(answer.reason)(answer.why + where)
        try:
            return self._mapped(answer, memory)
        except BaseException:
            self.tell(c.Release())
            raise

    def _mapped(self, got: c.Owned, memory: Memory) -> PoolMapping:
        descriptors = self.store.descriptors(got.generation, 0, len(got.shape.sizes) + 1)
        if len(descriptors) != len(got.shape.sizes) + 1:
            raise Lost(f"pool {self.key} was given, and {len(descriptors)} descriptors of it are here: claim it again")
        self._mapping = PoolMapping(self, got, memory, descriptors)
        return self._mapping

    def _release(self, mapping: PoolMapping, timeout_s: float) -> bool:
        if self._mapping is mapping:
            self._mapping = None
        if self.closed:
            return False
        return isinstance(self.ask(Ask(c.Release()), timeout_s), m.PoolReleased)

    # -- requests: in the client's thread --------------------------------------------------------------------------

    def take_back(self, ask: Ask, *, had_turn: bool) -> None:
        """A release goes on being said."""
        if isinstance(ask.about, m.ClaimPool) and (had_turn or isinstance(ask.answer, c.Owned)):
            self.feed(c.Release())

    def unclaimed(self, answer: object) -> None:
        if isinstance(answer, c.Owned):
            self.tell(c.Release())

    # -- effects ---------------------------------------------------------------------------------------------------

    def _do_released(self, effect: m.PoolReleased) -> None:
        if self._turns and isinstance(self._turns[0].about, c.Release):
            self.answered(effect)

    def _do_disowned(self, effect: c.Disowned) -> None:
        """Its successor gets none of this. It may go on."""
        complain(f"gms client: pool {self.key} of {self.device} is no more this process's: {effect.why}")

    def _do_changed(self, _: m.Changed) -> None:
        self.call("on_change", self._on_change)

    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        **RegionShell.common,
        c.Owned: RegionShell.answered,
        c.No: RegionShell.answered,
        m.PoolReleased: _do_released,
        c.Disowned: _do_disowned,
        m.Changed: _do_changed,
    }

"""One process's standing with one pool (docs/gms.md, "Pools"): descriptors of it, and at most one mapping.

    pool = client.pool("kv-0")                                   # on the active engine and on the standby
    mapping = pool.claim(shape, token=grant.token, proven=True)  # at the wake
    mapping.map()                                                # or map `mapping.handles` where they are wanted
    mapping.table[:64] = ...
    mapping.release()                                            # a clean end; else the end of the process

The rules are in `pool_client_machine.py`. A thread (`sidecar/client_loop.py`) watches the connection. What this file
may not do: look at what is in the memory or in the table.
"""

import mmap
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gms import messages as m
from gms import pool_client_machine as c
from gms.errors import (
    GmsError,
    Lost,
    NoCommonProtocol,
    NoRoom,
    NotInTime,
    PoolDiffers,
    PoolOwned,
    PoolsOff,
    PoolStale,
    Refused,
)
from gms.mapping import buffer
from gms.memory import Handle, Memory
from gms.pool_client_machine import Shape, There
from gms.rundir import connect, socket_path
from sidecar import io_uring
from sidecar.client_connection import ClientConnection
from sidecar.client_loop import CannotWait, ClientLoop
from sidecar.frames import Channel, close_all
from sidecar.logs import complain

_THREAD = "gms-pool"
_MADV_DONTFORK = 10
RELEASE_S = 2.0
"""How long `release` waits for the server's word. It goes on being said after that."""
_ERRORS: dict[str, type[GmsError]] = {
    "time_out": NotInTime,
    "no_memory": NoRoom,
    "too_large": NoRoom,
    "owned": PoolOwned,
    "older": PoolStale,
    "differs": PoolDiffers,
    "off": PoolsOff,
    "protocol": NoCommonProtocol,
}


class PoolMapping:
    """The owner's. Until `release`, or the end of the process, nobody else can have one."""

    def __init__(self, pool: "Pool", got: c.Got, memory: Memory, descriptors: list[int]) -> None:
        self.generation = got.generation
        """The memory's number: other memory has another."""
        self.shape = got.shape
        self.adopted = got.adopted
        """Memory and table are as the last owner left them."""
        self.why_empty = got.why_empty
        """Why they aren't: `new`, `replaced`, `unproven`, `second_death`. They read as zeros."""
        self.disowned = ""
        """Why the server has it no more as ours, once it is so: our successor gets none of this. We may go on."""
        self.handles: list[Handle] = []
        """One for each size."""
        self._pool = pool
        self._memory = memory
        self._addresses: list[tuple[int, int]] = []
        self._released = False
        *ranges, table = descriptors
        try:
            for descriptor, size in zip(ranges, got.shape.sizes, strict=True):
                self.handles.append(memory.import_(descriptor, size))
            self._table = mmap.mmap(table, got.shape.table_size)
            self._table.madvise(_MADV_DONTFORK)  # a child that lives on must not be able to write
        except BaseException:
            self._let_go()
            raise
        self.table = memoryview(self._table)
        """Shared memory, writable."""

    @property
    def addresses(self) -> list[int]:
        """Where `map` has put it."""
        return [address for address, _ in self._addresses]

    def map(self) -> list[int]:
        """All of it, writable, at addresses of its own choice: one for each size."""
        for handle, size in zip(self.handles, self.shape.sizes, strict=True):
            address = self._memory.reserve(size)
            self._addresses.append((address, 0))
            self._memory.map(address, handle, size=size, writable=True)
            self._addresses[-1] = (address, size)
        return self.addresses

    def memory(self, number: int) -> memoryview:
        """A range that `map` has mapped, as bytes, on host memory."""
        return buffer(*self._addresses[number])

    def release(self, timeout_s: float = RELEASE_S) -> bool:
        """A clean end: what was mapped by `map` is unmapped, the rest is the caller's to unmap before. True: the server
        has it on record, and a successor may claim. False: it was not there, and will be told.

        Raises GmsError while there are views of the table.
        """
        if self._released:
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
        while self._addresses:
            address, size = self._addresses.pop()
            if size:
                self._memory.unmap(address, size)
                self._memory.free_address(address, size)
        while self.handles:
            self._memory.release(self.handles.pop())


class Pool:
    def __init__(
        self,
        run_dir: Path,
        device: str,
        engine_id: str,
        key: str,
        memory: Callable[[], Memory],
        on_change: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_change`: `there` may be another now. It runs in whatever thread turns the loop, and must be short."""
        self.run_dir = run_dir
        self.device = device
        self.key = key
        self.problem = ""
        """Why the server there won't have this process; empty while all is well."""
        self.incarnation = ""
        """The server's that it spoke to last."""
        self._memory = memory
        self._on_change = on_change
        writes_end = bool(io_uring.why_impossible())
        self._machine = c.PoolClientMachine(engine_id, os.getpid(), key, writes_end=writes_end)
        self._descriptors: dict[int, list[int]] = {}
        """By generation: the ranges', and the table's last."""
        self._mapping: PoolMapping | None = None
        self._claiming = threading.Lock()
        self._want: c.Want | None = None
        self._answer: c.Got | c.No | None = None
        self._released = 0
        self._events: deque[c.Event] = deque()
        self._loop: ClientLoop[c.Event] = ClientLoop(
            _THREAD, self._feed, lambda: self._machine.deadline, c.Tick(), torn=self._torn
        )
        self._connection = ClientConnection(
            self._loop,
            heard=lambda message: self._feed(c.Heard(message)),
            ended=lambda why: self._feed(c.Disconnected(why)),
        )
        self._loop.start()
        self._loop.tell(c.Tick())

    @property
    def there(self) -> There | None:
        """The pool, as far as this process was told."""
        return self._machine.there

    @property
    def mapping(self) -> PoolMapping | None:
        """While this process owns it."""
        return self._mapping

    def connected(self, timeout_s: float) -> bool:
        """Waits until a server has said what there is, or why it won't have this process."""
        return self._loop.wait(lambda: bool(self.incarnation or self.problem), timeout_s)

    def claim(
        self, shape: Shape, *, token: int, proven: bool, replace: bool = False, timeout_s: float = 5.0
    ) -> PoolMapping:
        """To be the owner, alone. Waits for the end of the owner before.

        `token` is the lock's; an older one than the newest that was ever let in is refused (PoolStale). `proven`: the
        lock's grant was founded on everything that has to be known of the predecessor; without it there is new memory.
        `replace`: what is there in another shape may go (else PoolDiffers).
        """
        want = c.Want(shape, token, proven, replace, timeout_s)
        memory = self._memory()
        with self._claiming:
            if self._mapping is not None:
                raise GmsError(f"this process owns pool {self.key} already")
            self._answer, self._want = None, want
            try:
                self._loop.wait(lambda: self._answer is not None or self._loop.closed, None, first=want)
                answer, self._want = self._answer, None
                if isinstance(answer, c.Got):
                    return self._mapped(answer, memory)
            except CannotWait as error:
                self._want = None
                raise GmsError(str(error)) from None
            except BaseException:
                self._want = None
                self._loop.tell(c.Release())
                raise
        if answer is None:
            raise GmsError("this client is closed")
        where = f" ({socket_path(self.run_dir, self.device)})" if answer.reason == "time_out" else ""
        raise _ERRORS.get(answer.reason, Refused)(answer.why + where)

    def close(self) -> None:
        """Gives everything up. Whoever still has the memory mapped should have released it, or be about to end."""
        if not self._loop.stop():
            return
        self._connection.hang_up()
        for descriptors in self._descriptors.values():
            close_all(descriptors)
        self._descriptors.clear()
        self._loop.close()

    def _mapped(self, got: c.Got, memory: Memory) -> PoolMapping:
        descriptors = self._descriptors.get(got.generation, [])
        if len(descriptors) != len(got.shape.sizes) + 1:
            raise Lost(f"pool {self.key} was given, and {len(descriptors)} descriptors of it are here: claim it again")
        self._mapping = PoolMapping(self, got, memory, descriptors)
        return self._mapping

    def _release(self, mapping: PoolMapping, timeout_s: float) -> bool:
        if self._mapping is mapping:
            self._mapping = None
        if self._loop.closed:
            return False
        before = self._released
        return self._loop.wait(lambda: self._released > before, timeout_s, first=c.Release())

    # -- the machine -----------------------------------------------------------------------------------------------

    def _torn(self) -> None:
        """A turn was cut short: what was said or heard may be half. The next connection begins with what is so."""
        self._events.clear()
        self._connection.hang_up()
        self._feed(c.Disconnected())
        if self._want is not None and self._answer is None:
            self._feed(self._want)  # its answer may be what was lost

    def _feed(self, event: c.Event) -> None:
        self._events.append(event)
        while self._events:
            for effect in self._machine.handle(self._events.popleft(), time.monotonic()):
                self._do(effect)
        self._loop.announce()

    def _do(self, effect: c.Effect) -> None:
        if isinstance(effect, c.Connect):
            self._events.append(self._connect())
        elif isinstance(effect, c.Say):
            self._say(effect)
        elif isinstance(effect, c.Keep):
            close_all(self._descriptors.pop(effect.generation, []))
            self._descriptors[effect.generation] = list(self._connection.take_descriptors())
        elif isinstance(effect, c.LetGo):
            close_all(self._descriptors.pop(effect.generation, []))
        elif isinstance(effect, c.Got | c.No):
            if self._want is not None and self._answer is None:
                self._answer = effect
            elif isinstance(effect, c.Got):
                self._loop.tell(c.Release())  # whoever asked was interrupted
        elif isinstance(effect, c.Released):
            self._released += 1
        elif isinstance(effect, c.Disowned):
            if self._mapping is not None:
                self._mapping.disowned = effect.why
            complain(f"gms client: pool {self.key} of {self.device} is no more this process's: {effect.why}")
        elif isinstance(effect, c.Unwelcome):
            self.problem = effect.why
        elif isinstance(effect, c.Welcome):
            self.incarnation, self.problem = effect.incarnation, ""
        else:
            self._say_change()

    def _say_change(self) -> None:
        try:
            self._on_change()
        except Exception:
            complain(f"gms client: on_change raised; the client goes on:\n{traceback.format_exc()}")

    def _connect(self) -> c.Event:
        self._connection.hang_up()
        try:
            sock = connect(self.run_dir, self.device)
        except OSError:
            return c.Disconnected()
        self._connection.open(Channel(sock, m.from_server, max_frame_bytes=m.MAX_FRAME_BYTES))
        return c.Connected(tuple(generation for generation, descriptors in self._descriptors.items() if descriptors))

    def _say(self, effect: c.Say) -> None:
        if not self._connection.up:
            return  # it ended a moment ago, and the machine hears of it next
        message = effect.message
        if isinstance(message, m.Hello):
            said = self._connection.introduce(message)
        elif effect.brings and isinstance(message, m.HandBack):
            said = self._connection.say(message, self._descriptors.get(message.generation, []))
        else:
            said = self._connection.say(message)
        if not said:
            self._events.append(c.Disconnected())

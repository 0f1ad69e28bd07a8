"""The weights' client, for programs: write a layout once, read it in as many processes as want it.

    client = GmsClient("/run/failover", "host:0", "engine-a")

    with client.write() as writer:                  # alone, once nobody reads or writes
        slab = writer.create(size)
        writer.memory(slab)[:] = ...
        reader = writer.commit(layout)              # and this process reads it from here on

    reader = client.read(timeout_s=60)              # everybody else
    reader.view("embed.weight")
    reader.sleep()                                  # unmapped; addresses and descriptors stay
    reader.wake(timeout_s=30)                       # the same addresses; or StaleLayout

The rules are in `client_machine.py`; what a program has in its hands is in `mapped.py`; here are the socket and the
requests. A thread (`sidecar/client_loop.py`) watches the connection, asleep or awake: it answers a server that wants
memory back, and takes the layout to the next server when one dies. One connection per process and device.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from gms import client_events as c
from gms import messages as m
from gms.background import Behind
from gms.client_machine import ClientMachine, Kept
from gms.errors import Asleep, GmsError, Lost, NoRoom, NotInTime, Refused, StaleLayout
from gms.layout_slabs import Held, Shelf
from gms.layout import Layout, Tensor
from gms.mapping import Addresses, Reader, Writer
from gms.memory import DeviceError, Handle, Memory, OutOfMemory
from gms.pack import pack
from gms.rundir import connect, socket_path
from sidecar.client_connection import ClientConnection
from sidecar.client_loop import ClientLoop
from sidecar.frames import Channel

__all__ = [  # all that other packages need of GMS
    "Asleep",
    "DeviceError",
    "GmsClient",
    "GmsError",
    "Handle",
    "Layout",
    "Lost",
    "Memory",
    "NoRoom",
    "NotInTime",
    "OutOfMemory",
    "Reader",
    "Refused",
    "StaleLayout",
    "Tensor",
    "Writer",
    "open_memory",
    "pack",
]

_ERRORS: dict[str, type[GmsError]] = {
    "time_out": NotInTime,
    "stale": StaleLayout,
    "no_memory": NoRoom,
    "too_large": NoRoom,
}


class _Granted(NamedTuple):
    mode: str
    held: Held
    kept: Kept | None
    """A reader's."""


_Answer = _Granted | c.Made | c.Done | c.No | c.Lost


class GmsClient:
    def __init__(
        self,
        run_dir: Path | str,
        device: str,
        engine_id: str,
        *,
        memory: Memory | None = None,
        on_change: Callable[[int, str], object] = lambda generation, hash: None,
        on_lost: Callable[[str], object] = lambda why: None,
        checksums: bool = True,
        huge_pages: bool = True,
    ) -> None:
        """`on_change(generation, hash)`: which layout there is now (0: none), also while this process sleeps, and each
        time that it is connected anew. `on_lost(why)`: what is being read is no more the layout (it can still be read,
        but its memory should be given up soon), or a writer's work is gone. Both run in whatever thread turns the
        loop: they must be short, and ask nothing of this client.

        After a commit, a thread of low priority makes huge pages of the slabs, and sums up their contents for whoever
        verifies them later.
        """
        self.run_dir = Path(run_dir)
        self.device = device
        self.incarnation = ""
        """Of the server that it spoke to last."""
        self.granularity = 0
        """Sizes are multiples of it; known once it has spoken to a server."""
        self.generation, self.hash = 0, ""
        """Of the layout that there was last."""
        self._on_change = on_change
        self._on_lost = on_lost
        self._machine = ClientMachine(engine_id, os.getpid())
        self._away = ""
        self._problem = ""
        """Why the server ended the connection, if it said so."""
        self._shelf = Shelf(lambda generation: self._loop.tell(c.Gone(generation)))
        self._shelf.memory = memory
        self._behind = Behind(self._shelf, huge_pages=huge_pages, checksums=checksums, summed=self._summed)
        self._session: Reader | Writer | None = None
        """What this process does at the moment, as far as it isn't asleep."""
        self._asking = threading.Lock()
        self._asked = False
        self._answer: _Answer | None = None
        self._loop: ClientLoop[c.Event] = ClientLoop("gms-client", self._feed, lambda: self._machine.deadline, c.Tick())
        self._link = ClientConnection(
            self._loop,
            heard=lambda message: self._feed(c.Heard(message)),
            ended=lambda why: self._feed(c.Disconnected(why)),
        )
        self._loop.start()
        self._loop.tell(c.Tick())

    # -- for programs ----------------------------------------------------------------------------------------------

    def write(self, timeout_s: float | None = None) -> Writer:
        """Waits until nobody writes and nobody reads. A layout that is there is gone from then on."""
        return self._writer(self._want(c.Want("rw", timeout_s)))

    def replace(self, bytes: int, timeout_s: float | None = None) -> Writer:
        """Like `write`, but the old layout stays until the new one is committed. Raises NoRoom at once if so many bytes
        can't be had beside it.
        """
        return self._writer(self._want(c.Want("rw", timeout_s, replace=True, bytes=bytes)))

    def read(self, timeout_s: float | None = None) -> Reader:
        """Waits until a layout is committed, and maps it."""
        return self._reader(self._want(c.Want("ro", timeout_s)))

    def write_or_read(self, timeout_s: float | None = None) -> Writer | Reader:
        """Reads if there is a layout, else writes. Only one of two engines may do this, else both may wait for ever
        (docs/gms.md, "Roles").
        """
        granted = self._want(c.Want("rw_or_ro", timeout_s))
        return self._writer(granted) if granted.mode == "rw" else self._reader(granted)

    def connected(self, timeout_s: float | None = None) -> None:
        """Waits for the server. Nothing else needs this: what is asked while it is away waits, too. Raises Refused when
        the server won't have this process.
        """
        if not self._loop.wait(lambda: bool(self.incarnation or self._problem) or self._loop.closed, timeout_s):
            raise NotInTime(f"no GMS answered within {timeout_s:g} s{self._where()}")
        if self._problem and not self.incarnation:
            raise Refused(self._problem)

    def wait_behind(self, timeout_s: float | None = None) -> bool:
        """Until huge pages and checksums are made. False if that takes longer."""
        return self._behind.wait(timeout_s)

    def close(self) -> None:
        """Gives everything up: readers and writers of this client too."""
        if self._loop.closed:
            return
        self._behind.close()
        session = self._session
        if isinstance(session, Writer):
            session.abort()
        elif session is not None:
            session.close()
        self._loop.stop()
        self._link.hang_up()
        self._shelf.close()
        if self._shelf.memory is not None:
            self._shelf.memory.close()
        self._loop.close()

    def __enter__(self) -> "GmsClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- for readers and writers (`mapped.py`) ---------------------------------------------------------------------

    def make(self, size: int) -> c.Made:
        made = self._ask(c.Make(size))
        assert isinstance(made, c.Made)
        return made

    def publish(self, document: bytes, sizes: tuple[int, ...], timeout_s: float | None) -> c.Done:
        done = self._ask(c.Publish(document, sizes), timeout_s)
        assert isinstance(done, c.Done)
        return done

    def reads_now(self, reader: Reader) -> None:
        """What was a writer is a reader."""
        self._session = reader

    def wake(self, reader: Reader, timeout_s: float) -> _Granted:
        granted = self._want(c.Want("ro", timeout_s, expect=reader.hash))
        self._session = reader
        return granted

    def slept(self, held: Held) -> None:
        """Everything is unmapped."""
        self._session = None
        self._shelf.put_back(held)
        self._loop.tell(c.Sleep())

    def release(self, who: Reader | Writer, held: Held | None) -> None:
        """It is given up. What another does goes on."""
        if held is not None:
            self._shelf.put_back(held)
        if self._session is who or self._session is None:
            self._session = None
            self._loop.tell(c.Release())

    def behind(self, held: Held, sizes: Sequence[int]) -> None:
        self._behind.begin(held, sizes)

    # -- requests --------------------------------------------------------------------------------------------------

    def _want(self, want: c.Want) -> _Granted:
        if self._shelf.memory is None:
            memory_of(self.device)
        granted = self._ask(want)
        assert isinstance(granted, _Granted)
        return granted

    def _ask(self, event: c.Want | c.Make | c.Publish, timeout_s: float | None = None) -> _Answer:
        """One request at a time. A wish ends in time by itself (`client_machine.py`)."""
        with self._asking:
            if self._loop.closed:
                raise GmsError("this client is closed")
            self._answer, self._asked = None, True
            try:
                self._loop.wait(lambda: self._answer is not None or self._loop.closed, timeout_s, first=event)
            except BaseException:
                self._take_back(event)
                raise
            answer, self._asked = self._answer, False
        if answer is None:
            raise NotInTime(f"it was not answered within {timeout_s or 0:g} s{self._where()}")
        if isinstance(answer, c.Lost):
            raise Lost(answer.why)
        if isinstance(answer, c.No):
            where = self._where() if answer.reason == "time_out" and not self._link.up else ""
            raise _ERRORS.get(answer.reason, Refused)(answer.why + where)
        return answer

    def _take_back(self, event: c.Event) -> None:
        """Interrupted: whoever asked will not use the answer."""
        self._asked = False
        if isinstance(self._answer, _Granted):
            self._shelf.put_back(self._answer.held)
        if isinstance(event, c.Want):
            self._loop.tell(c.Release())

    def _where(self) -> str:
        return f" ({socket_path(self.run_dir, self.device)}: {self._away})" if self._away else ""

    def _writer(self, granted: _Granted) -> Writer:
        self._session = Writer(self, self._memory(), granted.held)
        return self._session

    def _reader(self, granted: _Granted) -> Reader:
        kept = granted.kept
        assert kept is not None
        addresses = Addresses(self._memory())
        try:
            for size in kept.sizes:
                addresses.reserve(size)
            reader = Reader(self, granted.held.generation, kept.hash, kept.document, addresses)
            self._session = reader
            reader.take(granted.held, kept.sums)
        except BaseException:
            addresses.free()
            raise
        return reader

    def _memory(self) -> Memory:
        if self._shelf.memory is None:
            self._shelf.memory = open_memory(self.device)
        return self._shelf.memory

    def _summed(self, generation: int, sums: tuple[str, ...]) -> None:
        self._loop.tell(c.Sums(generation, sums))

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
            return self._say(effect)
        if isinstance(effect, c.Keep):
            self._shelf.keep(effect.generation, effect.first, self._link.take_descriptors())
            return None
        if isinstance(effect, c.LetGo):
            return c.Gone(effect.generation) if self._shelf.let_go(effect.generation) else None
        if isinstance(effect, c.Got):
            if self._asked:
                held = self._shelf.use(effect.opened.generation)
                self._answered(_Granted(effect.opened.mode, held, self._machine.kept))
        elif isinstance(effect, c.Made | c.Done | c.No):
            if isinstance(effect, c.No) and effect.reason == "problem":
                self._problem = effect.why
            if isinstance(effect, c.Done):
                self.generation, self.hash = effect.generation, effect.hash
            self._answered(effect)
        elif isinstance(effect, c.Lost):
            self._answered(effect)
            self._lost(effect.why)
        elif isinstance(effect, c.Stale):
            if isinstance(self._session, Reader) and self._session.generation == effect.generation:
                self._lost(effect.why)
        elif isinstance(effect, c.Changed):
            if (effect.generation, effect.hash) != (self.generation, self.hash):
                self.generation, self.hash = effect.generation, effect.hash
                self._on_change(effect.generation, effect.hash)
        else:
            self.incarnation, self.granularity = effect.incarnation, effect.granularity
        self._loop.announce()
        return None

    def _answered(self, answer: _Answer) -> None:
        if self._asked and self._answer is None:
            self._answer = answer

    def _lost(self, why: str) -> None:
        session = self._session
        if session is not None:
            session.lost = why
            self._on_lost(why)

    # -- the connection --------------------------------------------------------------------------------------------

    def _connect(self) -> c.Event:
        try:
            sock = connect(self.run_dir, self.device)
        except OSError as error:
            self._away = error.strerror or str(error)
            return c.Disconnected()
        self._away = ""
        self._link.open(
            Channel(sock, m.from_server, max_frame_bytes=m.MAX_FRAME_BYTES, max_backlog_bytes=2 * m.MAX_FRAME_BYTES)
        )
        return c.Connected()

    def _say(self, effect: c.Say) -> c.Event | None:
        if not self._link.up:
            return None  # it ended a moment ago, and the machine hears of it next
        if isinstance(effect.message, m.Hello):
            said = self._link.introduce(effect.message)
        elif effect.count:
            slabs = self._shelf.descriptors(effect.generation, effect.first, effect.count)
            said = self._link.say(effect.message, slabs)
        else:
            said = self._link.say(effect.message)
        return None if said else c.Disconnected()


def open_memory(device: str) -> Memory:
    """The device's memory, as this process sees it: `host:NAME`, or a GPU by its UUID."""
    return memory_of(device)()


def memory_of(device: str) -> Callable[[], Memory]:
    """Loads what opening it needs, before anything is asked for: a Ctrl-C in the middle of an import can get lost, and
    whoever is let in to write must hear it.
    """
    if device.startswith("host:"):
        from gms.memory.host import HostMemory

        return partial(HostMemory, device.removeprefix("host:"))
    from gms.memory.cuda import CudaMemory

    return partial(CudaMemory, device)

"""One process's standing with a device's GMS: its machine, its connection, its slabs, and its requests.

The rules are in `client_machine.py`; here they meet the world. A thread (`sidecar/client_loop.py`) watches the
connection, asleep or awake: it answers a server that wants memory dropped, and takes the layout to the next server when
one dies. One request is under way at a time.

Nothing that a program or a signal handler raises may leave this deaf. An event is handled by the machine as a whole or
not at all; what follows from it stays in `_effects` until it is done; and a turn that was cut short makes the
connection anew. A request that was interrupted may be made again: if it was answered meanwhile, that is the answer.

What this file may not do: know what a program has of the weights. Who uses it: `client.py`, `reader.py`, `writer.py`.
"""

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gms import client_events as c
from gms import messages as m
from gms.background import Background
from gms.client_machine import ClientMachine, Kept
from gms.errors import GmsError, Lost, NoCommonProtocol, NoPlace, NoRoom, NotInTime, Refused, StaleLayout
from gms.layout import structure_hash
from gms.layout_slabs import LayoutSlabs, SlabStore
from gms.memory import Memory
from gms.rundir import connect, socket_path
from sidecar.client_connection import ClientConnection
from sidecar.client_loop import CannotWait, ClientLoop
from sidecar.frames import Channel
from sidecar.logs import complain

_THREAD = "gms-client"
_ERRORS: dict[str, type[GmsError]] = {
    "time_out": NotInTime,
    "stale": StaleLayout,
    "no_memory": NoRoom,
    "too_large": NoRoom,
}


class Use:
    """What this process does at the moment, as far as it isn't asleep. Made for each writer, reader and wake."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.lost = ""
        """Why it is over, once it is."""
        self.end: Callable[[], object] = lambda: None
        """Gives it up. Set by the writer or reader that it is."""


class Granted(NamedTuple):
    mode: str
    slabs: LayoutSlabs
    use: Use
    kept: Kept | None
    """A reader's."""


_Request = c.Want | c.Make | c.Publish
_Answer = Granted | c.Made | c.Done | c.No | c.Lost


class ClientShell:
    def __init__(
        self,
        run_dir: Path,
        device: str,
        engine_id: str,
        *,
        region: str,
        memory: Memory | None,
        on_change: Callable[[int, str], object],
        on_lost: Callable[[str], object],
        on_problem: Callable[[str], object],
        checksums: bool,
        huge_pages: bool,
    ) -> None:
        self.run_dir = run_dir
        self.device = device
        self.incarnation = ""
        """The server's that it spoke to last."""
        self.granularity = 0
        self.generation, self.hash = 0, ""
        """The layout's that there was last."""
        self.problem = ""
        """Why the server there won't have this process; empty while all is well."""
        self._problem: type[Refused] = Refused
        self._on_change = on_change
        self._on_lost = on_lost
        self._on_problem = on_problem
        self._machine = ClientMachine(engine_id, os.getpid(), region=region)
        self._away = ""
        """Why it can't connect."""
        self._store = SlabStore(lambda generation: self._loop.tell(c.Gone(generation)))
        self._store.memory = memory
        self.background = Background(self._store, huge_pages=huge_pages, checksums=checksums, summed=self._summed)
        self._use: Use | None = None
        self._asking = threading.Lock()
        self._waits_for: _Request | None = None
        """Whose answer a caller waits for."""
        self._asked = False
        """The machine has heard of that request. What it answers before is the answer to another, which was
        interrupted.
        """
        self._answer: _Answer | None = None
        self._unclaimed: c.Made | c.Done | None = None
        """The answer to a request whose asker was interrupted."""
        self._events: deque[c.Event] = deque()
        self._effects: deque[c.Effect] = deque()
        self._tried: c.Effect | None = None
        self._handled: c.Event | None = None
        self._loop: ClientLoop[c.Event] = ClientLoop(
            _THREAD, self._told, lambda: self._machine.deadline, c.Tick(), torn=self._torn
        )
        self._connection = ClientConnection(
            self._loop,
            heard=lambda message: self._feed(c.Heard(message)),
            ended=lambda why: self._feed(c.Disconnected(why)),
        )
        self._loop.start()
        self._loop.tell(c.Tick())

    @property
    def closed(self) -> bool:
        return self._loop.closed

    @property
    def memory(self) -> Memory:
        """The device's, as this process sees it; opened when it is first needed."""
        if self._store.memory is None:
            self._store.memory = open_memory(self.device)
        return self._store.memory

    def connected(self, timeout_s: float | None) -> None:
        """Waits for the server. Raises Refused when it won't have this process."""
        if not self._loop.wait(lambda: bool(self.incarnation or self.problem) or self.closed, timeout_s):
            raise NotInTime(f"no GMS answered within {timeout_s:g} s{self._where()}")
        if self.problem and not self.incarnation:
            raise self._problem(self.problem)

    def close(self) -> None:
        """Gives everything up. A forked child only closes what it has: the rest is its parent's."""
        if self.closed:
            return
        self.background.close()
        if self._use is not None:
            self._use.end()
        self._loop.stop()
        self._connection.hang_up()
        self._store.close()
        if self._store.memory is not None:
            self._store.memory.close()
        self._loop.close()

    # -- for clients, readers and writers --------------------------------------------------------------------------

    def want(self, want: c.Want) -> Granted:
        if self._store.memory is None:
            memory_of(self.device)
        granted = self._ask(want)
        assert isinstance(granted, Granted)
        return granted

    def make(self, size: int) -> c.Made:
        made = self._ask(c.Make(size))
        assert isinstance(made, c.Made)
        return made

    def publish(self, document: bytes, sizes: tuple[int, ...], timeout_s: float | None) -> c.Done:
        done = self._ask(c.Publish(document, sizes), timeout_s)
        assert isinstance(done, c.Done)
        return done

    def slept(self, slabs: LayoutSlabs) -> None:
        """Everything is unmapped."""
        self._use = None
        self._store.put_back(slabs)
        self._loop.tell(c.Sleep())

    def release(self, use: Use | None, slabs: LayoutSlabs | None) -> None:
        """It is given up. What else this process does goes on."""
        if slabs is not None:
            self._store.put_back(slabs)
        if self._use is use or self._use is None:
            self._use = None
            self._loop.tell(c.Release())

    # -- requests --------------------------------------------------------------------------------------------------

    def _ask(self, event: _Request, timeout_s: float | None = None) -> _Answer:
        """One request at a time. A `Want` ends in time by itself (`client_machine.py`)."""
        try:
            self._loop.wait(lambda: True, 0.0)
        except CannotWait as error:
            raise GmsError(str(error)) from None
        with self._asking:
            if self.closed:
                raise GmsError("this client is closed")
            self._answer, self._asked, self._waits_for = None, False, event
            try:
                self._loop.wait(lambda: self._answer is not None or self.closed, timeout_s, first=event)
            except BaseException:
                self._take_back(event)
                raise
            answer, self._asked, self._waits_for = self._answer, False, None
        if answer is None:
            raise NotInTime(f"it was not answered within {timeout_s or 0:g} s{self._where()}")
        if isinstance(answer, c.Lost):
            raise Lost(answer.why)
        if isinstance(answer, c.No):
            if not isinstance(event, c.Want) and self._use is not None and self._use.lost:
                raise Lost(self._use.lost)  # just before it was asked
            where = self._where() if answer.reason == "time_out" and not self._connection.up else ""
            raise _ERRORS.get(answer.reason, Refused)(answer.why + where)
        return answer

    def _take_back(self, event: _Request) -> None:
        """Interrupted: whoever asked will not use the answer."""
        self._asked, self._waits_for = False, None
        answer = self._answer
        if isinstance(answer, c.Made | c.Done):
            self._unclaimed = answer
        if isinstance(event, c.Want):
            if isinstance(answer, Granted):
                self._use = None
                self._store.put_back(answer.slabs)
            self._loop.tell(c.Sleep() if event.expect else c.Release())

    def _where(self) -> str:
        return f" ({socket_path(self.run_dir, self.device)}: {self._away})" if self._away else ""

    def _summed(self, generation: int, sums: tuple[str, ...]) -> None:
        self._loop.tell(c.Sums(generation, sums))

    # -- the machine -----------------------------------------------------------------------------------------------

    def _told(self, event: c.Event) -> None:
        """By the program. The loop says it once more when its turn was cut short."""
        if event is self._waits_for:
            self._asked = True
            unclaimed, self._unclaimed = self._unclaimed, None
            if unclaimed is not None and (answer := self._earlier_answer(event, unclaimed)) is not None:
                self._handled = event
                self._answered(answer)
                return
        if event is not self._handled or isinstance(event, c.Tick):
            self._feed(event)

    def _earlier_answer(self, event: c.Event, unclaimed: c.Made | c.Done) -> _Answer | None:
        """What was asked for is there already, because of a request that was interrupted."""
        if isinstance(event, c.Make) and isinstance(unclaimed, c.Made):
            if 0 <= unclaimed.size - event.size < self.granularity:
                return unclaimed
            why = f"a slab of {unclaimed.size} bytes was made by a call that was interrupted"
            return c.Lost(f"{why}, and it is not what is wanted now; begin anew with write()")
        if isinstance(event, c.Publish) and isinstance(unclaimed, c.Done):
            return unclaimed if unclaimed.hash == structure_hash(event.document) else None
        return None

    def _torn(self) -> None:
        """A turn was cut short: what was said or heard on this connection may be half. Answers that are still to be
        given are for somebody who doesn't wait any more.
        """
        self._events.clear()
        effects, self._effects = self._effects, deque[c.Effect]()
        for effect in effects:
            if isinstance(effect, c.Made | c.Done):
                self._unclaimed = effect
            elif not isinstance(effect, c.Connect | c.Got | c.No):
                self._effects.append(effect)
        self._connection.hang_up()
        self._feed(c.Disconnected())
        kept = self._machine.kept
        if kept is not None and len(self._store.descriptors(kept.generation, 0, len(kept.sizes))) < len(kept.sizes):
            self._feed(c.Release())  # its slabs were just arriving: nobody has them mapped

    def _feed(self, event: c.Event) -> None:
        self._events.append(event)
        while self._effects or self._events:
            if self._effects:
                self._carry_out()
                continue
            before = dict(vars(self._machine))
            try:
                effects = self._machine.handle(self._events[0], time.monotonic())
            except BaseException:  # a signal handler's, most likely: all of an event or nothing of it
                vars(self._machine).update(before)
                self._events.popleft()
                raise
            self._effects.extend(effects)
            self._handled = self._events.popleft()

    def _carry_out(self) -> None:
        """The first effect. It stays until it is done; but what can't be done twice over is not tried again."""
        effect = self._effects[0]
        if effect is self._tried:
            self._effects.popleft()
        self._tried = effect
        answer = self._do(effect)
        if self._effects and self._effects[0] is effect:
            self._effects.popleft()
        self._tried = None
        if answer is not None:
            self._events.append(answer)

    def _do(self, effect: c.Effect) -> c.Event | None:
        if isinstance(effect, c.Connect):
            return self._connect()
        if isinstance(effect, c.Say):
            return self._say(effect)
        if isinstance(effect, c.Keep):
            self._store.keep(effect.generation, effect.first, self._connection.take_descriptors())
            return None
        if isinstance(effect, c.LetGo):
            return c.Gone(effect.generation) if self._store.let_go(effect.generation) else None
        if isinstance(effect, c.Got):
            self._got(effect)
        elif isinstance(effect, c.Made | c.Done):
            if isinstance(effect, c.Done):
                self.generation, self.hash = effect.generation, effect.hash
            self._answered(effect)
        elif isinstance(effect, c.No):
            self._answered(effect)
        elif isinstance(effect, c.Lost):
            self._answered(effect)
            self._lost(effect.why)
        elif isinstance(effect, c.Stale):
            if self._use is not None and self._use.generation == effect.generation:
                self._lost(effect.why)
        elif isinstance(effect, c.Changed):
            if (effect.generation, effect.hash) != (self.generation, self.hash):
                self.generation, self.hash = effect.generation, effect.hash
                self._call("on_change", partial(self._on_change, effect.generation, effect.hash))
        elif isinstance(effect, c.Unwelcome):
            self._problem = {"protocol": NoCommonProtocol, "place": NoPlace}.get(effect.about, Refused)
            self._is_unwelcome(effect.why)
        else:
            self.incarnation, self.granularity = effect.incarnation, effect.granularity
            self._is_unwelcome("")
        self._loop.announce()
        return None

    def _got(self, effect: c.Got) -> None:
        if not self._asked:
            return
        generation = effect.opened.generation
        self._use, self._unclaimed = Use(generation), None
        self._answered(Granted(effect.opened.mode, self._store.use(generation), self._use, self._machine.kept))

    def _answered(self, answer: _Answer) -> None:
        if self._asked and self._answer is None:
            self._answer = answer
        elif not self._asked and isinstance(answer, c.Made | c.Done):
            self._unclaimed = answer

    def _lost(self, why: str) -> None:
        if self._use is not None:
            self._use.lost = why
            self._call("on_lost", partial(self._on_lost, why))

    def _is_unwelcome(self, why: str) -> None:
        if why != self.problem:
            self.problem = why
            self._call("on_problem", partial(self._on_problem, why))

    def _call(self, name: str, callback: Callable[[], object]) -> None:
        """A program's callback. What it raises would end nothing but the client's thread, and leave it deaf."""
        try:
            callback()
        except BaseException as error:
            if not isinstance(error, Exception) and threading.current_thread().name != _THREAD:
                raise  # Ctrl-C, in the thread of a caller
            complain(f"gms client: {name} raised; the client goes on:\n{traceback.format_exc()}")

    # -- the connection --------------------------------------------------------------------------------------------

    def _connect(self) -> c.Event:
        self._connection.hang_up()
        try:
            sock = connect(self.run_dir, self.device)
        except OSError as error:
            self._away = error.strerror or str(error)
            return c.Disconnected()
        self._away = ""
        self._connection.open(
            Channel(sock, m.from_server, max_frame_bytes=m.MAX_FRAME_BYTES, max_backlog_bytes=2 * m.MAX_FRAME_BYTES)
        )
        return c.Connected()

    def _say(self, effect: c.Say) -> c.Event | None:
        if not self._connection.up:
            return None  # it ended a moment ago, and the machine hears of it next
        if isinstance(effect.message, m.Hello):
            said = self._connection.introduce(effect.message)
        elif effect.count:
            slabs = self._store.descriptors(effect.generation, effect.first, effect.count)
            said = self._connection.say(effect.message, slabs)
        else:
            said = self._connection.say(effect.message)
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

"""One process's standing with a device's weights: its requests, and what it does at the moment.

What it has in common with its standing with a pool is in `region_shell.py`. A request that was interrupted may be made
again: if it was answered meanwhile, that is the answer.

What this file may not do: know what a program has of the weights. Used by `client.py`, `reader.py`, `writer.py`.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace

from gms.layout import structure_hash
from gms.memory import Memory
from gms.memory.opening import memory_of, open_memory
from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.errors import Lost, NotInTime, Parked, StaleLayout, error_of
from gms.rules.shared_client import SharedClient
from gms.shell.background import Background
from gms.shell.region_shell import RegionShell
from gms.shell.slabs import LayoutSlabs
from sidecar.machine.client_shell import Ask
from sidecar.terminal.logs import complain


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
    kept: c.Kept | None
    """A reader's."""


_Answer = Granted | m.Created | m.Committed | m.RegionDropped | c.No | c.Lost


class WeightsShell(RegionShell):
    def __init__(
        self,
        run_dir: Path | str,
        device: str,
        engine_id: str,
        *,
        region: str = m.WEIGHTS,
        model: str = "",
        memory: Memory | None = None,
        on_change: Callable[[int, str], object] = lambda generation, hash: None,
        on_lost: Callable[[str], object] = lambda why: None,
        on_problem: Callable[[str], object] | None = None,
        checksums: bool = True,
        huge_pages: bool = True,
        unparks: bool = True,
    ) -> None:
        """`region`: which weights, of several. `model`: whose pools, where models share these.

        `on_change(generation, hash)`: which layout there is now (0: none), also while this process sleeps, and each
        time that it is connected anew. `on_lost(why)`: what is being read is the layout no longer (it can still be
        read, but its memory should be given up soon), or a writer's work is gone. `on_problem(why)`: the server there
        won't have this process, or speaks no protocol that both know; it reads on, and an empty `why` says that all is
        well again. By default that is a line on stderr. The three run in the client's thread: they must be short, and
        ask nothing of this client. What they raise is a line on stderr.

        `unparks`: weights that are parked in host memory are brought back when they are to be read; else that raises
        Parked.

        After a commit, a thread of low priority makes huge pages of the slabs, and sums up their contents for a later
        `verify`.
        """
        self._machine = SharedClient(engine_id, os.getpid(), region)
        super().__init__("gms-client", Path(run_dir), device, self._machine)
        self.generation, self.hash = 0, ""
        """The layout's that there was last."""
        self._about = ""
        """What the last problem was about."""
        self._on_change = on_change
        self._on_lost = on_lost
        self._on_problem = on_problem or self._say_problem
        self.store.memory = memory
        self.background = Background(self.store, huge_pages=huge_pages, checksums=checksums, summed=self._summed)
        self.unparks, self.model = unparks, model
        self._use: Use | None = None
        self._unclaimed: m.Created | m.Committed | None = None
        """The answer to a request whose asker was interrupted."""
        self.loop.start()

    @property
    def memory(self) -> Memory:
        """The device's, as this process sees it; opened when it is first needed."""
        if self.store.memory is None:
            self.store.memory = open_memory(self.device)
        return self.store.memory

    def await_server(self, timeout_s: float | None = None) -> None:
        """Waits for the server. Nothing else needs this: what is asked while it is away waits, too. Raises Refused when
        the server won't have this process.
        """
        if not self.loop.wait(lambda: bool(self.incarnation or self.problem), timeout_s):
            raise NotInTime(f"no GMS answered within {timeout_s:g} s{self.where()}")
        if self.problem and not self.incarnation:
            raise error_of(self._about)(self.problem)

    def close(self) -> None:
        """Gives everything up. A forked child only closes what it has: the rest is its parent's."""
        if self.closed:
            return
        self.background.close()
        if self._use is not None:
            self._use.end()
        super().close()

    def let_go(self) -> None:
        super().let_go()
        if self.store.memory is not None:
            self.store.memory.close()

    @property
    def contents(self) -> int:
        """The generation whose contents this process has: the same through parking and coming back. 0: it has none."""
        kept = self._machine.kept
        return (kept.contents or kept.generation) if kept is not None else 0

    @property
    def parked(self) -> c.Kept | None:
        """The layout in host memory, where this process has that."""
        kept = self._machine.kept
        return kept if kept is not None and kept.table else None

    # -- for clients, readers and writers --------------------------------------------------------------------------

    def want(self, want: m.Open) -> Granted:
        if self.store.memory is None:
            memory_of(self.device)
        granted = self._answer_to(want)  # it ends in time by itself (`client_machine.py`)
        assert isinstance(granted, Granted)
        return granted

    def want_to_read(self, want: m.Open) -> Granted:
        """Brings back what is parked, if this process does that (`unparks`). Another may park it again meanwhile."""
        until = None if want.timeout_s is None else time.monotonic() + want.timeout_s
        while True:
            try:
                return self.want(want)
            except Parked:
                if not self.unparks:
                    raise
            self.bring_back(until)
            want = replace(want, timeout_s=left_s(until))

    def bring_back(self, until: float | None) -> None:
        """To the device, by this process (`parking.py`)."""
        raise NotImplementedError

    def make(self, size: int, timeout_s: float | None = None) -> m.Created:
        made = self._answer_to(m.Create(size), timeout_s)
        assert isinstance(made, m.Created)
        return made

    def publish(
        self, document: bytes, sizes: tuple[int, ...], timeout_s: float | None
    ) -> m.Committed | m.RegionDropped:
        """The latter to a writer that parks."""
        done = self._answer_to(c.Publish(document, sizes), timeout_s)
        assert isinstance(done, m.Committed | m.RegionDropped)
        return done

    def slept(self, slabs: LayoutSlabs) -> None:
        """Everything is unmapped."""
        self._use = None
        self.store.put_back(slabs)
        self.tell(c.Sleep())

    def release(self, use: Use | None, slabs: LayoutSlabs | None) -> None:
        """It is given up. What else this process does goes on."""
        if slabs is not None:
            self.store.put_back(slabs)
        if self._use is use or self._use is None:
            self._use = None
            self.tell(c.Release())

    def _answer_to(self, event: m.Open | m.Create | c.Publish, timeout_s: float | None = None) -> _Answer:
        answer: _Answer = self.ask(Ask(event), timeout_s)
        if isinstance(answer, c.Lost):
            raise Lost(answer.why)
        if isinstance(answer, c.No):
            if not isinstance(event, m.Open) and self._use is not None and self._use.lost:
                raise Lost(self._use.lost)  # just before it was asked
            where = self.where() if answer.reason == "time_out" and not self.connection.up else ""
            kind = StaleLayout if answer.reason == "stale" else error_of(answer.reason)
            raise kind(answer.why + where)
        return answer

    def _summed(self, generation: int, sums: tuple[str, ...]) -> None:
        self.tell(m.Checksums(generation, list(sums)))

    # -- requests: in the client's thread --------------------------------------------------------------------------

    def begins(self, ask: Ask) -> None:
        unclaimed, self._unclaimed = self._unclaimed, None
        earlier = self._earlier_answer(ask.about, unclaimed) if unclaimed is not None else None
        if earlier is not None:
            self.answered(earlier)
        else:
            self.feed(ask.about)

    def _earlier_answer(self, event: c.Event, unclaimed: m.Created | m.Committed) -> _Answer | None:
        """What was asked for is there already, because of a request that was interrupted."""
        if isinstance(event, m.Create) and isinstance(unclaimed, m.Created):
            if 0 <= unclaimed.size - event.size < self.granularity:
                return unclaimed
            why = f"a slab of {unclaimed.size} bytes was made by a call that was interrupted"
            return c.Lost(f"{why}, and it is not what is wanted now; begin anew with write()")
        if isinstance(event, c.Publish) and isinstance(unclaimed, m.Committed):
            return unclaimed if unclaimed.hash == structure_hash(event.document) else None
        return None

    def unclaimed(self, answer: object) -> None:
        if isinstance(answer, m.Created | m.Committed):
            self._unclaimed = answer

    def take_back(self, ask: Ask, *, had_turn: bool) -> None:
        """The answer to a `Create` or `Publish` that comes all the same is for the next one."""
        self.unclaimed(ask.answer)
        if isinstance(ask.answer, Granted):
            self._use = None
            self.store.put_back(ask.answer.slabs)
        if isinstance(ask.about, m.Open) and (had_turn or isinstance(ask.answer, Granted)):
            self.feed(c.Sleep() if ask.about.expect or ask.about.moves else c.Release())

    # -- effects ---------------------------------------------------------------------------------------------------

    def connect_anew(self) -> None:
        super().connect_anew()
        kept = self._machine.kept
        if kept is not None and len(self.store.descriptors(kept.generation, 0, len(kept.sizes))) < len(kept.sizes):
            self.feed(c.Release())  # its slabs were just arriving: no reader has them mapped

    def _do_got(self, effect: c.Got) -> None:
        if self._turns:
            self._use = Use(effect.generation)
            self.answered(Granted(effect.mode, self.store.use(effect.generation), self._use, self._machine.kept))

    def _do_done(self, effect: m.Committed) -> None:
        self.generation, self.hash = effect.generation, effect.hash
        self.answered(effect)

    def _do_lost(self, effect: c.Lost) -> None:
        self.answered(effect)
        self._lose(effect.why)

    def _do_stale(self, effect: c.Stale) -> None:
        if self._use is not None and self._use.generation == effect.generation:
            self._lose(effect.why)

    def _lose(self, why: str) -> None:
        if self._use is not None:
            self._use.lost = why
            self.call("on_lost", partial(self._on_lost, why))

    def _do_changed(self, effect: m.Changed) -> None:
        if (effect.generation, effect.hash) != (self.generation, self.hash):
            self.generation, self.hash = effect.generation, effect.hash
            self.call("on_change", partial(self._on_change, effect.generation, effect.hash))

    def on_problem_said(self, why: str, about: str) -> None:
        if why:
            self._about = about
        if why != self.problem:
            self.problem = why
            self.call("on_problem", partial(self._on_problem, why))

    def _say_problem(self, why: str) -> None:
        said = f"{why}; it goes on with what it has, and tries again" if why else "all is well again"
        complain(f"gms client: GMS of {self.device} at {self.run_dir}: {said}")

    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        **RegionShell.common,
        c.Got: _do_got,
        m.Created: RegionShell.answered,
        m.Committed: _do_done,
        m.RegionDropped: RegionShell.answered,
        c.No: RegionShell.answered,
        c.Lost: _do_lost,
        c.Stale: _do_stale,
        m.Changed: _do_changed,
    }


def left_s(until: float | None, more_s: float = 0.0) -> float | None:
    """None: for ever. `more_s`: for the answer of a server that need wait for no process."""
    return None if until is None else max(until - time.monotonic(), 0.0) + more_s

"""One process's standing with one region: its machine, its connection, the descriptors that it has, and its requests.

The rules are in `client_machine.py` and by policy; here they meet the world. The client's thread
(`sidecar/machine/client_shell.py`) watches the connection: it answers a server that wants memory dropped, and takes
what this process has to the next server when one dies. One request is under way at a time, and the others wait for
their turn. What differs: `weights_shell.py`, `pool.py`.

What this file may not do: know what is in the memory, or what a program does with it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.client_machine import ClientMachine
from gms.rules.errors import GmsError
from gms.shell.rundir import connect, socket_path
from gms.shell.slabs import LayoutSlabs, SlabStore
from sidecar.machine.client_shell import Ask, ClientShell
from sidecar.wire.frames import Channel


class RegionShell(ClientShell):
    def __init__(self, name: str, run_dir: Path, device: str, machine: ClientMachine) -> None:
        super().__init__(name, machine, GmsError)
        self.run_dir = run_dir
        self.device = device
        self.incarnation = ""
        """The server's that it spoke to last."""
        self.granularity = 0
        """Sizes are multiples of it; known once it has spoken to a server."""
        self.problem = ""
        """Why the server there won't have this process; empty while all is well."""
        self.store = SlabStore(lambda slabs: self.loop.post(partial(self._drop, slabs)))
        self._away = ""
        """Why it can't connect."""
        self._turns: list[Ask] = []
        """Requests that aren't answered. The first one's turn it is."""

    def where(self) -> str:
        return f" ({socket_path(self.run_dir, self.device)}: {self._away})" if self._away else ""

    def let_go(self) -> None:
        self.store.close()

    def on_problem_said(self, why: str, about: str) -> None:
        """Empty: it is welcome."""
        self.problem = why

    # -- requests: in the client's thread --------------------------------------------------------------------------

    def on_ask(self, ask: Ask) -> None:
        self._turns.append(ask)
        if self._turns[0] is ask:
            self.begins(ask)

    def begins(self, ask: Ask) -> None:
        """Its turn has come."""
        self.feed(ask.about)

    def answered(self, answer: object) -> None:
        """The request whose turn it is, if its caller still waits."""
        if self._turns:
            self.answer(self._turns.pop(0), answer)
            self._next()
        else:
            self.unclaimed(answer)

    def _next(self) -> None:
        if self._turns:
            self.begins(self._turns[0])

    def on_late(self, ask: Ask) -> None:
        self.on_given_up(ask)
        self.answer(ask, c.No(f"it was not answered in time{self.where()}", "time_out"))

    def on_given_up(self, ask: Ask) -> None:
        had_turn = self._turns[:1] == [ask]
        if ask in self._turns:
            self._turns.remove(ask)
        self.take_back(ask, had_turn=had_turn)
        if had_turn:
            self._next()

    def take_back(self, ask: Ask, *, had_turn: bool) -> None:
        """What was asked for, or answered, isn't wanted any more."""
        raise NotImplementedError

    def unclaimed(self, answer: object) -> None:
        """Its asker was interrupted."""
        raise NotImplementedError

    # -- effects ---------------------------------------------------------------------------------------------------

    def disconnected(self, why: str) -> c.Event:
        return c.Disconnected(why)

    def _do_connect(self, _: c.Connect) -> c.Event:
        self.connection.hang_up()
        try:
            sock = connect(self.run_dir, self.device)
        except OSError as error:
            self._away = error.strerror or str(error)
            return c.Disconnected()
        self._away = ""
        self.connection.open(
            Channel(sock, m.from_server, max_frame_bytes=m.MAX_FRAME_BYTES, max_backlog_bytes=2 * m.MAX_FRAME_BYTES)
        )
        return c.Connected(self.store.generations)

    def _do_say(self, effect: c.Say) -> c.Event | None:
        if not self.connection.up:
            return None  # it ended a moment ago, and the machine hears of it next
        if isinstance(effect.message, m.Hello):
            said = self.connection.introduce(effect.message)
        elif effect.count:
            slabs = self.store.descriptors(effect.generation, effect.first, effect.count)
            said = self.connection.say(effect.message, slabs)
        else:
            said = self.connection.say(effect.message)
        return None if said else c.Disconnected()

    def _do_keep(self, effect: c.Keep) -> None:
        self.store.keep(effect.generation, effect.first, self.connection.take_descriptors())

    def _do_let_go(self, effect: c.LetGo) -> c.Event | None:
        return m.Dropped(effect.generation) if self.store.let_go(effect.generation) else None

    def _drop(self, slabs: LayoutSlabs) -> None:
        if self.store.drop(slabs):
            self.feed(m.Dropped(slabs.generation))

    def _do_server_is(self, effect: m.Welcome) -> None:
        self.incarnation, self.granularity = effect.server_incarnation, effect.granularity
        self.on_problem_said("", "")

    common: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        c.Connect: _do_connect,
        c.Say: _do_say,
        c.Keep: _do_keep,
        c.LetGo: _do_let_go,
        m.Problem: lambda shell, effect: shell.on_problem_said(effect.why, effect.about),
        m.Welcome: _do_server_is,
    }

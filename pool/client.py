"""A door's connection to the pool, for as long as the door lives.

    client = PoolClient(run_dir, tell)       # `tell(news)`, at every change; None: the pool went away
    client.start()
    client.demand({"chat": ModelDemand(waiting=1)})
    client.command(Command(number=0, verb="wake", name="chat"), done)    # `done(CommandDone)`
    client.close()

`demand` and `command` may be called from any thread and never wait; `tell` and `done` are called in the client's own
thread, and must be short. A pool that is away is no error: it comes back, and hears the newest demand. The rules:
`rules/client_machine.py`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pool.entries import Entry as Entry
from pool.entries import Flags as Flags
from pool.entries import ModelDemand as ModelDemand
from pool.entries import ModelOutlook as ModelOutlook
from pool.entries import State as State
from pool.rules import client_machine as c
from pool.rules import messages as m
from pool.rules.messages import Command as Command
from pool.rules.messages import CommandDone as CommandDone
from pool.rules.messages import Listing as Listing
from pool.rules.messages import Models as Models
from pool.rules.messages import Outlook as Outlook
from pool.rules.messages import Verb as Verb
from sidecar.machine.client_shell import Ask, ClientShell
from sidecar.wire import sockets
from sidecar.wire.frames import Channel

SOCKET = "pool.sock"
News = Models | Outlook | Listing | None


class PoolError(Exception):
    """The client can't be used so."""


class PoolClient(ClientShell):
    def __init__(self, run_dir: Path | str, tell: Callable[[News], object]) -> None:
        super().__init__("pool client", c.ClientMachine(), PoolError)
        self._socket = Path(run_dir) / SOCKET
        self._tell = tell

    def start(self) -> None:
        self.loop.start()
        self.tell(c.Started())

    def demand(self, models: Mapping[str, ModelDemand]) -> None:
        """All that the door has now: a model that isn't named has nothing."""
        self.tell(c.Wants(dict(models)))

    def command(self, command: Command, done: Callable[[CommandDone], object]) -> None:
        """`done` gets the answer, or that there is no pool to give one."""
        self.tell(c.Asks(command, done))

    # -- in the client's thread ------------------------------------------------------------------------------------

    def disconnected(self, why: str) -> c.Disconnected:
        return c.Disconnected(why)

    def on_ask(self, ask: Ask) -> None:
        """No caller waits here."""

    on_late = on_ask

    def _do_connect(self, effect: c.Connect) -> c.Connected:
        try:
            sock = sockets.connect(self._socket)
        except OSError:
            return c.Connected(False)
        self.connection.open(Channel(sock, m.from_pool, max_frame_bytes=m.MAX_FRAME_BYTES))
        return c.Connected(True)

    def _do_say(self, effect: c.Say) -> c.Disconnected | None:
        return None if self.connection.say(effect.message) else c.Disconnected("it takes nothing")

    def _do_tell(self, effect: c.Tell) -> None:
        self.call("tell", lambda: self._tell(effect.news))

    def _do_answer(self, effect: c.Answer) -> None:
        self.call("done", lambda: effect.done(effect.said))

    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {
        c.Connect: _do_connect,
        c.Say: _do_say,
        c.Tell: _do_tell,
        c.Answer: _do_answer,
    }

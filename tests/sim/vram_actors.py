"""The shells of the simulator for the ledger: the real machines of server and client, on the simulated kernel.

`SimLedger` does what `vram/shell/server.py` does, and `SimHolder` what `vram/client.py` does, with the same order of
calls; what all do that bind trees is in `tree_server.py` and `tree_client.py`. What must hold: `vram_world.py`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from evidence.rules import events as e
from evidence.rules.standing import Me
from tests.sim.process import Process
from tests.sim.tree_client import TreeClient
from tests.sim.tree_server import TreeServer
from vram.rules import messages as m
from vram.rules import record
from vram.rules.client_machine import ClientMachine
from vram.rules.events import Config, Started
from vram.rules.machine import Machine

if TYPE_CHECKING:
    from tests.sim.vram_world import VramWorld

RUN = "/srv/vram"
SOCKET = "vram.sock"
LIFE = f"{RUN}/life"
FILE = f"{RUN}/vram.json"


class SimLedger(TreeServer):
    run: ClassVar[str] = RUN
    socket_name: ClassVar[str] = SOCKET
    file: ClassVar[str] = FILE

    def __init__(self, world: "VramWorld") -> None:
        super().__init__(world)
        self.world = world

    def new_machine(self, config: Config) -> Machine:
        return Machine(config)

    def encode(self, found: record.Record) -> bytes:
        return record.encode(found)

    def what_was_left(self) -> Started:
        process, floor = self.process, self.world.rng.getrandbits(33) << 20
        try:
            return Started(record.decode(process.read_file(FILE)), number_floor=floor)
        except FileNotFoundError:
            aside = any(".unreadable-" in name for name in process.list_directory(RUN))
            return Started(None, unreadable="kept aside" if aside else "", number_floor=floor)
        except record.UnreadableRecord as error:
            process.rename(FILE, f"{FILE}.unreadable-{self.incarnation}")
            return Started(None, unreadable=str(error), number_floor=floor)

    def _do_send(self, effect: e.Send) -> None:
        if effect.conn not in self.conns:
            return
        caller, message = self.machine.callers.by_conn.get(effect.conn), effect.message
        if caller is not None and caller.incarnation is not None:
            self.world.saying(self, caller.incarnation.name, message)
        self._send(effect.conn, message, [self.processes[p] for p in effect.processes if p in self.processes])


SimLedger.effects = {**TreeServer.effects, e.Send: SimLedger._do_send}


class SimHolder(TreeClient):
    run: ClassVar[str] = RUN
    socket_name: ClassVar[str] = SOCKET

    def __init__(self, world: "VramWorld", process: Process, me: Me, on: Callable[[Any], None]) -> None:
        super().__init__(world, process, me, on)
        self.machine = ClientMachine(me)

    def does(self, effect: Any) -> None:
        self.ever_held |= isinstance(effect, m.Granted)

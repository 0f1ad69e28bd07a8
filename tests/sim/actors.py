"""The shells of the simulator for the lock: the real machines of server and client, on the simulated kernel.

`SimServer` does what `lockserver/shell/server.py` does, and `SimClient` what `lockserver/client.py` does, with the same
order of calls; what all do that bind trees is in `tree_server.py` and `tree_client.py`. Who starts them, what goes
wrong and what must hold is `world.py`'s business.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from evidence.rules.standing import Me
from lockserver.rules import client_events as c
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules import record
from lockserver.rules.client_machine import ClientMachine
from lockserver.rules.machine import Machine
from tests.sim.process import Process
from tests.sim.tree_client import TreeClient
from tests.sim.tree_server import TreeServer

if TYPE_CHECKING:
    from tests.sim.world import World

RUN = "/srv/link/pair"
"""A path with everything in it that can be changed: a directory above, a symlink, and a place to mount something on."""
SOCKET = "lock.sock"
LIFE = f"{RUN}/life"
HOLDER = f"{RUN}/holder.json"


class SimServer(TreeServer):
    run: ClassVar[str] = RUN
    socket_name: ClassVar[str] = SOCKET
    file: ClassVar[str] = HOLDER

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.world = world
        self.names: dict[str, int] = {}

    def new_machine(self, config: Any) -> Machine:
        return Machine(config)

    def encode(self, found: record.Record) -> bytes:
        return record.encode(found)

    def what_was_left(self) -> e.Started:
        process, floor = self.process, int(self.kernel.wall_time_s * 1000)
        try:
            return e.Started(record.decode(process.read_file(HOLDER)), token_floor=floor)
        except FileNotFoundError:
            aside = any(".unreadable-" in name for name in process.list_directory(RUN))
            return e.Started(None, unreadable="kept aside" if aside else "", token_floor=floor)
        except record.UnreadableRecord as error:
            process.rename(HOLDER, f"{HOLDER}.unreadable-{self.incarnation}")
            return e.Started(None, unreadable=str(error), token_floor=floor)

    def heard(self, conn: int, message: Any) -> None:
        caller = self.machine.callers.by_conn.get(conn)
        if caller is not None and caller.incarnation is not None:
            self.world.heard(caller.incarnation.name, message)
        elif isinstance(message, m.Wake):
            self.world.rests = False

    # -- effects ---------------------------------------------------------------------------------------------------

    def _do_send(self, effect: e.Send) -> None:
        if effect.conn not in self.conns:
            return
        message = effect.message
        if isinstance(message, m.Granted) and message.lock == m.ACTIVE:
            self.world.granting(self, effect.conn)
        elif isinstance(message, m.Welcome) and m.ACTIVE in message.holds:
            self.world.granting(self, effect.conn, back=True)
        elif type(message) is m.Exit:
            self.world.exiting(self)
        elif isinstance(message, m.SwitchoverStep) and message.phase == "asleep":
            self.world.at_rest(self)
        passed = [self.processes[p] for p in effect.processes if p in self.processes]
        if effect.names:
            passed = list(self.names.values())
        self._send(effect.conn, message, passed)
        if isinstance(message, m.Keep):
            unread = [sent for fd in self.conns.values() for sent in self.process.unread(fd)]
            self.world.copies_sent(sum(len(sent.passed) for sent in unread if isinstance(sent.message, m.Keep)))

    def _do_look_at(self, effect: e.LookAt) -> None:
        """In a thread of its own; where /proc hangs no answer comes."""
        seen = tuple((number, "lives") for number in effect.processes)
        if self.world.rng.random() < 0.8:
            answer = e.LookedAt(effect.incarnation, seen, ("another process",) if effect.life else ())
            self.process.after(self.world.rng.random() * 0.05, lambda: self.feed(answer))

    def _do_take_names(self, effect: e.TakeNames) -> None:
        paths = dict.fromkeys((RUN, self.process.files.real_path(RUN)))
        missing: list[tuple[str, str]] = []
        for name in (*(f"lock {path}" for path in paths), *(f"device {device}" for device in effect.devices)):
            if name not in self.names:
                try:
                    self.names[name] = self.process.listen_abstract(name)
                except OSError:
                    missing.append((name, "another process"))
        self.pending.append(e.NamesTaken(tuple(missing)))

    def holder_on_disk(self) -> tuple[str, int] | None:
        """In the truth: who stands in this server's file, and with which token."""
        file = self.process.directory_inode(self.directory).entries.get("holder.json")
        try:
            active = record.decode(file.data).active if file is not None else None
        except record.UnreadableRecord:
            return None
        return (active.life_file, active.token) if active is not None else None

    def rests_on_disk(self) -> bool:
        """In the truth."""
        file = self.process.directory_inode(self.directory).entries.get("holder.json")
        return file is not None and bool(record.decode(file.data).resting)


SimServer.effects = {
    **TreeServer.effects,
    e.Send: SimServer._do_send,
    e.LookAt: SimServer._do_look_at,
    e.TakeNames: SimServer._do_take_names,
    e.Persist: TreeServer._do_persist,
}


class SimClient(TreeClient):
    run: ClassVar[str] = RUN
    socket_name: ClassVar[str] = SOCKET
    may_raise = (*TreeClient.may_raise, c.KeepNames, c.Check)

    def __init__(self, world: "World", process: Process, me: Me, on: Callable[[c.Effect], None]) -> None:
        super().__init__(world, process, me, on)
        self.machine = ClientMachine(me)
        self.names: list[int] = []
        self.missed_a_question = False
        """Whether its engine can wake: something was raised before it could answer."""

    def missed(self, effect: c.Effect) -> None:
        self.missed_a_question |= isinstance(effect, c.Check)

    def does(self, effect: c.Effect) -> None:
        if isinstance(effect, c.KeepNames):
            self.names += self.arriving
            self.arriving = ()
        elif effect == c.Without(m.ACTIVE):
            for name in self.names:
                self.process.close(name)
            self.names.clear()

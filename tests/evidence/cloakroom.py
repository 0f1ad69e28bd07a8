"""A second server that stands on evidence alone, and its client: a process registers, has its children vouched for, and
asks to be bound; when its whole tree is proven gone, the server says so. It knows no lock, and writes nothing down.

    python -m tests.evidence.cloakroom DIR ID     a guest: a main process with one child; says the child's pid,
                                                  and closes all that it has open when it gets SIGUSR1
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from evidence.rules import client_events as c
from evidence.rules import events as e
from evidence.rules import messages as m
from evidence.rules.admission import Admitted, Reception, TurnedAway
from evidence.rules.callers import Callers
from evidence.rules.evidence import Evidence
from evidence.rules.incarnation import Incarnation, Stage
from evidence.rules.proof import gone
from evidence.rules.standing import Me, Standing
from evidence.shell.session import Errors, ProcessSession
from evidence.shell.shell import EvidenceShell
from sidecar.kernel import peers
from sidecar.kernel.path_watch import make_private_directory
from sidecar.machine.client_shell import Ask
from sidecar.machine.context import Closed, Context, Time
from sidecar.terminal.logs import Log
from sidecar.wire import sockets
from sidecar.wire.connections import Protocol
from sidecar.wire.frames import Message
from sidecar.wire.sockets import ServerSocket
from sidecar.wire.versions import Spoken

SOCKET = "cloakroom.sock"
SPOKEN = Spoken(1, 1)


class Register(m.Introduction, frozen=True):
    bound: bool = False
    """What it claims."""
    secret: str = ""
    newest: int = 0
    mapped: bool = False


class Bind(Message, frozen=True):
    pass


class Bound(Message, frozen=True):
    pass


class Welcome(Message, frozen=True):
    server: str
    number: int
    secret: str = ""


FromClient = Register | m.Join | m.Observe | m.Vouch | m.Kept | m.HandBack | m.OldLives | Bind
FromServer = Welcome | Bound | m.Keep | m.Vouched | m.Refused | m.Busy | m.Problem | m.Incompatible


class Send(msgspec.Struct, frozen=True):
    conn: int
    message: FromServer
    processes: tuple[int, ...] = ()


class Machine:
    untrue = "claimed what it was not given"

    def __init__(self, name: str) -> None:
        self.name = name
        self.context: Context[Any] = Context(100)
        self.evidence = Evidence(e.Config(boot_id=peers.boot_id()), self.context)
        self.callers = Callers(self.context, self.evidence.copies.left)
        self.reception = Reception(self.context, self.evidence, self.callers, SPOKEN, self, self)
        self.bound: dict[str, Incarnation] = {}

    @property
    def deadline(self) -> float:
        return self.context.deadline

    def handle(self, event: Any, time: Time) -> list[Any]:
        self.context.begin(time)
        if isinstance(event, Closed):
            self.closed(event.conn)
        elif isinstance(event, e.Received):
            self._received(event, event.message)
        elif isinstance(event, e.Died):
            found = self.evidence.incarnations.died(event.process)
            if found is not None and found[1]:
                self.evidence.incarnations.lose(found[0], Stage.DOOMED)
        elif isinstance(event, e.LifeProbed):
            self.evidence.incarnations.probed(event.incarnation, event.held)
        elif isinstance(event, e.LookedUp):
            self.evidence.incarnations.looked_up(event)
        elif isinstance(event, e.OutOfReach):
            self.evidence.incarnations.out_of_reach(event.process, event.why)
        self._conclude()
        return self.context.out

    def _received(self, event: e.Received, message: Any) -> None:
        caller = self.callers.by_conn.get(event.conn)
        if isinstance(message, m.Introduction | m.Observe):
            self.reception.introduce(event, message)
        elif caller is None or caller.incarnation is None or not caller.main:
            self.reception.throw_out(event, "that is for a main process")
        elif isinstance(message, m.Vouch):
            self.reception.vouch(event, message, caller.incarnation)
        elif isinstance(message, m.Kept):
            self.evidence.copies.taken(event.conn, message.copies)
        elif isinstance(message, m.HandBack):
            self.evidence.handed_back(caller.incarnation, message.numbers, event.peers)
        elif isinstance(message, Bind):
            self.let_in(caller.incarnation, Register)
            self.send(event.conn, Bound())

    def _conclude(self) -> None:
        while (plan := self.evidence.incarnations.plan(self.context.now)).looks:
            self._end(self.evidence.incarnations.carry_out(plan))
        self.context.wake(plan.again)
        for name, who in list(self.bound.items()):
            if (outcome := gone(who, found=False, over=False, memory_is_free=False)).enough:
                del self.bound[name]
                self.evidence.incarnations.bind(self.bound)
                self._end(self.evidence.incarnations.remove(who, was_bound=True))
                self.context.note("gone", tree=name, by=outcome.by, every_process=outcome.every_process)
        self.reception.hand_out(0)

    def _end(self, conns: list[int]) -> None:
        for conn in conns:
            self.callers.end(conn)

    # -- what the reception asks of it -----------------------------------------------------------------------------

    def why_not(self, hello: Register) -> str:
        return ""

    def let_in(self, who: Incarnation, hello: Any) -> None:
        if hello is Register or hello.bound:
            self.bound[who.name] = who
            self.evidence.incarnations.bind(self.bound)

    def may_keep(self, hello: Register) -> bool:
        return hello.bound

    def keep(self, who: Incarnation, hello: Register, why: str) -> None:
        self.let_in(who, hello)

    def introduced(self, event: e.Received, outcome: Admitted | TurnedAway) -> None:
        if isinstance(outcome, Admitted):
            self.reception.hand_out(0)
            self.send(event.conn, Welcome(server=self.name, number=outcome.number, secret=outcome.who.secret))

    def watch_unheard(self, hello: Any) -> None: ...

    def record_member(self, who: Incarnation) -> int:
        self.reception.hand_out(0)
        return 0

    def say_on_disk(self, conn: int, message: FromServer, after: int) -> None:
        self.send(conn, message)

    def send(self, conn: int, message: Any, processes: tuple[int, ...] = ()) -> None:
        self.context.out.append(Send(conn, message, processes))

    def closed(self, conn: int) -> None:
        caller = self.callers.leave(conn)
        who = caller.incarnation if caller is not None else None
        if who is not None and self.evidence.incarnations.closed(who, conn):
            dead = who.main is not None and who.main.dead
            self.evidence.incarnations.lose(who, Stage.DOOMED if dead else Stage.LOST)


class Server(EvidenceShell):
    machine: Machine

    def __init__(self, run_dir: Path, name: str) -> None:
        self.words = StringIO()
        spoken = Protocol(msgspec.msgpack.Decoder(FromClient), lambda why: m.Problem(why=why))
        super().__init__(Log("cloakroom", stream=self.words), run_dir, "auto", spoken, frozenset())
        make_private_directory(self.directory)
        self.machine = Machine(name)
        self.server_socket = ServerSocket(run_dir, SOCKET)
        self.connections.listen(self.server_socket.open())
        waking, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.loop.add(waking, lambda _: setattr(self.loop, "stopping", "the test is over"))
        self._thread = threading.Thread(target=self.run)
        self._thread.start()

    def end(self) -> None:
        os.write(self._waker, b"x")
        self._thread.join()

    def show(self) -> None: ...

    def _do_send(self, effect: Send) -> None:
        self.connections.send(effect.conn, effect.message, self.processes.pidfds(effect.processes))

    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {**EvidenceShell.effects, Send: _do_send}


# -- the guest -------------------------------------------------------------------------------------------------------


class Want(msgspec.Struct, frozen=True):
    pass


class GuestMachine:
    def __init__(self, me: Me) -> None:
        self.standing = Standing(me, SPOKEN, "cloakroom")
        self.wants = self.bound = False
        self.deadline = 0.0

    def handle(self, event: Any, now: float) -> list[Any]:
        standing = self.standing
        out = standing.begin(now)
        if standing.last_word is None:
            self._heard(event)
            self.deadline = standing.step(*standing.must_end_at()) if self.bound else standing.step()
        return out

    def _heard(self, event: Any) -> None:
        standing = self.standing
        if isinstance(event, Want):
            self.wants = True
            standing.say_if_in(Bind())
        elif isinstance(event, c.Connected):
            said = standing.connected(event)
            if standing.me.main:
                standing.say(Register(bound=self.bound, secret=standing.secret, **said))
        elif isinstance(event, c.Disconnected):
            standing.disconnected(event)
        elif isinstance(event, c.VouchFor):
            standing.vouch_for(event)
        elif isinstance(event, c.Heard) and isinstance(event.message, Welcome):
            standing.welcomed(event.message.number, event.message.secret, 2.0)
            standing.begin_to_count(event.message.server)
            if self.wants:
                standing.say(Bind())
        elif isinstance(event, c.Heard) and isinstance(event.message, Bound):
            self.wants, self.bound = False, True
            standing.out.append(event.message)
        elif isinstance(event, c.Heard):
            standing.hear(event.message)


class GuestError(Exception):
    pass


class Guest(ProcessSession):
    errors = Errors(GuestError, GuestError, GuestError, GuestError)
    server = "cloakroom"
    decoder = msgspec.msgpack.Decoder(FromServer)

    def __init__(self, run_dir: Path, me: Me) -> None:
        machine = GuestMachine(me)
        super().__init__("guest", machine, machine.standing, run_dir, lambda why: os._exit(70))

    def connect(self, inside: Path) -> socket.socket:
        return sockets.connect(inside / SOCKET)

    def _do_bound(self, effect: Bound) -> None:
        self.bound = True
        self.answer_all(effect, lambda ask: isinstance(ask.about, Want))

    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]] = {**ProcessSession.effects, Bound: _do_bound}


def main(run_dir: str, engine_id: str) -> None:
    guest = Guest(Path(run_dir), Me(engine_id, os.urandom(8).hex(), os.getpid(), True))
    guest.begin()
    guest.await_welcome(30.0)
    child = subprocess.Popen(["/bin/sleep", "1000"])
    guest.vouch_for(child.pid, 30.0)
    guest.raise_if_over(guest.ask(Ask(Want()), 30.0))
    signal.signal(signal.SIGUSR1, lambda *_: os.closerange(3, 4096))
    print(child.pid, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

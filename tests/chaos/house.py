"""What the real-process tests stand on: the fork server's other end, engines, servers and observers.

Nothing here sleeps for luck: a wait is for a pidfd, a packet, an end of file or a status, and has a deadline
(`tests/support/waiting.py`).
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from lockserver.rules import messages as m
from lockserver.rules import record
from lockserver.shell.rundir import HOLDER, LIFE, connect
from sidecar.kernel import peers
from sidecar.kernel.lifelock import LifeLock
from sidecar.wire.frames import Channel, close_all
from tests.chaos.engine import receive, send
from tests.support.processes import ROOT, Process
from tests.support.waiting import DEADLINE_S, NEVER_S, readable, until

LISTENERS = 2
"""A server's sockets that aren't connections: `lock.sock`, and the path's name."""
LONG_WINDOW = ("--window-s", "3600")
"""No test can pass by waiting it out."""
Status = m.Status

P = TypeVar("P", bound="Process")


class Engine(Process):
    """One engine's process at the other end of a socket."""

    def __init__(self, pid: int, pidfd: int, sock: socket.socket, house: "House") -> None:
        super().__init__(pid, pidfd)
        self.sock = sock
        self.house = house
        self.environment: dict[str, str] = {}
        self.tree = ""
        self.fds: list[int] = []
        self._events: list[dict[str, Any]] = []

    def order(self, what: str, fds: Sequence[int] = (), **more: Any) -> None:
        send(self.sock, {"do": what, **more}, list(fds))

    def do(self, what: str, fds: Sequence[int] = (), **more: Any) -> dict[str, Any]:
        """An order and its answer. Events that come in between are kept."""
        self.order(what, fds, **more)
        return self._next(lambda event: event.get("did") == what, f"the answer to {what}", DEADLINE_S)

    def hears(self, event: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        return self._next(lambda e: e.get("event") == event, event, deadline_s)

    def heard(self, event: str) -> bool:
        """Has it come by now?"""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while self._read(socket.MSG_DONTWAIT):
                pass
        return any(e.get("event") == event for e in self._events)

    def heard_answer(self) -> bool:
        """An order has been carried out, or has failed."""
        self.heard("")
        return any("did" in event or "failed" in event for event in self._events)

    def never_hears(self, event: str, for_s: float = NEVER_S) -> None:
        end = time.monotonic() + for_s
        while True:
            assert not self.heard(event), f"{event}: {self._events}"
            if time.monotonic() >= end:
                return
            readable(self.sock.fileno(), end - time.monotonic())

    def _next(self, fits: Callable[[dict[str, Any]], bool], what: str, deadline_s: float) -> dict[str, Any]:
        end = time.monotonic() + deadline_s
        while True:
            for event in self._events:
                if fits(event):
                    self._events.remove(event)
                    return event
                assert "failed" not in event and event.get("event") != "failed", f"{what} was awaited; {event}"
            assert readable(self.sock.fileno(), end - time.monotonic()), (
                f"{what}: not within {deadline_s:g} s; {self._events}"
            )
            assert self._read(0), f"{what} was awaited and process {self.pid} has ended; {self._events}"

    def _read(self, flags: int) -> bool:
        if flags and not readable(self.sock.fileno(), 0):
            return False
        packet = receive(self.sock)
        if packet is None:
            return False
        event, fds = packet
        self.fds += fds
        self._events.append(event)
        return True

    # -- words of the tests --------------------------------------------------------------------------------------------

    def start(self, engine_id: str, **more: Any) -> "Engine":
        reply = self.do("start", run_dir=str(self.house.run_dir), engine_id=engine_id, **more)
        self.environment, self.tree = reply["environment"], reply["tree"]
        return self

    def wants(self, *, watching: Sequence[Process] = (), **more: Any) -> None:
        """Asks. `watching`: looked at in the moment of the grant (`granted(...)["dead"]`)."""
        self.do("acquire", [process.pidfd for process in watching], witness=str(self.house.witness), **more)

    def granted(self) -> dict[str, Any]:
        grant = self.hears("granted")
        assert grant["alone"], "two hold"
        return grant

    def holds(self, **more: Any) -> int:
        """Asks, and waits for the grant. Returns the token."""
        self.wants(**more)
        return int(self.granted()["token"])

    def child(self, how: str, **more: Any) -> "Engine":
        """By `fork` (it inherits every descriptor) or by `exec` (none)."""
        ours, theirs = self.house.pair()
        if how == "exec":
            more["environment"] = self.environment
        self.do(how, [theirs.fileno()], **more)
        theirs.close()
        return self.house.born(ours)

    def joins(self, tree: str = "") -> "Engine":
        self.do("join", run_dir=str(self.house.run_dir), tree=tree)
        return self

    def joined(self) -> "Engine":
        self.hears("joined")
        return self


def patient_connect(run_dir: Path) -> socket.socket:
    """Where no server takes connections fast enough there is no room in the backlog for a moment."""

    def connected() -> socket.socket | None:
        with contextlib.suppress(BlockingIOError):
            return connect(run_dir)
        return None

    return until(connected, "there is room in the server's backlog")


class Caller:
    """A connection of the test's own, without a thread. `ask` and `next`."""

    def __init__(self, run_dir: Path, introduction: m.ClientMessage | None = None, fds: Sequence[int] = ()) -> None:
        self.channel = Channel(patient_connect(run_dir), m.from_server)
        self._heard: list[Any] = []
        if introduction is not None:
            self.channel.send(introduction, fds)

    def ask(self, message: m.ClientMessage, fds: Sequence[int] = ()) -> None:
        self.channel.send(message, fds)

    def next(self, kind: Any, deadline_s: float = DEADLINE_S) -> Any:
        """The next message of that kind. ConnectionError when none can come any more."""
        end = time.monotonic() + deadline_s
        while True:
            for message in self._heard:
                if isinstance(message, kind):
                    self._heard.remove(message)
                    return message
            if self.channel.eof:
                raise ConnectionError("the server has gone")
            assert readable(self.channel.fileno(), end - time.monotonic()), f"{kind}: not within {deadline_s:g} s"
            for message, fds in self.channel.receive():
                close_all(fds)
                self._heard.append(message)

    def has(self, kind: Any = m.Granted) -> bool:
        """Has it come by now?"""
        while readable(self.channel.fileno(), 0) and not self.channel.eof:
            for message, fds in self.channel.receive():
                close_all(fds)
                self._heard.append(message)
        return any(isinstance(message, kind) for message in self._heard)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Observer(Caller):
    """Asks and watches."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir, m.Observe(protocol=m.PROTOCOL))

    def status(self) -> Status:
        self.ask(m.AskStatus())
        status: Status = self.next(Status)
        return status


class Waiter(Caller):
    """The test itself as an engine that waits: registered, with a life lock, and in the queue."""

    def __init__(self, run_dir: Path, engine_id: str) -> None:
        incarnation = os.urandom(8).hex()
        self.life = LifeLock.create(run_dir / LIFE, f"{engine_id}.{incarnation}")
        own = peers.own_pidfd()
        try:
            register = m.Register(
                protocol=m.PROTOCOL, engine_id=engine_id, incarnation=incarnation, life=self.life.inode, pid=os.getpid()
            )
            super().__init__(run_dir, register, [own])
        finally:
            os.close(own)
        self.next(m.Welcome)
        self.ask(m.Acquire())

    def close(self) -> None:
        super().close()
        self.life.close()


class Server(Process):
    """A lock server. `house.server(...)` starts one."""

    def __init__(self, pid: int, pidfd: int, run_dir: Path) -> None:
        super().__init__(pid, pidfd)
        self.run_dir = run_dir

    def ready(self) -> "Server":
        """It answers. (The socket of a killed predecessor is still there; this is not about the file.)"""

        def answers() -> bool:
            assert not self.dead, "the server has ended"
            try:
                return self.status().server_incarnation != ""
            except (OSError, ConnectionError):
                return False

        until(answers, "the server answers")
        return self

    def observer(self) -> Observer:
        return Observer(self.run_dir)

    def status(self) -> Status:
        with self.observer() as observer:
            return observer.status()

    def shows(
        self, fits: Callable[[Status], Any], what: str = "the status that was awaited", deadline_s: float = DEADLINE_S
    ) -> Status:
        """Watches until the picture fits."""
        end = time.monotonic() + deadline_s
        status: Status | None = None
        with self.observer() as observer:
            observer.ask(m.Watch())
            while status is None or not fits(status):
                assert time.monotonic() < end, f"{what}: not within {deadline_s:g} s; {status}"
                try:
                    status = observer.next(Status, end - time.monotonic())
                except AssertionError:
                    raise AssertionError(f"{what}: not within {deadline_s:g} s; {status}") from None
            return status

    def descriptors_with(self, connections: int) -> dict[str, int]:
        """How many of each kind, once there are that many connections: the server may be closing others yet."""

        def kinds() -> dict[str, int]:
            found: dict[str, int] = {}
            for what in self.descriptors().values():
                kind = "life" if "/life/" in what else what.partition(":[")[0] if what.startswith("socket") else what
                found[kind] = found.get(kind, 0) + 1
            return found

        try:
            until(lambda: kinds().get("socket") == connections + LISTENERS, f"{connections} connections")
        except AssertionError as error:
            raise AssertionError(f"{error}; {kinds()}") from None
        return kinds()

    def has_back(self, *engines: "Engine") -> None:
        """Each of them is connected to this very server. (A holder's members are in the status before: the file names
        them.)"""
        incarnation = self.status().server_incarnation

        def back() -> bool:
            return all(engine.do("link")["server"] == incarnation for engine in engines)

        until(back, "they are back")

    def fences(self, because: str = "") -> Status:
        """FENCING or RECOVERING, and a reason that says so."""
        status: Status | None = None

        def so() -> bool:
            nonlocal status
            status = observer.status()
            return status.fencing is not None and any(
                because in reason for reason in status.fencing.waiting_for or [""]
            )

        with self.observer() as observer:
            try:
                until(so, f"fencing because of {because!r}")
            except AssertionError as error:
                raise AssertionError(f"{error}; {status}") from None
        assert status is not None
        return status

    def history(self, event: str) -> list[m.HistoryEvent]:
        """Everything of that kind that this server has seen."""
        with self.observer() as observer:
            observer.ask(m.AskHistory())
            history: m.History = observer.next(m.History)
        return [entry for entry in history.events if entry.event == event]


def held_by(server: Server, engine_id: str, token: int) -> None:
    """In the end it is the same holder, with its token."""
    status = server.shows(lambda s: s.state == "HELD", f"{engine_id} holds")
    assert status.holder is not None and (status.holder.engine_id, status.holder.token) == (engine_id, token)


class House:
    """One test's directory and everything that lives in it."""

    def __init__(self, fork_server: socket.socket, directory: Path) -> None:
        self.fork_server = fork_server
        self.directory = directory
        self.run_dir = directory / "run"
        self.devices = directory / "devices"
        self.witness = directory / "witness"
        self.log = directory / "server.log"
        self.defaults: tuple[str, ...] = ("--settle-s", "0.05", "--memory", "none")
        self.devices.mkdir()
        self.witness.touch()
        self.log.touch()
        self._processes: list[Process] = []
        self._sockets: list[socket.socket] = []

    # -- processes -----------------------------------------------------------------------------------------------------

    def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
        send(self.fork_server, request, list(fds))
        assert readable(self.fork_server.fileno(), DEADLINE_S), "the fork server does not answer"
        packet = receive(self.fork_server)
        assert packet is not None, "the fork server has ended"
        assert "failed" not in packet[0], packet[0]
        return packet

    def pair(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets.append(ours)
        return ours, theirs

    def grow(self, process: P) -> P:
        self._processes.append(process)
        return process

    def born(self, sock: socket.socket) -> Engine:
        """An engine's process sends its own pidfd first of all: its pid may be one of another namespace."""
        engine = Engine(0, -1, sock, self)
        engine.hears("born")
        engine.pidfd = engine.fds.pop()
        engine.pid = peers.pidfd_pid(engine.pidfd)
        return self.grow(engine)

    def engine(self, engine_id: str = "", **request: Any) -> Engine:
        """A process; with an id, a registered engine."""
        ours, theirs = self.pair()
        os.close(self.ask({"do": "engine", **request}, [theirs.fileno()])[1][0])
        theirs.close()
        engine = self.born(ours)
        return engine.start(engine_id) if engine_id else engine

    def container(self) -> tuple[Engine, Process]:
        """An engine's process that is PID 1 of a PID namespace, and the process outside that holds it."""
        ours, theirs = self.pair()
        reply, fds = self.ask({"do": "container"}, [theirs.fileno()])
        theirs.close()
        outside = self.grow(Process(reply["pid"], fds[0]))
        return self.born(ours), outside

    def server(
        self, *arguments: str, cold: bool = False, wait: bool = True, through: Sequence[str] = (), **request: Any
    ) -> Server:
        """A fork of an interpreter that has the server imported, or, `cold`, `python -m lockserver`."""
        argv = ["--run-dir", str(self.run_dir), *self.defaults, *arguments]
        if cold or through:
            request |= {"do": "exec", "argv": [*through, sys.executable, "-m", "lockserver", *argv]}
        else:
            request |= {"do": "server", "argv": argv}
        process = self.run(request)
        server = self.grow(Server(process.pid, process.pidfd, self.run_dir))
        return server.ready() if wait else server

    def run(self, request: dict[str, Any], fds: Sequence[int] = (), log: Path | None = None) -> Process:
        with open(log or self.log, "ab") as file:
            reply, pidfds = self.ask({"env": {"PYTHONPATH": str(ROOT)}, **request}, [file.fileno(), *fds])
        return self.grow(Process(reply["pid"], pidfds[0]))

    def exit_code(self, process: Process) -> int:
        """For a process that was started here."""
        process.wait()
        return int(self.ask({"do": "wait", "pid": process.pid})[0]["code"])

    def lockctl(self, *words: str) -> str:
        """What it prints. It has to succeed."""
        done = self._lockctl(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def lockctl_code(self, *words: str) -> int:
        done = self._lockctl(*words)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode

    def _lockctl(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "lockserver.cli.lockctl", "--run-dir", str(self.run_dir), *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)

    def clear(self) -> None:
        """Ends everything."""
        self.ask({"do": "clear"})
        for process in self._processes:
            with contextlib.suppress(OSError):
                os.close(process.pidfd)
        for sock in self._sockets:
            sock.close()

    # -- things -------------------------------------------------------------------------------------------------------

    def device(self, name: str, size: int) -> str:
        """A host device of that size; returns what it is called in `needs`."""
        with open(self.devices / name, "wb") as file:
            file.truncate(size)
        return f"host:{name}"

    def an_older_server_wrote_the_file(self) -> None:
        """It named no process by a number that the next server can look up."""
        path = self.run_dir / HOLDER
        found = record.decode(path.read_bytes())
        assert found.active is not None
        replace = msgspec.structs.replace
        known = [
            replace(one, members=[replace(member, local_pid=0, mapped=False) for member in one.members])
            for one in found.processes.known
        ]
        processes = replace(found.processes, known=known, pid_namespace="")
        path.write_bytes(record.encode(replace(found, processes=processes)))

    def with_memory(self) -> tuple[str, ...]:
        return ("--memory", "host", "--host-devices", str(self.devices))

    def tell(self) -> None:
        """For the reader of a failure."""
        print(self.log.read_text(errors="replace")[-12_000:])


@contextlib.contextmanager
def fork_server() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.engine", "fork_server", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.wait(DEADLINE_S)


class Contenders:
    """Engines that want the lock, hold it until they are killed, and are started again by their supervisors."""

    def __init__(self, house: House, engine_ids: Sequence[str]) -> None:
        self._house = house
        self._read, write = os.pipe()
        self._rest = b""
        for engine_id in engine_ids:
            contend = {"run_dir": str(house.run_dir), "engine_id": engine_id, "witness": str(house.witness)}
            reply, fds = house.ask({"do": "contender", "contend": contend}, [write])
            house.grow(Process(reply["pid"], fds[0]))
        os.close(write)

    def next(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """What the next of them says: `holding`, `lost` or `TWO`."""
        while b"\n" not in self._rest:
            assert readable(self._read, deadline_s), f"no engine was granted within {deadline_s:g} s"
            data = os.read(self._read, 65536)
            assert data, "all contenders have ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    def silent(self) -> bool:
        return not self._rest and not readable(self._read, 0)

    def close(self) -> None:
        os.close(self._read)


def witnessed_tokens(house: House) -> list[int]:
    """Every grant that a holder has written down itself, in the order in which they held."""
    return [int(line.split()[0]) for line in house.witness.read_text().splitlines()]

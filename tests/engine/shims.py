"""Real lock servers, real shims and real engines, and what can be seen of them from outside. Every wait is for a
condition and has a deadline.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_shim.shell import paths, shim_status
from engine_shim.shell.shm_cleanup import ShmCleanup
from gms.observer import Observer as GmsObserver
from gms.rules.messages import AskStatus
from gms.rules.messages import Status as Weights
from lockserver.observer import Observer, ObserverError
from lockserver.rules.messages import Status
from sidecar.kernel import process_tree
from sidecar.wire.sockets import address_of
from tests.engine.kinds import Kind
from tests.support.processes import ROOT, Process, run_to_end
from tests.support.waiting import DEADLINE_S, until

NO_ANSWER = {"state": "no answer", "ready": False, "starts": 0, "deaths": 0, "processes": 0, "url": ""}
NO_ANSWER["incarnation"] = ""


def alone(story: Callable[[], None], said: Path) -> None:
    """In a process that has no other children: `process_tree.collect` takes all that there are."""
    child = os.fork()
    if child == 0:
        try:
            story()
        except BaseException:
            said.write_text(traceback.format_exc())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert not said.exists(), said.read_text()


class Program(Process):
    """A child of the test, with its words on stderr in a file."""

    def __init__(self, house: "House", name: str, *command: str, through: tuple[str, ...] = ()) -> None:
        """`through`: a program that runs it, in a namespace say."""
        self.log = house.directory / f"{name}.log"
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(
                [*through, *house.line(command)],
                cwd=house.where,
                env=house.environment,
                stderr=log,
                stdout=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        super().__init__(self.child.pid)

    def kill(self) -> None:
        super().kill()
        self.child.wait()

    def code(self) -> int:
        """Its exit code, when it has ended."""
        self.wait()
        return self.child.wait()

    def said(self) -> str:
        return self.log.read_text(errors="replace")


class Shim(Program):
    def __init__(
        self,
        house: "House",
        kind: Kind,
        engine_id: str,
        *more: str,
        arguments: tuple[str, ...] = (),
        role: str = "",
        through: tuple[str, ...] = (),
    ) -> None:
        """Unless its role is said, `a` is the primary and every other a shadow."""
        self.house = house
        self.kind = kind
        self.engine_id = engine_id
        role = role or ("primary" if engine_id == "a" else "shadow")
        command = ("engine_shim", "--engine", kind.engine, "--engine-id", engine_id, "--role", role)
        place = ("--run-dir", str(house.run_dir), "--probe", "127.0.0.1:0")
        faults = ("--faults", str(house.faults(engine_id))) if kind.name == "toy" else ()
        words = (*command, *place, *more, "--", *kind.arguments, *faults, *arguments)
        super().__init__(house, engine_id, *words, through=through)

    def state(self) -> dict[str, Any]:
        try:
            return shim_status.ask(self.house.run_dir, self.engine_id)
        except shim_status.ObserverError:
            return dict(NO_ANSWER)

    def until(self, state: str, **fields: Any) -> dict[str, Any]:
        """Waits for a state, with these fields."""
        wanted = {"state": state, **fields}
        last: dict[str, Any] = {}

        def there() -> bool:
            last.clear()
            last.update(self.state())
            return all(last.get(key) == value for key, value in wanted.items())

        try:
            until(there, f"{self.engine_id} is {wanted}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {last}; it said:\n{self.said()[-4000:]}") from None
        return last

    def main(self) -> Process:
        for pid in process_tree.descendants(self.pid):
            if b"engine_shim.shell.main_process" in _file(pid, "cmdline"):
                return Process(pid)
        raise AssertionError(f"{self.engine_id} has no main process")

    def workers(self) -> list[Process]:
        """Registered processes, other than the main one: they know their tree."""
        found = []
        for pid in process_tree.descendants(self.pid):
            line = _file(pid, "cmdline")
            registered = b"FAILOVER_TREE=" in _file(pid, "environ") and b"resource_tracker" not in line
            if registered and b"engine_shim.shell.main_process" not in line:
                found.append(Process(pid))
        return found

    def tree(self) -> list[Process]:
        found = []
        for pid in process_tree.descendants(self.pid):
            with contextlib.suppress(ProcessLookupError):
                found.append(Process(pid))
        return found

    def port(self) -> int:
        line = until(lambda: [x for x in self.said().splitlines() if " probes " in x], "it says its port")[-1]
        return int(line.rpartition("port=")[2])

    def get(self, path: str) -> tuple[int, str]:
        with socket.create_connection(("127.0.0.1", self.port()), DEADLINE_S) as sock:
            return _exchange(sock, path)


class House:
    where = ROOT
    """Where programs are started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run_dir = directory / "run"
        self.devices = directory / "devices"
        self.environment = {
            **os.environ,
            "FAILOVER_HOST_DEVICES": str(self.devices),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.programs: list[Program] = []
        self.lock: Program | None = None
        self.gms: Program | None = None
        self.first_answer = ""

    def line(self, command: tuple[str, ...]) -> list[str]:
        """The words that start a module with its arguments."""
        return [sys.executable, "-m", *command]

    def add(self, program: Program) -> None:
        self.programs.append(program)

    def start_lock(self, *more: str) -> Program:
        place = ("--run-dir", str(self.run_dir), "--settle-s", "0.3")
        self.lock = Program(self, "lock", "lockserver", *place, *more)
        self.add(self.lock)
        until(lambda: self.status() is not None, "the lock server answers")
        return self.lock

    def start_gms(self, kind: Kind) -> Program | None:
        if not kind.gms:
            return None
        self.gms = Program(self, "gms", "gms", "--run-dir", str(self.run_dir), *kind.gms)
        self.add(self.gms)
        return self.gms

    def restart(self, server: str, kind: Kind) -> None:
        """SIGKILL to the `lock` server or `gms`, and another in its place."""
        running = self.lock if server == "lock" else self.gms
        assert running is not None
        running.kill()
        if server == "lock":
            self.start_lock(*kind.lock)
        else:
            self.start_gms(kind)

    def shim(
        self,
        kind: Kind,
        engine_id: str,
        *more: str,
        arguments: tuple[str, ...] = (),
        role: str = "",
        through: tuple[str, ...] = (),
    ) -> Shim:
        shim = Shim(self, kind, engine_id, *more, arguments=arguments, role=role, through=through)
        self.add(shim)
        return shim

    def one(self, kind: Kind, *more: str, arguments: tuple[str, ...] = (), through: tuple[str, ...] = ()) -> Shim:
        """`a` serves alone."""
        if self.lock is None:
            self.start_lock(*kind.lock)
        self.start_gms(kind)
        a = self.shim(kind, "a", *more, arguments=arguments, through=through)
        self.until_announced(a)
        self.answers_as_ever(kind)
        return a

    def pair(self, kind: Kind, *more: str, arguments: tuple[str, ...] = ()) -> tuple[Shim, Shim]:
        """`a` serves, `b` is ready to."""
        a = self.one(kind, *more, arguments=arguments)
        b = self.shim(kind, "b", *more, arguments=arguments)
        b.until("Standby", ready=True)
        return a, b

    def in_turn(self, a: Shim, b: Shim) -> tuple[Shim, Shim]:
        """The one that serves, and the one that is ready to, as soon as it is so."""
        until(lambda: {a.state()["state"], b.state()["state"]} == {"Active", "Standby"}, "one serves, one is ready")
        return (a, b) if self.holder() == "a" else (b, a)

    def switchover(self) -> None:
        asked = Program(self, "switchover", "lockserver.cli.lockctl", "--run-dir", str(self.run_dir), "switchover")
        self.add(asked)
        assert asked.code() == 0, asked.said()

    def until_announced(self, shim: Shim) -> None:
        """It serves, and the lock server has heard of it: the shim may know of it earlier."""
        url = shim.until("Active", ready=True)["url"]
        until(lambda: self.endpoint() == url, f"the lock server announces {url}")

    def answers_as_ever(self, kind: Kind) -> None:
        """The announced endpoint answers: the same prompt the same, byte for byte, whichever engine serves."""
        if kind.prompt is None:
            assert self.served(kind)
            return
        answer = str(json.loads(self.ask(kind.asked, kind.prompt))["choices"])
        self.first_answer = self.first_answer or answer
        assert answer == self.first_answer

    def lockctl(self, *words: str) -> tuple[int, str]:
        """Its exit code, and what it said."""
        run_dir = str(self.run_dir)
        code, out, err = run_to_end(sys.executable, "-m", "lockserver.cli.lockctl", "--run-dir", run_dir, *words)
        return code, out + err

    def status(self) -> Status | None:
        try:
            with Observer(self.run_dir) as observer:
                return next(observer.watch())
        except ObserverError:
            return None

    def weights(self, device: str = "host:0") -> Weights | None:
        """What GMS says."""
        try:
            with GmsObserver(self.run_dir, device) as observer:
                return observer.ask(AskStatus(), Weights)
        except ObserverError:
            return None

    def holder(self) -> str:
        status = self.status()
        return status.holder.engine_id if status is not None and status.holder is not None else ""

    def endpoint(self) -> str:
        status = self.status()
        return (status.holder.endpoint or "") if status is not None and status.holder is not None else ""

    def endpoints(self, engine_id: str) -> list[str]:
        names = os.listdir(self.run_dir / paths.ENGINES)
        return [name for name in names if paths.is_endpoint_of(engine_id, name)]

    def served(self, kind: Kind) -> str:
        """What the announced endpoint answers."""
        return self.ask(kind.path)

    def ask(self, path: str, body: object = None) -> str:
        """What the announced endpoint answers, to a GET or with a body to a POST."""
        url = until(self.endpoint, "an endpoint is announced")
        assert url.startswith("unix:"), f"no socket: {url!r}"
        with socket.socket(socket.AF_UNIX) as sock, address_of(Path(url.removeprefix("unix:"))) as address:
            sock.settimeout(DEADLINE_S)
            sock.connect(address)
            code, answer = _exchange(sock, path, None if body is None else json.dumps(body).encode())
            assert code == 200, answer
            return answer

    def faults(self, engine_id: str) -> Path:
        directory = self.directory / f"faults-{engine_id}"
        directory.mkdir(exist_ok=True)
        return directory

    def processes(self) -> list[int]:
        """Everything that lives and has this house's directory in its command line or environment."""
        words = os.fsencode(self.directory)
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]
        return [pid for pid in pids if words in _file(pid, "cmdline") or words in _file(pid, "environ")]

    def close(self) -> None:
        for program in self.programs:
            program.signal(signal.SIGCONT)
            program.kill()
        left = self.processes
        try:
            until(lambda: not left(), "everything ends with its shim")
        finally:
            for pid in left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for notes in (self.run_dir / paths.ENGINES).glob("*.shm_files"):  # of shims that were killed here
                ShmCleanup(list, notes).remove()


def _exchange(sock: socket.socket, path: str, body: bytes | None = None) -> tuple[int, str]:
    request = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    if body is not None:
        request += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    sock.sendall(request.encode() + b"\r\n" + (body or b""))
    data = b""
    while more := sock.recv(65536):
        data += more
    head, _, answer = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), answer.decode()


def _file(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""

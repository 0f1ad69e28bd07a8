"""What the tests of `gms` and `gmsctl` stand on: the command with its children in a directory of its own, and raw
callers, which say exactly what a test wants said. Every wait is for a line, a message, an end or a state, and has a
deadline.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar

from gms import layout as lay
from gms.rules import messages as m
from gms.shell.rundir import connect
from sidecar.wire.frames import Channel, Message, close_all
from tests.gms.command import gmsctl
from tests.support import tmpfs
from tests.support.processes import Process, Program
from tests.support.waiting import DEADLINE_S, until

MIB = 1 << 20
CAPACITY = 64 * MIB
SLAB = 2 * MIB
GMSCTL = (sys.executable, "-m", "gms.cli.gmsctl")
Kind = TypeVar("Kind", bound=Message)


class Caller:
    """One connection, and nothing that hides what is said on it."""

    def __init__(self, run_dir: Path, device: str, *first: Message) -> None:
        self.sock = connect(run_dir, device)
        self.channel = Channel(
            self.sock, m.from_server, max_frame_bytes=m.MAX_FRAME_BYTES, max_backlog_bytes=2 * m.MAX_FRAME_BYTES
        )
        self._inbox: list[tuple[Message, tuple[int, ...]]] = []
        for message in first:
            self.say(message)

    def say(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self.channel.send(message, descriptors)
        end = time.monotonic() + DEADLINE_S
        while self.channel.wants_write:
            assert select.select([], [self.sock], [], max(0.0, end - time.monotonic()))[1], "it isn't read"
            self.channel.flush()

    def hear(self, kind: type[Kind]) -> tuple[Kind, tuple[int, ...]]:
        """The next message of this kind and its descriptors; others are passed over."""
        end = time.monotonic() + DEADLINE_S
        while True:
            while self._inbox:
                message, descriptors = self._inbox.pop(0)
                if isinstance(message, kind):
                    return message, descriptors
                close_all(descriptors)
            assert not self.channel.eof, f"it ended, and no {kind.__name__} came"
            assert select.select([self.sock], [], [], max(0.0, end - time.monotonic()))[0], f"no {kind.__name__}"
            self._inbox += self.channel.receive()

    def ask(self, message: Message, kind: type[Kind]) -> Kind:
        self.say(message)
        answer, descriptors = self.hear(kind)
        close_all(descriptors)
        return answer

    def ends(self) -> None:
        """The server closes it."""
        end = time.monotonic() + DEADLINE_S
        while not self.channel.eof:
            assert select.select([self.sock], [], [], max(0.0, end - time.monotonic()))[0], "it isn't closed"
            for _, descriptors in self.channel.receive():
                close_all(descriptors)

    def close(self) -> None:
        for _, descriptors in self._inbox:
            close_all(descriptors)
        self._inbox.clear()
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hello(engine_id: str = "engine-a") -> m.Hello:
    return m.Hello(protocol=m.PROTOCOL, engine_id=engine_id, pid=os.getpid())


def document(sizes: Sequence[int], names: Sequence[str] = ("w",)) -> bytes:
    tensors = tuple(lay.Tensor(name, 0, 16 * at, (2, 4), (4, 1), "bfloat16") for at, name in enumerate(names))
    return lay.encode(lay.Layout(tuple(sizes), tensors))


class Container:
    """A run directory, host devices of its own, and all processes that have to do with them."""

    def __init__(self, directory: Path) -> None:
        self.run_dir = directory / "run"
        self.host_devices = directory / "devices"
        self._programs: list[Program] = []
        self._callers: list[Caller] = []

    @property
    def environment(self) -> dict[str, str]:
        return {"FAILOVER_HOST_DEVICES": str(self.host_devices), "FAILOVER_RUN_DIR": ""}

    def run(self, *command: str) -> Program:
        self._programs.append(Program(*command, environment=self.environment))
        return self._programs[-1]

    def gms(self, *settings: str, devices: str = "host:0", capacity: int = CAPACITY) -> Program:
        """Starts it, and doesn't wait."""
        command = (sys.executable, "-m", "gms", "--run-dir", str(self.run_dir), "--devices", devices)
        return self.run(*command, *(("--capacity", str(capacity)) if capacity else ()), *settings)

    def serves(self, *settings: str, devices: str = "host:0", capacity: int = CAPACITY) -> Program:
        """The same, and all its servers listen."""
        program = self.gms(*settings, devices=devices, capacity=capacity)
        for _ in devices.split(","):
            program.err.with_words(" ready ")
        return program

    def caller(self, *first: Message, device: str = "host:0") -> Caller:
        self._callers.append(Caller(self.run_dir, device, *first))
        return self._callers[-1]

    def writer(self, sizes: Sequence[int] = (SLAB,), device: str = "host:0", engine_id: str = "engine-a") -> Caller:
        """A client that has committed, and reads."""
        caller = self.caller(hello(engine_id), device=device)
        caller.say(m.Open(mode="rw"))
        caller.hear(m.Opened)
        for size in sizes:
            caller.ask(m.Create(size=size), m.Created)
        caller.ask(m.Commit(layout=document(sizes)), m.Committed)
        return caller

    def status(self, device: str = "host:0") -> m.Status:
        with Caller(self.run_dir, device, m.Observe(protocol=m.PROTOCOL)) as caller:
            return caller.ask(m.AskStatus(), m.Status)

    def shows(self, device: str = "host:0", **what: object) -> m.Status:
        """The first status with these fields."""
        seen: list[m.Status] = []

        def so() -> bool:
            seen.append(self.status(device))
            return all(getattr(seen[-1], name) == value for name, value in what.items())

        until(so, f"{what}")
        return seen[-1]

    def server_pid(self, device: str = "host:0") -> int:
        return self.status(device).server_pid

    def ask(self, *words: str) -> tuple[int, str, str]:
        """gmsctl: exit code, standard output, standard error."""
        done = gmsctl(self.run_dir, self.environment, *words)
        return done.returncode, done.stdout, done.stderr

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
        for program in reversed(self._programs):
            program.close()
        for lock in self.run_dir.glob("gms/*:*.lock"):
            if lock.is_file():
                self._end_orphan(int(lock.read_text() or 0))

    def _end_orphan(self, pid: int) -> None:
        """A server that outlived its supervisor, which none should: a test that found one has said so."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if pid and str(self.run_dir).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def containers() -> Iterator[Container]:
    """For a fixture: on tmpfs, and gone at the end."""
    with tmpfs.directory("gms") as directory, contextlib.closing(Container(directory)) as container:
        yield container
        directory.chmod(0o700)


def descriptors(pid: int) -> dict[int, str]:
    return Process(pid).descriptors()


def dead(pid: int) -> bool:
    """Also where the process isn't ours to wait for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: dead(pid), f"process {pid} is dead")

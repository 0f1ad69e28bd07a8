"""Real servers in a run directory and on devices of their own, and programs that use them: each its own process."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gms.client import GmsClient
from gms.layout import Layout, Tensor
from gms.memory.host import HostMemory
from gms.memory.host_device import create_device
from gms.rules import messages as m
from gms.shell.device_process import Settings
from gms.shell.rundir import connect
from sidecar.wire.frames import Channel
from tests.gms.command import gmsctl
from tests.support.processes import ROOT
from tests.support.waiting import until

MIB = 1 << 20


class House:
    def __init__(self, directory: Path, capacity: int = 512 * MIB, devices: tuple[str, ...] = ("host:0",)) -> None:
        self.run_dir = directory / "run"
        self.devices = directory / "devices"
        for device in devices:
            create_device(device.removeprefix("host:"), capacity, self.devices)
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.programs: list[Program] = []
        self.clients: list[GmsClient] = []
        self.window_s = 5.0
        self.memory_wait_s = 2.0
        self.host_memory = 256 * MIB
        self.ledger = False
        """There is one in the run directory."""

    def start(self, device: str = "host:0", module: str = "gms.shell.device_process") -> subprocess.Popen[bytes]:
        """A server that listens."""
        settings = Settings(
            run_dir=str(self.run_dir),
            parent_pid=os.getpid(),
            host_devices=str(self.devices),
            window_s=self.window_s,
            memory_wait_s=self.memory_wait_s,
            host_memory=self.host_memory,
            ledger=self.ledger,
        )
        command = [sys.executable, "-m", module, device, msgspec.json.encode(settings).decode()]
        server = self.servers[device] = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        until(lambda: self._listens(device) or server.poll() is not None, f"{device} listens")
        assert server.poll() is None, "the server ended"
        return server

    def _listens(self, device: str) -> bool:
        try:
            connect(self.run_dir, device).close()
        except OSError:
            return False
        return True

    def kill(self, device: str = "host:0") -> None:
        server = self.servers.pop(device)
        server.kill()
        server.wait()

    def memory(self, device: str = "host:0") -> HostMemory:
        return HostMemory(device.removeprefix("host:"), self.devices)

    def used(self, device: str = "host:0") -> int:
        """Bytes in use, as the kernel knows it."""
        memory = self.memory(device)
        try:
            return memory.capacity() - memory.free()
        finally:
            memory.close()

    def client(self, engine: str = "engine-a", device: str = "host:0", **settings: Any) -> GmsClient:
        """In this process."""
        settings.setdefault("checksums", False)
        settings.setdefault("huge_pages", False)
        client = GmsClient(self.run_dir, device, engine, memory=self.memory(device), **settings)
        self.clients.append(client)
        return client

    def program(
        self, engine: str = "engine-a", device: str = "host:0", module: str = "tests.gms.program", *more: str
    ) -> "Program":
        """In a process of its own."""
        program = Program(self, engine, device, module, *more)
        self.programs.append(program)
        return program

    def gmsctl(self, *words: object) -> subprocess.CompletedProcess[str]:
        return gmsctl(self.run_dir, {"FAILOVER_HOST_DEVICES": str(self.devices)}, *words)

    def status(self, device: str = "host:0") -> Any:
        return ask(self.run_dir, device, m.AskStatus())

    def close(self) -> None:
        for program in self.programs:
            program.kill()
        for server in self.servers.values():
            server.send_signal(signal.SIGCONT)  # a client that closes would wait for a stopped one
        for client in self.clients:
            client.close()
        for device in list(self.servers):
            self.kill(device)


def houses(**settings: Any) -> Iterator[House]:
    """For a fixture: one with a server that listens, on tmpfs, and gone at the end."""
    with tempfile.TemporaryDirectory(prefix="gpu-failover-test-", dir="/dev/shm") as directory:
        house = House(Path(directory), **settings)
        house.start()
        yield house
        house.close()


def ask(run_dir: Path, device: str, question: Any) -> Any:
    """As an observer."""
    channel = Channel(connect(run_dir, device), m.from_server, max_frame_bytes=m.MAX_FRAME_BYTES)
    try:
        channel.send(m.Observe(protocol=m.PROTOCOL))
        channel.send(question)
        received = until(channel.receive, "an answer")
        return received[0].message
    finally:
        channel.close()


class Program:
    """`tests/gms/program.py`, or another like it: it does what it is told, a line at a time."""

    def __init__(self, house: House, engine: str, device: str, module: str, *more: str) -> None:
        command = [sys.executable, "-m", module, str(house.run_dir), device, engine, *more]
        environment = {**os.environ, "FAILOVER_HOST_DEVICES": str(house.devices)}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def tell(self, verb: str, *arguments: Any) -> None:
        """Doesn't wait until it is done."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([verb, *arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Ended(self.process.wait())
        said = json.loads(line)
        if "error" in said:
            raise Failed(said["error"], said["text"])
        return said["said"]

    def do(self, verb: str, *arguments: Any) -> Any:
        self.tell(verb, *arguments)
        return self.answer()

    def stop(self) -> None:
        """Frozen, as by a debugger."""
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class Ended(Exception):
    """With which code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"it ended with {code}")
        self.code = code


class Failed(Exception):
    def __init__(self, error: str, text: str) -> None:
        super().__init__(f"{error}: {text}")
        self.error = error


def plain_layout(sizes: tuple[int, ...], name: str = "w") -> Layout:
    """A tensor of bytes for each slab."""
    tensors = tuple(Tensor(f"{name}{slab}", slab, 0, (size,), (1,), "uint8") for slab, size in enumerate(sizes))
    return Layout(sizes, tensors, {"made": name})

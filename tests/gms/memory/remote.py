"""Processes that have a device open, as a test sees them: the calls of `Memory`, and a few that tests need.

A test starts as many as its story has, kills them, and holds descriptors itself. The other side is `worker.py`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gms.memory import DeviceError, Handle, OutOfMemory
from tests.gms.memory.worker import MAX_BYTES
from tests.support.processes import ROOT
from tests.support.waiting import DEADLINE_S


class Died(Exception):
    """The process is gone; `status` is how, as `subprocess` has it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the process ended with {status}")
        self.status = status


class Remote:
    """One process and the device in it. Descriptors that it exports are the test's to close."""

    def __init__(self, maker: str, environment: Mapping[str, str]) -> None:
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(DEADLINE_S)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.gms.memory.worker", maker, str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, **environment},
                pass_fds=[theirs.fileno()],
            )
        self.granularity: int = self.ask("granularity")

    def ask(self, what: str, *fds: int, **arguments: object) -> Any:
        value, got = self._ask(what, fds, arguments)
        assert not got
        return value

    def _ask(self, what: str, fds: Sequence[int], arguments: Mapping[str, object]) -> tuple[Any, list[int]]:
        try:
            socket.send_fds(self._sock, [json.dumps([what, arguments]).encode()], list(fds))
            reply, got, _, _ = socket.recv_fds(self._sock, MAX_BYTES, 8)
        except (BrokenPipeError, ConnectionResetError):
            reply, got = b"", []
        if not reply:
            raise Died(self.process.wait(DEADLINE_S))
        answer = json.loads(reply)
        match answer.get("error"):
            case None:
                return answer["value"], got
            case "OutOfMemory":
                error = OutOfMemory("", answer["needed"], answer["free"])
                error.args = (answer["text"],)
                raise error
            case "DeviceError":
                raise DeviceError(answer["text"])
            case _:
                raise AssertionError(answer["text"])

    def capacity(self) -> int:
        return int(self.ask("capacity"))

    def free(self) -> int:
        return int(self.ask("free"))

    def create(self, size: int) -> Handle:
        return Handle(self.ask("create", size=size))

    def export(self, handle: Handle) -> int:
        close_on_exec, [fd] = self._ask("export", (), {"handle": handle})
        assert close_on_exec
        return fd

    def import_(self, descriptor: int, size: int) -> Handle:
        return Handle(self.ask("import_", descriptor, size=size))

    def release(self, handle: Handle) -> None:
        self.ask("release", handle=handle)

    def reserve(self, size: int) -> int:
        return int(self.ask("reserve", size=size))

    def map(self, address: int, handle: Handle, *, size: int, offset: int = 0, writable: bool) -> None:
        self.ask("map", address=address, handle=handle, size=size, offset=offset, writable=writable)

    def unmap(self, address: int, size: int) -> None:
        self.ask("unmap", address=address, size=size)

    def free_address(self, address: int, size: int) -> None:
        self.ask("free_address", address=address, size=size)

    def identity(self, descriptor: int) -> str:
        return str(self.ask("identity", descriptor))

    def held(self, identity: str) -> bool | None:
        held: bool | None = self.ask("held", identity=identity)
        return held

    def mapped(self, handle: Handle, size: int, *, offset: int = 0, writable: bool = True) -> int:
        """Reserved and mapped."""
        address = self.reserve(size)
        self.map(address, handle, size=size, offset=offset, writable=writable)
        return address

    def peek(self, address: int, size: int) -> bytes:
        return bytes.fromhex(self.ask("peek", address=address, size=size))

    def poke(self, address: int, content: bytes) -> None:
        self.ask("poke", address=address, content=content.hex())

    def fill(self, address: int, size: int, byte: int) -> None:
        self.ask("fill", address=address, size=size, byte=byte, step=self.granularity)

    def all_zero(self, address: int, size: int) -> bool:
        return bool(self.ask("all_zero", address=address, size=size, step=self.granularity))

    def keep(self, descriptor: int) -> int:
        """Has a descriptor from now on, and doesn't look at it."""
        return int(self.ask("keep", descriptor))

    def give(self, index: int) -> int:
        """A copy of a descriptor that it keeps."""
        _, [fd] = self._ask("give", (), {"index": index})
        return fd

    def drop(self, index: int) -> None:
        self.ask("drop", index=index)

    def descriptors(self) -> int:
        """How many are open in it."""
        return int(self.ask("descriptors"))

    def close_memory(self) -> None:
        self.ask("close")

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        self._sock.close()

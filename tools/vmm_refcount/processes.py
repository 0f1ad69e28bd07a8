"""The processes of a story, as the experiment sees them. It forwards descriptors between them and keeps none."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gms.memory import DeviceError
from tools.vmm_refcount.process import MAX_BYTES

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0  # making a context on a busy machine takes seconds


class Process:
    """One process and the device in it."""

    def __init__(self, name: str, kind: str, device: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self.context_bytes = 0
        """What a context of it costs on the device, once that has been measured."""
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(DEADLINE_S)
        with theirs:
            number = str(theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tools.vmm_refcount.process", kind, device, number],
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the experiment, which ends them
            )

    def about(self) -> dict[str, Any]:
        """The device, as the maker sees it."""
        about: dict[str, Any] = self._ask("about")
        return about

    def warm(self) -> None:
        """Has a context from now on, if it is a GPU."""
        self._ask("warm")

    def create(self, name: str, size: int) -> None:
        self._ask("create", name=name, size=size)

    def export(self, name: str) -> None:
        """It has a descriptor of that name from now on."""
        self._ask("export", name=name)

    def import_(self, name: str, size: int) -> None:
        """From its descriptor of that name, which it keeps."""
        self._ask("import_", name=name, size=size)

    def release(self, name: str) -> None:
        self._ask("release", name=name)

    def map(self, name: str, at: str, size: int, *, offset: int = 0, writable: bool = False) -> None:
        """`at` is the name of the place."""
        self._ask("map", name=name, at=at, size=size, offset=offset, writable=writable)

    def unmap(self, at: str) -> None:
        self._ask("unmap", at=at)

    def poke(self, at: str, text: str, *, offset: int = 0) -> None:
        self._ask("poke", at=at, offset=offset, text=text)

    def expect(self, at: str, text: str, *, offset: int = 0) -> None:
        """What is there has to be this."""
        found = self._ask("peek", at=at, offset=offset, length=len(text))
        if found != text:
            raise DeviceError(f"the {self.name} reads {found!r} where {text!r} was written: that is other memory")

    def close_descriptor(self, name: str) -> None:
        self._ask("close_descriptor", name=name)

    def send(self, name: str, to: "Process") -> None:
        """A copy of its descriptor; it keeps its own."""
        _, [descriptor] = self._talk("give", [], {"name": name})
        try:
            to._talk("take", [descriptor], {"name": name})
        finally:
            os.close(descriptor)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone. May be called again."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._sock.close()

    def _ask(self, verb: str, **arguments: object) -> Any:
        return self._talk(verb, [], arguments)[0]

    def _talk(self, verb: str, descriptors: list[int], arguments: Mapping[str, object]) -> tuple[Any, list[int]]:
        try:
            socket.send_fds(self._sock, [json.dumps([verb, arguments]).encode()], descriptors)
            reply, given, _, _ = socket.recv_fds(self._sock, MAX_BYTES, 1)
        except TimeoutError:
            raise DeviceError(
                f"the {self.name} doesn't answer within {DEADLINE_S:.0f} s of being told: {verb}"
            ) from None
        except (BrokenPipeError, ConnectionResetError):
            reply, given = b"", []
        if not reply:
            raise DeviceError(f"the {self.name} died (status {self._process.wait()}) when told: {verb}")
        answer = json.loads(reply)
        if "error" in answer:
            raise DeviceError(answer["error"])
        return answer["value"], given

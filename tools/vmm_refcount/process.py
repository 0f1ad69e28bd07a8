"""One process of the experiment: it does what it is told, and dies with its parent.

python -m tools.vmm_refcount.process MEMORY DEVICE SOCKET. A request is [verb, arguments], an answer {"value": ...} or
{"error": ...}, one packet each; descriptors travel beside them. The other side is `processes.py`.
"""

import json
import os
import socket
import sys
from typing import Any

from gms.memory import DeviceError, Handle, Memory
from tools.vmm_refcount.contents import Contents, contents

MAX_BYTES = 1 << 16


def open_memory(kind: str, device: str) -> Memory:
    """The makers load nothing before one is asked for, so a machine needs only what it uses."""
    if kind == "host":
        from gms.memory.host import HostMemory

        return HostMemory(device)
    from gms.memory.cuda import CudaMemory, devices

    present = devices()
    if not device and not present:
        raise DeviceError("there is no GPU that this process may use (CUDA_VISIBLE_DEVICES?)")
    return CudaMemory(device or present[0])


class Worker:
    """Handles, descriptors and mappings by the names that the story gives them."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._contents: Contents | None = None
        self._handles: dict[str, Handle] = {}
        self._descriptors: dict[str, int] = {}
        self._mappings: dict[str, tuple[int, int]] = {}

    def about(self) -> dict[str, object]:
        memory = self._memory
        return {"device": memory.device, "granularity": memory.granularity, "capacity": memory.capacity()}

    def warm(self) -> None:
        """What a process needs once before it can map: a context, on a GPU."""
        unit = self._memory.granularity
        handle, address = self._memory.create(unit), self._memory.reserve(unit)
        self._memory.map(address, handle, size=unit, writable=True)
        self._touching().poke(address, b"warm")
        self._memory.unmap(address, unit)
        self._memory.free_address(address, unit)
        self._memory.release(handle)

    def create(self, name: str, size: int) -> None:
        self._handles[name] = self._memory.create(size)

    def export(self, name: str) -> None:
        self._descriptors[name] = self._memory.export(self._handles[name])

    def import_(self, name: str, size: int) -> None:
        self._handles[name] = self._memory.import_(self._descriptors[name], size)

    def release(self, name: str) -> None:
        self._memory.release(self._handles.pop(name))

    def map(self, name: str, at: str, size: int, offset: int, writable: bool) -> None:
        address = self._memory.reserve(size)
        self._memory.map(address, self._handles[name], size=size, offset=offset, writable=writable)
        self._mappings[at] = (address, size)

    def unmap(self, at: str) -> None:
        address, size = self._mappings.pop(at)
        self._memory.unmap(address, size)
        self._memory.free_address(address, size)

    def poke(self, at: str, offset: int, text: str) -> None:
        self._touching().poke(self._mappings[at][0] + offset, text.encode())

    def peek(self, at: str, offset: int, length: int) -> str:
        return self._touching().peek(self._mappings[at][0] + offset, length).decode("latin-1")

    def take(self, name: str, descriptor: int) -> None:
        self._descriptors[name] = descriptor

    def close_descriptor(self, name: str) -> None:
        os.close(self._descriptors.pop(name))

    def give(self, name: str) -> int:
        return self._descriptors[name]

    def _touching(self) -> Contents:
        if self._contents is None:
            self._contents = contents(self._memory.device)
        return self._contents


def _answer(worker: Worker, verb: str, arguments: dict[str, Any], descriptors: list[int]) -> tuple[object, list[int]]:
    if verb == "take":
        worker.take(arguments["name"], descriptors[0])
        return None, []
    if verb == "give":
        return None, [worker.give(arguments["name"])]
    return getattr(worker, verb)(**arguments), []


def main(kind: str, device: str, number: str) -> None:
    sock = socket.socket(fileno=int(number))
    sock.set_inheritable(False)
    worker: Worker | None = None
    while True:
        request, descriptors, _, _ = socket.recv_fds(sock, MAX_BYTES, 1)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if not request:
            return
        verb, arguments = json.loads(request)
        given: list[int] = []
        try:
            if worker is None:
                worker = Worker(open_memory(kind, device))
            value, given = _answer(worker, verb, arguments, descriptors)
            answer = {"value": value}
        except DeviceError as error:
            answer = {"error": str(error)}
        socket.send_fds(sock, [json.dumps(answer).encode()], given)


if __name__ == "__main__":
    main(*sys.argv[1:])

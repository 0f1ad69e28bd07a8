"""One process of a test of device memory: does what it is told over a Unix socket, until it is killed.

python -m tests.gms.memory.worker MAKER SOCKET. A request is [what, arguments], with descriptors beside it where a
descriptor is among the arguments; an answer is {"value": ...} or {"error": ...}. The other side is `remote.py`.
"""

import fcntl
import json
import os
import socket
import sys
import traceback
from typing import Any

from gms.memory import DeviceError, OutOfMemory
from tests.gms.memory.makers import MAKERS, Maker

MAX_BYTES = 1 << 16


class Worker:
    """The device, and descriptors that it was told to keep without looking at them."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self._memory = maker.open()
        self._kept: list[int] = []
        self.sending: list[int] = []

    def do(self, what: str, arguments: dict[str, Any], fds: list[int]) -> object:
        own = getattr(self, f"do_{what}", None)
        if own is not None:
            return own(*fds, **arguments)
        attribute = getattr(self._memory, what)
        return attribute(*fds, **arguments) if callable(attribute) else attribute

    def do_open_anew(self) -> None:
        self._memory.close()
        self._memory = self._maker.open()

    def do_export(self, handle: Any) -> bool:
        fd = self._memory.export(handle)
        self.sending.append(fd)
        return bool(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC)

    def do_import_(self, fd: int, size: int) -> int:
        handle = self._memory.import_(fd, size)
        os.fstat(fd)  # it is still the caller's
        return handle

    def do_import_number(self, number: int, size: int) -> int:
        return self._memory.import_(number, size)

    def do_keep(self, fd: int) -> int:
        self._kept.append(os.dup(fd))
        return len(self._kept) - 1

    def do_give(self, index: int) -> None:
        self.sending.append(os.dup(self._kept[index]))

    def do_drop(self, index: int) -> None:
        os.close(self._kept[index])

    def do_peek(self, address: int, size: int) -> str:
        return self._maker.peek(address, size).hex()

    def do_poke(self, address: int, content: str) -> None:
        self._maker.poke(address, bytes.fromhex(content))

    def do_descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    def do_all_zero(self, address: int, size: int, step: int) -> bool:
        return not any(any(self._maker.peek(at, step)) for at in range(address, address + size, step))

    def do_fill(self, address: int, size: int, byte: int, step: int) -> None:
        for at in range(address, address + size, step):
            self._maker.poke(at, bytes([byte]) * step)


def main(name: str, number: str) -> None:
    sock = socket.socket(fileno=int(number))
    sock.set_inheritable(False)
    worker = Worker(MAKERS[name])
    while True:
        request, fds, _, _ = socket.recv_fds(sock, MAX_BYTES, 8)
        if not request:
            return
        for fd in fds:
            fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        what, arguments = json.loads(request)
        answer: dict[str, Any]
        try:
            answer = {"value": worker.do(what, arguments, fds)}
        except OutOfMemory as error:
            answer = {"error": "OutOfMemory", "text": str(error), "needed": error.needed, "free": error.free}
        except DeviceError as error:
            answer = {"error": "DeviceError", "text": str(error)}
        except Exception:
            answer = {"error": "broken", "text": traceback.format_exc()}
        socket.send_fds(sock, [json.dumps(answer).encode()], worker.sending)
        for fd in [*fds, *worker.sending]:
            os.close(fd)
        worker.sending.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])

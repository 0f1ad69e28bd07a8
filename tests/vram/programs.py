"""Real ledgers and their holders: processes that the test starts, stops and kills. A device is a file on tmpfs, and
what a holder uses of it is an allocation that the kernel keeps the books of.

    python -m tests.vram.programs DIR NAME      a holder: does what it is told on stdin, a line each, and says what came

Its words: reserve NAME BYTES | resize NAME BYTES | give NAME | heir NAME | use BYTES | free | child
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gms.memory import Handle, OutOfMemory
from gms.memory.host import HostMemory
from gms.memory.host_device import create_device
from tests.support import tmpfs
from tests.support.processes import Program, run_to_end
from tests.support.waiting import until
from vram.client import Lease, LedgerClient, LedgerError
from vram.observer import NoServer, Observer, ServerSilent, Status
from vram.shell.rundir import SOCKET, ledger_of

MIB = 1 << 20
TOTAL = 100 * MIB
DEVICE = "host:0"
VRAMCTL = (sys.executable, "-m", "vram.cli.vramctl")


class House:
    """A host directory with its device, and all programs that have to do with it."""

    def __init__(self, directory: Path) -> None:
        self.host_dir = directory / "run"
        self.devices = directory / "devices"
        create_device("0", TOTAL, self.devices)
        self._programs: list[Program] = []

    def run(self, *command: str) -> Program:
        program = Program(*command, environment={"FAILOVER_HOST_DEVICES": str(self.devices)})
        self._programs.append(program)
        return program

    def serve(self, *settings: str, settle_s: str = "0.05") -> Program:
        """A ledger that listens. A lease is asked for as soon as it is granted."""
        socket = ledger_of(self.host_dir) / SOCKET
        old = socket.stat().st_ino if socket.exists() else None
        how = ("--settle-s", settle_s, "--memory", "host", "--least-held-s", "0", *settings)
        server = self.run(sys.executable, "-m", "vram", "--run-dir", str(self.host_dir), *how)

        def listens() -> bool:
            assert server.process.poll() is None, server.err.rest()
            return socket.exists() and socket.stat().st_ino != old

        until(listens, "the ledger listens")
        return server

    def holder(self, name: str) -> "Holder":
        return Holder(self.run(sys.executable, "-m", "tests.vram.programs", str(self.host_dir), name))

    def vramctl(self, *words: str) -> Program:
        return self.run(*VRAMCTL, "--run-dir", str(self.host_dir), *words)

    def ask(self, *words: str) -> tuple[int, str, str]:
        return run_to_end(*VRAMCTL, "--run-dir", str(self.host_dir), *words)

    def until(self, so: Callable[[Status], object], what: str) -> Status:
        """The first status of which this is so."""
        last: list[Status] = []

        def look() -> bool:
            with contextlib.suppress(NoServer, ServerSilent), Observer(self.host_dir) as observer:
                last[:] = [observer.status()]
            return bool(last and so(last[0]))

        until(look, what)
        return last[0]

    def close(self) -> None:
        for program in reversed(self._programs):
            program.close()


class Holder:
    """One that runs in a process of its own."""

    def __init__(self, program: Program) -> None:
        self.program = program
        assert program.out.next() == "started"

    def tell(self, *words: object) -> None:
        assert self.program.process.stdin is not None
        self.program.process.stdin.write(f"{' '.join(map(str, words))}\n".encode())
        self.program.process.stdin.flush()

    def does(self, *words: object) -> str:
        self.tell(*words)
        return self.program.out.next()

    def holds(self, name: str, count: int, *how: str) -> "Holder":
        """It has so much under this name, and uses all of it."""
        assert self.does("reserve", name, count, *how) == "ok"
        assert self.does("use", count) == "ok"
        return self


class _Holder:
    """What runs in that process."""

    def __init__(self, host_dir: str, name: str) -> None:
        self.leases: dict[str, Lease] = {}
        self.memory = HostMemory("0")
        self.handles: list[Handle] = []
        self.ledger = LedgerClient(host_dir, name, on_asked=self._on_asked).start()

    def _on_asked(self, lease: Lease, bytes: dict[str, int], timeout_s: float, why: str) -> None:
        print(f"asked {lease.name} {bytes[DEVICE]}", flush=True)
        self.free()
        self.ledger.give_back(lease)

    def reserve(self, name: str, count: str, *how: str) -> None:
        timeout_s = next((float(word) for word in how if word[0].isdigit()), None)
        priority = next((int(word.removeprefix("priority=")) for word in how if word.startswith("priority=")), 0)
        self.leases[name] = self.ledger.reserve(
            name, {DEVICE: int(count)}, priority=priority, evictable="evictable" in how, timeout_s=timeout_s
        )

    def resize(self, name: str, count: str) -> None:
        self.leases[name] = self.ledger.resize(self.leases[name], {DEVICE: int(count)})

    def give(self, name: str) -> None:
        self.ledger.give_back(self.leases[name])

    def heir(self, name: str) -> None:
        self.ledger.heir(name)

    def use(self, count: str) -> None:
        self.handles.append(self.memory.create(int(count)))

    def free(self) -> None:
        while self.handles:
            self.memory.release(self.handles.pop())

    def child(self) -> None:
        """A child that has the memory, too, and lives on when its parent is killed."""
        fd = self.memory.export(self.handles[0])
        child = subprocess.Popen([*JOINS, self.ledger.run_dir.parent, self.ledger.name], pass_fds=[fd], stdout=-1)
        assert child.stdout is not None
        child.stdout.readline()
        os.close(fd)
        print(child.pid, end=" ")


JOINS = [
    sys.executable,
    "-c",
    "import sys, time; from vram.client import join; m = join(sys.argv[1], sys.argv[2]); print(1, flush=True); "
    "time.sleep(1000)",
]


def main(host_dir: str, name: str) -> None:
    holder = _Holder(host_dir, name)
    print("started", flush=True)
    for line in sys.stdin:
        word, *words = line.split()
        try:
            getattr(holder, word)(*words)
        except (LedgerError, OutOfMemory) as error:
            print(type(error).__name__, error, flush=True)
        else:
            print("ok", flush=True)


@contextlib.contextmanager
def house() -> Iterator[House]:
    with tmpfs.directory("vram") as directory, contextlib.closing(House(directory)) as made:
        yield made


if __name__ == "__main__":
    main(*sys.argv[1:])

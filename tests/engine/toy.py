"""An engine that does nothing, as a real process tree: a main process, workers that are registered as an engine's are,
a shared memory by name, and an HTTP endpoint that answers with the engine's name.

Faults are files in the directory --faults: `hang_wake`, `fail_init`, `no_memory`, `hang_init`, `unwell`,
`stall`, `burn`, `hang_drain`, and `orphan`: two processes are left that have no parent. They may come and go while it
runs.
What this file may not do: know the shim's insides.
"""

import argparse
import contextlib
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from engine_shim import membership
from engine_shim.engine import CannotRun, Health, Listen, Setting
from engine_shim.shell import scratch
from sidecar.wire.sockets import ServerSocket

ORPHANS = """
import subprocess, sys
for _ in range(2):
    wait = "import threading; threading.Event().wait()"
    subprocess.Popen([sys.executable, "-c", wait, "orphan"], start_new_session=True)
"""


class Toy:
    def __init__(self, setting: Setting) -> None:
        parser = argparse.ArgumentParser(prog="toy")
        parser.add_argument("--workers", type=int, default=0)
        parser.add_argument("--faults", type=Path, default=Path("/nonexistent"))
        parser.add_argument("--refuse", action="store_true")
        parser.add_argument("--shared-memory", action="store_true")
        parser.add_argument("--scratch", action="store_true")
        parser.add_argument("--model-len", type=int, default=1)
        self.options = parser.parse_args(setting.arguments)
        if self.options.refuse:
            raise CannotRun("the toy engine was told to refuse")
        self.setting = setting
        self.workers: list[subprocess.Popen[bytes]] = []
        self.shared: SharedMemory | None = None
        self.listener: socket.socket | None = None
        self.named: ServerSocket | None = None
        self.steps = 0
        self.burning: subprocess.Popen[bytes] | None = None

    def fault(self, name: str) -> bool:
        directory: Path = self.options.faults
        return (directory / name).exists()

    def start(self) -> None:
        if self.fault("no_memory"):
            raise MemoryError("no memory at the moment")
        if self.fault("fail_init"):
            raise RuntimeError("a fault in init")
        while self.fault("hang_init"):
            time.sleep(0.005)
        for _ in range(self.options.workers):
            command = [sys.executable, "-m", "tests.engine.toy", "worker"]
            self.workers.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        for worker in self.workers:
            assert worker.stdout is not None
            if worker.stdout.readline() != b"here\n":
                raise RuntimeError("a worker did not come up")
        if self.fault("orphan"):
            subprocess.run([sys.executable, "-c", ORPHANS, "orphan"], check=True)
        if self.options.scratch:
            here = scratch.given()
            (here / "socket").touch()
            elsewhere = Path(self.setting.run_dir).parent / "vllm_dist_1"
            elsewhere.touch()
            scratch.remember(str(elsewhere))
        if self.options.shared_memory:
            self.shared = SharedMemory(create=True, size=4096)

    def sleep(self) -> None: ...

    def needs(self) -> dict[str, int]:
        return {}

    def well(self, fresh: bool = True) -> bool:
        return not self.fault("unwell")

    def wake(self) -> None:
        if self.fault("hang_wake"):
            threading.Event().wait()
        self.setting.phase("remap", 0.001)

    def serve(self, listen: Listen) -> None:
        if self.listener is not None:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
        self.listener, self.named = listen.bind()
        self.listener.setblocking(True)
        threading.Thread(target=self._answer, args=(self.listener,), daemon=True).start()

    def takes(self) -> dict[str, str]:
        return {"--model-len": str(self.options.model_len)}

    def _answer(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.recv(65536)
                body = self.setting.engine_id.encode()
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                self.steps += 1

    def health(self) -> Health:
        if self.fault("burn") and self.burning is None:
            self.burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        return Health(queued=int(self.fault("stall")), steps=self.steps)

    def drain(self, timeout_s: float) -> None:
        if self.fault("hang_drain"):
            threading.Event().wait()

    def resume(self) -> None: ...

    def stop(self) -> None:
        if self.listener is not None:
            self.listener.close()
        if self.named is not None:
            self.named.close()
        for worker in self.workers:
            worker.kill()
        if self.shared is not None:
            self.shared.close()
            self.shared.unlink()


def worker() -> None:
    kept = membership.enter()
    sys.stdout.write("here\n")
    sys.stdout.flush()
    threading.Event().wait()
    del kept


if __name__ == "__main__":
    worker()

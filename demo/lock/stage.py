"""The demo's processes and its directory: everything that must be gone when it ends, also by Ctrl-C.

A directory on tmpfs with the run directory and one host device; a lock server; contenders. Contenders die with the
leash (a pipe), the server with the demo (PR_SET_PDEATHSIG). Each is in a process group of its own, so that Ctrl-C
reaches the demo alone and it can tidy up.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from demo.lock.contender import LEASH
from demo.machine import MIB, SHARED_MEMORY, CantPlay, room
from lockserver.client import RUN_DIR_VARIABLE
from lockserver.rundir import SOCKET
from sidecar import host_usage, process_setup

DEVICE = "0"
CAPACITY_MOST = 1024 * MIB
PATIENCE_S = 30.0
_ROOT = Path(__file__).resolve().parent.parent.parent


class Contender:
    """An engine's stand-in, as the demo sees it: what it says, and the pidfds of its processes."""

    def __init__(self, engine_id: str, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        self.engine_id = engine_id
        self.process = process
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)
        self.worker = 0
        self.worker_pidfd = -1
        self.tree = ""
        self.reports = process.stdout

    def wake(self) -> None:
        """It may take its memory now, or as soon as it is granted."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def hear(self, event: str) -> dict[str, Any]:
        """Waits until it says this."""
        while True:
            if not select.select([self.reports], [], [], PATIENCE_S)[0]:
                raise CantPlay(f"{self.engine_id} does not say {event!r} within {PATIENCE_S:g} s")
            line = self.reports.readline()
            if not line:
                raise CantPlay(f"{self.engine_id} ended before it said {event!r}")
            said: dict[str, Any] = json.loads(line)
            if said["event"] == "registered":
                self.tree = said["tree"]
            if said["event"] == "awake":
                self.worker = said["worker"]
                self.worker_pidfd = os.pidfd_open(self.worker)
            if said["event"] == event:
                return said


class Stage:
    def __init__(self) -> None:
        self.capacity = _capacity()
        self.directory = Path(tempfile.mkdtemp(prefix="gpu-failover-demo-", dir=SHARED_MEMORY))
        self.run_dir = self.directory / "run"
        self.device = self.directory / "devices" / DEVICE
        self.needs = self.capacity * 3 // 4
        """More than half: two engines can't both be awake."""
        self.device.parent.mkdir()
        with open(self.device, "wb") as file:
            file.truncate(self.capacity)
        self._leash, self._hand = os.pipe()
        self._server: subprocess.Popen[bytes] | None = None
        self._contenders: list[Contender] = []
        self._environment = {
            **os.environ,
            RUN_DIR_VARIABLE: str(self.run_dir),
            host_usage.ENVIRONMENT: str(self.device.parent),
            LEASH: str(self._leash),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def start_server(self) -> int:
        """Returns its pid once it listens."""
        demo = os.getpid()
        socket = self.run_dir / SOCKET
        old = socket.stat().st_ino if socket.exists() else None
        with open(self.directory / "lockserver.log", "ab") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "lockserver", "--memory", "host"],
                env=self._environment,
                stderr=log,
                process_group=0,
                preexec_fn=lambda: process_setup.die_with_parent(demo),
            )
        end = time.monotonic() + PATIENCE_S
        while not socket.exists() or socket.stat().st_ino == old:
            if self._server.poll() is not None or time.monotonic() > end:
                raise CantPlay(f"the lock server does not start: {(self.directory / 'lockserver.log').read_text()}")
            time.sleep(0.002)
        return self._server.pid

    def kill_server(self) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def start_contender(self, engine_id: str) -> Contender:
        contender = Contender(
            engine_id,
            subprocess.Popen(
                [sys.executable, "-m", "demo.lock.contender", "main", engine_id, DEVICE, str(self.needs)],
                env=self._environment,
                pass_fds=(self._leash,),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                process_group=0,
            ),
        )
        self._contenders.append(contender)
        contender.hear("registered")
        return contender

    def free(self) -> int:
        """Bytes of the device that nobody holds."""
        return host_usage.read_device(self.device)[0]

    def close(self) -> None:
        """Ends all processes and removes all files."""
        os.close(self._hand)
        os.close(self._leash)
        for contender in self._contenders:
            contender.process.kill()
            contender.process.wait()
            contender.reports.close()
            assert contender.process.stdin is not None
            contender.process.stdin.close()
            os.close(contender.pidfd)
            if contender.worker_pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(contender.worker_pidfd, signal.SIGKILL)
                select.select([contender.worker_pidfd], [], [], PATIENCE_S)
                os.close(contender.worker_pidfd)
        if self._server is not None:
            self.kill_server()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _capacity() -> int:
    """A device that this machine can fill: 1 GiB, or what small containers have."""
    return min(CAPACITY_MOST, room() * 8 // 10 // (16 * MIB) * (16 * MIB))

"""The demo's pair: `failover up` in a directory of its own on tmpfs, and all that can be seen of it from outside.

It runs as a person would run it; what is asked here is what `failover status`, `gmsctl` and `lockctl` ask. It must all
be gone when the demo ends: `up` dies with the demo (PR_SET_PDEATHSIG), and its children with it; its process group is
its own, so that Ctrl-C reaches the demo alone, which tidies up. After a kill -9 `cleanup.py` does.
"""

import contextlib
import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from demo.machine import MIB, SHARED_MEMORY, CantPlay, NotSo, room
from engine_shim.cli.failover import default_devices
from engine_shim.shell import shim_status
from gms.observer import Observer as GmsObserver
from gms.rules import messages as gm
from lockserver.client import RUN_DIR_VARIABLE
from lockserver.observer import Observer as LockObserver
from lockserver.rules import messages as lm
from sidecar.kernel import host_usage, process_setup, process_tree
from sidecar.wire.observer import ObserverError

ENGINES = ("a", "b")
TOKENS_PER_S = 60
PATIENCE_S = 40.0
END_S = 5.0
LOOK_S = 0.03
_SETTINGS = ("FAILOVER_", "REFERENCE_")
"""Settings of a pair that another person runs here are not for this one."""
_NOTHING_NEW = (" stopped", "everything has ended")
_ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


class Size(NamedTuple):
    """A model, and a device that has room for its weights and one KV cache, but not for two."""

    capacity_mib: int
    cache_mib: int
    model: tuple[str, ...]

    @property
    def engine(self) -> tuple[str, ...]:
        return (*self.model, "--kv-bytes", f"{self.cache_mib}MiB")


_SHAPE = ("--layers", "4", "--width", "256", "--hidden", "768", "--max-model-len", "512")
LARGE = Size(64, 32, _SHAPE)
SMALL = Size(32, 16, ("--preset", "tiny"))
LARGE_NEEDS = 512 * MIB


class Pair:
    def __init__(self) -> None:
        size = LARGE if room() >= LARGE_NEEDS else SMALL
        self.cache = size.cache_mib * MIB
        self.directory = Path(tempfile.mkdtemp(prefix="gpu-failover-demo-", dir=SHARED_MEMORY))
        self.run_dir = self.directory / "run"
        devices = self.directory / "devices"
        devices.mkdir(mode=0o700)
        self.host, self.port = "127.0.0.1", _free_port()
        listen = f"{self.host}:{self.port}"
        up = ("up", "--listen", listen, "--capacity", f"{size.capacity_mib}MiB", "--drain-s", "1", "--")
        self.words = (*up, *size.engine, "--tokens-per-s", str(TOKENS_PER_S))
        self.began = time.monotonic()
        self._log = self.directory / "up.log"
        program = [sys.executable, str(Path(__file__).with_name("cleanup.py")), str(self.directory)]
        self._cleanup = subprocess.Popen(program, stdin=subprocess.PIPE, process_group=0)
        demo = os.getpid()
        with open(self._log, "wb") as log:
            self._up = subprocess.Popen(
                [sys.executable, "-m", "engine_shim.cli.failover", *self.words],
                env={
                    **{name: os.environ[name] for name in os.environ if not name.startswith(_SETTINGS)},
                    RUN_DIR_VARIABLE: str(self.run_dir),
                    host_usage.ENVIRONMENT: str(devices),
                    "OPENBLAS_NUM_THREADS": "1",  # its threads would wait for each other in a loop
                    "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=lambda: process_setup.die_with_parent(demo),
            )

    # -- what can be seen ------------------------------------------------------------------------------------------

    def lock(self) -> lm.Status | None:
        with contextlib.suppress(ObserverError), LockObserver(self.run_dir) as observer:
            return observer.ask(lm.AskStatus(), lm.Status)
        return None

    def _device(self) -> str:
        (device,) = default_devices("reference", self.run_dir)
        return device

    def weights(self) -> gm.Status | None:
        with contextlib.suppress(ObserverError), GmsObserver(self.run_dir, self._device()) as observer:
            return observer.ask(gm.AskStatus(), gm.Status)
        return None

    def weights_history(self) -> list[gm.HistoryEvent]:
        with GmsObserver(self.run_dir, self._device()) as observer:
            return observer.ask(gm.AskHistory(), gm.History).events

    def engine(self, engine_id: str) -> dict[str, Any]:
        try:
            return shim_status.ask(self.run_dir, engine_id)
        except shim_status.ObserverError:
            return {"engine_id": engine_id, "state": "no answer", "ready": False}

    def door(self) -> dict[str, Any]:
        """What the door says of itself; nothing while it isn't there."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=END_S)
        try:
            connection.request("GET", "/failover")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        except (OSError, ValueError, http.client.HTTPException):
            return {}
        finally:
            connection.close()

    def until(self, look: Callable[[], T | None], what: str) -> T:
        """Waits for what nothing announces, and returns it. Raises NotSo or CantPlay."""
        end = time.monotonic() + PATIENCE_S
        while (found := look()) is None:
            if self._up.poll() is not None:
                raise CantPlay(f"failover up has ended by itself; it said last: {self._last_words()}")
            if time.monotonic() > end:
                raise NotSo(f"not within {PATIENCE_S:g} s: {what}; failover up said last: {self._last_words()}")
            time.sleep(LOOK_S)
        return found

    def pidfd_of(self, module: str) -> tuple[int, int]:
        """Which process of `failover up` runs this module: its pid and a pidfd."""
        for pid in process_tree.descendants(self._up.pid):
            with contextlib.suppress(OSError):
                if f"\0-m\0{module}\0" in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
                    return pid, os.pidfd_open(pid)
        raise NotSo(f"no process of failover up runs {module}")

    def pidfd_of_main(self, pid: int) -> int:
        """Raises NotSo if it is no process of this pair."""
        if pid not in process_tree.descendants(self._up.pid):
            raise NotSo(f"process {pid}, which serves as the lock server says, is none of this pair's")
        return os.pidfd_open(pid)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        told = [line for line in lines if line.strip() and not any(words in line for words in _NOTHING_NEW)]
        return told[-1] if told else "nothing"

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends all processes and removes all files. Not to be interrupted: it takes seconds at most."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        pidfds: list[int] = []
        for pid in process_tree.descendants(self._up.pid):
            with contextlib.suppress(ProcessLookupError):
                pidfds.append(os.pidfd_open(pid))
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            self._up.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._up.wait(END_S)
                break
        self._up.wait()
        for pidfd in pidfds:
            select.select([pidfd], [], [], END_S)
            os.close(pidfd)
        shutil.rmtree(self.directory, ignore_errors=True)
        self._cleanup.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])

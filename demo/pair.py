"""The demo's pair: `failover up` in a directory of its own on tmpfs, and all that can be seen of it from outside.

It runs as a person would run it; what is asked here is what `failover status`, `gmsctl` and `lockctl` ask. It must all
be gone when the demo ends, also by Ctrl-C: `up` dies with the demo (PR_SET_PDEATHSIG), and its children with it; its
process group is its own, so that Ctrl-C reaches the demo alone, which tidies up.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from demo.machine import MIB, SHARED_MEMORY, CantPlay, NotSo, room
from engine_shim import shim_status
from gms import messages as gm
from gms.observer import Observer as GmsOnlooker
from lockserver import messages as lm
from lockserver.client import RUN_DIR_VARIABLE
from lockserver.observer import Observer as LockOnlooker
from sidecar import host_usage, process_setup, process_tree
from sidecar.observer import ObserverError

DEVICE = "host:0"
ENGINES = ("a", "b")
TOKENS_PER_S = 40
PATIENCE_S = 40.0
END_S = 5.0
LOOK_S = 0.01
_SETTINGS = ("FAILOVER_", "REFERENCE_")
"""Of a pair that somebody else runs here; not for this one."""
_NOTHING_NEW = (" stopped", "everything has ended")
_ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


class Size(NamedTuple):
    """A model, and a device that has room for its weights and one KV cache, but not for two."""

    capacity_mib: int
    engine: tuple[str, ...]


_SHAPE = ("--layers", "6", "--width", "384", "--hidden", "1152", "--max-model-len", "512")
LARGE = Size(96, (*_SHAPE, "--kv-bytes", "32MiB"))
SMALL = Size(32, ("--preset", "tiny", "--kv-bytes", "16MiB"))
LARGE_NEEDS = 512 * MIB


class Pair:
    def __init__(self) -> None:
        size = LARGE if room() >= LARGE_NEEDS else SMALL
        self.directory = Path(tempfile.mkdtemp(prefix="gpu-failover-demo-", dir=SHARED_MEMORY))
        self.run_dir = self.directory / "run"
        devices = self.directory / "devices"
        devices.mkdir(mode=0o700)
        up = ("up", "--capacity", f"{size.capacity_mib}MiB", "--drain-s", "1", "--")
        self.words = (*up, *size.engine, "--tokens-per-s", str(TOKENS_PER_S))
        self._log = self.directory / "up.log"
        demo = os.getpid()
        with open(self._log, "wb") as log:
            self._up = subprocess.Popen(
                [sys.executable, "-m", "engine_shim.failover", *self.words],
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
        with contextlib.suppress(ObserverError), LockOnlooker(self.run_dir) as observer:
            return observer.ask(lm.AskStatus(), lm.Status)
        return None

    def weights(self) -> gm.Status | None:
        with contextlib.suppress(ObserverError), GmsOnlooker(self.run_dir, DEVICE) as observer:
            return observer.ask(gm.AskStatus(), gm.Status)
        return None

    def weights_history(self) -> list[gm.HistoryEvent]:
        with GmsOnlooker(self.run_dir, DEVICE) as observer:
            return observer.ask(gm.AskHistory(), gm.History).events

    def engine(self, engine_id: str) -> dict[str, Any]:
        try:
            return shim_status.ask(self.run_dir, engine_id)
        except shim_status.NoAnswer:
            return {"engine_id": engine_id, "state": "no answer", "ready": False}

    def fencing(self) -> list[str]:
        """What the lock server has written down of the last fencing, and of the grant behind it."""
        with LockOnlooker(self.run_dir) as observer:
            events = observer.ask(lm.AskHistory(), lm.History).events
        start = max((at for at, event in enumerate(events) if event.event == "fencing"), default=len(events))
        wanted = [event for event in events[start:] if event.event in ("fencing", "released", "granted")]
        active = [event for event in wanted if event.detail.get("lock") == "active"]
        return [
            f"{event.at}  {event.event:<9} "
            + "  ".join(f"{key}={value}" for key, value in event.detail.items() if key != "lock")
            for event in active
        ]

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
        """Of a process of this pair. Raises NotSo if that process is none."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

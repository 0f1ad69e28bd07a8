"""The demo's pair: `failover up` in a directory of its own on tmpfs, and all that can be seen of it from outside.

It runs as a person would run it; what is asked here is what `failover status`, `gmsctl` and `lockctl` ask. It must all
be gone when the demo ends, however that does: `cleanup.py` runs the pair and sees to it.
"""

import contextlib
import http.client
import importlib.util
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from demo import cleanup
from demo.machine import MIB, SHARED_MEMORY, CantPlay, NotSo, room
from engine_shim.cli.failover import default_devices
from engine_shim.shell import shim_status
from gms.observer import Observer as GmsObserver
from gms.rules import messages as gm
from lockserver.client import RUN_DIR_VARIABLE
from lockserver.observer import Observer as LockObserver
from lockserver.rules import messages as lm
from sidecar.kernel import host_usage, process_tree
from sidecar.wire.observer import ObserverError

ENGINES = ("a", "b")
TOKENS_PER_S = 60
PATIENCE_S, VLLM_PATIENCE_S = 40.0, 300.0
ASK_S = 5.0
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
    kind: str = "reference"
    environment: dict[str, str] = {}  # noqa: RUF012, never written to

    @property
    def engine(self) -> tuple[str, ...]:
        flag = "--kv-bytes" if self.kind == "reference" else "--kv-cache-memory-bytes"
        value = f"{self.cache_mib}MiB" if self.kind == "reference" else str(self.cache_mib * MIB)
        return (*self.model, flag, value)


PACE = ("--tokens-per-s", str(TOKENS_PER_S))
_SHAPE = ("--layers", "4", "--width", "256", "--hidden", "768", "--max-model-len", "512")
LARGE = Size(64, 32, (*_SHAPE, *PACE))
SMALL = Size(32, 16, ("--preset", "tiny", *PACE))
LARGE_NEEDS = 512 * MIB


class Pair:
    def __init__(
        self,
        size: Size | None = None,
        more: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        program: str = "engine_shim.cli.failover",
    ) -> None:
        """`more`: settings of `failover up`, and `arguments` of the engines; `program`: what is run in its place."""
        size = size or (LARGE if room() >= LARGE_NEEDS else SMALL)
        self.cache = size.cache_mib * MIB
        self.kind = size.kind
        self.directory = SHARED_MEMORY / f"gpu-failover-demo-{secrets.token_hex(4)}"
        self.run_dir = self.directory / "run"
        self.host, self.port = "127.0.0.1", _free_port()
        listen = ("--listen", f"{self.host}:{self.port}", "--capacity", f"{size.capacity_mib}MiB", "--drain-s", "1")
        kind = () if size.kind == "reference" else ("--engine", size.kind)
        model = () if size.kind == "reference" else ("--model", str(self.directory / "model"))
        self.words = ("up", *kind, *listen, *more, "--", *model, *size.engine, *arguments)
        self.began = time.monotonic()
        self._log = self.directory / cleanup.LOG
        command = (sys.executable, "-m", program, *self.words)
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "demo.cleanup", str(self.directory), *_with_a_model(size.kind, model, command)],
            env={
                **{name: os.environ[name] for name in os.environ if not name.startswith(_SETTINGS)},
                RUN_DIR_VARIABLE: str(self.run_dir),
                host_usage.ENVIRONMENT: str(self.directory / "devices"),
                "OPENBLAS_NUM_THREADS": "1",  # its threads would wait for each other in a loop
                "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
                **size.environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the demo alone
        )
        self._kept = False

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
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ASK_S)
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
        patience_s = VLLM_PATIENCE_S if self.kind == "vllm" else PATIENCE_S
        end = time.monotonic() + patience_s
        while (found := look()) is None:
            if self._has_ended():
                raise CantPlay(f"failover up has ended by itself; it said last: {self._last_words()}")
            if time.monotonic() > end:
                raise NotSo(f"not within {patience_s:g} s: {what}; failover up said last: {self._last_words()}")
            time.sleep(LOOK_S)
        return found

    def pidfd_of(self, module: str) -> tuple[int, int]:
        """Which process of `failover up` runs this module: its pid and a pidfd."""
        for pid in process_tree.descendants(self._keeper.pid):
            with contextlib.suppress(OSError):
                if f"\0-m\0{module}\0" in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace"):
                    return pid, os.pidfd_open(pid)
        raise NotSo(f"no process of failover up runs {module}")

    def pidfd_of_main(self, pid: int) -> int:
        """Raises NotSo if it is no process of this pair."""
        if pid not in process_tree.descendants(self._keeper.pid):
            raise NotSo(f"process {pid}, which serves as the lock server says, is none of this pair's")
        return os.pidfd_open(pid)

    def _has_ended(self) -> bool:
        assert self._keeper.stdout is not None
        return bool(select.select([self._keeper.stdout], [], [], 0)[0])

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        told = [line for line in lines if line.strip() and not any(words in line for words in _NOTHING_NEW)]
        return told[-1] if told else "nothing"

    # -- the end ---------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """It stays when the demo has ended, until `failover down`."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(cleanup.KEEP)
        self._keeper.stdin.flush()
        self._kept = True
        for number in (signal.SIGINT, signal.SIGTERM):  # nothing is left to be undone
            signal.signal(number, signal.SIG_IGN)

    def close(self) -> None:
        """Ends all processes and removes all files. Not to be interrupted: it takes seconds at most."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        if not self._kept:
            self._keeper.communicate()
        for number, handler in before.items():
            signal.signal(number, handler)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def vllm() -> Size:
    """The tiny model that the tests have, on the CPU. Raises CantPlay."""
    if importlib.util.find_spec("vllm") is None:
        raise CantPlay(f"this Python ({sys.executable}) lacks vllm: make demo ENGINE=vllm has one of its own")
    from tests.vllm.pair import BLOCK, ENVIRONMENT, NAME

    model = ("--served-model-name", NAME, "--dtype", "float32", "--enforce-eager", "--max-model-len", "1024")
    return Size(28, 16, (*model, "--max-num-seqs", "8", "--block-size", str(BLOCK)), "vllm", ENVIRONMENT)


def _with_a_model(kind: str, model: tuple[str, ...], command: tuple[str, ...]) -> tuple[str, ...]:
    """vLLM's is made before it is started, by the same process: nothing of it is anywhere else."""
    if kind == "reference":
        return command
    script = '"$1" -m tests.vllm.tiny_model "$0" && exec "$@"'
    return ("sh", "-c", script, model[1], *command)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])

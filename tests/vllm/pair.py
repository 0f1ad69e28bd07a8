"""A pair of vLLM engines on the CPU, and what can be asked of it."""

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockserver.onlooker import Onlooker
from sidecar.rendezvous import address_of
from tests.engine.house import DEADLINE_S, House, Process, Program, Shim, until
from tests.engine.kinds import Kind

NAME = "tiny"
KV_BYTES = 16 << 20
CAPACITY = "28MiB"
"""Of a device: weights (2 MiB), a KV cache, and what another engine needs to start; not two caches."""
PROMPT = "the other one is awake"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else two ranks want more cores than there may be
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def kind(model: Path, ranks: int, engine: str = "vllm") -> Kind:
    arguments = (
        *("--model", str(model), "--served-model-name", NAME, "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", "512", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(KV_BYTES)),
        *("--tensor-parallel-size", str(ranks)),
    )
    devices = ",".join(f"host:{rank}" for rank in range(ranks))
    return Kind("vllm", engine, arguments, "/v1/models", ("--devices", devices, "--capacity", CAPACITY))


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=DEADLINE_S)
        self._path = Path(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        with address_of(self._path) as address:
            self.sock.connect(address)


@dataclass
class Answer:
    """One that is being streamed."""

    connection: _Unix
    response: http.client.HTTPResponse

    def pieces(self) -> Iterator[dict[str, Any]]:
        for line in self.response:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])

    def tokens(self) -> list[int]:
        found: list[int] = []
        for piece in self.pieces():
            for choice in piece["choices"]:
                found += choice.get("token_ids") or []
        self.connection.close()
        return found


def ask(url: str, count: int, prompt: str = PROMPT) -> Answer:
    """A completion at temperature 0, streamed."""
    body = {
        "model": NAME,
        "prompt": prompt,
        "max_tokens": count,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    connection = _Unix(url.removeprefix("unix:"))
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise AssertionError(f"{response.status}: {response.read()!r}")
    return Answer(connection, response)


class Pair:
    def __init__(self, house: House, model: Path, ranks: int, *more: str) -> None:
        self.house = house
        self.kind = kind(model, ranks)
        self.ranks = ranks
        house.start_lock()
        house.start_gms(self.kind)
        began = time.monotonic()
        a = house.shim(self.kind, "a", *more)
        a.until("Active", ready=True)
        self.tokens(1)
        self.cold_start_s = time.monotonic() - began
        """From nothing to an engine that has answered."""
        self.shims = (a, house.shim(self.kind, "b", *more))
        self.whole()

    def whole(self) -> tuple[Shim, Shim]:
        """Who serves and who is ready to, once both are. Right after a kill it may still look as before: wait for the
        successor first.
        """
        return until(self._settled, "one serves and the other is ready") or self.shims

    def _settled(self) -> tuple[Shim, Shim] | None:
        first = self.house.holder()
        active, standby = sorted(self.shims, key=lambda shim: shim.engine_id != first)
        states = [(state["state"], state["ready"]) for state in (active.state(), standby.state())]
        settled = first and self.house.endpoint() and states == [("Active", True), ("Standby", True)]
        return (active, standby) if settled else None

    def tokens(self, count: int = 24) -> list[int]:
        return ask(self.house.endpoint(), count).tokens()

    def gms(self) -> Program:
        return next(program for program in reversed(self.house.programs) if program.log.name == "gms.log")

    def successor(self, old: str) -> str:
        """The endpoint after this one, as soon as it is announced."""
        with Onlooker(self.house.run_dir) as onlooker:
            for status in onlooker.watch():
                url = status.holder.endpoint if status.holder is not None else ""
                if url and url != old:
                    return url
        raise AssertionError("the lock server went")


def end(house: House) -> None:
    """Shims that are told to end remove what their engines have left in /dev/shm; killed ones can't."""
    shims = [program for program in house.programs if isinstance(program, Shim)]
    for shim in shims:
        shim.signal(signal.SIGTERM)
    for shim in shims:
        shim.wait()


def victim(shim: Shim, which: str) -> Process:
    """`main`, `core` (EngineCore), or `worker` (the last rank's)."""
    if which == "main":
        return shim.main()
    words = {"core": b"EngineCore", "worker": b"Worker"}[which]
    found = [each for each in shim.tree() if words in command_of(each)]
    assert found, f"no {which} among {[command_of(each) for each in shim.tree()]}"
    return found[-1]


def command_of(process: Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return b""

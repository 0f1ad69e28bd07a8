"""A pair of vLLM engines on the CPU, and what can be asked of it."""

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_shim.shell import scratch
from gms.memory.host import HostMemory
from gms.rules.messages import Status as Weights
from lockserver.observer import Observer
from sidecar.wire.sockets import address_of
from tests.engine import census
from tests.engine.kinds import Kind
from tests.engine.shims import House, Shim
from tests.support.processes import Process, cmdline
from tests.support.waiting import DEADLINE_S, until

NAME = "tiny"
KV_BYTES = 16 << 20
BLOCK = 32  # attention on the CPU wants multiples of it
"""Tokens. vLLM's own size on the CPU is 128: few answers here would fill a block, and nothing would be kept."""
CAPACITY = "28MiB"
"""Room for weights (2 MiB), a KV cache, and what another engine needs to start; not for two caches."""
PROMPT = "the other one is awake"
STALL_S, WAKING_TIMEOUT_S = 10, 20
ENGINE = "tests.vllm.holding:make"
DISARMED = "FAILOVER_TEST_DISARMED"
UNCOMPILED = {"TORCH_COMPILE_DISABLE": "1"}
"""What vLLM compiles on first use even with --enforce-eager takes seconds of every start: here it isn't compiled.
`test_default_arguments.py` goes without this."""
ENVIRONMENT = {
    **UNCOMPILED,
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else two ranks want more cores than there may be
    "VLLM_LOGGING_LEVEL": "WARNING",
    # With one rank EngineCore is the worker, as on a GPU; else vLLM has one beside it on the CPU, to bind its threads.
    # A start is shorter by a third.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def kind(model: Path, ranks: int, engine: str = "vllm") -> Kind:
    arguments = (
        *("--model", str(model), "--served-model-name", NAME, "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", "512", "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(KV_BYTES)),
        *("--tensor-parallel-size", str(ranks), "--block-size", str(BLOCK)),
    )
    devices = ",".join(f"host:{rank}" for rank in range(ranks))
    gms = ("--devices", devices, "--capacity", CAPACITY)
    return Kind("vllm", engine, arguments, "/v1/models", gms, ("--memory", "host"))


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
        pieces = list(self.pieces())
        for piece in pieces:
            for choice in piece["choices"]:
                found += choice.get("token_ids") or []
        self.connection.close()
        assert found, f"no tokens came, but {pieces}"
        return found


def ask(url: str, count: int, prompt: str = PROMPT) -> Answer:
    """A completion at temperature 0, streamed."""
    connection = asked(url, count, prompt)
    response = connection.getresponse()
    if response.status != 200:
        raise AssertionError(f"{response.status}: {response.read()!r}")
    return Answer(connection, response)


def asked(url: str, count: int, prompt: str = PROMPT) -> _Unix:
    """The same, before anything has been answered."""
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
    return connection


class Pair:
    """Nothing of it runs until `start`, or until a test has started it piece by piece."""

    def __init__(self, house: House, model: Path, ranks: int) -> None:
        self.house = house
        self.model = model
        self.kind = kind(model, ranks, ENGINE)
        self.ranks = ranks
        self.shims: tuple[Shim, ...] = ()
        self.expected: list[int] = []
        """What has been answered once, and is from then on."""
        self.census: dict[str, int] = {}
        self.counted_resident = 0
        self.turns = 0
        """How often another engine serves, since the census."""
        self.litter: set[str] = set()
        """Names of files that engines had outside of the run directory."""
        self._last_url = ""
        self.disarmed = house.directory / "disarmed"
        self.disarmed.mkdir()
        path = [str(Path(__file__).parent / "disarming"), os.environ.get("PYTHONPATH", "")]
        house.environment |= {"PYTHONPATH": os.pathsep.join(filter(None, path)), DISARMED: str(self.disarmed)}

    def start(self) -> None:
        """For all that follows; the next calls change nothing."""
        if self.shims:
            return
        self.servers()
        self.shims = (self.shim("a"), self.shim("b"))
        self.whole()
        self.answers_as_ever()

    def servers(self) -> None:
        self.house.start_lock(*self.kind.lock)
        self.house.start_gms(self.kind)

    def shim(self, engine_id: str, *more: str, arguments: tuple[str, ...] = ()) -> Shim:
        bounds = ("--stall-s", str(STALL_S), "--waking-timeout-s", str(WAKING_TIMEOUT_S))
        arguments = (*arguments, str(self.house.faults(engine_id)))
        return self.house.shim(self.kind, engine_id, *bounds, *more, arguments=arguments)

    def again(self, ended: Shim) -> Shim:
        """Another shim in the place of one that has ended."""
        ended.child.wait()
        new = self.shim(ended.engine_id)
        self.shims = tuple(new if shim is ended else shim for shim in self.shims)
        return new

    def whole(self) -> tuple[Shim, Shim]:
        """Who serves and who is ready to, once both are. Right after a kill it may still look as before: wait for the
        successor first.
        """
        try:
            return until(self._settled, "one serves and the other is ready") or self.both
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._said()}") from None

    def _said(self) -> str:
        return "\n".join(f"{shim.engine_id}: {shim.state()}\n{shim.said()[-3000:]}" for shim in self.shims)

    @property
    def both(self) -> tuple[Shim, Shim]:
        first, second = self.shims
        return first, second

    def _settled(self) -> tuple[Shim, Shim] | None:
        first = self.house.holder()
        active, standby = sorted(self.shims, key=lambda shim: shim.engine_id != first)
        states = [(state["state"], state["ready"]) for state in (active.state(), standby.state())]
        settled = first and self.house.endpoint() and states == [("Active", True), ("Standby", True)]
        return (active, standby) if settled else None

    def settles(self, active: Shim, standby: Shim) -> None:
        """One serves, the other is ready to, only the one is to be found, and it answers the same as ever."""
        assert self.whole() == (active, standby)
        url = self.house.endpoint()
        assert url == active.state()["url"] and not self.house.endpoints(standby.engine_id)
        self.answers_as_ever()
        self.turns += url != self._last_url
        self._last_url = url
        self.litter |= self._outside()

    def answers_as_ever(self) -> None:
        try:
            tokens = self.tokens()
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._said()}") from None
        self.expected = self.expected or tokens
        assert tokens == self.expected, f"{tokens}; before: {self.expected}\n{self._said()}"

    def tokens(self, count: int = 24) -> list[int]:
        return ask(self.house.endpoint(), count).tokens()

    def successor(self, old: str) -> str:
        """The endpoint after this one, as soon as it is announced."""
        with Observer(self.house.run_dir) as observer:
            for status in observer.watch():
                url = status.holder.endpoint if status.holder is not None else ""
                if url and url != old:
                    return url
        raise AssertionError("the lock server went")

    # -- in the middle of something --------------------------------------------------------------------------------

    def hold(self, engine_id: str, where: str) -> Path:
        """Its next start or wake stops on the way, until this file goes."""
        directory = self.house.faults(engine_id)
        (directory / f"at_{where}").unlink(missing_ok=True)
        (directory / f"hold_{where}").touch()
        return directory / f"hold_{where}"

    def let_go(self) -> None:
        """Lets go of whatever a test that failed has left held."""
        for shim in self.shims:
            for held in self.house.faults(shim.engine_id).glob("hold_*"):
                held.unlink()

    def reaches(self, shim: Shim, where: str) -> None:
        until((self.house.faults(shim.engine_id) / f"at_{where}").exists, f"{shim.engine_id} is at its {where}")

    def disarm(self, process: Process) -> None:
        """It outlives its parent from now on."""
        process.signal(signal.SIGUSR2)
        until((self.disarmed / str(process.pid)).exists, f"{process.pid} is disarmed")

    def memory(self) -> HostMemory:
        """The last rank's device."""
        return HostMemory(str(self.ranks - 1), self.house.devices)

    def weights(self) -> Weights | None:
        """What the last rank's GMS says."""
        return self.house.weights(f"host:{self.ranks - 1}")

    def an_engine_waits_for_weights(self) -> bool:
        said = self.weights()
        return said is not None and any(client.doing == "waiting" for client in said.clients)

    def an_engine_waits_for_room_to_write(self) -> bool:
        said = self.weights()
        return said is not None and said.state == "RW" and bool(said.waiting_for)

    # -- what there is ---------------------------------------------------------------------------------------------

    def begin_to_count(self) -> None:
        """Counts what a whole pair has. Once is enough."""
        if self.census:
            return
        self.whole()
        for shim in self.shims:
            kept(shim)  # a shim speaks HTTP in a thread that begins with its first client
        until(lambda: self.count() == self.count(), "all connections of the last change are made, or closed")
        self.census, self.counted_resident, self.turns = self.count(), self.resident(), 0

    def count(self) -> dict[str, int]:
        """What must not grow."""
        found = census.count(self.house, self.shims, str(self.ranks - 1))
        return {**found, "files outside": len(self._outside())}

    def resident(self) -> int:
        """Bytes of those that live on: servers and shims."""
        return sum(census.resident(self.house, self.shims).values())

    def lying_about(self) -> set[str]:
        """Files that engines had outside of the run directory, and that no process has any more."""
        return {name for name in self.litter - self._outside() if Path(name).exists()}

    def _outside(self) -> set[str]:
        """Shared memory that engines have mapped, and the files by which ranks find each other."""
        found = set()
        for shim in self.shims:
            for process in shim.tree():
                with open(f"/proc/{process.pid}/maps") as maps:
                    lines = [line.rpartition(" ")[2].strip() for line in maps if " /dev/shm/" in line]
                    found |= {line for line in lines if Path(line).parent == Path("/dev/shm")}
            found.update(self.elsewhere(shim))
        return found

    def elsewhere(self, shim: Shim) -> list[str]:
        """The files by which its ranks find each other. vLLM 0.26 has none: its ranks find each other by an address."""
        try:
            return (scratch.directory(self.house.run_dir, shim.engine_id) / "elsewhere").read_text().split()
        except FileNotFoundError:
            return []


def kept(shim: Shim) -> tuple[int, int]:
    """How many of its wakes took over all that there was, and how many blocks all of its wakes did: by its metrics,
    over all starts.
    """
    page = f"\n{shim.get('/metrics')[1]}"
    names = ('failover_engine_kv_wakes_total{why="none"}', "failover_engine_kv_blocks_adopted_total")
    wakes, blocks = (int(float(page.partition(f"\n{name} ")[2].partition("\n")[0] or 0)) for name in names)
    return wakes, blocks


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
    found = [each for each in shim.tree() if words in cmdline(each.pid)]
    assert found, f"no {which} among {[cmdline(each.pid) for each in shim.tree()]}"
    return found[-1]

"""vLLM's pair on a GPU: `python -m tests.gpu.engine PART DEVICE SECONDS` prints one JSON object. It is called by
`__main__.py`.

pair   a small model: cold start, memory of a standby, takeovers, and a killed engine that comes back as the standby
       while the survivor serves
wake   one engine with synthetic weights of several sizes, asleep and awake again and again

NOT YET RUN ON A GPU. With the device `host:0` it runs on the CPU with the tiny model of `tests/vllm`: that proves the
script, and its figures mean nothing.
"""

import dataclasses
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # read when tests.engine.shims is loaded
    os.environ["FAILOVER_CHAOS_DEADLINE_S"] = sys.argv[3]

from bench.pair import MAIN, Pair, Takeover, house
from bench.stage import Broken
from gms.client import Memory, open_memory
from gms.memory import DeviceError
from tests.engine.kinds import Kind
from tests.engine.shims import House
from tests.gpu import plan

Counters = dict[str, Any]
ROUNDS = 5
CAPACITY = "28MiB"
"""A host device's."""
NAMED = "tiny"
NAPPER = "tests.gpu.sleep_and_wake:make"
_FIGURE = re.compile(r"(\w+)=(\d+)")
MEMORY_LINE = " vllm-worker memory "


@dataclasses.dataclass
class Place:
    """Where it is measured."""

    device: str
    end: float
    """When there is no more time."""
    directory: Path
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def on_host(self) -> bool:
        return self.device.startswith("host:")

    @property
    def left_s(self) -> float:
        return self.end - time.monotonic()

    def kind(self, model: Path, *more: str, engine: str = "vllm", first: tuple[str, ...] = ()) -> Kind:
        words = ["--model", str(model), "--served-model-name", NAMED, "--max-model-len", "512", "--max-num-seqs", "4"]
        if self.on_host:
            words += ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "16M"]
            gms: tuple[str, ...] = ("--devices", self.device, "--capacity", CAPACITY)
        else:
            words += ["--dtype", "bfloat16", "--load-format", "dummy", *more]
            gms = ("--devices", self.device)
        return Kind("vllm", engine, (*first, *words), "/v1/models", gms)

    def model(self, model: plan.Model) -> Path:
        """On the host, always the tiny one."""
        from tests.vllm import tiny_model

        made = tiny_model.make(self.directory / f"model-{model.layers}")
        if not self.on_host:
            (made / "model.safetensors").unlink()
            (made / "config.json").write_text(json.dumps(model.config()))
        return made


def why_not(device: str) -> str:
    """What is missing for these parts, in a sentence; empty if nothing is."""
    try:
        import torch
    except ImportError as error:
        return f"torch isn't there ({error}): these parts run vLLM"
    try:
        from engine_shim.vllm_engine import versions
    except ImportError as error:
        return f"{error}; put one that fits torch {torch.__version__} into PYTHONPATH"
    if not device.startswith("host:") and not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    if device.startswith("host:") is not versions.on_cpu():
        return f"vLLM {versions.VERSION} here is for another platform than {device}"
    return ""


# -- the parts -----------------------------------------------------------------------------------------------------


def measure_pair(place: Place) -> Counters:
    figures: Counters = {}
    with _house(place) as here:
        pair = Pair(here, place.kind(place.model(plan.SMALL)), NAMED, "a", deadline_s=place.left_s)
        figures["cold_start_s"] = pair.cold_start_ns / 1e9
        before = _free(here, place)
        began = time.monotonic()
        pair.shims.append(here.shim(place.kind(place.model(plan.SMALL)), "b"))
        pair.whole()
        figures["second_start_s"] = time.monotonic() - began
        figures["standby_bytes"] = before - _free(here, place)
        figures |= planned(pair.shims[1].said())
        figures["survivor"] = survivor_serves(pair)
        figures["standby_again_s"] = figures["survivor"]["whole_s"]
        taken: list[Takeover] = []
        while len(taken) < ROUNDS and place.left_s > 1.5 * figures["standby_again_s"]:
            taken.append(pair.takeover(MAIN))
        figures["takeovers"] = [
            {"phases_ns": one.phases, "beside_ns": one.beside, "whole_ns": one.whole} for one in taken
        ]
        figures |= of_takeovers(taken)
    return figures


def survivor_serves(pair: Pair) -> Counters:
    """The active main process is killed; the other is asked again and again until the killed one is back."""
    active, standby = pair.whole()
    idle = [asked(pair) for _ in range(10)]
    old = pair.house.endpoint()
    began = time.monotonic()
    active.main().signal(9)
    pair.until(lambda: pair.house.endpoint() not in ("", old), "the other engine to serve")
    answers = [asked(pair)]

    def back() -> bool:
        answers.append(asked(pair))
        state = active.state()
        return (state["state"], state["ready"]) == ("Standby", True)

    pair.until(back, "the killed engine to be the standby again")
    whole_s = time.monotonic() - began
    if standby.state()["state"] != "Active":
        raise Broken(f"{standby.engine_id} took over, and did not serve until the other was back")
    wrong = sum(tokens != idle[0][1] for _, tokens in answers)
    return {
        "whole_s": whole_s,
        "answers": len(answers),
        "other_tokens": wrong,
        "idle_median_s": statistics.median(spent for spent, _ in idle),
        "median_s": statistics.median(spent for spent, _ in answers),
        "worst_s": max(spent for spent, _ in answers),
    }


def asked(pair: Pair) -> tuple[float, list[int]]:
    """How long until the first token, and all of them."""
    began = time.monotonic_ns()
    first, tokens = pair.ask()
    return (first - began) / 1e9, tokens


def of_takeovers(taken: list[Takeover]) -> Counters:
    """Medians."""
    if not taken:
        return {}

    def median(of: Callable[[Takeover], int]) -> float:
        return statistics.median(of(one) for one in taken) / 1e9

    return {
        "kill_to_first_token_s": median(lambda one: one.total),
        "kill_to_lock_s": median(lambda one: one.phases["processes dead"] + one.phases["lock granted"]),
        "lock_to_awake_s": median(
            lambda one: one.phases["weights mapped"] + one.phases["KV cache created"] + one.phases["awake"]
        ),
    }


def planned(said: str) -> Counters:
    """What the worker wrote of its memory, from its engine's log."""
    lines = [line for line in said.splitlines() if MEMORY_LINE in line]
    if not lines:
        return {}
    found = {name: int(value) for name, value in _FIGURE.findall(lines[-1].partition(MEMORY_LINE)[2])}
    return {"planned": found, "scratch_bytes": found.get("kv_scratch", 0)}


def measure_wake(place: Place) -> Counters:
    total = open_memory(place.device).capacity() if not place.on_host else 0
    sizes, left_out = plan.fitting(place.device, total) if not place.on_host else ([0], {})
    measured: list[Counters] = []
    for gib in sizes:
        if measured and place.left_s < plan.LEAST_S:
            left_out[gib] = "no time was left for it"
            continue
        measured.append(_naps(place, gib))
    return {"sizes": measured, "left_out": {str(gib): why for gib, why in left_out.items()}}


def _naps(place: Place, gib: int) -> Counters:
    notes = place.directory / f"notes-{gib}"
    model = place.model(plan.synthetic(gib))
    with _house(place) as here:
        more = ("--enforce-eager", "--kv-cache-memory-bytes", str(plan.KV_BYTES))
        kind = place.kind(model, *more, engine=NAPPER, first=(str(notes),))
        began = time.monotonic()
        Pair(here, kind, NAMED, "a", deadline_s=place.left_s)
        start_s = time.monotonic() - began
    return of_naps(json.loads(notes.read_text()), start_s)


def of_naps(notes: dict[str, Any], start_s: float) -> Counters:
    """Medians of all but the first wake."""
    wakes = notes["wakes"][1:]
    medians = {name: statistics.median(wake[name] for wake in wakes) for name in ("wake_s", "remap", "kv")}
    return {
        "weights_bytes": sum(notes["slabs"]),
        "slabs": len(notes["slabs"]),
        "wake_s": medians["wake_s"],
        "wake_worst_s": max(wake["wake_s"] for wake in wakes),
        "remap_s": medians["remap"],
        "kv_s": medians["kv"],
        "start_s": start_s,
    }


PARTS: dict[str, Callable[[Place], Counters]] = {"pair": measure_pair, "wake": measure_wake}


# -- within --------------------------------------------------------------------------------------------------------


@contextmanager
def _house(place: Place) -> Iterator[House]:
    with house(place.directory, place.environment) as here:
        yield here


def _free(here: House, place: Place) -> int:
    if place.on_host:
        from gms.memory.host import HostMemory

        memory: Memory = HostMemory(place.device.removeprefix("host:"), here.devices)
    else:
        memory = open_memory(place.device)
    try:
        return memory.free()
    finally:
        memory.close()


def _environment(device: str) -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if device.startswith("host:"):
        return {**quiet, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return {**quiet, "CUDA_VISIBLE_DEVICES": device}


def main(part: str, device: str, seconds: str) -> int:
    missing = why_not(device)
    if missing:
        print(json.dumps({"skipped": missing}))
        return 0
    end = time.monotonic() + float(seconds)
    with tempfile.TemporaryDirectory(prefix="failover-gpu-", dir="/dev/shm") as directory:
        place = Place(device, end, Path(directory), _environment(device))
        try:
            result: Counters = {"passed": True, "figures": PARTS[part](place)}
        except (Broken, DeviceError, AssertionError) as error:
            result = {"passed": False, "why": str(error)[-6000:]}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

"""The programs of a host with many models that `failover models up` runs: which there are, and their command lines.

    lock      decides which engine of each model may be awake: one process, a lock for each model
    ledger    decides which models fit: leases in bytes
    gms       owns all models' weights
    pool      wishes which model should be awake next
    door      where clients come
    NAME      the shims of a model's engines; what the pool says is started, and ended

What this file may not do: know anything about these programs that isn't in their command lines.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine_shim.cli import part_environment
from engine_shim.cli.pair_parts import DOOR_MODULE, door_url
from engine_shim.rules.hopeless_parts import DOOR, GMS, LEDGER, LOCK, POOL
from engine_shim.shell import known_engines
from pool.entries import Entry
from pool.launching import LOCKS
from pool.models_file import ModelsFile, model_rules, size
from sidecar.machine.supervisor import Child
from sidecar.wire import tcp

ENGINE_IDS = ("a", "b")
BASE = (LOCK, LEDGER, GMS)
ROOM_S = 10.0
"""Beside another's drain a wake waits no longer for memory: then it has failed, others go on, and it is tried again."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
LOADS = {"FAILOVER_WAKING_TIMEOUT_S": "600"}
"""A command's wake is its start, with all that it loads."""
CALLED = {"vllm": "--served-model-name", "reference": "--model"}
"""By which each engine is told what it is called: the door asks for it by that name."""


@dataclass(frozen=True)
class Options:
    run_dir: Path
    models: Path
    """The file."""
    spec: ModelsFile
    """As it was at the start: what of it concerns these programs holds until they are started again."""
    devices: tuple[str, ...]
    listen: tuple[str, int]
    drain_s: float
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def on_host(self) -> bool:
        return any(device.startswith("host:") for device in self.devices)

    @property
    def address(self) -> str:
        return door_url(*self.listen)

    def run_dir_of(self, model: str) -> Path:
        return self.run_dir / LOCKS / model


def default_devices(run_dir: Path, gpus: bool) -> tuple[str, ...]:
    if gpus:
        return ("cuda",)
    return (f"host:{hashlib.sha256(os.fsencode(os.path.realpath(run_dir))).hexdigest()[:8]}",)


def children(options: Options) -> list[Child]:
    """But for the models' own."""
    place, spec = ("--run-dir", str(options.run_dir)), options.spec
    memory = ("--memory", "host" if options.on_host else "auto")
    capacity = ("--capacity", str(size(spec.capacity))) if options.on_host else ()
    named = ("--devices", ",".join(options.devices)) if "cuda" not in options.devices else ()
    metrics = ("--metrics", spec.metrics) if spec.metrics else ()
    parked = () if spec.host_memory == "" else ("--host-memory", str(size(spec.host_memory)))
    on = ("--devices", ",".join(options.devices))

    def child(name: str, part: str, *command: str) -> Child:
        return Child(name, command, part_environment.told(part, options.environment), _kept(options))

    keep_free = ("--keep-free", str(size(spec.keep_free)))
    return [
        child(LOCK, part_environment.LOCK, "lockserver", "--locks", str(options.run_dir / LOCKS), *memory),
        child(LEDGER, part_environment.LEDGER, "vram", *place, *memory, *keep_free),
        child(GMS, part_environment.GMS, "gms", *place, "--ledger", *on, *capacity, *parked),
        child(POOL, part_environment.POOL, "pool", *place, "--models", str(options.models), *named, *metrics),
        child(
            DOOR, part_environment.DOOR, DOOR_MODULE, "--pool", str(options.run_dir),
            "--listen", tcp.named(*options.listen),
            "--shutdown-delay-s", "0", "--shutdown-drain-s", f"{options.drain_s:g}",
        ),
    ]  # fmt: skip


def engines(options: Options, entry: Entry, devices: list[str]) -> list[Child]:
    """A model's shims: one, or two with a standby."""
    found = []
    ids = ENGINE_IDS if entry.standby else ENGINE_IDS[:1]
    variable = known_engines.DEVICES.get(entry.engine)
    told = {variable: ",".join(devices)} if variable and devices and "cuda" not in devices else {}
    gpus = ",".join(device for device in devices if device.startswith("GPU-"))
    shown = entry.devices or VISIBLE not in options.environment  # it uses what it leases, and no more
    environment = part_environment.told(part_environment.ENGINES, options.environment)
    environment |= {VISIBLE: gpus} if gpus and shown else {}
    for number, engine_id in enumerate(ids):
        name = f"{entry.name}.{engine_id}" if entry.standby else entry.name
        who = ("--engine", entry.engine, "--engine-id", engine_id, "--role", "shadow" if number else "primary")
        place = ("--run-dir", str(options.run_dir_of(entry.name)), "--host-dir", str(options.run_dir))
        drains = [one.drain_s or 0.0 for one in options.spec.models.values()]
        room_s = ROOM_S + max(options.spec.drain_s, *drains, 0.0)
        how = ("--probe", "127.0.0.1:0", "--drain-s", f"{options.drain_s:g}", "--room-timeout-s", f"{room_s:g}")
        named = ("--weights", entry.weights) if entry.weights else ()
        snapshot = ("--snapshot", entry.snapshot) if entry.snapshot else ()
        parked = ("--kv", "keep", "--kv-parked", str(entry.kv_parked)) if entry.kv_parked else ()
        needs = ",".join(f"{device}={most}" for device, most in model_rules(entry, devices).bytes.items())
        health = ("--health", entry.health, "--needs", needs) if entry.command else ()
        called = (CALLED[entry.engine], entry.name) if entry.engine in CALLED else ()
        own = entry.command or (*entry.arguments, *called)
        words = (*who, *place, *how, *named, *snapshot, *parked, *health, "--", *own)
        loads = LOADS if entry.command and LOADS.keys().isdisjoint(options.environment) else {}
        its = {**loads, **environment, **entry.environment, **told}
        found.append(Child(name, ("engine_shim", *words), its, _kept(options)))
    return found


def _kept(options: Options) -> frozenset[str]:
    return part_environment.kept_from_parts(options.environment)

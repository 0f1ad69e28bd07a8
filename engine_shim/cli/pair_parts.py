"""The programs of a pair that `failover up` runs: which there are, and their command lines.

    lock    decides which engine may be awake
    gms     owns the weights
    a, b    the shims of the two engines; each starts its own engine again
    door    where clients come (`gateway`)

What this file may not do: know anything about the lock, GMS or an engine that isn't in their command lines.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine_shim.cli import part_environment
from engine_shim.rules.hopeless_parts import DOOR, GMS, LOCK
from engine_shim.shell import known_engines
from sidecar.machine.supervisor import Child
from sidecar.wire import tcp

DOOR_MODULE = "gateway"
UNPROVEN = (
    "--devices none: no memory is read that could prove a holder's end, so the lock server has --grant-unproven: after "
    "everything was killed at once, a holder whose life lock is free is taken for gone"
)


@dataclass(frozen=True)
class Options:
    run_dir: Path
    engine: str
    devices: tuple[str, ...]
    capacity: str
    engine_ids: tuple[str, ...]
    shim: tuple[str, ...]
    """Further settings of the shims."""
    arguments: tuple[str, ...]
    listen: tuple[str, int] | None = None
    """Where clients come; None: there is no door."""
    door: tuple[str, ...] = ()
    """Further settings of the door."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """That of `failover up`."""

    @property
    def address(self) -> str:
        """The door's."""
        return door_url(*(self.listen or ("", 0)))


def door_url(host: str, port: int) -> str:
    """As a client on this machine writes it."""
    return f"http://{tcp.named('localhost' if host in ('', '0.0.0.0', '::') else host, port)}"


def gms_listens(run_dir: Path, devices: Sequence[str]) -> bool:
    """On each host device, or on a GPU: which of them `cuda` stands for isn't known here."""
    named, gms = [device for device in devices if device.startswith("host:")], run_dir / "gms"
    return all((gms / f"{device}.sock").exists() for device in named) if named else any(gms.glob("*.sock"))


def children(options: Options) -> list[Child]:
    place = ("--run-dir", str(options.run_dir))
    on_host = any(device.startswith("host:") for device in options.devices)
    memory: tuple[str, ...] = ("--memory", "host" if on_host else "auto")
    if not options.devices:  # an engine that needs memory would wait for ever after everything was killed at once
        memory = ("--memory", "none", "--grant-unproven")
    kept = part_environment.kept_from_parts(options.environment)

    def child(name: str, part: str, command: tuple[str, ...], told: Mapping[str, str] | None = None) -> Child:
        return Child(name, command, {**part_environment.told(part, options.environment), **(told or {})}, kept)

    found = [child(LOCK, part_environment.LOCK, ("lockserver", *place, *memory))]
    if options.devices:
        size = ("--capacity", options.capacity) if on_host else ()
        command = ("gms", *place, "--devices", ",".join(options.devices), *size)
        found.append(child(GMS, part_environment.GMS, command))
    variable = known_engines.DEVICES.get(options.engine)
    named = options.devices and "cuda" not in options.devices  # cuda stands for as many GPUs as the engine has ranks
    told = {variable: ",".join(options.devices)} if variable and named else {}
    for number, engine_id in enumerate(options.engine_ids):
        role = "shadow" if number else "primary"
        who = ("--engine", options.engine, "--engine-id", engine_id, "--role", role, "--probe", "127.0.0.1:0")
        command = ("engine_shim", *who, *place, *options.shim, "--", *options.arguments)
        found.append(child(engine_id, part_environment.ENGINES, command, told))
    if options.listen is not None:
        listen = ("--listen", tcp.named(*options.listen))
        found.append(child(DOOR, part_environment.DOOR, (DOOR_MODULE, *place, *listen, *options.door)))
    return found


def welcome(address: str, model: str = "") -> list[str]:
    """The door's address in a box, a command to paste, and the page to look at."""
    shown = f" OpenAI-compatible: {address}/v1 "
    edge = f"+{'-' * len(shown)}+"
    ask = f"curl {address}/v1/completions -H 'content-type: application/json'"
    body = json.dumps({**({"model": model} if model else {}), "prompt": "Hello", "max_tokens": 32})
    return [
        edge,
        f"|{shown}|",
        edge,
        f"{ask} -d '{body}'",
        f"what happens: {address}/failover/",
    ]

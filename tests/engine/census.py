"""What must not grow while a pair loses engine after engine: processes, descriptors, files, device memory, and the
memory of those that live on. The one place for what "flat" means: the scenarios, the vLLM tests, `make soak` ask here.
"""

import os
from collections.abc import Sequence

from gms.memory.host import HostMemory
from sidecar.kernel import process_tree
from tests.engine.shims import House, Program, Shim
from tests.support import processes

MOST_MORE = 16 << 20
"""Bytes that servers and shims together may come to have more."""


def count(house: House, shims: Sequence[Shim], device: str = "0", door: Program | None = None) -> dict[str, int]:
    servers = {"lock": house.lock, "gms": house.gms, "door": door, **{shim.engine_id: shim for shim in shims}}
    found = {f"descriptors of {name}": len(program.descriptors()) for name, program in servers.items() if program}
    found["descriptors of GMS's devices"] = sum(_descriptors(pid) for pid in of_devices(house))
    found["descriptors of engines"] = sum(_descriptors(each.pid) for shim in shims for each in shim.tree())
    found["processes"] = len(house.processes())
    found["files"] = len([name for _, _, names in os.walk(house.run_dir) for name in names])
    if (house.devices / device).exists():
        memory = HostMemory(device, house.devices)
        found["device"] = memory.capacity() - memory.free()
        memory.close()
    return found


def resident(house: House, shims: Sequence[Shim], door: Program | None = None) -> dict[str, int]:
    """Bytes of those that live on, by name."""
    programs = {"lock": house.lock, "GMS": house.gms, "door": door, "shims": None}
    found = {name: processes.resident(program.pid) for name, program in programs.items() if program}
    found["GMS's devices"] = sum(map(processes.resident, of_devices(house)))
    return found | {"shims": sum(processes.resident(shim.pid) for shim in shims)}


def grown(now: dict[str, int], first: dict[str, int], turns: int) -> list[str]:
    """What is more. Of an engine's own descriptors a few come and go (253 and 255 were seen, in either order): a leak
    would be one a turn at the least.
    """
    leaks = {"descriptors of engines": turns - 1}
    return [name for name in first if now[name] > first[name] + leaks.get(name, 0)]


def of_devices(house: House) -> list[int]:
    """GMS has a process for each, which has the descriptors."""
    return [] if house.gms is None else list(process_tree.descendants(house.gms.pid))


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))

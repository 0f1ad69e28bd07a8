"""The maker for a device's name. What a device doesn't need isn't loaded."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from gms.memory import Memory


def open_memory(device: str, host_devices: Path | None = None) -> Memory:
    """The device's memory, as this process sees it: `host:NAME`, or a GPU by its UUID. Raises DeviceError.
    `host_devices`: the directory of the host devices, if it isn't the usual one.
    """
    return memory_of(device, host_devices)()


def memory_of(device: str, host_devices: Path | None = None) -> Callable[[], Memory]:
    """Loads what opening it needs before anything is asked for: a Ctrl-C in the middle of an import can get lost, and a
    writer must hear it.
    """
    if device.startswith("host:"):
        from gms.memory.host import HostMemory

        return partial(HostMemory, device.removeprefix("host:"), host_devices)
    from gms.memory.cuda import CudaMemory

    return partial(CudaMemory, device)

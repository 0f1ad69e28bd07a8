"""Which accelerators this container got, and how much of their memory is in use.

Said by a flag, or by what gave them to it: `CUDA_VISIBLE_DEVICES`, the device plugin (`NVIDIA_VISIBLE_DEVICES`), or
what the driver shows in here, which is also how DRA gives them.
"""

from collections.abc import Mapping

_ALL = {"", "all", "none", "void"}


class NoDevices(Exception):
    """A sentence."""


def names(said: str, environment: Mapping[str, str]) -> list[str]:
    """Raises NoDevices."""
    for text in (said, environment.get("CUDA_VISIBLE_DEVICES", ""), environment.get("NVIDIA_VISIBLE_DEVICES", "")):
        if text.strip().lower() not in _ALL and "/" not in text:  # else a folder, with the devices in it
            return [name.strip() for name in text.split(",") if name.strip()]
    return list(memory_mib())


def memory_in_use() -> dict[str, int]:
    """In MiB, by UUID and by number: `names` may say the one or the other. Raises NoDevices."""
    found = memory_mib()
    return found | {str(number): mib for number, mib in enumerate(found.values())}


def memory_mib() -> dict[str, int]:
    """What is in use on each, in MiB: what FMA's requester answers. Raises NoDevices."""
    try:
        import pynvml as nvml
    except ImportError:
        raise NoDevices("the package nvidia-ml-py isn't installed, and no variable names accelerators") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoDevices(f"no driver is visible in this container: {error}") from None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
        used = [int(nvml.nvmlDeviceGetMemoryInfo(handle).used) >> 20 for handle in handles]
    except nvml.NVMLError as error:
        raise NoDevices(f"the driver doesn't say: {error}") from None
    finally:
        nvml.nvmlShutdown()
    if not handles:
        raise NoDevices("no accelerator is visible in this container")
    return {uuid.decode() if isinstance(uuid, bytes) else uuid: mib for uuid, mib in zip(uuids, used, strict=True)}

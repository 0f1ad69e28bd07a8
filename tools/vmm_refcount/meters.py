"""Who measures. Always from outside: never a process that has memory, and never by what a maker says of itself.

host   the ledger: which ranges of the device's file are locked, by the kernel's word
cuda   NVML. With the emulated driver its NVML is emulated too, and reads the locks on the emulated device's file
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gms.memory import Unusable
from sidecar.kernel import host_usage
from sidecar.terminal.extras import how_to_get

EMULATED = "Emulated GPU"  # what the names of the emulated driver's devices begin with


class Meter(NamedTuple):
    used: Callable[[], int]
    """Bytes of the device that are in use."""
    how: str
    """One sentence."""
    exact: bool
    """It counts this memory and nothing else. NVML also shows what the driver takes for itself meanwhile."""
    emulated: bool


def host_meter(device: Path) -> Meter:
    def used() -> int:
        free, in_all = host_usage.read_device(device)
        return in_all - free

    return Meter(used, f"the ledger: the kernel's locks on {device}", exact=True, emulated=False)


def nvml_meter(device: str) -> Meter:
    """For one GPU, by UUID. The same NVML that `nvidia-smi` shows."""
    try:
        import pynvml
    except ImportError:
        raise Unusable(f"--memory cuda is measured with nvidia-ml-py: {how_to_get('cuda')}") from None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(device)
        name = str(pynvml.nvmlDeviceGetName(handle))
        version = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        raise Unusable(f"NVML can't be used for {device} here: {error}") from None

    def used() -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)

    if name.startswith(EMULATED):
        how = "the EMULATED driver's NVML: the locks on its device's file, host memory. This says nothing of a GPU"
        return Meter(used, how, exact=True, emulated=True)
    return Meter(used, f"NVML ({name}, driver {version})", exact=False, emulated=False)

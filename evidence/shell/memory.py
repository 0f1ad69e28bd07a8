"""Readers of device memory: what is free, and what there is in all. The rules: `evidence/rules/free_memory.py`.

nvml   the GPUs of this machine, through nvidia-ml-py; devices are named by UUID (`GPU-...`), so that no order can be
confused
host   host devices, by the locks on them
none   the server reads none; status says `memory: unverified`
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue

from sidecar.kernel import host_usage
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.extras import how_to_get

Reader = Callable[[], dict[str, tuple[int, int]]]
"""Device -> (bytes free, bytes in all)."""

START_S = 2.0
"""How long the start of a server waits for the driver."""
KINDS = ("auto", "nvml", "host", "none")


class NoReader(CannotStart):
    """The reader that was asked for can't be had."""


def reader(kind: str, host_devices: Path) -> tuple[Reader | None, str]:
    """`auto` is nvml where it works, else none. And why there is none."""
    if kind == "host":
        return lambda: host_usage.read_devices(host_devices), ""
    if kind == "none":
        return None, "the server doesn't read it (--memory none)"
    if kind not in ("auto", "nvml"):
        raise ValueError(f"there is no reader of the kind {kind!r}: only {', '.join(KINDS)}")
    try:
        return _nvml(), ""
    except NoReader as error:
        if kind == "auto":
            return None, f"the server doesn't read it (--memory auto): {error}"
        raise


def reader_in_time(kind: str, host_devices: Path, patience_s: float = START_S) -> tuple[Reader | None, str]:
    """Like `reader`, from a thread of its own: a driver may hang as it is loaded, and the server is needed. Where it
    takes longer the reader that is returned waits for it. A driver that says after that time that it doesn't work is
    one that can't be read.
    """
    found: Queue[tuple[Reader | None, str] | NoReader] = Queue()
    came: tuple[Reader | None, str] | NoReader | None = None

    def find() -> None:
        try:
            found.put(reader(kind, host_devices))
        except NoReader as error:
            found.put(error)

    def late() -> dict[str, tuple[int, int]]:
        nonlocal came
        came = came or found.get()
        if isinstance(came, NoReader):
            raise came
        if came[0] is None:
            raise NoReader(f"{came[1]}; restart the server")
        return came[0]()

    threading.Thread(target=find, name="memory-start", daemon=True).start()
    try:
        came = found.get(timeout=patience_s)
    except Empty:
        return late, ""
    if isinstance(came, NoReader):
        raise came
    return came


def exclusive_name(device: str, host_devices: Path) -> str:
    """What names this very device in the network namespace (`sidecar/kernel/exclusive_names.py`)."""
    if not device.startswith("host:"):
        return f"device {device}"  # a GPU's name is its UUID
    try:
        there = os.stat(host_devices)
    except OSError:
        return f"device {device} {host_devices}"
    return f"device {device} {there.st_dev}:{there.st_ino}"


def _nvml() -> Reader:
    try:
        import pynvml
    except ImportError:
        raise NoReader(f"--memory nvml needs nvidia-ml-py: {how_to_get('nvml')}, or choose --memory none") from None
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    except pynvml.NVMLError as error:
        raise NoReader(
            f"NVML does not work here ({error}); is the driver mounted into this container? Else choose --memory none"
        ) from None
    if not handles:
        raise NoReader("NVML works here and finds no GPU; is one given to this container? Else choose --memory none")

    def read() -> dict[str, tuple[int, int]]:
        devices = {}
        for name, handle in zip(names, handles, strict=True):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            free, total = int(memory.free), int(memory.total)
            if not 0 <= free <= total:  # whatever such a driver says is no proof
                raise ValueError(f"NVML says that {free} of the {total} bytes of {name} are free")
            devices[str(name)] = (free, total)
        return devices

    return read

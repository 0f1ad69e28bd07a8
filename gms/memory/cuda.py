"""Device memory on a GPU, through the driver's virtual memory management (cuda-python's driver API).

Its rules:

* A device is named by its UUID, in the text that NVML gives (`GPU-...`). Ordinals differ between CUDA and NVML, and
  between processes (CUDA_VISIBLE_DEVICES).
* A server needs no context on the GPU, which would cost it some hundreds of MiB there: creating, exporting, importing
  and releasing are documented to need only cuInit. The device's primary context is retained at the first `map`, so in
  clients alone; it is the one that torch uses, and it is current only during a copy.
* Free memory comes from NVML, which needs no context either; cuMemGetInfo would.
* What the driver leaves undefined never reaches it (`Memory`): handles that were released (their use is "undefined
  behavior"), or parts of mappings and of reservations.

What this can't do, and the host's maker can: tell two pieces of memory apart without mapping them. All of a device's
descriptors are alike to the kernel, and the driver tells of a handle its device and kind, and no identity and no size.

What this file may not do: know GMS, import torch, or load the driver before a device is asked for.
"""

import contextlib
import ctypes
import mmap
import os
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

from gms.memory import DeviceError, Handle, Memory, OutOfMemory, Unusable
from sidecar.terminal.extras import how_to_get

_IDENTITY = "cuda:{}"
_INSTALL = how_to_get("cuda")


class CudaError(DeviceError):
    """The driver's own word: which call, the error's name, its text."""

    def __init__(self, call: str, name: str, text: str, about: str) -> None:
        super().__init__(f"{about}: {call} says {name} ({text})")
        self.call = call
        self.name = name


class _Allocation(NamedTuple):
    driver_handle: int
    size: int


def devices() -> list[str]:
    """The GPUs that this process may use, by UUID, in CUDA's order."""
    driver = Driver()
    return [driver.uuid(ordinal) for ordinal in range(driver.count())]


class CudaMemory(Memory):
    """One GPU. After a fork the driver refuses the child everything."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self._driver = Driver()
        self._ordinal = self._driver.ordinal(device)
        self._driver.check_supported(self._ordinal, device)
        self._nvml = _Nvml(device)
        self._properties = self._driver.properties(self._ordinal)
        self._access = {writable: self._driver.access(self._ordinal, writable=writable) for writable in (False, True)}
        self.granularity = int(
            self._call("cuMemGetAllocationGranularity", self._properties, self._driver.minimum, about="its granularity")
        )
        self._context: Any = None

    def capacity(self) -> int:
        return int(self._call("cuDeviceTotalMem", self._ordinal, about="its capacity"))

    def free(self) -> int:
        """As NVML sees it: what any process has, by whatever means, isn't free."""
        return self._nvml.free()

    def create(self, size: int) -> Handle:
        """It reads as zeros, because the driver clears what it gives to a process."""
        self._check_multiple("the size", size)
        try:
            driver_handle = self._call("cuMemCreate", size, self._properties, 0, about=f"{size} bytes can't be had")
        except CudaError as error:
            if error.name == "CUDA_ERROR_OUT_OF_MEMORY":
                raise OutOfMemory(self.device, size, self.free()) from error
            raise
        return self._add(_Allocation(int(driver_handle), size))

    def export(self, handle: Handle) -> int:
        driver_handle = self._allocation(handle).driver_handle
        kind = self._driver.descriptor
        fd = int(self._call("cuMemExportToShareableHandle", driver_handle, kind, 0, about="memory can't be exported"))
        os.set_inheritable(fd, False)  # whether the driver makes it close-on-exec isn't documented
        return fd

    def import_(self, descriptor: int, size: int) -> Handle:
        self._check_multiple("the size", size)
        driver_handle = self._import(descriptor)
        try:
            self._check_size(driver_handle, size)
        except BaseException:
            self._call("cuMemRelease", driver_handle, about="imported memory can't be released")
            raise
        return self._add(_Allocation(driver_handle, size))

    def _release(self, allocation: _Allocation) -> None:
        self._call("cuMemRelease", allocation.driver_handle, about="a handle can't be released")

    def _reserve(self, size: int) -> int:
        return int(self._call("cuMemAddressReserve", size, 0, 0, 0, about=f"{size} bytes of addresses can't be had"))

    def _map(self, address: int, allocation: _Allocation, size: int, offset: int, *, writable: bool) -> None:
        """Through a mapping that isn't writable, a write by a kernel is a fault that ends its process's context."""
        self._retain_context()
        about = f"{size} bytes can't be mapped at {address:#x}"
        self._call("cuMemMap", address, size, offset, allocation.driver_handle, 0, about=about)
        try:
            self._call("cuMemSetAccess", address, size, self._access[writable], 1, about=about)
        except BaseException:
            self._unmap(address, size)
            raise

    def _unmap(self, address: int, size: int) -> None:
        self._call("cuMemUnmap", address, size, about=f"{size} bytes at {address:#x} can't be unmapped")

    def _free_address(self, address: int, size: int) -> None:
        self._call("cuMemAddressFree", address, size, about=f"addresses at {address:#x} can't be given back")

    def identity(self, descriptor: int) -> str:
        """That it is memory of this GPU, and no more: all memory of one GPU has the same identity. Which memory came
        back only its contents tell."""
        self._call("cuMemRelease", self._import(descriptor), about="imported memory can't be released")
        return _IDENTITY.format(self.device)

    def held(self, identity: str) -> bool | None:
        """A GPU can't be asked for one piece of memory, so always None."""
        if identity != _IDENTITY.format(self.device):
            raise DeviceError(f"{identity!r} is no identity of memory of {self.device}")
        return None

    def close(self) -> None:
        super().close()
        if self._context is not None:
            self._context = None
            self._call("cuDevicePrimaryCtxRelease", self._ordinal, about="the context can't be released")

    def copy_in(self, address: int, data: memoryview) -> None:
        """Into memory that is mapped."""
        self._in_context("cuMemcpyHtoD", address, data, len(data), about="its memory can't be copied")

    def copy_out(self, data: memoryview, address: int) -> None:
        self._in_context("cuMemcpyDtoH", data, address, len(data), about="its memory can't be copied")

    @contextlib.contextmanager
    def pinned(self, data: mmap.mmap) -> Iterator[None]:
        """The driver copies to and from it without one more copy, and at the bus's speed; where it can pin it."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        about, pinned = "the host's memory can't be pinned", False
        with contextlib.suppress(DeviceError, RuntimeError):  # RuntimeError: the bindings', where the driver hasn't it
            self._in_context("cuMemHostRegister", address, len(data), 0, about=about)
            pinned = True
        try:
            yield
        finally:
            if pinned:
                self._in_context("cuMemHostUnregister", address, about=about)

    def _in_context(self, name: str, *arguments: object, about: str) -> None:
        self._call("cuCtxPushCurrent", self._context, about=about)
        try:
            self._call(name, *arguments, about=about)
        finally:
            self._call("cuCtxPopCurrent", about=about)

    def _import(self, descriptor: int) -> int:
        """A driver's handle of what is behind the descriptor, if that is memory of this GPU."""
        about = "the descriptor is no memory that this process can use"
        try:
            os.fstat(descriptor)
        except (OSError, OverflowError):
            raise DeviceError(f"{about}: {descriptor} is no open descriptor") from None
        kind = self._driver.descriptor
        driver_handle = int(self._call("cuMemImportFromShareableHandle", descriptor, kind, about=about))
        try:
            properties = self._call("cuMemGetAllocationPropertiesFromHandle", driver_handle, about=about)
            if int(properties.location.type) != self._driver.on_device or properties.location.id != self._ordinal:
                raise DeviceError(f"the descriptor is memory, and not of {self.device}")
        except BaseException:
            self._call("cuMemRelease", driver_handle, about="imported memory can't be released")
            raise
        return driver_handle

    def _check_size(self, driver_handle: int, size: int) -> None:
        """No call tells the size of a handle, but no more can be mapped than there is: so this much must go, and a
        little more mustn't. Without access nothing is really mapped, and no context is needed."""
        room = size + self.granularity
        about = f"the size of the memory behind a descriptor, {size} bytes it is said, can't be checked"
        address = int(self._call("cuMemAddressReserve", room, 0, 0, 0, about=about))
        try:
            smaller = self._map_error(address, size, driver_handle)
            if smaller is not None:
                words = f"the memory behind the descriptor is smaller than the {size} bytes announced"
                raise DeviceError(f"{words}: {smaller}") from smaller
            if self._map_error(address, room, driver_handle) is None:
                raise DeviceError(f"the memory behind the descriptor is larger than the {size} bytes announced")
        finally:
            self._call("cuMemAddressFree", address, room, about=about)

    def _map_error(self, address: int, size: int, driver_handle: int) -> CudaError | None:
        """Why that much of the memory can't be mapped there. Nothing is mapped after it."""
        about = f"{size} bytes can't be mapped"
        try:
            self._call("cuMemMap", address, size, 0, driver_handle, 0, about=about)
        except CudaError as error:
            return error
        self._call("cuMemUnmap", address, size, about=about)
        return None

    def _retain_context(self) -> None:
        if self._context is None:
            about = "this process can't have a context there"
            self._context = self._call("cuDevicePrimaryCtxRetain", self._ordinal, about=about)

    def _call(self, name: str, *arguments: object, about: str) -> Any:
        return self._driver.call(name, *arguments, about=f"{self.device}: {about}")


class Driver:
    """The driver's functions by name; every error of theirs becomes a CudaError."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise Unusable(f"GPUs need cuda-bindings: {_INSTALL} ({error})") from None
        self._module = driver
        try:
            self.call("cuInit", 0, about="the driver doesn't start")
        except RuntimeError as error:  # the bindings' own, when the driver's library isn't there or is too old
            raise Unusable(
                f"NVIDIA's driver can't be loaded here ({error}); in a container, is a GPU given to it (--gpus, or the"
                f" pod's claim), with the driver capabilities compute and utility?"
            ) from None
        except CudaError as error:
            raise Unusable(f"{error}; `nvidia-smi` says more about the driver and its GPUs") from None
        self.descriptor = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self.minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.on_device = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE

    def call(self, name: str, *arguments: object, about: str) -> Any:
        """What the function gives beside its result; None if that is nothing."""
        result, *given = getattr(self._module, name)(*arguments)
        if result != self._module.CUresult.CUDA_SUCCESS:
            raise CudaError(name, *self._words(result), about)
        return given[0] if given else None

    def _words(self, result: Any) -> tuple[str, str]:
        known, name = self._module.cuGetErrorName(result)
        if known != self._module.CUresult.CUDA_SUCCESS:
            return f"error {int(result)}", "which this driver has no name for"
        return name.decode(), self._module.cuGetErrorString(result)[1].decode()

    def count(self) -> int:
        return int(self.call("cuDeviceGetCount", about="the GPUs can't be counted"))

    def uuid(self, ordinal: int) -> str:
        got = self.call("cuDeviceGetUuid", ordinal, about=f"the UUID of GPU {ordinal} can't be had")
        return f"GPU-{uuid.UUID(bytes=bytes(got.bytes))}"

    def ordinal(self, device: str) -> int:
        """Its number in this process. Raises DeviceError."""
        here = {self.uuid(ordinal): ordinal for ordinal in range(self.count())}
        if device not in here:
            raise DeviceError(f"there is no GPU {device} here, or it isn't visible; there are: {', '.join(here)}")
        return here[device]

    def check_supported(self, ordinal: int, device: str) -> None:
        wanted = {
            "virtual memory management": "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
            "memory as file descriptors": "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
        }
        for what, attribute in wanted.items():
            attribute = getattr(self._module.CUdevice_attribute, attribute)
            if not self.call("cuDeviceGetAttribute", attribute, ordinal, about=f"{device} can't be asked for {what}"):
                raise Unusable(f"{device} has no {what}, which GMS stands on; a newer driver or GPU has it")

    def properties(self, ordinal: int) -> Any:
        made = self._module.CUmemAllocationProp()
        made.type = self._module.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        made.location.type = self.on_device
        made.location.id = ordinal
        made.requestedHandleTypes = self.descriptor
        return made

    def access(self, ordinal: int, *, writable: bool) -> list[Any]:
        flags = self._module.CUmemAccess_flags
        made = self._module.CUmemAccessDesc()
        made.location.type = self.on_device
        made.location.id = ordinal
        made.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        return [made]


class _Nvml:
    """What NVML says of one GPU. Started once a process and never stopped: its end is the process's."""

    def __init__(self, device: str) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise Unusable(f"a GPU's free memory is read with nvidia-ml-py: {_INSTALL} ({error})") from None
        self._module = pynvml
        self._device = device
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(device)
        except pynvml.NVMLError as error:
            raise Unusable(
                f"NVML can't be used for {device} ({error}); does this container have the driver capability utility?"
                f" MIG slices aren't supported"
            ) from None

    def free(self) -> int:
        try:
            return int(self._module.nvmlDeviceGetMemoryInfo(self._handle).free)
        except self._module.NVMLError as error:
            raise DeviceError(f"NVML doesn't tell the free memory of {self._device}: {error}") from None

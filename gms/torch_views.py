"""Addresses as torch tensors: nothing is copied, and nothing but the address is needed, on the CPU and on a GPU alike.

The way in is DLPack, which torch takes on every device. The little structure that it asks for comes from malloc, and
its deleter is free itself: a Python callback could be called when the interpreter is gone already.

What this file may not do: know layouts or modules (`torch.py`). The caller sees to it that a tensor's memory
stays mapped while the tensor is used; asleep, touching it is a crash.
"""

import ctypes

import torch
from torch.utils.dlpack import from_dlpack

_CPU, _CUDA = 1, 2
_UNSIGNED, _LANES = 1, 1
_NAME = b"dltensor"  # DLPack's; a capsule keeps a pointer to it


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("length", ctypes.c_int64),  # ours: what `shape` points to
    )


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = (ctypes.c_size_t,)
_FREE = ctypes.cast(_libc.free, ctypes.c_void_p).value
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class UnknownDevice(Exception):
    """Torch doesn't see that device."""


def torch_device(device: str) -> torch.device:
    """`host:NAME` is the CPU; a GPU goes by its UUID, whatever its number is in this process."""
    if device.startswith("host:"):
        return torch.device("cpu")
    for index in range(torch.cuda.device_count()):
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        if uuid.removeprefix("GPU-") == device.removeprefix("GPU-"):
            return torch.device("cuda", index)
    raise UnknownDevice(f"torch sees {torch.cuda.device_count()} GPUs, and {device} is none of them")


def raw_bytes(address: int, size: int, device: torch.device) -> torch.Tensor:
    """Memory as a tensor of bytes with a storage of its own."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8, device=device)
    block = _libc.malloc(ctypes.sizeof(_Managed))
    if not block:
        raise MemoryError
    managed = _Managed.from_address(block)
    ctypes.memset(block, 0, ctypes.sizeof(_Managed))
    tensor = managed.tensor
    tensor.data = address
    tensor.device_type, tensor.device_id = (_CPU, 0) if device.type == "cpu" else (_CUDA, device.index)
    tensor.ndim = 1
    tensor.code, tensor.bits, tensor.lanes = _UNSIGNED, 8, _LANES
    tensor.shape = block + _Managed.length.offset
    managed.length = size
    managed.deleter = _FREE
    return from_dlpack(_new_capsule(block, _NAME, None))


def view(
    base: torch.Tensor, offset: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """A tensor within the storage of another; `offset` in bytes, strides in elements."""
    empty = torch.empty(0, dtype=dtype, device=base.device)
    if 0 in shape:
        return torch.empty_strided(shape, stride, dtype=dtype, device=base.device)
    return empty.set_(base.untyped_storage(), offset // dtype.itemsize, shape, stride)

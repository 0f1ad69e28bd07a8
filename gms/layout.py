"""The layout document: what lies where in the slabs. Written once, at commit; its hash is the layout's name.

A slab is one allocation; a tensor is a view of a slab. Tensors may share bytes (ties). Pure; who may commit, and when,
stands in `machine.py`.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

MAX_SLABS = 1000
MAX_TENSORS = 1_000_000
MAX_LAYOUT_BYTES = 64 << 20


class Type(NamedTuple):
    bits: int
    """An item has so many."""
    in_files: str
    """What safetensors files call it; empty: they can't hold it."""
    in_numpy: str = ""
    """Where numpy hasn't it: the type of its bits."""


TYPES = {
    "bool": Type(8, "BOOL"),
    "uint8": Type(8, "U8"),
    "int8": Type(8, "I8"),
    "int16": Type(16, "I16"),
    "uint16": Type(16, "U16"),
    "int32": Type(32, "I32"),
    "uint32": Type(32, "U32"),
    "int64": Type(64, "I64"),
    "uint64": Type(64, "U64"),
    "float8_e4m3fn": Type(8, "F8_E4M3", "uint8"),
    "float8_e5m2": Type(8, "F8_E5M2", "uint8"),
    "float8_e4m3fnuz": Type(8, "F8_E4M3FNUZ", "uint8"),
    "float8_e5m2fnuz": Type(8, "F8_E5M2FNUZ", "uint8"),
    "float8_e8m0fnu": Type(8, "F8_E8M0", "uint8"),
    "float16": Type(16, "F16"),
    "bfloat16": Type(16, "BF16", "uint16"),
    "float32": Type(32, "F32"),
    "float64": Type(64, "F64"),
    "complex64": Type(64, "C64"),
    "complex128": Type(128, ""),
}
"""Types by torch's names. Packed four-bit weights are `uint8` or `int32`, as in the files."""

ITEM_BITS = {name: type.bits for name, type in TYPES.items()}

Count = Annotated[int, Meta(ge=0, lt=1 << 62)]


class BadLayout(Exception):
    """The document contradicts itself or the slabs."""


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    name: Annotated[str, Meta(min_length=1, max_length=1024)]
    slab: Count
    offset: Count
    shape: Annotated[tuple[Count, ...], Meta(max_length=64)]
    stride: Annotated[tuple[Count, ...], Meta(max_length=64)]
    """In elements, as torch has them."""
    dtype: str
    kind: Annotated[str, Meta(max_length=32)] = "parameter"
    """`parameter`, `buffer`, or `tensor`: for who binds it; GMS only keeps it."""


class Layout(msgspec.Struct, frozen=True, array_like=True):
    slabs: Annotated[tuple[Count, ...], Meta(max_length=MAX_SLABS)]
    """Their sizes."""
    tensors: Annotated[tuple[Tensor, ...], Meta(max_length=MAX_TENSORS)]
    metadata: dict[str, str] = {}


class _Outline(msgspec.Struct, frozen=True, array_like=True):
    slabs: msgspec.Raw
    tensors: list[msgspec.Raw]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Layout)
_OUTLINE = msgspec.msgpack.Decoder(_Outline)


def encode(layout: Layout) -> bytes:
    return _ENCODER.encode(layout)


def decode(data: bytes) -> Layout:
    """Raises BadLayout."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadLayout(f"the layout can't be read: {error}") from None


def count_tensors(data: bytes) -> int:
    """Without reading them, which takes ten milliseconds for ten thousand. Raises BadLayout."""
    try:
        return len(_OUTLINE.decode(data).tensors)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadLayout(f"the layout can't be read: {error}") from None


def structure_hash(data: bytes) -> str:
    """The name of an encoded document. It says nothing about the weights themselves: see checksums."""
    return hashlib.sha256(data).hexdigest()


def check(layout: Layout, slabs: Sequence[int]) -> None:
    """Raises BadLayout unless every tensor lies inside its slab and the slabs are the ones that were made."""
    if list(layout.slabs) != list(slabs):
        raise BadLayout(f"the layout has slabs of {_sizes(layout.slabs)} bytes, and made were {_sizes(slabs)}")
    names: set[str] = set()
    for tensor in layout.tensors:
        if tensor.name in names:
            raise BadLayout(f"two tensors are named {tensor.name!r}")
        names.add(tensor.name)
        if tensor.slab >= len(slabs):
            raise BadLayout(f"{tensor.name!r} is in slab {tensor.slab}, and there are {len(slabs)}")
        end = tensor.offset + extent_bytes(tensor)
        if end > slabs[tensor.slab]:
            raise BadLayout(f"{tensor.name!r} ends at byte {end} of slab {tensor.slab}, which has {slabs[tensor.slab]}")


def extent_bytes(tensor: Tensor) -> int:
    """From its first byte to behind its last."""
    bits = ITEM_BITS.get(tensor.dtype)
    if bits is None:
        raise BadLayout(f"{tensor.name!r} is of type {tensor.dtype!r}; known: {', '.join(ITEM_BITS)}")
    if len(tensor.shape) != len(tensor.stride):
        raise BadLayout(f"{tensor.name!r} has {len(tensor.shape)} dimensions and {len(tensor.stride)} strides")
    if 0 in tensor.shape:
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True))
    return (last + 1) * bits // 8


def _sizes(slabs: Sequence[int]) -> str:
    shown = ", ".join(str(size) for size in slabs[:8])
    return f"[{shown}, ... {len(slabs)} in all]" if len(slabs) > 8 else f"[{shown}]"

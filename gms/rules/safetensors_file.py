"""The safetensors format: what a file's header says, and whether to believe it. Pure; files are `transfer.py`'s.

    8 bytes, little endian   the header's length
    the header               JSON: name -> {dtype, shape, data_offsets}, and "__metadata__"; spaces may follow
    the data                 every byte of it belongs to exactly one tensor

Whatever is wrong is refused in a sentence, before a byte of the data is read. Four- and six-bit floats are refused: the
layout counts in bytes (files that pack four-bit weights into U8 or I32 are fine).
"""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from gms.layout import ITEM_BITS, MAX_TENSORS, TYPES

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
METADATA = "__metadata__"
MAX_NAME = 1024

DTYPES = {type.in_files: name for name, type in TYPES.items() if type.in_files}
"""The file's names, and the layout's."""


class BadFile(Exception):
    """It is not a safetensors file that can be believed; the text says why."""


class Entry(NamedTuple):
    name: str
    dtype: str
    """By the layout's name."""
    shape: tuple[int, ...]
    start: int
    """In the data, which begins behind the header."""
    end: int


class Header(NamedTuple):
    entries: tuple[Entry, ...]
    """In the order of their bytes."""
    metadata: dict[str, str]
    data_start: int
    """In the file."""


_Size = Annotated[int, Meta(ge=0, lt=1 << 62)]


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[tuple[_Size, ...], Meta(max_length=64)]
    data_offsets: tuple[_Size, _Size]


def header_bytes(start: bytes, file_bytes: int) -> int:
    """The header's length, from the file's first eight bytes. Raises BadFile."""
    if len(start) < LENGTH_BYTES:
        raise BadFile(f"it ends after {len(start)} bytes, within the length of its header")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise BadFile(f"its header would have {length} bytes (at most {MAX_HEADER_BYTES}): is it a safetensors file?")
    if LENGTH_BYTES + length > file_bytes:
        raise BadFile(f"its header would have {length} bytes, and the whole file has {file_bytes}: it is cut short")
    return length


def parse(header: bytes, file_bytes: int) -> Header:
    """Reads a header, and checks all that it says against the file's size. Raises BadFile."""
    said, metadata = _read(header)
    entries = sorted((_entry(name, value) for name, value in said.items()), key=lambda entry: entry[3:])
    data_start = LENGTH_BYTES + len(header)
    _check_cover(entries, file_bytes - data_start)
    return Header(tuple(entries), metadata, data_start)


def _read(header: bytes) -> tuple[dict[str, object], dict[str, str]]:
    if not header.startswith(b"{"):
        raise BadFile("its header doesn't begin with a brace: it is not a safetensors file")
    try:
        said = json.loads(header.decode("utf-8"), object_pairs_hook=_without_twins, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"its header is not JSON: {error}") from None
    if len(said) > MAX_TENSORS:
        raise BadFile(f"it has {len(said)} tensors; at most {MAX_TENSORS} are allowed")
    try:
        metadata = msgspec.convert(said.pop(METADATA, None) or {}, dict[str, str])
    except msgspec.ValidationError as error:
        raise BadFile(f"its metadata isn't made of texts: {error}") from None
    for key, value in metadata.items():
        _check_text("its metadata", key)
        _check_text("its metadata", value)
    return said, metadata


def _check_text(what: str, text: str) -> None:
    """JSON can spell halves of characters, which are no text that can be written anywhere."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadFile(f"{what} is not text: {text[:100]!r}") from None


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object whose names are all different."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twin = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{twin!r} is in it twice")
    return made


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def _entry(name: str, value: object) -> Entry:
    if not 0 < len(name) <= MAX_NAME:
        raise BadFile(f"a tensor's name has {len(name)} characters; allowed are 1 to {MAX_NAME}")
    _check_text("a tensor's name", name)
    try:
        said = msgspec.convert(value, _Said)
    except msgspec.ValidationError as error:
        raise BadFile(f"what it says of {name!r} can't be read: {error}") from None
    dtype = DTYPES.get(said.dtype)
    if dtype is None:
        raise BadFile(f"{name!r} is of type {said.dtype!r}; known: {', '.join(DTYPES)}")
    start, end = said.data_offsets
    needed = math.prod(said.shape) * ITEM_BITS[dtype] // 8
    if end - start != needed:
        raise BadFile(
            f"{name!r} is said to lie from byte {start} to {end}, and {said.dtype} of shape {list(said.shape)} "
            f"takes {needed} bytes"
        )
    return Entry(name, dtype, said.shape, start, end)


def _check_cover(entries: Sequence[Entry], data_bytes: int) -> None:
    """Every byte belongs to one tensor: no gap, no overlap, no end missing."""
    reached = 0
    for entry in entries:
        if entry.start < reached:
            raise BadFile(f"{entry.name!r} begins at byte {entry.start}, and the tensor before it ends at {reached}")
        if entry.start > reached:
            raise BadFile(f"bytes {reached} to {entry.start} belong to no tensor")
        reached = entry.end
    if reached > data_bytes:
        raise BadFile(f"its tensors take {reached} bytes, and there are {data_bytes}: it is cut short")
    if reached < data_bytes:
        raise BadFile(f"the last {data_bytes - reached} bytes belong to no tensor")


def compose(tensors: Iterable[tuple[str, str, Sequence[int]]], metadata: dict[str, str]) -> bytes:
    """The beginning of a file, up to its data, for these tensors (name, type, shape) one after the other."""
    header: dict[str, object] = {METADATA: metadata} if metadata else {}
    reached = 0
    for name, dtype, shape in tensors:
        in_file = TYPES[dtype].in_files if dtype in TYPES else ""
        if not in_file:
            raise BadFile(f"{name!r} is of type {dtype}, which a safetensors file can't hold")
        end = reached + math.prod(shape) * ITEM_BITS[dtype] // 8
        header[name] = {"dtype": in_file, "shape": list(shape), "data_offsets": [reached, end]}
        reached = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise BadFile(f"the header would have {len(text)} bytes; at most {MAX_HEADER_BYTES} are allowed")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text

"""Checkpoints and weights: a safetensors file into GMS (`put`), out of it (`get`), and are they still the same
(`verify`)?

Every file is checked before the server is asked to let it be written, so that a bad one clears nothing. What goes wrong
later costs the writer its work and no other process anything: there is a commit, or there is none. A file that comes
out has its name only once it is whole.

What this file may not do: speak to people (`transfer_commands.py`). Neither numpy nor torch is needed.
"""

import contextlib
import math
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, Self

from gms import layout as lay
from gms.client import Reader, Writer
from gms.pack import pack
from gms.rules import safetensors_file as st
from gms.shell.background import CHECKSUM, Checksum
from gms.shell.device_io import CutShort, fill, pieces

_WORDS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}
Progress = Callable[[int], None]
"""So many bytes more are done."""


class CannotTransfer(Exception):
    """What a person can put right; the text says to which file it happened."""


class _Run(NamedTuple):
    """Bytes that lie side by side in a file and in a slab."""

    slab: int
    offset: int
    size: int
    file: "Source"
    position: int


class Source:
    """A file that was checked. It is kept open: what was checked is what is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # A pipe without a writer isn't waited for.
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                size = os.fstat(self.descriptor).st_size
                length = st.header_bytes(os.pread(self.descriptor, st.LENGTH_BYTES, 0), size)
                self.header = st.parse(os.pread(self.descriptor, length, st.LENGTH_BYTES), size)
            except BaseException:
                os.close(self.descriptor)
                raise
        except OSError as error:
            raise CannotTransfer(f"{path} can't be read: {error.strerror}") from None
        except st.BadFile as error:
            raise CannotTransfer(f"{path} can't be used: {error}") from None


class Checkpoint:
    """One or more files that are checked, and what they hold together. Raises CannotTransfer."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files: list[Source] = []
        self.metadata: dict[str, str] = {}
        self.conflicts: list[str] = []
        """Metadata of which two files say different things; the first one's is kept."""
        try:
            for path in paths:
                self.files.append(Source(path))
            self._combine()
        except BaseException:
            self.close()
            raise

    def _combine(self) -> None:
        where: dict[str, Path] = {}
        for file in self.files:
            for entry in file.header.entries:
                if entry.name in where:
                    raise CannotTransfer(f"{entry.name!r} is in {where[entry.name]} and in {file.path}")
                where[entry.name] = file.path
            for key, value in file.header.metadata.items():
                if self.metadata.setdefault(key, value) != value:
                    self.conflicts.append(f"{file.path}: {key}")
        if not where:
            raise CannotTransfer(f"there is no tensor in {', '.join(str(file.path) for file in self.files)}")
        if len(where) > lay.MAX_TENSORS:
            raise CannotTransfer(f"these are {len(where)} tensors; at most {lay.MAX_TENSORS} are allowed")

    @property
    def bytes(self) -> int:
        return sum(entry.end - entry.start for file in self.files for entry in file.header.entries)

    def plan(self, granularity: int) -> "Plan":
        """Everything that can be wrong with what is to be written is wrong before the server is asked. Raises
        CannotTransfer.
        """
        layout, runs = self._slabs(granularity)
        try:
            lay.check(layout, layout.slabs)
            size = len(lay.encode(layout))
        except (lay.BadLayout, UnicodeEncodeError) as error:
            raise CannotTransfer(f"these files can't be laid out: {error}") from None
        if size > lay.MAX_LAYOUT_BYTES:
            raise CannotTransfer(
                f"a list of these {len(layout.tensors)} tensors takes {size} bytes; at most {lay.MAX_LAYOUT_BYTES} are "
                "allowed"
            )
        return Plan(layout, runs)

    def _slabs(self, granularity: int) -> tuple[lay.Layout, list[_Run]]:
        entries = [(file, entry) for file in self.files for entry in file.header.entries]
        packing = pack([entry.end - entry.start for _, entry in entries], granularity=granularity)
        tensors, runs = [], list[_Run]()
        for (file, entry), place in zip(entries, packing.places, strict=True):
            tensors.append(
                lay.Tensor(entry.name, place.slab, place.offset, entry.shape, _strides(entry.shape), entry.dtype)
            )
            run = _Run(*place, entry.end - entry.start, file, file.header.data_start + entry.start)
            last = runs[-1] if runs else None
            if last is not None and last.file is file and _follows(last, run):
                runs[-1] = last._replace(size=last.size + run.size)
            else:
                runs.append(run)
        return lay.Layout(packing.slabs, tuple(tensors), self.metadata), runs

    def close(self) -> None:
        while self.files:
            os.close(self.files.pop().descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Plan(NamedTuple):
    """Where everything will lie, and what is to be read to where."""

    layout: lay.Layout
    runs: list[_Run]

    @property
    def bytes(self) -> int:
        """How much device memory it takes."""
        return sum(self.layout.slabs)


def put(plan: Plan, writer: Writer, progress: Progress = lambda done: None) -> Reader:
    """Writes all of it and commits. Raises CannotTransfer and what a writer raises; then nothing is committed."""
    layout, runs = plan
    for run in runs:
        while len(writer.sizes) <= run.slab:
            writer.create(layout.slabs[len(writer.sizes)])
        address = writer.address(run.slab) + run.offset
        try:
            fill(writer.maker, address, run.size, run.file.descriptor, run.position, progress)
        except CutShort as error:
            raise CannotTransfer(f"{run.file.path} changed while it was read: {error}") from None
        except OSError as error:
            raise CannotTransfer(f"{run.file.path} can't be read: {error.strerror}") from None
    return writer.commit(layout)


def get(reader: Reader, path: Path, progress: Progress = lambda done: None) -> None:
    """Writes a file of all tensors, byte for byte. Tensors that share bytes are written each by itself."""
    layout = reader.layout
    try:
        head = st.compose([(tensor.name, tensor.dtype, tensor.shape) for tensor in layout.tensors], layout.metadata)
    except st.BadFile as error:
        raise CannotTransfer(f"{path} can't be made: {error}") from None
    try:
        with _opened(path) as file:
            file.write(head)
            for tensor in layout.tensors:
                for piece in _contents(tensor, reader):
                    progress(file.write(piece))
    except OSError as error:
        raise CannotTransfer(f"{path} can't be written: {error.strerror}") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Only a regular file is replaced, and only once the new one is whole. A pipe, a terminal or another such device is
    written to. Anything else is refused.
    """
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        kind = stat.S_IFREG
    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
        with path.open("wb", buffering=0) as file:
            yield file
        return
    if not stat.S_ISREG(kind):
        raise CannotTransfer(f"{path} is neither a file nor a pipe; nothing was written")
    path = path.resolve()  # what a symlink leads to is replaced, and not the symlink
    early = path.with_name(f".{path.name[:100]}.{os.getpid()}.part")
    try:
        with early.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        early.rename(path)
    finally:
        early.unlink(missing_ok=True)


def tensor_bytes(tensor: lay.Tensor) -> int:
    """In a file."""
    return math.prod(tensor.shape) * lay.ITEM_BITS[tensor.dtype] // 8


class Finding(NamedTuple):
    """What `verify` found of one slab."""

    slab: int
    recorded: str
    found: str

    @property
    def same(self) -> bool:
        return self.recorded == self.found


def check_layout(reader: Reader) -> None:
    """Raises BadLayout if the document isn't the one that its hash names, or doesn't fit the slabs."""
    found = lay.structure_hash(reader.document)
    if found != reader.hash:
        raise lay.BadLayout(f"the document's hash is {found}, and the layout is {reader.hash}")
    lay.check(reader.layout, reader.sizes)


def verify(reader: Reader, progress: Progress = lambda done: None) -> Iterator[Finding]:
    """The contents of each slab, summed up now, beside what was recorded after the commit."""
    for slab, recorded in enumerate(reader.sums):
        found, known = summed(reader, slab, progress), recorded.startswith(CHECKSUM)
        yield Finding(slab, recorded, found if known else f"{recorded} is of no kind known here")


def summed(reader: Reader, slab: int, progress: Progress) -> str:
    total = Checksum()
    for piece in pieces(reader.maker, reader.address(slab), reader.sizes[slab]):
        total.add(piece)
        progress(len(piece))
    return total.text


def _follows(last: _Run, run: _Run) -> bool:
    beside = last.offset + last.size == run.offset and last.position + last.size == run.position
    return last.slab == run.slab and beside


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor without holes, the last index running fastest."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _contents(tensor: lay.Tensor, reader: Reader) -> Iterator[memoryview | bytes]:
    """A tensor's bytes as a file has them, the last index running fastest."""
    item = lay.ITEM_BITS[tensor.dtype] // 8
    start = reader.address(tensor.slab) + tensor.offset
    if 0 in tensor.shape:
        return
    if tensor.stride == _strides(tensor.shape) or math.prod(tensor.shape) == 1:
        yield from pieces(reader.maker, start, math.prod(tensor.shape) * item)
        return
    whole = memoryview(b"".join(bytes(piece) for piece in pieces(reader.maker, start, lay.extent_bytes(tensor))))
    shape, stride = tensor.shape, tensor.stride
    if item == 16:  # no machine word: two halves, side by side
        item, shape, stride = 8, (*shape, 2), (*(2 * step for step in stride), 1)
    yield from _rows(whole.cast(_WORDS[item]), 0, shape, stride)


def _rows(words: memoryview, start: int, shape: Sequence[int], stride: Sequence[int]) -> Iterator[bytes]:
    if len(shape) > 1:
        for index in range(shape[0]):
            yield from _rows(words, start + index * stride[0], shape[1:], stride[1:])
    elif stride[0] == 0:
        yield words[start : start + 1].tobytes() * shape[0]
    else:
        yield words[start : start + (shape[0] - 1) * stride[0] + 1 : stride[0]].tobytes()

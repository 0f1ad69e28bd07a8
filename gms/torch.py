"""Modules of torch: publish one, and adopt it in another process without a copy.

    with client.write() as writer:               # in the process that loads the weights
        reader = publish(model, writer)

    with torch.device("meta"):                   # in every other process
        model = Model(config)
    adopt(model, client.read())

Published is every tensor that hangs on the module: parameters, buffers, and tensors that are plain attributes. Tensors
that share bytes (ties, views of one another) share them afterwards, here and wherever they are adopted.

**What is written at run time.** Shared memory is mapped read-only, and a write to it ends the process. So these become
private copies, of what they are at the time of publishing:
  * buffers that are not persistent (caches, tables that are computed), and tensors that are plain attributes;
  * whatever is named in `private` (patterns as in a shell, "*.running_mean"), which a counter that is a persistent
    buffer has to be;
unless it shares bytes with a parameter or a persistent buffer, or is named in `shared`: then it is a weight.

While publishing, the sources are let go of slab by slab: the module's tensors are in the slabs from then on. Peak
memory is the weights and one slab, if the caller doesn't keep the sources.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple, Protocol, TypeVar, cast

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gms import layout as documents
from gms.layout import ITEM_BITS, Layout
from gms.pack import SLAB_BYTES, Span, merge, pack
from gms.torch_views import raw_bytes, torch_device, view

PRIVATE = ":private"
"""Behind a tensor's kind: a module that adopts it takes a copy."""
_COARSE = 16
"""Pieces begin at multiples of it in their storage, so that every tensor in them stays aligned to its items."""


class CannotPublish(Exception):
    """A tensor that can't be shared; the text names it."""


class DoesNotFit(Exception):
    """The module isn't the one that was published; the text says where they differ."""


class Mapped(Protocol):
    @property
    def device(self) -> str: ...
    def address(self, slab: int) -> int: ...


class Reader(Mapped, Protocol):
    @property
    def layout(self) -> Layout: ...


ReaderT = TypeVar("ReaderT", covariant=True)


class Writer(Mapped, Protocol[ReaderT]):
    @property
    def granularity(self) -> int: ...
    def create(self, size: int) -> int: ...
    def keep_mapped(self) -> None: ...
    def commit(self, layout: Layout) -> ReaderT: ...


_Shelf = dict[str, torch.Tensor]
"""Where a module keeps one kind of tensors. There may be other things beside them."""


# -- what hangs on a module ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Where a tensor hangs. Not the tensor: a writer that publishes must not keep it."""

    name: str
    owner: torch.nn.Module
    key: str
    kind: str
    transient: bool
    """A buffer that isn't persistent, or an attribute."""

    @property
    def tensor(self) -> torch.Tensor:
        return _shelf(self.owner, self.kind)[self.key]


def find(module: torch.nn.Module) -> Iterator[Found]:
    """Every tensor under every name that it has. One that is no tensor of its own (None) is none."""
    for path, owner in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for kind in ("parameter", "buffer", "tensor"):
            for key, value in list(_shelf(owner, kind).items()):
                if isinstance(value, torch.Tensor):
                    transient = kind == "tensor" or (kind == "buffer" and key in owner._non_persistent_buffers_set)
                    yield Found(prefix + key, owner, key, kind, transient)


def _shelf(owner: torch.nn.Module, kind: str) -> _Shelf:
    if kind == "parameter":
        return cast(_Shelf, owner._parameters)
    if kind == "buffer":
        return cast(_Shelf, owner._buffers)
    return cast(_Shelf, owner.__dict__)


# -- publish -------------------------------------------------------------------------------------------------------


def publish(
    module: torch.nn.Module,
    writer: Writer[ReaderT],
    *,
    private: Sequence[str] = (),
    shared: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
    slab_bytes: int = SLAB_BYTES,
) -> ReaderT:
    """Moves a module's tensors into new slabs and commits them. Nothing is moved if one of them can't be.

    If it fails after that, what was moved stays where it is until the process ends, in memory that no other process
    shares.
    """
    pieces = list(_pieces(find(module), private, shared))
    if not pieces:
        raise CannotPublish("the module has no tensors")
    packing = pack([piece.size for piece in pieces], granularity=writer.granularity, slab_bytes=slab_bytes)
    device = torch_device(writer.device)
    tensors: list[documents.Tensor] = []
    writer.keep_mapped()
    made = 0
    with torch.no_grad():
        for piece, where in zip(pieces, packing.places, strict=True):
            while made <= where.slab:
                if device.type == "cuda":
                    torch.cuda.empty_cache()  # else torch keeps what was just let go, and no other process can have it
                writer.create(packing.slabs[made])
                made += 1
            _move(piece, raw_bytes(writer.address(where.slab) + where.offset, piece.size, device))
            tensors += (member.described(where.slab, where.offset, piece.private) for member in piece.members)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return writer.commit(Layout(packing.slabs, tuple(tensors), dict(metadata or {})))


class _Member(NamedTuple):
    """One name in a piece, and what its tensor was before it was moved."""

    found: Found
    inside: int
    """Where it begins in its piece."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def described(self, slab: int, offset: int, private: bool) -> documents.Tensor:
        kind = self.found.kind + (PRIVATE if private else "")
        dtype = _dtype_name(self.dtype)
        return documents.Tensor(self.found.name, slab, offset + self.inside, self.shape, self.stride, dtype, kind)


class _Piece(NamedTuple):
    """Bytes of one storage that stay together, and whose they are."""

    span: Span
    members: list[_Member]
    private: bool

    @property
    def size(self) -> int:
        return self.span.end - self.span.start


def _pieces(found: Iterable[Found], private: Sequence[str], shared: Sequence[str]) -> Iterator[_Piece]:
    """What must stay together, storage by storage: so a storage is free once its pieces are moved."""
    storages: dict[int, list[Found]] = {}
    for each in found:
        tensor = each.tensor
        _check(each.name, tensor)
        storages.setdefault(tensor.untyped_storage()._cdata, []).append(each)
    for members in storages.values():
        spans = [_span(each.tensor) for each in members]
        for piece in merge(span for span in spans if span.start < span.end):
            inside = [
                each
                for each, span in zip(members, spans, strict=True)
                if span.start < span.end and piece.start <= span.start < piece.end
            ]
            yield _piece(piece, inside, private, shared)
        for each, span in zip(members, spans, strict=True):
            if span.start == span.end:
                yield _piece(Span(0, 0), [each], private, shared)


def _piece(span: Span, members: Sequence[Found], private: Sequence[str], shared: Sequence[str]) -> _Piece:
    named = any(_matches(each.name, private) for each in members)
    weight = any(not each.transient or _matches(each.name, shared) for each in members)
    of_it = []
    for each in members:
        tensor = each.tensor
        inside = int(tensor.storage_offset()) * tensor.dtype.itemsize - span.start if span.end else 0
        of_it.append(_Member(each, inside, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype))
    return _Piece(span, of_it, named or not weight)


def _move(piece: _Piece, target: torch.Tensor) -> None:
    if piece.size == 0:
        return
    source = piece.members[0].found.tensor
    everything = torch.empty(0, dtype=torch.uint8, device=source.device)
    target.copy_(everything.set_(source.untyped_storage(), piece.span.start, (piece.size,), (1,)))
    if not piece.private:
        for found, inside, shape, stride, dtype in piece.members:
            found.tensor.data = view(target, inside, dtype, shape, stride)


def _span(tensor: torch.Tensor) -> Span:
    """Its bytes in its storage."""
    if tensor.numel() == 0:
        return Span(0, 0)
    start = int(tensor.storage_offset()) * tensor.dtype.itemsize
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return Span(start // _COARSE * _COARSE, start + (last + 1) * tensor.dtype.itemsize)


def _check(name: str, tensor: torch.Tensor) -> None:
    """Raises CannotPublish."""
    why = ""
    if tensor.is_meta:
        why = "is on the meta device: it has no values"
    elif tensor.layout is not torch.strided or tensor.is_quantized or is_traceable_wrapper_subclass(tensor):
        why = f"is a {type(tensor).__name__} of layout {tensor.layout}, and not simply bytes"
    elif is_lazy(tensor):
        why = "has no shape yet: run the module once before it is published"
    elif tensor.is_conj() or tensor.is_neg():
        why = "is conjugated lazily: call resolve_conj() and resolve_neg() on it"
    elif _dtype_name(tensor.dtype) not in ITEM_BITS:
        why = f"is of type {tensor.dtype}; known: {', '.join(ITEM_BITS)}"
    if why:
        raise CannotPublish(f"{name} {why}")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# -- adopt ---------------------------------------------------------------------------------------------------------


def adopt(
    module: torch.nn.Module, reader: Reader, *, private: Sequence[str] = (), as_published: bool = False
) -> torch.nn.Module:
    """Binds a module's tensors, as a rule on the meta device, to the weights that a reader has mapped.

    Raises DoesNotFit, and changes nothing, when module and weights have not the same names, shapes and types. With
    `as_published` the module takes the form in which it was published instead: a loader may have renamed, repacked,
    added and removed tensors after it built the module. `private`: what becomes a private copy besides what the
    publisher said. Afterwards no tensor is on the meta device.
    """
    here = {found.name: found for found in find(module)}
    tensors = reader.layout.tensors
    bound = _where(module, tensors)
    if not as_published:
        _compare(here, tensors)
    device = torch_device(reader.device)
    with torch.no_grad():
        made = _bind(tensors, bound, reader, device, private)
    for tensor in tensors:
        owner, key = bound[tensor.name]
        kind = _kind(tensor)
        for other in ("parameter", "buffer", "tensor"):
            if other != kind:
                _shelf(owner, other).pop(key, None)
        _shelf(owner, kind)[key] = made[tensor.name]
    if as_published:
        published = {tensor.name for tensor in tensors}
        for name, found in here.items():
            if name not in published and found.tensor.is_meta:
                del _shelf(found.owner, found.kind)[found.key]
    return module


def _where(module: torch.nn.Module, tensors: Iterable[documents.Tensor]) -> dict[str, tuple[torch.nn.Module, str]]:
    owners = dict(module.named_modules(remove_duplicate=False))
    bound = {}
    for tensor in tensors:
        path, _, key = tensor.name.rpartition(".")
        if path not in owners:
            raise DoesNotFit(f"{tensor.name} was published, and the module has no part {path!r}")
        bound[tensor.name] = owners[path], key
    return bound


def _compare(here: Mapping[str, Found], tensors: Sequence[documents.Tensor]) -> None:
    wrong = []
    for tensor in tensors:
        found = here.get(tensor.name)
        if found is None:
            wrong.append(f"{tensor.name} was published, and the module has none")
            continue
        mine = found.tensor
        said = (found.kind, tuple(mine.shape), _dtype_name(mine.dtype))
        theirs = (_kind(tensor), tensor.shape, tensor.dtype)
        if said != theirs:
            wrong.append(f"{tensor.name}: {_described(*theirs)} was published, the module has {_described(*said)}")
    published = {tensor.name for tensor in tensors}
    wrong += [f"{name} was not published" for name, found in here.items() if name not in published]
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise DoesNotFit("; ".join(wrong[:5]) + more)


def _described(kind: str, shape: tuple[int, ...], dtype: str) -> str:
    return f"a {kind} {list(shape)} of {dtype}"


def _kind(tensor: documents.Tensor) -> str:
    return tensor.kind.removesuffix(PRIVATE)


def _bind(
    tensors: Sequence[documents.Tensor],
    bound: Mapping[str, tuple[torch.nn.Module, str]],
    reader: Reader,
    device: torch.device,
    private: Sequence[str],
) -> dict[str, torch.Tensor]:
    """What each name stands for. Names for the same bytes in the same form stand for the same object."""
    made: dict[str, torch.Tensor] = {}
    for slab, span, members in _published_pieces(tensors):
        base = raw_bytes(reader.address(slab) + span.start, span.end - span.start, device)
        if any(tensor.kind.endswith(PRIVATE) or _matches(tensor.name, private) for tensor in members):
            base = base.clone()
        same: dict[tuple[object, ...], torch.Tensor] = {}
        for tensor in members:
            form = (tensor.offset, tensor.shape, tensor.stride, tensor.dtype, _kind(tensor))
            if form not in same:
                same[form] = _dressed(_view(base, span, tensor), tensor, *bound[tensor.name])
            made[tensor.name] = same[form]
    return made


def _published_pieces(
    tensors: Sequence[documents.Tensor],
) -> Iterator[tuple[int, Span, list[documents.Tensor]]]:
    """Which tensors share bytes: those stay in one storage."""
    slabs: dict[int, list[tuple[Span, documents.Tensor]]] = {}
    for tensor in tensors:
        start = tensor.offset // _COARSE * _COARSE
        size = documents.extent_bytes(tensor)
        if size == 0:
            yield tensor.slab, Span(0, 0), [tensor]
        else:
            slabs.setdefault(tensor.slab, []).append((Span(start, tensor.offset + size), tensor))
    for slab, members in slabs.items():
        members.sort(key=lambda member: member[0])
        at = 0
        for piece in merge(span for span, _ in members):
            first = at
            while at < len(members) and members[at][0].start < piece.end:
                at += 1
            yield slab, piece, [tensor for _, tensor in members[first:at]]


def _view(base: torch.Tensor, span: Span, tensor: documents.Tensor) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise DoesNotFit(f"{tensor.name} is of type {tensor.dtype}, which this torch ({torch.__version__}) hasn't")
    return view(base, tensor.offset - span.start, dtype, tensor.shape, tensor.stride)


def _dressed(bare: torch.Tensor, tensor: documents.Tensor, owner: torch.nn.Module, key: str) -> torch.Tensor:
    """As the module had it: a parameter of the same class, with what was attached to it."""
    if _kind(tensor) != "parameter":
        return bare
    old = owner._parameters.get(key)
    if old is None or is_lazy(old):
        return torch.nn.Parameter(bare, requires_grad=False)
    new: torch.Tensor = torch.Tensor._make_subclass(type(old), bare, old.requires_grad)
    new.__dict__.update(old.__dict__)
    return new

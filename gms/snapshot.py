"""Weights on disk: a snapshot of all ranks in a directory (`manifest.py`). A cold start from it is a sequential read.

    save(readers, "llama-3", Path("/models/llama-3"))          one reader for each rank, in order
    snapshot = find(Path("/models/llama-3"))                   None: there is none
    reader = snapshot.fill(snapshot.rank_of(described), writer)

    granted = client.write_or_read(timeout_s)                  an engine's start: what its snapshot spares it
    granted = from_snapshot(client, granted, place, described, timeout_s)

Shards are read and written past the page cache, with two buffers (`device_io.py`). The manifest is replaced in one step
when all that it names is on disk: what is killed on the way leaves the snapshot that was there before, or none. Only
files of a snapshot's are ever taken away.

What this file may not do: ask the server, or say when weights move (`snapshot_commands.py`).
"""

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from gms import layout as lay
from gms.client import GmsClient, Reader, Writer
from gms.rules import manifest as mf
from gms.rules.manifest import BadSnapshot as BadSnapshot
from gms.rules.manifest import Manifest as Manifest
from gms.shell import device_io
from sidecar.kernel import durable
from sidecar.machine.context import rfc3339
from sidecar.terminal.logs import complain
from sidecar.terminal.names import VERSION

Progress = Callable[[int], None]
"""So many bytes more are done."""


class CannotSave(Exception):
    """What a person can put right; the text says what happened to which file."""


class Snapshot:
    """One that is there. Its shards are looked at when they are read."""

    def __init__(self, place: Path, manifest: Manifest) -> None:
        self.place = place
        self.manifest = manifest

    def rank_of(self, described: Mapping[str, str]) -> int:
        """Which rank has these weights, by the engine's own words for them in its layout. Raises BadSnapshot."""
        said = [lay.decode(self.document(rank)).metadata for rank in range(len(self.manifest.ranks))]
        for rank, theirs in enumerate(said):
            if all(theirs.get(name) == text for name, text in described.items()):
                return rank
        differs = [_differs(said[0].get(name), text) for name, text in described.items()]
        raise BadSnapshot(f"the snapshot {self.place} is of other weights: {'; '.join(filter(None, differs))}")

    def document(self, rank: int) -> bytes:
        """Its layout. Raises BadSnapshot."""
        name = self.manifest.layout_name(rank)
        try:
            data = durable.read(self.place / name, lay.MAX_LAYOUT_BYTES)
        except OSError as error:
            raise BadSnapshot(f"the snapshot {self.place} is torn: {name}: {error.strerror}") from None
        if lay.structure_hash(data) != self.manifest.ranks[rank].hash:
            raise BadSnapshot(f"the snapshot {self.place} is damaged: {name} isn't what was written")
        return data

    def fill(self, rank: int, writer: Writer, progress: Progress = lambda done: None) -> Reader:
        """Makes the slabs, reads them, compares their digests, and commits. Raises BadSnapshot, before anything is made
        if a shard isn't there or is cut short; then nothing is committed.
        """
        document, shards = self.document(rank), self.manifest.ranks[rank].shards
        with contextlib.ExitStack() as files:
            opened = [files.enter_context(self._shard(rank, slab)) for slab in range(len(shards))]
            for slab, (shard, fd) in enumerate(zip(shards, opened, strict=True)):
                name = self.manifest.shard_name(rank, slab)
                writer.create(shard.size)
                if writer.sizes[slab] != shard.size:
                    raise BadSnapshot(
                        f"the snapshot {self.place} is of another kind of device: {name} has {shard.size} bytes, and a "
                        f"slab here {writer.sizes[slab]}"
                    )
                try:
                    found = device_io.load(writer.maker, writer.address(slab), shard.size, fd, progress)
                except (OSError, device_io.CutShort) as error:
                    why = getattr(error, "strerror", None) or error
                    raise BadSnapshot(f"the snapshot {self.place} can't be read: {name}: {why}") from None
                if found != shard.digest:
                    raise BadSnapshot(
                        f"the snapshot {self.place} is damaged: {name} is {found}, and was {shard.digest}"
                    )
        return writer.publish(document, sums=[shard.digest for shard in shards])

    @contextlib.contextmanager
    def _shard(self, rank: int, slab: int) -> Iterator[int]:
        name, size = self.manifest.shard_name(rank, slab), self.manifest.ranks[rank].shards[slab].size
        try:
            fd = device_io.open_direct(self.place / name, os.O_RDONLY)
        except OSError as error:
            raise BadSnapshot(f"the snapshot {self.place} is torn: {name}: {error.strerror}") from None
        with durable.closing(fd):
            there = os.fstat(fd).st_size
            if there != size:
                raise BadSnapshot(f"the snapshot {self.place} is torn: {name} has {there} bytes of {size}")
            yield fd


def find(place: Path) -> Snapshot | None:
    """Raises BadSnapshot for what can't be read."""
    try:
        data = durable.read(place / mf.NAME)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadSnapshot(f"{place} can't be read: {error.strerror}") from None
    return Snapshot(place, mf.decode(data, str(place)))


def from_snapshot(
    client: GmsClient,
    granted: Writer | Reader,
    place: Path | None,
    described: Mapping[str, str],
    timeout_s: float,
) -> Writer | Reader:
    """What an engine was granted, after its snapshot: to read, where that had its weights; else still to write. Why a
    snapshot is of no use is said, and it stays as it is: a person may want it, or have given the wrong directory.
    """
    if place is None or isinstance(granted, Reader):
        return granted
    try:
        snapshot = find(place)
        if snapshot is None:
            return granted
        reader = snapshot.fill(snapshot.rank_of(described), granted)
        complain(f"{reader.device} has its weights from the snapshot {place}")
        return reader
    except BadSnapshot as error:
        complain(f"{error}. The weights are loaded as usual; gmsctl save replaces the snapshot")
        if not granted.sizes:
            return granted
        granted.abort()
        return client.write_or_read(timeout_s)
    except BaseException:
        granted.abort()
        raise


# -- saving ------------------------------------------------------------------------------------------------------------


def save(readers: Sequence[Reader], key: str, place: Path, progress: Progress = lambda done: None) -> Manifest:
    """In place of the snapshot that is there. Raises CannotSave; then what was there is as it was."""
    try:
        with _alone(place):
            return _save(readers, key, place, progress)
    except OSError as error:
        raise CannotSave(f"{error.filename or place} can't be written: {error.strerror}") from None


def _save(readers: Sequence[Reader], key: str, place: Path, progress: Progress) -> Manifest:
    _clean(place)
    ranks = tuple(mf.Rank(each.hash, (), each.device, each.generation) for each in readers)
    fingerprint = mf.fingerprint_of([each.hash for each in readers])
    types, said = _types(readers), _described(readers[0])
    manifest = Manifest(key, secrets.token_hex(8), ranks, fingerprint, types, said, rfc3339(time.time()), VERSION)
    try:
        shards = [_save_rank(manifest, rank, reader, place, progress) for rank, reader in enumerate(readers)]
        ranks = tuple(replace(rank, shards=each) for rank, each in zip(ranks, shards, strict=True))
        _fsync(place)
        durable.DurableFile(place, mf.NAME).write(mf.encode(replace(manifest, ranks=ranks)))
    except BaseException:
        _clean(place, manifest.id)
        raise
    _clean(place)
    return replace(manifest, ranks=ranks)


def _save_rank(manifest: Manifest, rank: int, reader: Reader, place: Path, progress: Progress) -> tuple[mf.Shard, ...]:
    with open(place / manifest.layout_name(rank), "xb") as file:
        file.write(reader.document)
        file.flush()
        os.fsync(file.fileno())
    shards = []
    for slab, size in enumerate(reader.sizes):
        path = place / manifest.shard_name(rank, slab)
        with durable.closing(device_io.open_direct(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)) as fd:
            try:
                os.posix_fallocate(fd, 0, size)
                digest = device_io.store(reader.maker, reader.address(slab), size, fd, progress)
                os.fsync(fd)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from None
        if slab < len(reader.sums) and reader.sums[slab] not in ("", digest):
            raise CannotSave(
                f"slab {slab} of {reader.device} is {digest}, and was {reader.sums[slab]} when it was committed: "
                "gmsctl verify says more"
            )
        shards.append(mf.Shard(size, digest))
    return tuple(shards)


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """No other process saves to it. The kernel lets go of it when this one is killed."""
    place.mkdir(parents=True, exist_ok=True)
    with durable.closing(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotSave(f"another process saves to {place} at the moment") from None
        yield


def _clean(place: Path, failed: str = "") -> None:
    """Files of saves that are over, or were killed, and not of the snapshot that is there. Where that is the one that
    `failed`, its name is perhaps not on disk: then the one before stays as well.
    """
    try:
        snapshot = find(place)
    except BadSnapshot:
        return  # nothing says which are its own
    if failed and snapshot is not None and snapshot.manifest.id == failed:
        return
    for path in place.iterdir():
        if mf.is_of_another(path.name, snapshot.manifest.id if snapshot is not None else ""):
            path.unlink(missing_ok=True)


def _types(readers: Sequence[Reader]) -> dict[str, int]:
    types: Counter[str] = Counter()
    for reader in readers:
        for tensor in reader.layout.tensors:
            types[tensor.dtype] += lay.extent_bytes(tensor)
    return dict(types)


def _described(reader: Reader) -> dict[str, str]:
    described: dict[str, str] = {}
    for name, text in reader.layout.metadata.items():
        described |= _words(text) or {name: text[:1000]}
    return described


def _words(text: str) -> dict[str, str]:
    """What an engine says of its model, if that is an object of JSON."""
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return {str(name): str(value)[:1000] for name, value in found.items()}
    return {}


def _differs(theirs: str | None, ours: str) -> str:
    """Empty: it doesn't."""
    if theirs == ours:
        return ""
    there, here = _words(theirs or ""), _words(ours)
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    if there and here:
        return "; ".join(f"{name} is {there.get(name)} there, and {here.get(name)} here" for name in names)
    return f"it says {theirs or 'nothing'}, and here it is {ours}"


def _fsync(directory: Path) -> None:
    with durable.closing(os.open(directory, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        os.fsync(fd)

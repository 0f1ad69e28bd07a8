"""What a snapshot of weights is: `manifest.json` in its directory, beside raw shards and the layout of each rank.

    DIR/manifest.json     what it is of, and what each shard is to be; JSON that a person can read, with a sum over it
    DIR/0.ID.layout       rank 0's layout document, as its writer committed it
    DIR/0.0.ID.shard      raw shards: the slabs of each rank, byte for byte

Pure. The manifest names all files (ID is that of one save), and comes last: until it is in its place the one before it
is, and so are the files that it names (`snapshot.py`). What is wrong with a manifest is said here.
"""

import hashlib
import re
from typing import Annotated

import msgspec

from gms import layout as lay
from gms.rules.messages import Generation, Hash, RegionKey

FORMAT = 1
NAME = "manifest.json"
_FILE = re.compile(r"\d+(?:\.\d+)?\.([0-9a-f]{16})\.(?:layout|shard)")


class BadSnapshot(Exception):
    """It can't be used: torn, of another program, or of other weights. The text says which, and what is wrong."""


class Shard(msgspec.Struct, frozen=True):
    size: lay.Count
    digest: Annotated[str, msgspec.Meta(max_length=128)]


class Rank(msgspec.Struct, frozen=True):
    hash: Hash
    """Its layout's. The engine's own words for its configuration, its quantisation and its version are in there."""
    shards: Annotated[tuple[Shard, ...], msgspec.Meta(min_length=1, max_length=lay.MAX_SLABS)]
    device: str = ""
    """Where it was."""
    generation: Generation = 0
    """The layout's when it was saved: this very memory, while it is there."""

    @property
    def bytes(self) -> int:
        return sum(shard.size for shard in self.shards)


class Manifest(msgspec.Struct, frozen=True):
    key: RegionKey
    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    """The save's that made it, in the names of its files."""
    ranks: Annotated[tuple[Rank, ...], msgspec.Meta(min_length=1, max_length=1024)]
    fingerprint: str
    """All ranks' layouts: configuration, quantisation, types, names and places of all tensors."""
    dtypes: dict[str, lay.Count] = {}
    """Bytes of each type."""
    described: dict[str, str] = {}
    """What the engine says of its model (rank 0's), such as `quantization` or the version of the program."""
    made_at: str = ""
    version: str = ""
    """This program's."""
    format: int = FORMAT
    check: str = ""
    """A sum of all the rest, in the file only."""

    @property
    def bytes(self) -> int:
        return sum(rank.bytes for rank in self.ranks)

    def layout_name(self, rank: int) -> str:
        return f"{rank}.{self.id}.layout"

    def shard_name(self, rank: int, slab: int) -> str:
        return f"{rank}.{slab}.{self.id}.shard"


def is_of_another(name: str, id: str) -> bool:
    """A file of another save's."""
    found = _FILE.fullmatch(name)
    return found is not None and found[1] != id


def fingerprint_of(hashes: list[str]) -> str:
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def encode(manifest: Manifest) -> bytes:
    checked = msgspec.structs.replace(manifest, check=_check(manifest))
    return msgspec.json.format(msgspec.json.encode(checked), indent=1) + b"\n"


def decode(data: bytes, where: str) -> Manifest:
    """`where`: the directory. Raises BadSnapshot."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found != FORMAT:
            raise BadSnapshot(f"the snapshot {where} is of format {found}, and this program reads format {FORMAT}")
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadSnapshot(f"{where} is no snapshot: its {NAME} can't be read ({error})") from None
    if manifest.check != _check(manifest):
        raise BadSnapshot(f"the snapshot {where} is damaged: its {NAME} isn't what was written")
    return msgspec.structs.replace(manifest, check="")


class _Format(msgspec.Struct):
    format: int = 0


def _check(manifest: Manifest) -> str:
    bare = msgspec.structs.replace(manifest, check="")
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()[:16]

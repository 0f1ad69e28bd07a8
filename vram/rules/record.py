"""`vram.json`: what the server must remember across its own crash, and how it reads in the file. Pure."""

import zlib

import msgspec

from evidence.rules.record import Processes
from vram.rules.messages import Bytes

VERSION = 1


class Leased(msgspec.Struct, frozen=True, omit_defaults=True):
    lease: int
    name: str
    tree: str
    """The incarnation that holds it; empty: its holder is gone."""
    bytes: Bytes
    returning: Bytes = {}
    priority: int = 0
    evictable: bool = True
    granted_at: str = ""
    inherited: bool = False
    """By its holder, which may not know yet."""
    outlives: bool = False


class Record(msgspec.Struct, frozen=True):
    processes: Processes
    leases: list[Leased] = []
    heirs: dict[str, list[str]] = {}
    """Name -> the incarnations that are its heirs."""
    foreign: Bytes = {}
    """What others had of each device, as last measured."""
    used: Bytes = {}
    """What was in use then."""
    unsettled: str = ""
    """Why a tree that no file names may have a lease; it must not be forgotten by writing a new file."""


class UnreadableRecord(ValueError):
    """The file is there, and it is not a record."""


class _File(msgspec.Struct, frozen=True):
    version: int
    crc32: int
    record: msgspec.Raw


_encoder = msgspec.json.Encoder()
_file = msgspec.json.Decoder(_File)
_record = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    data = _encoder.encode(record)
    return b'{"version":%d,"crc32":%d,"record":%s}' % (VERSION, zlib.crc32(data), data)


def decode(data: bytes) -> Record:
    try:
        file = _file.decode(data)
        if file.version != VERSION:
            raise UnreadableRecord(f"version {file.version}; this server reads version {VERSION}")
        if zlib.crc32(file.record) != file.crc32:
            raise UnreadableRecord("its checksum is wrong")
        record = _record.decode(file.record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableRecord(str(error)) from None
    known = {one.name for one in record.processes.known}
    trees = {lease.tree for lease in record.leases} | {tree for heirs in record.heirs.values() for tree in heirs}
    if not trees - {""} <= known:
        raise UnreadableRecord("what it says of the leases and their trees doesn't fit together")
    return record

"""`holder.json`: what the server must remember across its own crash, and how it reads in the file.

Pure: bytes in, values out. Writing it durably is `sidecar.durable`'s work, what goes into it is `machine.py`'s.
"""

import zlib

import msgspec

from sidecar.names import incarnation_name


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of the holder's tree."""

    number: int
    identity: str = ""
    """`pidfs:<inode>` where the kernel has it; empty elsewhere."""
    pid: int = 0
    """Its number as it says itself, where the server has none for it. For people; on kernels that give pidfds no inode
    it also tells who a process is.
    """
    local_pid: int = 0
    """Its number in the PID namespace of the server that wrote this; 0 where it had none."""
    kept: bool = False
    """While it lives it can't let go of its life lock."""


class Tenure(msgspec.Struct, frozen=True):
    """One lock in somebody's hand."""

    engine_id: str
    incarnation: str
    token: int
    granted_at: str
    life_file: str
    members: list[Member]
    """The first is the main process. Nobody: only a waiter has told of this holder."""
    secret: str = ""
    endpoint: str | None = None
    verified: bool = False


class Record(msgspec.Struct, frozen=True):
    """Everything that outlives the server."""

    boot_id: str
    token: int
    """The newest token ever granted; it only grows. The holder's own may be older, if it outlived a lost file."""
    active: Tenure | None = None
    permits: dict[str, Tenure] = {}
    gone: list[str] = []
    """Life files of trees that are proven gone: to be unlinked, never to be joined again."""
    doubt: str = ""
    """Somebody unknown may hold: `NOTHING` or `UNREADABLE` was found (`lock.py`), and that isn't settled."""
    pid_namespace: str = ""


class UnreadableRecord(ValueError):
    """The file is there, and it is not a record."""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The file's shape: flat, with `holder` and `granted_at` first (the specification's Decision 8), so that a person
    finds them. Fields that came later have defaults: a server reads what the version before it wrote.
    """

    version: int
    holder: str | None
    granted_at: str | None
    incarnation: str | None
    token: int
    """The holder's."""
    newest_token: int
    boot_id: str
    members: list[Member]
    life_file: str | None
    endpoint: str | None
    memory_verified: bool
    secret: str
    permits: dict[str, Tenure]
    gone: list[str]
    doubt: str
    pid_namespace: str = ""
    crc32: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_File)
_VERSION = 1
_SUM = b'"crc32":'
"""How a file ends: with a sum over everything before it, so that a flipped bit doesn't pass for a smaller token."""


def encode(record: Record) -> bytes:
    a = record.active
    file = _File(
        version=_VERSION,
        holder=a.engine_id if a else None,
        granted_at=a.granted_at if a else None,
        incarnation=a.incarnation if a else None,
        token=a.token if a else record.token,
        newest_token=record.token,
        boot_id=record.boot_id,
        members=a.members if a else [],
        life_file=a.life_file if a else None,
        endpoint=a.endpoint if a else None,
        memory_verified=a.verified if a else False,
        secret=a.secret if a else "",
        permits=record.permits,
        gone=record.gone,
        doubt=record.doubt,
        pid_namespace=record.pid_namespace,
        crc32=0,
    )
    data = _encoder.encode(file)
    return data[: data.rindex(_SUM)] + b"%s%d}" % (_SUM, zlib.crc32(data))


def decode(data: bytes) -> Record:
    try:
        file = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableRecord(str(error)) from None
    if file.version != _VERSION:
        raise UnreadableRecord(f"version {file.version}; this server reads version {_VERSION}")
    before, _, said = data.rpartition(_SUM)
    if said != b"%d}" % zlib.crc32(before + _SUM + b"0}"):
        raise UnreadableRecord("its checksum is wrong")
    active = None
    if file.holder is not None:
        if file.incarnation is None or file.granted_at is None or file.life_file is None:
            raise UnreadableRecord("a holder is named, and too little is known of it")
        if file.token > file.newest_token or file.life_file != incarnation_name(file.holder, file.incarnation):
            raise UnreadableRecord("what it says of the holder doesn't fit together")
        active = Tenure(
            engine_id=file.holder,
            incarnation=file.incarnation,
            token=file.token,
            granted_at=file.granted_at,
            life_file=file.life_file,
            members=file.members,
            secret=file.secret,
            endpoint=file.endpoint,
            verified=file.memory_verified,
        )
    return Record(file.boot_id, file.newest_token, active, file.permits, file.gone, file.doubt, file.pid_namespace)

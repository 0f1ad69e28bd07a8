"""`holder.json`: what the server must remember across its own crash, and how it reads in the file.

Pure: bytes in, values out. Writing it durably is `sidecar.kernel.durable`'s work, what goes into it is `machine.py`'s.
"""

import zlib

import msgspec

from evidence.rules.record import Known, Processes


class Tenure(msgspec.Struct, frozen=True):
    """One lock in the hand of an incarnation, of which `Record.processes` has the rest."""

    life_file: str
    """Its name."""
    token: int
    granted_at: str
    endpoint: str | None = None
    verified: bool = False

    @property
    def engine_id(self) -> str:
        return self.life_file.rpartition(".")[0]


class Record(msgspec.Struct, frozen=True):
    """Everything that outlives the server."""

    processes: Processes
    token: int
    """The newest token ever granted; it only grows. The holder's own may be older, if it outlived a lost file."""
    active: Tenure | None = None
    permits: dict[str, Tenure] = {}
    doubt: str = ""
    """An unknown engine may hold: `NOTHING` or `UNREADABLE` was found (`lock.py`), and that isn't settled."""
    resting: str = ""
    """Why no waiter is granted until the lock is waked; empty while it isn't at rest."""

    @property
    def holder(self) -> Known | None:
        """What is said of the holder's processes."""
        return next((one for one in self.processes.known if self.active and one.name == self.active.life_file), None)


class UnreadableRecord(ValueError):
    """The file is there, and it is not a record."""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """The file's shape: flat, with `holder` and `granted_at` first (the specification's Decision 8), so that a person
    finds them. Fields that came later have defaults: a server reads what the version before it wrote.
    """

    version: int
    holder: str | None
    granted_at: str | None
    life_file: str | None
    token: int
    """The holder's."""
    newest_token: int
    endpoint: str | None
    memory_verified: bool
    permits: dict[str, Tenure]
    doubt: str
    resting: str = ""
    processes: Processes
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
        life_file=a.life_file if a else None,
        token=a.token if a else record.token,
        newest_token=record.token,
        endpoint=a.endpoint if a else None,
        memory_verified=a.verified if a else False,
        permits=record.permits,
        doubt=record.doubt,
        resting=record.resting,
        processes=record.processes,
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
        if file.granted_at is None or file.life_file is None:
            raise UnreadableRecord("a holder is named, and too little is known of it")
        active = Tenure(file.life_file, file.token, file.granted_at, file.endpoint, file.memory_verified)
        if file.token > file.newest_token or active.engine_id != file.holder:
            raise UnreadableRecord("what it says of the holder doesn't fit together")
    known = {one.name for one in file.processes.known}
    if any(tenure.life_file not in known for tenure in (*([active] if active else []), *file.permits.values())):
        raise UnreadableRecord("nothing is said of the processes of a holder")
    return Record(file.processes, file.newest_token, active, file.permits, file.doubt, file.resting)

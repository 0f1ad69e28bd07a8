"""`holder.json`: what is written is read; and anything else, a torn file or one flipped bit, is never read as another
holder or a smaller token."""

import json
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.rules.record import Known, Member, Processes
from lockserver.rules.record import Record, Tenure, UnreadableRecord, decode, encode

MEMBERS = [Member(1, "pidfs:5123", 41), Member(2, "pidfs:5124", 42), Member(5)]
ACTIVE = Tenure("engine-a.0123abcd", 12, "2026-11-20T10:00:00.123Z", "unix:/run/a.sock", True)
PERMIT = Tenure("engine-b.4567cdef", 0, "2026-11-20T10:00:01.000Z")
KNOWN = [Known("engine-a", "0123abcd", MEMBERS, "s3cret"), Known("engine-b", "4567cdef", [Member(1, "", 43)])]
REAL = Record(Processes("9c1f0a5e-boot", KNOWN, ["engine-c.89abcdef"], "ns"), 13, ACTIVE, {"init": PERMIT})

members = st.builds(Member, number=st.integers(1, 2**31), identity=st.text(max_size=20), pid=st.integers(0, 2**31))
incarnations = st.builds(
    Known,
    engine_id=st.text(max_size=70),
    incarnation=st.text(alphabet="0123456789abcdef", max_size=33),
    members=st.lists(members, max_size=5),
    secret=st.text(max_size=40),
)
tenures = st.builds(
    Tenure,
    life_file=st.just(""),
    token=st.integers(0, 2**61),
    granted_at=st.text(max_size=30),
    endpoint=st.none() | st.text(max_size=40),
    verified=st.booleans(),
)


def as_a_server_writes_it(
    processes: Processes, newer_by: int, active: Tenure | None, permits: dict[str, Tenure], whose: int
) -> Record:
    """Holders are incarnations of which more is said, and no token is newer than the newest."""
    if not processes.known:
        return Record(processes, newer_by)
    name = processes.known[whose % len(processes.known)].name
    held = {lock: msgspec.structs.replace(tenure, life_file=name) for lock, tenure in permits.items()}
    if active is None:
        return Record(processes, newer_by, None, held)
    return Record(processes, active.token + newer_by, msgspec.structs.replace(active, life_file=name), held)


records = st.builds(
    as_a_server_writes_it,
    processes=st.builds(
        Processes,
        boot_id=st.text(max_size=40),
        known=st.lists(incarnations, max_size=3),
        gone=st.lists(st.text(max_size=40), max_size=3),
    ),
    newer_by=st.integers(0, 2**61),
    active=st.none() | tenures,
    permits=st.dictionaries(st.sampled_from(["init", "other"]), tenures, max_size=2),
    whose=st.integers(0, 9),
)


def readable(data: bytes) -> Record | None:
    try:
        return decode(data)
    except UnreadableRecord as error:
        assert str(error)
        return None


def signed(**changed: Any) -> bytes:
    """The real record with other fields and a checksum that is right: what a server with a mistake would write."""
    fields = {**json.loads(encode(REAL)), **changed, "crc32": 0}
    return msgspec.json.encode({**fields, "crc32": zlib.crc32(msgspec.json.encode(fields))})


@given(records)
def test_what_was_written_is_read(written: Record) -> None:
    assert decode(encode(written)) == written


@given(records)
def test_the_same_record_is_always_the_same_bytes(written: Record) -> None:
    assert encode(written) == encode(decode(encode(written)))


def test_a_person_finds_the_holder_and_since_when_in_the_file() -> None:
    fields = json.loads(encode(REAL))
    assert list(fields)[:3] == ["version", "holder", "granted_at"]
    assert (fields["holder"], fields["granted_at"], fields["token"]) == ("engine-a", "2026-11-20T10:00:00.123Z", 12)
    assert (fields["life_file"], fields["endpoint"]) == ("engine-a.0123abcd", "unix:/run/a.sock")
    processes = fields["processes"]
    assert [member["identity"] for member in processes["known"][0]["members"][:2]] == ["pidfs:5123", "pidfs:5124"]
    assert processes["boot_id"] == REAL.processes.boot_id


@pytest.mark.parametrize("written", [REAL, Record(Processes("b"), 3)], ids=["a holder", "none"])
def test_no_truncation_is_read(written: Record) -> None:
    data = encode(written)
    for length in range(len(data)):
        assert readable(data[:length]) is None, f"{length} of {len(data)} bytes were read"


@pytest.mark.parametrize("written", [REAL, Record(Processes("b"), 3)], ids=["a holder", "none"])
def test_every_flipped_bit_is_refused_or_changes_nothing(written: Record) -> None:
    data = encode(written)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            found = readable(bytes(flipped))
            assert found is None or found == written, f"bit {bit} of byte {at}: {found}"


@given(at=st.integers(0, len(encode(REAL))), cut=st.integers(0, 64), put=st.binary(max_size=64))
def test_a_spoiled_stretch_is_refused_or_changes_nothing(at: int, cut: int, put: bytes) -> None:
    data = encode(REAL)
    found = readable(data[:at] + put + data[at + cut :])
    assert found is None or found == REAL


@given(st.binary(max_size=400))
def test_garbage_is_refused(data: bytes) -> None:
    assert readable(data) is None


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"null", b"[]", b"\xff\xfe", b'{"version": 1}', b'"' * 1000, b"[" * 100_000], ids=repr
)
def test_what_is_no_record_is_refused_with_a_sentence(data: bytes) -> None:
    assert readable(data) is None


def test_two_records_in_one_file_are_none() -> None:
    assert readable(encode(REAL) * 2) is None


def test_zeros_of_a_disk_behind_a_record_are_not_overlooked() -> None:
    assert readable(encode(REAL) + b"\0" * 512) is None


@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_version_is_refused_and_both_are_named(version: int) -> None:
    with pytest.raises(UnreadableRecord, match=f"version {version}.*reads version 1"):
        decode(signed(version=version))


def test_the_checksum_must_be_right() -> None:
    data = encode(REAL).replace(b'"newest_token":13', b'"newest_token":12')
    with pytest.raises(UnreadableRecord, match="checksum"):
        decode(data)


def test_the_helper_signs_as_the_writer_does() -> None:
    assert decode(signed()) == REAL


@pytest.mark.parametrize("missing", ["granted_at", "life_file"])
def test_a_holder_of_whom_too_little_is_known_is_refused(missing: str) -> None:
    with pytest.raises(UnreadableRecord, match="too little"):
        decode(signed(**{missing: None}))


def test_a_holder_of_whom_only_a_waiter_has_told_can_be_read() -> None:
    processes = msgspec.to_builtins(Processes("b", [Known("engine-a", "0123abcd", [])]))
    holder = decode(signed(processes=processes, permits={})).holder
    assert holder is not None and holder.members == []


def test_a_holder_of_whose_processes_nothing_is_said_is_refused() -> None:
    with pytest.raises(UnreadableRecord, match="processes of a holder"):
        decode(signed(processes=msgspec.to_builtins(Processes("b"))))


def test_a_holder_with_a_newer_token_than_the_newest_is_refused() -> None:
    assert readable(signed(token=14)) is None


def test_a_life_file_that_is_not_the_holders_is_refused() -> None:
    assert readable(signed(life_file="../../etc/passwd")) is None


def test_an_older_holder_in_the_file_keeps_the_newest_token() -> None:
    """It outlived a lost file: tokens go on above those that were granted since."""
    found = readable(signed(token=3, newest_token=50))
    assert found is not None and found.active is not None
    assert (found.active.token, found.token) == (3, 50)

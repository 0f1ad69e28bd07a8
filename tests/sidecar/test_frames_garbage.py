"""Frames as they should not be: a bad frame costs its sender the connection, says why, and leaks nothing.

Every test here counts this process's descriptors before and after.
"""

import contextlib
import fcntl
import os
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire import frames
from sidecar.wire.frames import MAX_DESCRIPTORS, MAX_FRAME_BYTES, BadFrame, Channel, Message, Received, close_all
from tests.sidecar.wire import Blob, Hello, channel, encoded, pair, pipes, tidy
from tests.support.descriptors import descriptors_left, open_descriptors


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    with tidy():
        yield


@contextlib.contextmanager
def receiving() -> Iterator[tuple[socket.socket, Channel]]:
    raw, theirs = channel()
    yield raw, theirs
    raw.close()
    theirs.close()


def everything(theirs: Channel) -> list[Message]:
    """What can be received, until there is nothing more; the descriptors are closed."""
    got: list[Message] = []
    while batch := theirs.receive():
        for message, fds in batch:
            close_all(fds)
            got.append(message)
    return got


def bad(body: bytes) -> str:
    """What a receiver says to this body of a frame."""
    with receiving() as (raw, theirs):
        raw.sendall(struct.pack(">I", len(body)) + body)
        with pytest.raises(BadFrame) as caught:
            theirs.receive()
    return str(caught.value)


def test_a_giant_length_is_refused_before_anything_of_the_frame_has_come() -> None:
    for length in (MAX_FRAME_BYTES + 1, (1 << 31) - 1):
        with receiving() as (raw, theirs):
            raw.sendall(struct.pack(">I", length))
            with pytest.raises(BadFrame, match=f"says that it has {length} bytes; at most {MAX_FRAME_BYTES}"):
                theirs.receive()


ASIDE = 1 << 31


def aside(length: int, *files: int) -> str:
    """What a receiver says to a frame whose body is said to be aside, of that length."""
    with receiving() as (raw, theirs):
        socket.send_fds(raw, [struct.pack(">I", length | ASIDE)], files)
        with pytest.raises(BadFrame) as caught:
            theirs.receive()
    return str(caught.value)


def sealed(body: bytes, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE) -> int:
    fd = os.memfd_create("body", os.MFD_ALLOW_SEALING)
    os.write(fd, body)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_a_body_aside_that_is_no_sealed_memory_of_that_length_is_refused(tmp_path: Path) -> None:
    assert "at most" in aside(MAX_FRAME_BYTES + 1)
    assert "no descriptor came" in aside(100)
    reading, writing = os.pipe()
    assert "can't be read" in aside(100, reading), "a pipe could make the reader wait"
    (tmp_path / "file").write_bytes(bytes(100))
    file = os.open(tmp_path / "file", os.O_RDONLY)
    assert "can't be read" in aside(100, file) or "can still change" in aside(100, file)
    unsealed = sealed(bytes(100), fcntl.F_SEAL_GROW)
    assert "can still change" in aside(100, unsealed)
    short = sealed(bytes(50))
    assert "50 came with it" in aside(100, short)
    garbage = sealed(bytes(100))
    assert "no message of this protocol" in aside(100, garbage)
    close_all((reading, writing, file, unsealed, short, garbage))


def test_the_longest_frame_that_is_allowed_is_allowed() -> None:
    overhead = len(encoded(Blob(data=bytes(MAX_FRAME_BYTES // 2)))) - 4 - MAX_FRAME_BYTES // 2
    ours, theirs = pair()
    ours.send(Blob(data=bytes(MAX_FRAME_BYTES - overhead)))
    got: list[Received] = []
    while not got:
        ours.flush()
        got += theirs.receive()
    with pytest.raises(ValueError, match="a frame may have"):
        ours.send(Blob(data=bytes(MAX_FRAME_BYTES - overhead + 1)))


def test_every_kind_of_nonsense_is_a_bad_frame_that_says_what_it_is() -> None:
    assert "truncated" in bad(b"")
    assert "truncated" in bad(b"\x82\xa4type")
    assert "Stranger" in bad(msgspec.msgpack.encode({"type": "Stranger"}))
    assert "`str`, got `int`" in bad(msgspec.msgpack.encode({"type": "Hello", "name": 7}))
    assert "`$.fds`" in bad(msgspec.msgpack.encode({"type": "Hello", "name": "x", "fds": -1}))
    assert "`$.fds`" in bad(msgspec.msgpack.encode({"type": "Hello", "name": "x", "fds": 254}))
    assert "trailing" in bad(msgspec.msgpack.encode(Hello(name="x")) + b"\x00")
    assert "utf-8" in bad(b"\x82\xa4type\xa5Hello\xa4name\xa2\xff\xfe")
    assert "recursion" in bad(b"\x82\xa4type\xa5Hello\xa4mood" + b"\x91" * 20_000)


def test_whole_messages_before_the_bad_frame_are_delivered_first_and_the_loop_is_woken_for_it() -> None:
    with receiving() as (raw, theirs), pipes(1) as files:
        socket.send_fds(raw, [encoded(Hello(name="one", fds=1))], files)
        raw.sendall(encoded(Hello(name="two")) + struct.pack(">I", 1 << 30))
        assert names_of_one_call(theirs) == ["one", "two"]
        poll = select.poll()
        poll.register(theirs.fileno(), select.POLLIN)
        assert poll.poll(0), "a loop that polls would never hear of the bad frame"
        for _ in range(2):
            with pytest.raises(BadFrame, match="at most"):
                theirs.receive()
        # Its sender can still be told, and can send no more.
        theirs.send(Hello(name="your frame is too long"))
        assert b"too long" in raw.recv(1000)
        with pytest.raises(BrokenPipeError):
            raw.send(b"more")


def names_of_one_call(theirs: Channel) -> list[str]:
    """One call's messages by name; the descriptors are closed."""
    names: list[str] = []
    for message, fds in theirs.receive():
        assert isinstance(message, Hello)
        names.append(message.name)
        close_all(fds)
    return names


@pytest.mark.parametrize(
    ("says", "come", "heard", "why"),
    [
        (0, 5, 1, "5 descriptors came with a message that says there are none"),
        (2, 5, 1, "3 descriptors"),
        (3, 2, 0, "Hello says 3 descriptors; 2 came with it"),
    ],
)
def test_more_or_fewer_descriptors_than_the_message_says_are_refused_and_closed(
    says: int, come: int, heard: int, why: str
) -> None:
    with receiving() as (raw, theirs), pipes(come) as files:
        socket.send_fds(raw, [encoded(Hello(name="x", fds=says))], files)
        if heard:
            assert names_of_one_call(theirs) == ["x"]
        with pytest.raises(BadFrame, match=why):
            theirs.receive()
        assert not theirs._descriptors


def test_a_message_doesnt_wait_for_descriptors_that_may_come_after_it() -> None:
    with receiving() as (raw, theirs), pipes(1) as files:
        raw.sendall(encoded(Hello(name="early", fds=1)))
        with pytest.raises(BadFrame, match="Hello says 1 descriptors; 0 came with it"):
            theirs.receive()
        with pytest.raises(BrokenPipeError):
            socket.send_fds(raw, [encoded(Hello(name="late"))], files)


def test_a_frame_that_never_ends_can_not_pile_up_descriptors() -> None:
    with receiving() as (raw, theirs), pipes(100) as files:
        before = len(open_descriptors())
        stream = encoded(Blob(data=bytes(1000)))
        with pytest.raises(BadFrame, match="isn't complete"):
            for byte in stream:
                socket.send_fds(raw, [bytes([byte])], files)
                assert theirs.receive() == []
        assert len(open_descriptors()) == before


@pytest.mark.parametrize("room", [0, 1, 100, MAX_DESCRIPTORS - 1])
def test_a_receiver_with_too_little_room_for_descriptors_refuses_the_frame_and_keeps_none(room: int) -> None:
    with receiving() as (raw, theirs), pipes(MAX_DESCRIPTORS) as files:
        raw.sendall(encoded(Hello(name="before")))
        socket.send_fds(raw, [encoded(Hello(name="x", fds=MAX_DESCRIPTORS))], files)
        before = open_descriptors()
        with descriptors_left(room):
            assert names_of_one_call(theirs) == ["before"]
            with pytest.raises(BadFrame, match="RLIMIT_NOFILE"):
                theirs.receive()
        assert open_descriptors() == before


def test_a_receiver_with_just_enough_room_takes_them_all() -> None:
    with receiving() as (raw, theirs), pipes(MAX_DESCRIPTORS) as files:
        socket.send_fds(raw, [encoded(Hello(name="x", fds=MAX_DESCRIPTORS))], files)
        with descriptors_left(MAX_DESCRIPTORS):
            [(_, fds)] = theirs.receive()
        assert len(fds) == MAX_DESCRIPTORS
        close_all(fds)


def test_a_message_that_says_no_descriptors_isnt_believed_when_the_kernel_dropped_some() -> None:
    with receiving() as (raw, theirs), pipes(4) as files:
        socket.send_fds(raw, [encoded(Hello(name="x"))], files)
        with descriptors_left(1):
            assert names_of_one_call(theirs) == ["x"]
            with pytest.raises(BadFrame, match="RLIMIT_NOFILE"):
                theirs.receive()


def test_control_data_that_doesnt_fit_is_a_bad_frame_and_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_CONTROL_BYTES", socket.CMSG_SPACE(2 * 4))
    with receiving() as (raw, theirs), pipes(6) as files:
        socket.send_fds(raw, [encoded(Hello(name="x", fds=6))], files)
        with pytest.raises(BadFrame, match="could not all be received"):
            theirs.receive()


streams = st.lists(
    st.builds(Hello, name=st.text(max_size=20), number=st.integers(0, 2**40)), min_size=1, max_size=5
).map(lambda messages: b"".join(map(encoded, messages)))


@given(streams, st.data())
def test_flipped_bits_give_messages_or_a_bad_frame_and_nothing_else(stream: bytes, data: st.DataObject) -> None:
    flips = data.draw(st.sets(st.integers(0, len(stream) * 8 - 1), min_size=1, max_size=4), label="bits")
    spoilt = bytearray(stream)
    for bit in flips:
        spoilt[bit // 8] ^= 1 << bit % 8
    with tidy(), receiving() as (raw, theirs), pipes(2) as files:
        socket.send_fds(raw, [bytes(spoilt)], files[: data.draw(st.integers(0, 2), label="descriptors")])
        raw.shutdown(socket.SHUT_WR)
        try:
            everything(theirs)
        except BadFrame as error:
            assert str(error)
        else:
            assert theirs.eof


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.integers(0, 3)), min_size=1, max_size=8))
def test_random_bytes_with_random_descriptors_leak_nothing(chunks: list[tuple[bytes, int]]) -> None:
    with tidy(), receiving() as (raw, theirs), pipes(3) as files:
        try:
            for chunk, count in chunks:
                socket.send_fds(raw, [chunk], files[:count])
                everything(theirs)
        except (BadFrame, BrokenPipeError):
            pass


@given(streams, st.data())
def test_a_truncated_stream_gives_its_whole_messages_and_a_half_frame_at_its_end(
    stream: bytes, data: st.DataObject
) -> None:
    end = data.draw(st.integers(0, len(stream)), label="end")
    with tidy(), receiving() as (raw, theirs):
        raw.sendall(stream[:end])
        raw.shutdown(socket.SHUT_WR)
        got = everything(theirs)
        whole = b"".join(map(encoded, got))
        assert stream.startswith(whole)
        assert theirs.half_frame == (len(whole) < end)
        assert theirs.receive() == []
        assert theirs.eof


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6),
    st.lists(st.integers(1, 40), min_size=1, max_size=20),
)
def test_whatever_the_messages_say_about_descriptors_and_however_they_are_cut_none_leaks(
    sent: list[tuple[int, int]], cuts: list[int]
) -> None:
    """said and attached differ at will; every piece of the stream carries what its first frame attached."""
    with tidy(), receiving() as (raw, theirs), pipes(3) as files:
        honest = all(said == attached for said, attached in sent)
        got = 0
        try:
            for said, attached in sent:
                frame = encoded(Hello(name="x" * 30, fds=said))
                socket.send_fds(raw, [frame[: cuts[0]]], files[:attached])
                raw.sendall(frame[cuts[0] :])
                got += len(everything(theirs))
        except (BadFrame, BrokenPipeError):
            assert not honest
        else:
            assert not honest or got == len(sent)

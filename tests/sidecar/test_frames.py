"""Frames as they should be: what one side sends the other gets, descriptors and order included. Garbage: see
`test_frames_garbage.py`."""

import errno
import fcntl
import os
import select
import socket
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire.frames import MAX_DESCRIPTORS, Channel, Message, PeerTooSlow, Received, close_all
from tests.sidecar.wire import Blob, Hello, channel, decoder, encoded, pair, pipes, same_file, tidy
from tests.support.children import Child, wait_until_readable
from tests.support.descriptors import descriptors_left, open_descriptors


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    with tidy():
        yield


def so_many(count: int, ours: Channel, theirs: Channel) -> list[Received]:
    """What was sent, once there are so many."""
    got: list[Received] = []
    while len(got) < count:
        ours.flush()
        got += theirs.receive()
    return got


def filled(ours: Channel, message: Message) -> int:
    """How many it took until something waits for the socket."""
    count = 0
    while not ours.wants_write:
        ours.send(message)
        count += 1
    return count


def test_what_is_sent_is_received() -> None:
    ours, theirs = pair()
    ours.send(Hello(name="a", number=7))
    assert theirs.receive() == [Received(Hello(name="a", number=7), ())]
    theirs.send(Blob(data=b"\x00" * 100))
    assert ours.receive() == [Received(Blob(data=b"\x00" * 100), ())]
    assert (ours.receive(), ours.eof, ours.half_frame, ours.wants_write) == ([], False, False, False)


messages = st.one_of(
    st.builds(Hello, name=st.text(max_size=40), number=st.integers(-(2**63), 2**63 - 1)),
    st.builds(Blob, data=st.binary(max_size=3000)),
)


@given(st.lists(st.tuples(messages, st.integers(0, 5)), max_size=12))
def test_every_message_arrives_in_order_with_its_own_descriptors(sent: list[tuple[Message, int]]) -> None:
    with tidy(), pipes(5) as files:
        ours, theirs = pair()
        for message, count in sent:
            ours.send(message, files[:count])
        got = so_many(len(sent), ours, theirs)
        for (message, count), received in zip(sent, got, strict=True):
            assert received.message == msgspec.structs.replace(message, fds=count)
            assert len(received.descriptors) == count
            assert all(map(same_file, received.descriptors, files))
            assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in received.descriptors)
            close_all(received.descriptors)


@given(st.lists(messages, min_size=1, max_size=6), st.data())
def test_it_doesnt_matter_where_the_stream_is_cut(sent: list[Message], data: st.DataObject) -> None:
    with tidy():
        stream = b"".join(map(encoded, sent))
        cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=10), label="cuts"))
        raw, theirs = channel()
        got: list[Message] = []
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            raw.sendall(stream[start:end])
            got += [received.message for received in theirs.receive()]
        assert got == sent
        assert not theirs.half_frame


def test_a_slow_sender_s_frame_is_half_until_its_last_byte() -> None:
    raw, theirs = channel()
    stream = encoded(Hello(name="slow"))
    with pipes(1) as files:
        header = encoded(Hello(name="slow", fds=1))
        socket.send_fds(raw, [header[:1]], files)
        for byte in header[1:-1]:
            assert theirs.receive() == []
            assert theirs.half_frame
            raw.send(bytes([byte]))
        raw.send(header[-1:])
        [received] = theirs.receive()
        assert same_file(received.descriptors[0], files[0])
        close_all(received.descriptors)
    assert not theirs.half_frame
    raw.sendall(stream)
    assert len(theirs.receive()) == 1


def test_as_many_descriptors_as_the_kernel_takes_go_with_one_message() -> None:
    ours, theirs = pair()
    with pipes(MAX_DESCRIPTORS) as files:
        ours.send(Hello(name="many"), files)
        [received] = theirs.receive()
        assert len(received.descriptors) == MAX_DESCRIPTORS
        assert all(map(same_file, received.descriptors, files))
        close_all(received.descriptors)
        with pytest.raises(ValueError, match="253 can"):
            ours.send(Hello(name="more"), [*files, files[0]])


def test_the_sender_may_close_its_descriptors_while_the_message_still_waits_for_the_socket() -> None:
    ours, theirs = pair()
    filler = Blob(data=bytes(100_000))
    sent = filled(ours, filler)
    with pipes(2) as files:
        kept = [os.dup(fd) for fd in files]
        ours.send(Hello(name="after"), kept)
        close_all(kept)
        got = so_many(sent + 1, ours, theirs)
        assert got[-1].message == Hello(name="after", fds=2)
        assert all(map(same_file, got[-1].descriptors, files))
        close_all(got[-1].descriptors)
    assert not ours.wants_write


@pytest.mark.parametrize("full", [False, True], ids=["empty socket", "full socket"])
def test_a_frame_larger_than_the_socket_s_buffer_arrives_whole_with_its_descriptors(full: bool) -> None:
    ours, theirs = pair()
    fillers = filled(ours, Blob(data=b"x")) if full else 0
    large = Blob(data=os.urandom(1_000_000))
    with pipes(1) as files:
        ours.send(large, files)
        assert ours.wants_write is full, "aside, its body takes no room in the socket"
        got = so_many(fillers + 1, ours, theirs)
        assert got[-1].message == msgspec.structs.replace(large, fds=1)
        assert same_file(got[-1].descriptors[0], files[0])
        close_all(got[-1].descriptors)
        assert theirs.receive() == [], "its descriptors came once, with its first byte"


def test_at_most_one_body_is_aside_and_unread() -> None:
    """Else a peer that asks and doesn't read would make our memory grow."""
    ours, theirs = pair()
    large = Blob(data=os.urandom(300_000))
    ours.send(large)
    assert not ours.wants_write
    ours.send(large)
    assert ours.wants_write, "the second one goes through the socket"
    got = so_many(2, ours, theirs)
    ours.send(large)
    assert not ours.wants_write
    assert [received.message for received in (*got, *theirs.receive())] == [large] * 3


def test_a_message_never_overtakes_what_still_waits_for_the_socket() -> None:
    ours, theirs = pair()
    sent = 0
    while not ours.wants_write:
        ours.send(Hello(name="x" * 60_000, number=sent))
        sent += 1
    got = theirs.receive()  # makes room in the socket
    ours.send(Hello(name="last", number=sent))
    got += so_many(sent + 1 - len(got), ours, theirs)
    assert [received.message for received in got if isinstance(received.message, Hello)] == [
        Hello(name="last" if number == sent else "x" * 60_000, number=number) for number in range(sent + 1)
    ]


def test_when_descriptors_cant_be_kept_nothing_of_the_message_is() -> None:
    ours, theirs = pair()
    with pipes(3) as files:
        sent = filled(ours, Blob(data=bytes(60_000)))
        with descriptors_left(1), pytest.raises(OSError) as caught:
            ours.send(Hello(name="lost"), files)
        assert caught.value.errno == errno.EMFILE
        ours.send(Hello(name="kept"))
        got = so_many(sent + 1, ours, theirs)
        assert got[-1] == Received(Hello(name="kept"), ())


@pytest.mark.parametrize("count", [0, 3])
def test_a_peer_that_never_reads_is_too_slow_and_costs_no_descriptor(count: int) -> None:
    ours, _ = pair(max_backlog_bytes=300_000)
    with pipes(count) as files, pytest.raises(PeerTooSlow, match="doesn't read"):
        for _ in range(2_000):
            ours.send(Blob(data=bytes(50_000)), files)
    assert not ours.wants_write


def test_a_peer_that_never_reads_is_too_slow_before_its_descriptors_are_too_many() -> None:
    ours, _ = pair()
    with pipes(100) as files, pytest.raises(PeerTooSlow):
        while True:
            ours.send(Hello(name="x"), files)
            assert len(open_descriptors()) < 2000


def test_a_closed_descriptor_is_the_sender_s_own_error_and_nothing_is_sent() -> None:
    ours, theirs = pair()
    with pipes(1) as files:
        closed = os.dup(files[0])
    os.close(closed)
    with pytest.raises(OSError):
        ours.send(Hello(name="x"), [closed])
    ours.send(Hello(name="still works"))
    assert [received.message for received in theirs.receive()] == [Hello(name="still works")]


def test_the_last_words_of_a_peer_come_before_its_end_of_file() -> None:
    ours, theirs = pair()
    ours.send(Hello(name="last"))
    ours.close()
    theirs.send(Hello(name="too late"))  # raises nothing
    assert [received.message for received in theirs.receive()] == [Hello(name="last")]
    assert theirs.receive() == []
    assert theirs.eof


def test_a_peer_that_leaves_without_reading_is_at_its_end_of_file_and_no_error() -> None:
    ours, theirs = pair()
    theirs.send(Hello(name="unread"))
    theirs_unread = Hello(name="last")
    ours.send(theirs_unread)
    ours.close()  # with something unread: the peer's socket is reset
    assert [received.message for received in theirs.receive()] == [theirs_unread]
    assert theirs.receive() == []
    assert theirs.eof


def test_a_peer_that_no_longer_reads_but_stays_shows_as_end_of_file_after_the_next_send() -> None:
    ours, theirs = pair()
    raw = socket.socket(fileno=os.dup(theirs.fileno()))
    raw.shutdown(socket.SHUT_RD)
    ours.send(Hello(name="not read"))
    wait_until_readable(ours.fileno())
    assert ours.receive() == []
    assert ours.eof


def test_one_peer_s_flood_doesnt_keep_receive_from_returning() -> None:
    raw, theirs = channel()
    frame = encoded(Blob(data=bytes(60_000)))

    def flood(say: object) -> None:
        while True:
            raw.sendall(frame)

    with Child(flood):
        raw.close()
        received = calls = 0
        while received <= 50 or calls < 50:
            wait_until_readable(theirs.fileno())
            received += len(theirs.receive())  # returns, or the test's time-out says so
            calls += 1


def test_close_may_be_called_twice_and_closes_what_was_never_handed_out() -> None:
    raw, theirs = channel()
    with pipes(4) as files:
        socket.send_fds(raw, [encoded(Hello(name="half", fds=4))[:6]], files)
        assert theirs.receive() == []
    theirs.close()
    theirs.close()
    assert theirs.fileno() == -1


def test_a_poller_learns_that_the_backlog_can_be_written() -> None:
    ours, theirs = pair()
    filled(ours, Blob(data=bytes(100_000)))
    poll = select.poll()
    poll.register(ours.fileno(), select.POLLOUT)
    assert poll.poll(0) == []
    while ours.wants_write:
        theirs.receive()
        assert poll.poll(10_000)
        ours.flush()


@pytest.mark.root
def test_what_a_user_s_limit_of_descriptors_in_flight_keeps_back_waits_and_goes_out_when_others_have_read() -> None:
    def fill(say: object) -> None:
        import resource

        os.setgid(65534)
        os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        left, right = socket.socketpair()
        silent = Channel(left, decoder)
        ours, theirs = socket.socketpair()
        healthy, reader = Channel(ours, decoder), Channel(theirs, decoder)
        here = [os.dup(0) for _ in range(200)]
        while not silent.held_up:
            silent.send(Hello(name="x"), here)
        healthy.send(Hello(name="y"), here[:1])
        if not healthy.held_up or healthy.wants_write or reader.receive():
            os._exit(3)
        close_all(fd for _, fds in Channel(right, decoder).receive() for fd in fds)
        healthy.flush()
        os._exit(0 if not healthy.held_up and len(reader.receive()) == 1 else 4)

    with Child(fill) as child:
        assert os.waitstatus_to_exitcode(child.wait()) == 0

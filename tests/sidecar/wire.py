"""Messages and sockets for the tests of frames."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import msgspec

from sidecar.wire.frames import MAX_BACKLOG_BYTES, Channel, Message
from tests.support.descriptors import no_descriptor_leaks


class Hello(Message, frozen=True):
    name: str
    number: int = 0


class Blob(Message, frozen=True):
    data: bytes


decoder: msgspec.msgpack.Decoder[Hello | Blob] = msgspec.msgpack.Decoder(Hello | Blob)


def encoded(message: Message) -> bytes:
    """The frame of a message, made without the code that is tested."""
    body = msgspec.msgpack.encode(message)
    return struct.pack(">I", len(body)) + body


_made: list[Channel | socket.socket] = []


@contextlib.contextmanager
def tidy() -> Iterator[None]:
    """What `pair` and `channel` make meanwhile is closed at its end, and no more is open then than before."""
    with no_descriptor_leaks():
        yield
        while _made:
            _made.pop().close()


def pair(max_backlog_bytes: int = MAX_BACKLOG_BYTES) -> tuple[Channel, Channel]:
    """Two channels that are connected."""
    left, right = (Channel(end, decoder, max_backlog_bytes=max_backlog_bytes) for end in socket.socketpair())
    _made.extend((left, right))
    return left, right


def channel() -> tuple[socket.socket, Channel]:
    """A plain blocking socket and the channel at its other end."""
    raw, other = socket.socketpair()
    theirs = Channel(other, decoder)
    _made.extend((raw, theirs))
    return raw, theirs


@contextlib.contextmanager
def pipes(count: int) -> Iterator[list[int]]:
    """That many different files."""
    ends = [end for _ in range((count + 1) // 2) for end in os.pipe()]
    try:
        yield ends[:count]
    finally:
        for end in ends:
            os.close(end)


def same_file(one: int, other: int) -> bool:
    """Both descriptors are of one open file (of a pipe also: the same end)."""
    return os.path.samestat(os.fstat(one), os.fstat(other)) and _mode(one) == _mode(other)


def _mode(fd: int) -> str:
    with open(f"/proc/self/fdinfo/{fd}") as lines:
        return next(line for line in lines if line.startswith("flags:"))[-3:]

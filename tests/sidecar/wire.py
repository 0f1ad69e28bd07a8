"""Messages and sockets for the tests of frames."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import msgspec

from sidecar.wire.frames import MAX_BACKLOG_BYTES, MAX_FRAME_BYTES, Channel, Message


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


def pair(max_frame_bytes: int = MAX_FRAME_BYTES, max_backlog_bytes: int = MAX_BACKLOG_BYTES) -> tuple[Channel, Channel]:
    """Two channels that are connected."""
    limits = {"max_frame_bytes": max_frame_bytes, "max_backlog_bytes": max_backlog_bytes}
    left, right = socket.socketpair()
    return Channel(left, decoder, **limits), Channel(right, decoder, **limits)


def channel() -> tuple[socket.socket, Channel]:
    """A plain blocking socket and the channel at its other end."""
    raw, other = socket.socketpair()
    return raw, Channel(other, decoder)


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

"""One question to the door by HTTP, for the commands that look: its answer is here within a time, whatever listens.
(Only a name that the resolver is slow to find takes longer.)

`http.client` has a time for each piece alone: a program that sends a byte a second, or `100 Continue` for ever, would
keep `failover status` for ever. What this file may not do: word what no answer means (its callers do).
"""

import re
import socket
import time
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

MOST = 4 << 20
_HEAD = re.compile(rb"HTTP/1\.[01] (\d{3})\b.*?\r\n\r\n", re.DOTALL)
Said = TypeVar("Said")


class NoDoor(Exception):
    """What listens there isn't the door, or is one of another version: the text says what it does."""


def ask(url: str, path: str, within_s: float, kind: type[Said]) -> Said:
    """What the door says at this path. Raises OSError where nothing answers in time, and NoDoor."""
    said = _said(url, f"GET {path} HTTP/1.0\r\nHost: door\r\n\r\n".encode(), time.monotonic() + within_s)
    head = _HEAD.match(said)
    if head is None:
        raise NoDoor("what listens there doesn't speak HTTP")
    if head[1] != b"200":
        raise NoDoor(f"{path} says {int(head[1])}")
    try:
        return msgspec.json.decode(memoryview(said)[head.end() :], type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise NoDoor(f"what {path} says can't be read: is it the door, and of this version?") from None


def _said(url: str, question: bytes, end: float) -> bytes:
    try:
        at = urlsplit(url)
        address = at.hostname or "", at.port or 80
    except ValueError:
        raise NoDoor("this is no address") from None
    said = bytearray()
    try:
        connected = socket.create_connection(address, _left(end))
    except UnicodeError:
        raise NoDoor("this is no address") from None
    with connected as sock:
        sock.sendall(question)
        while len(said) <= MOST:
            sock.settimeout(_left(end, said))
            try:
                piece = sock.recv(1 << 16)
            except TimeoutError:
                continue  # the next look at the clock says so
            if not piece:
                break
            said += piece
    return bytes(said)


def _left(end: float, said: bytes | bytearray = b"") -> float:
    left_s = end - time.monotonic()
    if left_s > 0:
        return left_s
    if said:
        raise NoDoor("its answer doesn't end in time: is it the door?")
    raise TimeoutError

"""What is said over the control socket: one JSON object each way, and descriptors beside it.

    -> {"do": "status"}                                     <- {"ok": true, "pod": {...}}
    -> {"do": "exec", "container": ..., "command": [...]}   with stdin, stdout, stderr    <- {"ok": true, "code": 0}
    -> {"do": "dial", "port": 8000}                         <- {"ok": true} with a connected socket

An error is {"ok": false, "error": "a sentence"}. A frame is a 4-byte length and the JSON.
"""

import json
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sidecar.wire.sockets import address_of

MOST_BYTES = 16 << 20
MOST_DESCRIPTORS = 8
_LENGTH = struct.Struct(">I")


class NoPod(Exception):
    """Nothing answers in this directory; the text says so."""


class NoneYet(NoPod):
    """But something may, as soon as a pod runs there."""


class Refused(Exception):
    """The pod says no; the text is its own."""


def send(sock: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    body = json.dumps(message).encode()
    head = _LENGTH.pack(len(body))
    if descriptors:
        socket.send_fds(sock, [head], list(descriptors))
        sock.sendall(body)
    else:
        sock.sendall(head + body)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Raises EOFError when the other side has gone."""
    head, descriptors, _, _ = socket.recv_fds(sock, _LENGTH.size, MOST_DESCRIPTORS)
    try:
        while len(head) < _LENGTH.size:
            head += _more(sock, _LENGTH.size - len(head))
        (length,) = _LENGTH.unpack(head)
        if length > MOST_BYTES:
            raise EOFError("a frame is too long")
        body = b""
        while len(body) < length:
            body += _more(sock, length - len(body))
        message = json.loads(body)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return message, descriptors


def _more(sock: socket.socket, count: int) -> bytes:
    data = sock.recv(count)
    if not data:
        raise EOFError("the other side has gone")
    return data


def connect(path: Path) -> socket.socket:
    """Raises NoPod, NoneYet."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(path) as address:
            sock.connect(address)
    except PermissionError:
        sock.close()
        raise NoPod(f"{path} is another user's") from None
    except OSError:
        sock.close()
        raise NoneYet(
            f"no pod runs in {path.parent}: local-pod run FILE starts one, --dir names another place"
        ) from None
    return sock


def ask(path: Path, message: dict[str, Any], descriptors: Sequence[int] = ()) -> tuple[dict[str, Any], list[int]]:
    """One question, one answer. Raises NoPod, Refused."""
    sock = connect(path)
    with sock:
        try:
            send(sock, message, descriptors)
            answer, received = receive(sock)
        except (EOFError, OSError):
            raise NoPod(f"the pod in {path.parent} has ended meanwhile") from None
    if not answer.get("ok"):
        raise Refused(str(answer.get("error")))
    return answer, received

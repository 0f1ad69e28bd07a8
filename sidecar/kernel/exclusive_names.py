"""Names in the network namespace that one process has at a time, without any directory.

A name is an abstract Unix socket that a process listens on; it is free again when no process has a descriptor of it any
more. A server takes the names of what it is about to give away (its path, the devices), and sends a copy to the engine
that gets them: so a name is free only when both are gone, living or stopped, whatever has become of the directory.

Other users can take any name. The kernel tells which process listens (its user and, where it can be seen, its pid), so
a name that a foreign process holds can be told from one of ours.

What this file may not do: know what a name stands for, or wait.
"""

import errno
import hashlib
import os
import socket
from typing import NamedTuple

from sidecar.kernel import peers

_BACKLOG = 4096


class Owner(NamedTuple):
    """Who listens under a name."""

    pid: int
    """0: in a PID namespace that can't be seen from here."""
    uid: int
    """-1: it can't be told; it left just now, or doesn't answer."""

    def __str__(self) -> str:
        if self.uid < 0:
            return "a process that can't be seen from here"
        who = f"process {self.pid}" if self.pid > 0 else "a process of another container"
        return who if self.uid == os.getuid() else f"{who} of user {self.uid}"


def address(name: str) -> str:
    """Abstract names are short; paths needn't be."""
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return f"\0gpu-failover/{digest}"


def take(name: str) -> socket.socket | None:
    """The name, until this descriptor and all copies of it are closed; None when it is taken."""
    return take_address(address(name))


def take_address(taken: str) -> socket.socket | None:
    """For a caller in a hurry, that made the address before."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # raises OSError, as the rest may
    try:
        sock.bind(taken)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return sock


def owner(name: str) -> Owner | None:
    """The process that took it; None when it is free. If that process has ended, another one has a copy."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            sock.connect(address(name))
        except ConnectionRefusedError:
            return None
        except OSError:  # its process has accepted none for so long that no more fit in
            return Owner(0, -1)
        seen = peers.credentials(sock)
        return Owner(seen.pid, seen.uid)


def accept_all(sock: socket.socket) -> None:
    """Connections that only asked which process listens here."""
    while True:
        try:
            sock.accept()[0].close()
        except OSError:
            return

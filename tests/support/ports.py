"""Ports for programs that a test starts. Each is found once on this machine, as long as the finding process lives, so
no two tests get the same one; and none is of those that the kernel gives to outgoing connections, so it is free again
when the program that had it is started anew.
"""

import itertools
import os
import socket

from sidecar.kernel import exclusive_names

_PORTS = range(10000, 32768)
_held: list[socket.socket] = []
_next = itertools.count(os.getpid() * 97)


def free_port() -> int:
    for number in itertools.islice(_next, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        name = exclusive_names.take(f"a test's port {port}")
        if name is None:
            continue
        _held.append(name)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:  # another program's
            continue
    raise AssertionError("no port is free")

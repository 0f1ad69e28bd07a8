"""The pod's network: the loopback, and on it the pod's own IPv4 address, which probes ask as kubelet does.

A program that listens on 127.0.0.1 only is not reached there.
"""

import fcntl
import socket
import struct

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C
_IFF_UP = 1
_LOOPBACK, _ALIAS = b"lo", b"lo:1"


def up(address: str) -> None:
    """Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        flags = struct.unpack("16sh", fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sh", _LOOPBACK, 0)))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh", _LOOPBACK, flags | _IFF_UP))
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
            packed = struct.pack("16sH2s4s8x", _ALIAS, socket.AF_INET, b"\0\0", socket.inet_aton(value))
            fcntl.ioctl(sock, request, packed)

"""The pod's network: the loopback, and on it the pod's own address, which probes ask as kubelet does.

A program that listens on 127.0.0.1 only is not reached there, nor one on IPv4 only in a pod with an IPv6 address.
"""

import fcntl
import ipaddress
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
        if ":" not in address:
            fcntl.ioctl(sock, _SIOCSIFADDR, _ipv4(_ALIAS, address))
            fcntl.ioctl(sock, _SIOCSIFNETMASK, _ipv4(_ALIAS, "255.255.255.255"))
    if ":" in address:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            packed = ipaddress.IPv6Address(address).packed
            fcntl.ioctl(sock, _SIOCSIFADDR, struct.pack("=16sIi", packed, 128, socket.if_nametoindex("lo")))


def _ipv4(name: bytes, address: str) -> bytes:
    return struct.pack("16sH2s4s8x", name, socket.AF_INET, b"\0\0", socket.inet_aton(address))

"""Listening on TCP, the same for every program: on IPv4, on IPv6, or on both.

What this file may not do: know what listens, or for what.
"""

import contextlib
import errno
import socket

BACKLOG = 1024
_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class CannotListen(Exception):
    """It isn't possible to listen at this address; the text says why."""

    def __init__(self, host: str, port: int, why: str, *, taken: bool = False) -> None:
        super().__init__(f"can't listen on {named(host, port)}: {why}")
        self.why = why
        self.port = port
        self.taken = taken
        """By another program."""


def listen(host: str, port: int, backlog: int = BACKLOG) -> socket.socket:
    """A listening socket that doesn't block. An empty host means every address of this machine, IPv4 and IPv6, so that
    a cluster of either kind reaches it. Raises CannotListen.
    """
    try:
        listener = _on_every_address(port, backlog) if not host else _on(host, port, backlog)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]  # where create_server repeats the address
        raise CannotListen(host, port, why, taken=error.errno == errno.EADDRINUSE) from None
    listener.setblocking(False)
    return listener


def probe(sock: socket.socket) -> None:
    """Else a far end that vanished without a word is waited for for ever. What a listener takes inherits it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def taken(host: str, port: int) -> str:
    """Why a program couldn't listen there at the moment; empty if it could. It binds and doesn't listen, so a program
    that begins to listen in the same moment isn't disturbed.
    """
    try:
        family, address = _resolved(host, port)
        with contextlib.closing(socket.socket(family)) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if not host and family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(address)
    except OSError as error:
        return f"can't listen on {named(host, port)}: {error.strerror or error}"
    return ""


def named(host: str, port: int) -> str:
    """The address as a person writes it: `:9000`, `127.0.0.1:9000`, `[::1]:9000`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url(host: str, port: int) -> str:
    """Where a client of the same machine (or pod) reaches the program that listens there."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{named(host, port)}"


def _on(host: str, port: int, backlog: int) -> socket.socket:
    family, address = _resolved(host, port)
    return socket.create_server(address, family=family, backlog=backlog)


def _on_every_address(port: int, backlog: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in _NO_IPV6:  # IPv6 is compiled in and switched off
                raise
    return socket.create_server(("0.0.0.0", port), backlog=backlog)


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The family and address to bind. Raises OSError (gaierror) for a name that isn't known."""
    if not host:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        return family, ("::" if family == socket.AF_INET6 else "0.0.0.0", port)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return family, (str(address[0]), port)

"""Makes ports of the pod reachable from this machine: each connection is one that the loop inside has made."""

import argparse
import contextlib
import socket
import threading
from pathlib import Path

from . import places, wire
from .commands import FAILED, Mistake, ask

Ports = tuple[str, int, int]
"""Host and port here, port of the pod."""


def listen(control: Path, wanted: Ports) -> socket.socket:
    """Listens here and relays each connection to the pod's own address."""
    host, port, inside = wanted
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Mistake(f"nobody can listen on {host}:{port}: {error.strerror}", FAILED) from None

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_relay, args=(client, control, inside), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def _relay(client: socket.socket, control: Path, port: int) -> None:
    try:
        _, (descriptor,) = wire.ask(control, {"do": "dial", "port": port})
    except (wire.NoPod, wire.Refused, ValueError):
        client.close()
        return
    inside = socket.socket(fileno=descriptor)
    back = threading.Thread(target=_copy, args=(inside, client), daemon=True)
    back.start()
    _copy(client, inside)
    back.join()
    client.close()
    inside.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def forward(options: argparse.Namespace) -> int:
    ask(options, {"do": "status"})
    listeners = [listen(options.dir.absolute() / places.CONTROL, each) for each in options.ports]
    for listener, (_, _, inside) in zip(listeners, options.ports, strict=True):
        host, port = listener.getsockname()[:2]
        print(f"{host}:{port} -> {inside} of the pod", flush=True)
    threading.Event().wait()
    return 0

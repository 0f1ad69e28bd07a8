"""Makes ports of the pod reachable from this machine: each connection is one that the loop inside has made."""

import contextlib
import socket
import threading
from pathlib import Path

from . import wire
from .commands import FAILED, Mistake

Ports = tuple[str, int, int]
"""Host and port here, port of the pod."""


def listen(control: Path, wanted: Ports) -> socket.socket:
    """Listens here and relays each connection to the pod's own address."""
    host, port, inside = wanted
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Mistake(f"{host}:{port} can't be listened on: {error.strerror}", FAILED) from None

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed: the pod has ended
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_relay, args=(client, control, inside), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def _relay(client: socket.socket, control: Path, port: int) -> None:
    with client:
        try:
            _, (descriptor,) = wire.ask(control, {"do": "dial", "port": port})
        except (wire.NoPod, wire.Refused, ValueError):
            return
        with socket.socket(fileno=descriptor) as inside:
            back = threading.Thread(target=_copy, args=(inside, client), daemon=True)
            back.start()
            _copy(client, inside)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)

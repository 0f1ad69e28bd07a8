"""Where the door of a process tree listens, and that the tree's programs are those of this software."""

import contextlib
import os
from pathlib import Path

from sidecar.kernel import exclusive_names, port_owner
from sidecar.terminal.cannot_start import CannotStart
from sidecar.wire import tcp

_ADDRESS = "HOST:PORT, or --listen none"


def free_address(host: str, *ports: int, other: str = _ADDRESS) -> tuple[str, int]:
    """The first of these ports that is free, 0 standing for any. The door keeps it for as long as the pair runs; until
    it has it, and after that, no other `failover up` takes it, because this process has the name. `other`: what may be
    given instead. Raises CannotStart.
    """
    for port in ports:
        try:
            with tcp.listen(host, port) as sock:
                free = int(sock.getsockname()[1])
                name = exclusive_names.take(f"door {host} {free}")
                if name is not None:
                    name.detach()
                    return host, free
            why = f"another failover up is about to listen there; give another {other}"
        except tcp.CannotListen as error:
            why = port_owner.way_out(error, other)
    raise CannotStart(f"--listen {tcp.named(host, ports[-1])}: {why}")


def choose_address(port: int = 8000) -> tuple[tuple[str, int], str]:
    """Where the door listens if no address was given; and what a person should know of it first, who expects it at this
    port. Raises CannotStart.
    """
    at = free_address("127.0.0.1", port, 0)
    by = port_owner.owner(port)
    what = f"port {port} is taken{by and f' by {by}'}: clients come to port {at[1]}; --listen HOST:PORT chooses another"
    return at, "" if at[1] == port else what


def parts_are_these() -> None:
    """What is started with `python -m` finds its modules in the working directory first: a directory gms there, or
    another checkout. Only where this program itself is of the working directory is that right.
    """
    with contextlib.suppress(OSError):
        if os.path.samefile(Path(__file__).parents[2], "."):
            return
    os.environ["PYTHONSAFEPATH"] = "1"

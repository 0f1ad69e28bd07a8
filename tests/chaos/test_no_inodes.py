"""No file can be made any more in the run directory, and a server ends: the next one starts, a standby is granted."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.house import House, Server
from tests.gms.container import SLAB, Container
from tests.support import tmpfs
from tests.support.root import needs_root

pytestmark = [pytest.mark.chaos, pytest.mark.root, needs_root]


@contextlib.contextmanager
def few_inodes(place: Path) -> Iterator[Callable[[], None]]:
    """What it yields takes all that are left."""
    taken = iter(range(1000))

    def take_all() -> None:
        with pytest.raises(OSError, match="No space left"):
            while True:
                (place / f"filler{next(taken)}").touch()

    with tmpfs.mounted(place, "nr_inodes=60,mode=0700"):
        yield take_all


def stops_in_order(server: Server) -> None:
    server.signal(signal.SIGTERM)
    server.wait()


@pytest.mark.parametrize("ends", [Server.kill, stops_in_order], ids=["crash", "stop"])
def test_the_next_server_starts_and_a_standby_is_granted(house: House, ends: Callable[[Server], None]) -> None:
    with few_inodes(house.run_dir) as take_all:
        server = house.server()
        a, b = house.engine("a"), house.engine("b")
        token = a.holds()
        b.wants(watching=[a])
        server.shows(lambda s: s.waiters)
        for _ in range(3):
            take_all()
            ends(server)
            take_all()
            server = house.server()
            held = server.shows(lambda s: s.state == "HELD" and s.waiters)
            assert held.holder is not None and held.holder.token == token
        server.has_back(a, b)
        a.kill()
        assert b.granted()["dead"] == [True]
        assert not server.status().alarms


def test_gms_starts_again(container: Container) -> None:
    with few_inodes(container.run_dir) as take_all:
        gms = container.serves()
        container.writer((SLAB,))
        take_all()
        gms.kill()
        take_all()
        container.serves()
        assert not container.status().alarms

"""`holder.json`, torn and corrupt, and a disk that is full: never a grant that isn't proven, and the holder goes on."""

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockserver.shell.rundir import HOLDER
from tests.chaos.house import House, Server, Waiter
from tests.support import tmpfs
from tests.support.root import needs_root

pytestmark = pytest.mark.chaos


class Victim:
    """A holder that is stopped while each new server finds something else in its file."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.server = house.server()
        self.holder = house.engine("a")
        self.token = self.holder.holds()
        self.file = house.run_dir / "holder.json"
        self.data = self.file.read_bytes()

    def finds(self, put: Callable[[], object], what: str) -> None:
        """A server that finds this grants none, though its window is over and an engine waits."""
        self.holder.stop()
        self.server.kill()
        put()
        self.server = self.house.server("--window-s", "0.01", "--settle-s", "0.01")
        with Waiter(self.house.run_dir, "b") as waiter:
            with self.server.observer() as observer:
                while (status := observer.status()).state == "RECOVERING" or not status.waiters:
                    pass
            assert status.state == "FENCING", f"{what}: {status}"
            assert not waiter.has(), f"{what}: {status}"

    def comes_back(self) -> None:
        """And takes the holder back as it was."""
        with Waiter(self.house.run_dir, "b") as waiter:
            self.holder.go_on()
            held = self.server.shows(lambda s: s.state == "HELD")
            assert held.holder is not None and (held.holder.engine_id, held.holder.token) == ("a", self.token)
            assert not waiter.has()
        assert not self.holder.heard("lost")

    def tears(self, data: bytes) -> None:
        before = set(self.house.run_dir.glob("holder.json.unreadable-*"))
        self.finds(lambda: self.file.write_bytes(data), repr(data[:40]))
        for kept in set(self.house.run_dir.glob("holder.json.unreadable-*")) - before:
            assert kept.read_bytes() == data, "what can't be read is kept as it was"
            kept.unlink()
            return
        raise AssertionError(f"{data[:40]!r} was not kept aside")


def test_whatever_is_in_the_holder_file_the_lock_stays_with_its_holder(house: House) -> None:
    """That nothing of this is read, and no truncation at any byte, is `tests/lockserver/test_record.py`'s."""
    victim = Victim(house)
    whole = len(victim.data)
    for data in (b"{}", b"\0" * 4096, b"x" * (2 << 20), *(victim.data[:cut] for cut in (0, whole // 2, whole - 1))):
        victim.tears(data)
        victim.comes_back()
    victim.finds(victim.file.unlink, "no file")
    victim.comes_back()


# -- no room -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def limited(house: House) -> Iterator[tuple[Server, Callable[[bool], None]]]:
    """As any user can: the server may write no file longer than 100 bytes."""
    server = house.server()

    def full(yes: bool) -> None:
        hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (100 if yes else hard, hard))

    yield server, full


@contextlib.contextmanager
def small_disk(house: House) -> Iterator[tuple[Server, Callable[[bool], None]]]:
    """A tmpfs of 64 KiB as the run directory, a file that fills it, and a person who took the server's spare file for
    rubbish: with it a full disk stops no server.
    """
    filler = Path(house.run_dir, "filler")

    def full(yes: bool) -> None:
        if not yes:
            filler.unlink()
            return
        with contextlib.suppress(FileNotFoundError):
            (house.run_dir / f"{HOLDER}.spare").unlink()
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 512)

    with tmpfs.mounted(house.run_dir, "size=64k,mode=0700"):
        yield house.server(), full


disks = pytest.mark.parametrize("disk", [limited, pytest.param(small_disk, marks=[pytest.mark.root, needs_root])])
Disk = Callable[[House], contextlib.AbstractContextManager[tuple[Server, Callable[[bool], None]]]]


@disks
def test_on_a_full_disk_no_waiter_is_granted_and_as_soon_as_there_is_room_one_is(house: House, disk: Disk) -> None:
    with disk(house) as (server, full):
        a, b = house.engine("a"), house.engine("b")
        token = a.holds()
        b.wants(watching=[a])
        server.shows(lambda s: s.waiters)
        full(True)
        a.kill()
        server.shows(lambda s: any("can't be written" in alarm for alarm in s.alarms))
        b.never_hears("granted", for_s=0.8)
        assert server.status().state == "FENCING"
        full(False)
        assert b.granted()["token"] > token
        server.shows(lambda s: s.state == "HELD" and not s.alarms)
        assert sorted(os.listdir(house.run_dir / "life")) == [b.tree], (
            "the dead holder's file has gone, and no temporary stays"
        )


@disks
def test_a_joiner_that_dies_unacknowledged_on_a_full_disk_is_forgotten(house: House, disk: Disk) -> None:
    with disk(house) as (server, full):
        a, b = house.engine("a"), house.engine("b")
        a.holds()
        b.wants(watching=[a])
        worker = a.child("exec")
        full(True)
        worker.joins(a.tree)
        server.shows(lambda s: any("can't be written" in alarm for alarm in s.alarms))
        worker.kill()
        full(False)
        a.kill()
        assert b.granted()["dead"] == [True]

"""Where a path leads: every way in which it comes to lead elsewhere is seen, and told by the kernel."""

import os
import select
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sidecar.kernel.path_watch import Leads, OpenDirectory, PathWatch, make_private_directory
from tests.support.descriptors import no_descriptor_leaks
from tests.support.waiting import DEADLINE_S


class Place:
    """A directory that is reached through two ancestors and a symlink: BASE/link -> a, and link/b/run."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.real = base / "top" / "a" / "b" / "run"
        self.real.mkdir(parents=True)
        self.other = base / "top" / "other" / "b" / "run"
        self.other.mkdir(parents=True)
        (base / "top" / "link").symlink_to("a")
        self.path = base / "top" / "link" / "b" / "run"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with no_descriptor_leaks():
        yield Place(tmp_path)


def rename_itself(place: Place) -> None:
    place.real.rename(place.real.with_name("moved"))


def rename_ancestor(place: Place) -> None:
    (place.base / "top").rename(place.base / "away")


def rename_and_replace(place: Place) -> None:
    place.real.rename(place.real.with_name("moved"))
    place.real.mkdir()


def switch_symlink(place: Place) -> None:
    new = place.base / "top" / "new"
    new.symlink_to("other")
    new.rename(place.base / "top" / "link")


def exchange_symlink_by_hand(place: Place) -> None:
    link = place.base / "top" / "link"
    link.unlink()
    link.symlink_to(place.base / "top" / "other")


def circle(place: Place) -> None:
    link = place.base / "top" / "link"
    link.unlink()
    link.symlink_to("link")


CHANGES: list[tuple[Callable[[Place], None], Leads]] = [
    (rename_itself, Leads.NOWHERE),
    (rename_ancestor, Leads.NOWHERE),
    (rename_and_replace, Leads.ELSEWHERE),
    (switch_symlink, Leads.ELSEWHERE),
    (exchange_symlink_by_hand, Leads.ELSEWHERE),
    (circle, Leads.NOWHERE),
]


class Teller:
    """What the kernel says to one who waits from the beginning. (A new epoll would swallow what it finds of mounts.)"""

    def __init__(self, watch: PathWatch) -> None:
        self.watch = watch
        self._epoll = select.epoll()
        for fd, events in watch.descriptors():
            self._epoll.register(fd, events)

    def told(self) -> bool:
        return bool(self._epoll.poll(DEADLINE_S))

    def quiet(self) -> bool:
        return not self._epoll.poll(0)

    def close(self) -> None:
        self._epoll.close()


@pytest.fixture
def held(place: Place) -> Iterator[OpenDirectory]:
    held = OpenDirectory(place.path)
    yield held
    held.close()


@pytest.fixture
def teller(place: Place) -> Iterator[Teller]:
    watch = PathWatch(place.path)
    teller = Teller(watch)
    yield teller
    teller.close()
    watch.close()


@pytest.mark.parametrize(("change", "leads"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_a_change_on_the_way_is_told_and_seen(
    place: Place, held: OpenDirectory, teller: Teller, change: Callable[[Place], None], leads: Leads
) -> None:
    assert held.leads() is Leads.HERE and teller.quiet()
    change(place)
    assert teller.told(), "the kernel doesn't say that it changed"
    teller.watch.look()
    teller.watch.look()  # what looking itself causes is read too
    assert held.leads() is leads
    assert teller.quiet()


def test_a_directory_that_is_removed_is_seen_by_who_looks(place: Place, held: OpenDirectory) -> None:
    """While a process has it open, the kernel says nothing to who watches only what is on the way."""
    place.real.rmdir()
    assert held.leads() is Leads.NOWHERE


def test_what_is_made_anew_where_nothing_was_is_told(place: Place, held: OpenDirectory, teller: Teller) -> None:
    (place.base / "top").rename(place.base / "away")
    assert teller.told()
    teller.watch.look()
    Place(place.base)
    assert teller.told()
    teller.watch.look()
    assert held.leads() is Leads.ELSEWHERE


def test_a_path_that_leads_back_is_the_same_place_again(place: Place, held: OpenDirectory, teller: Teller) -> None:
    (place.base / "top").rename(place.base / "away")
    (place.base / "away").rename(place.base / "top")
    assert teller.told()
    teller.watch.look()
    assert held.leads() is Leads.HERE


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_a_mount_on_top_is_told_and_seen(place: Place, held: OpenDirectory, teller: Teller) -> None:
    mounted = place.real.parent
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mounted)], check=True)
    try:
        assert teller.told()
        teller.watch.look()
        assert held.leads() is Leads.NOWHERE
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
    assert teller.told()
    teller.watch.look()
    assert held.leads() is Leads.HERE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every directory")
def test_what_cant_be_looked_at_is_unknown(place: Place) -> None:
    held = OpenDirectory(place.path)
    try:
        (place.base / "top").chmod(0o000)
        assert held.leads() is Leads.UNKNOWN and not held.replaced()
    finally:
        (place.base / "top").chmod(0o700)
        held.close()


def test_directories_that_are_made_are_private_to_the_last_one(tmp_path: Path) -> None:
    os.umask(0o022)
    assert make_private_directory(tmp_path / "a" / "b" / "c")
    assert [(tmp_path / part).stat().st_mode & 0o777 for part in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert not make_private_directory(tmp_path / "a" / "b" / "c")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        make_private_directory(tmp_path / "file")

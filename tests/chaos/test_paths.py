"""A path comes to name another directory: a holder goes where it leads, and no other engine is ever granted."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockserver.shell.rundir import names_of_path
from tests.chaos.house import House, held_by
from tests.support.root import needs_root

pytestmark = pytest.mark.chaos
SETTLE = ("--settle-s", "2")


class Way:
    """DIRECTORY/way -> real, and the run directory is way/deep/run: two ancestors, and a symlink on the way."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.real = house.directory / "real"
        (self.real / "deep").mkdir(parents=True)
        self.link = house.directory / "way"
        self.link.symlink_to("real")
        house.run_dir = self.link / "deep" / "run"


@pytest.fixture
def way(house: House) -> Way:
    return Way(house)


def rename_the_directory(way: Way) -> None:
    (way.real / "deep" / "run").rename(way.house.directory / "moved")


def rename_an_ancestor(way: Way) -> None:
    way.real.rename(way.house.directory / "moved")
    (way.real / "deep").mkdir(parents=True)


def switch_the_symlink(way: Way) -> None:
    (way.house.directory / "other" / "deep").mkdir(parents=True)
    new = way.house.directory / "new"
    new.symlink_to("other")
    new.rename(way.link)


def mount_over_it(way: Way) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(way.real / "deep")], check=True)


mounted = [pytest.mark.root, needs_root]


@pytest.fixture(autouse=True)
def nothing_stays_mounted(house: House) -> Iterator[None]:
    yield
    deep = house.directory / "real" / "deep"
    if os.path.ismount(deep):
        subprocess.run(["umount", "-l", str(deep)], check=True)


@pytest.mark.parametrize(
    ("lead", "old_server"),
    [
        (rename_the_directory, "runs"),
        (rename_an_ancestor, "stopped"),
        (switch_the_symlink, "killed"),
        pytest.param(mount_over_it, "stopped", marks=mounted),
    ],
)
def test_a_holder_goes_where_its_path_leads_and_no_other_is_granted(
    way: Way, lead: Callable[[Way], None], old_server: str
) -> None:
    house = way.house
    old = house.server(*SETTLE)
    a = house.engine("a")
    token = a.holds()
    if old_server == "stopped":
        old.stop()
    elif old_server == "killed":
        old.kill()
    lead(way)
    new = house.server(*SETTLE)
    b = house.engine("b")
    b.wants(watching=[a])
    held_by(new, "a", token)
    assert not b.heard("granted")
    a.never_hears("lost", for_s=0)
    if old_server == "stopped":
        old.go_on()
    if old_server != "killed":
        old.wait()
    a.kill()
    grant = b.granted()
    assert grant["dead"] == [True] and grant["token"] > token


@pytest.mark.parametrize("lead", [switch_the_symlink, pytest.param(mount_over_it, marks=mounted)])
def test_a_server_where_the_path_leads_doesnt_grant_while_an_older_one_is_stopped(
    way: Way, lead: Callable[[Way], None]
) -> None:
    """No engine holds, and engines wait at both: only one of the servers may grant, and the older is named."""
    house = way.house
    old = house.server(*SETTLE)
    old.stop()
    lead(way)
    new = house.server(*SETTLE)
    b = house.engine("b")
    b.wants()
    status = new.shows(lambda s: any("no engine is granted" in alarm for alarm in s.alarms), "it says who has the path")
    assert f"process {old.pid}" in "".join(status.alarms)
    assert not b.heard("granted")
    old.go_on()
    old.wait()
    b.granted()


def test_a_holder_that_is_stopped_keeps_the_path_though_it_leads_elsewhere(way: Way) -> None:
    """It can't say anything; the name that it has in the network namespace does."""
    house = way.house
    old = house.server(*SETTLE)
    a = house.engine("a")
    token = a.holds()
    a.stop()
    old.kill()
    switch_the_symlink(way)
    new = house.server(*SETTLE)
    b = house.engine("b")
    b.wants(watching=[a])
    new.shows(lambda s: any("no engine is granted" in alarm for alarm in s.alarms), "it says that one has the path")
    b.never_hears("granted", for_s=1.0)
    a.go_on()
    held_by(new, "a", token)
    a.kill()
    assert b.granted()["dead"] == [True]


def test_a_path_that_leads_back_to_the_first_server_changes_nothing(way: Way) -> None:
    house = way.house
    server = house.server(*SETTLE)
    a = house.engine("a")
    token = a.holds()
    server.stop()
    moved = house.directory / "moved"
    (way.real / "deep" / "run").rename(moved)
    moved.rename(way.real / "deep" / "run")
    server.go_on()
    a.never_hears("lost", for_s=1.0)
    held_by(server, "a", token)


def test_a_circle_of_symlinks_makes_no_client_deaf(way: Way) -> None:
    house = way.house
    house.server(*SETTLE)
    a = house.engine("a")
    token = a.holds()
    way.link.unlink()
    way.link.symlink_to("way")
    a.never_hears("lost", for_s=2.5)
    way.link.unlink()
    way.link.symlink_to("real")
    new = house.server(*SETTLE)
    held_by(new, "a", token)


def test_a_circle_of_symlinks_has_a_name_as_well(tmp_path: Path) -> None:
    """`Path.resolve` raises RuntimeError there."""
    (tmp_path / "way").symlink_to("way")
    assert names_of_path(tmp_path / "way" / "run")


def test_a_relative_directory_means_what_it_meant_at_the_start(house: House, tmp_path: Path) -> None:
    server = house.server()
    a = house.engine()
    a.do("chdir", path=str(house.directory))
    reply = a.do("start", run_dir="run", engine_id="a")
    a.environment, a.tree = reply["environment"], reply["tree"]
    a.do("chdir", path=str(tmp_path))
    token = a.holds()
    child = a.child("exec").joins(a.tree).joined()
    server.kill()
    held_by(house.server(), "a", token)
    child.never_hears("lost", for_s=0)
    a.never_hears("lost", for_s=0)


def test_a_stopped_holder_is_not_replaced_where_only_its_own_spelling_of_the_path_leads_elsewhere(house: House) -> None:
    """The server was given the directory, the engine a link to it; the next server is given the link."""
    house.server("--settle-s", "0.3")
    link, other = house.directory / "link", house.directory / "other"
    link.symlink_to(house.run_dir)
    a = house.engine()
    a.do("start", run_dir=str(link), engine_id="a")
    a.holds()
    a.stop()
    other.mkdir(mode=0o700)
    (house.directory / "new").symlink_to(other)
    (house.directory / "new").rename(link)
    house.run_dir = link
    new = house.server("--settle-s", "0.3")
    b = house.engine("b")
    b.wants(watching=[a])
    new.shows(lambda s: any("has the path" in alarm for alarm in s.alarms))
    b.never_hears("granted")
    a.kill()
    assert b.granted()["dead"] == [True]

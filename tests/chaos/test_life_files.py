"""What the server sees of life files while people remove, copy and replace them, and it lives all the time."""

import os
import shutil
from pathlib import Path

import pytest

from lockserver import record
from lockserver.messages import Status
from tests.chaos.house import Engine, House, Server
from tests.support.root import needs_root
from tests.support.waiting import until

pytestmark = pytest.mark.chaos
SLOW = ("--settle-s", "0.5", "--window-s", "1", "--memory", "none")


def pair(house: House) -> tuple[Server, Engine, Engine]:
    house.defaults = SLOW
    server = house.server(warm=True)
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants()
    server.shows(lambda status: bool(status.waiters), "b waits")
    return server, a, b


def has_its_life_lock_and_knocks(process: Engine) -> bool:
    links = []
    for fd in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except FileNotFoundError:
            continue
    sockets = sum(link.startswith("socket:") for link in links)
    return any("/life/" in link for link in links) and sockets >= 2  # one is the test's


def test_a_first_join_that_meets_an_emptied_directory_costs_no_takeover(house: House) -> None:
    """The server can't find the file that the worker names; it goes on looking at the one that it knew."""
    server, a, b = pair(house)
    worker = a.child("exec")
    server.stop()
    worker.joins()
    until(lambda: has_its_life_lock_and_knocks(worker), "the worker knocks")
    shutil.rmtree(house.run_dir / "life")
    server.go_on()
    server.shows(lambda status: status.state == "HELD", "a holds")
    worker.kill()
    a.kill()
    b.granted()


def test_a_copy_of_the_life_files_in_their_place_hides_nobody(house: House) -> None:
    server, a, b = pair(house)
    forked = a.child("fork", keep=False)
    life = house.run_dir / "life"
    shutil.copytree(life, house.run_dir / "copy")
    shutil.rmtree(life)
    os.rename(house.run_dir / "copy", life)
    worker = a.child("exec").joins().joined()
    worker.kill()
    a.kill()
    server.fences("held by a process that did not join")
    b.never_hears("granted")
    forked.kill()
    b.granted()


def test_life_files_that_were_made_anew_six_times_hide_nobody(house: House) -> None:
    house.defaults = SLOW
    server, a = house.server(warm=True), house.engine("a")
    a.holds()
    forked = a.child("fork", keep=False)
    for _ in range(6):
        shutil.rmtree(house.run_dir / "life")
        server.kill()
        server = house.server(warm=True)
        server.has_back(a)
    b = house.engine("b")
    b.wants()
    server.shows(lambda status: bool(status.waiters), "b waits")
    a.kill()
    server.fences("held by a process that did not join")
    b.never_hears("granted")
    forked.kill()
    b.granted()


def only_its_main_process(status: Status) -> bool:
    return status.holder is not None and len(status.holder.members) == 1


def test_children_that_were_adopted_and_have_ended_are_kept_by_nobody(house: House) -> None:
    """More of them than an engine may have processes."""
    house.defaults = SLOW
    server, a = house.server(warm=True), house.engine("a")
    a.holds()
    descriptors = []
    for number in range(210):
        child = a.child("fork", keep=False)
        a.do("adopt", pid=child.pid)
        child.kill()
        if number in (5, 209):
            server.shows(
                lambda status: status.holder is not None and len(status.holder.members) == 1, "they have ended"
            )
            descriptors.append(len(os.listdir(f"/proc/{a.pid}/fd")))
    assert descriptors[1] <= descriptors[0] + 1
    server.kill()
    server = house.server(warm=True)
    server.has_back(a)


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("own_proc", [True, False], ids=["its own /proc", "another's /proc"])
def test_a_server_whose_proc_is_anothers_writes_down_no_numbers_to_look_up(house: House, own_proc: bool) -> None:
    """They would be another namespace's: the next server would find living processes gone by them."""
    unshare = shutil.which("unshare")
    assert unshare is not None
    through = [unshare, "--fork", "--pid", "--kill-child", *(["--mount-proc"] if own_proc else [])]
    house.server(through=through)
    house.engine("a").holds()
    found = record.decode((house.run_dir / "holder.json").read_bytes())
    assert bool(found.pid_namespace) is own_proc

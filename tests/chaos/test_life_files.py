"""What the server sees of life files while people remove, copy and replace them, and it lives all the time."""

import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockserver.rules import messages as m
from lockserver.rules import record
from lockserver.rules.messages import Status
from tests.chaos.house import Caller, Engine, House, Server, Waiter
from tests.support.root import needs_root
from tests.support.waiting import until

pytestmark = pytest.mark.chaos
SLOW = ("--settle-s", "0.5", "--window-s", "1", "--memory", "none")


def pair(house: House) -> tuple[Server, Engine, Engine]:
    house.defaults = SLOW
    server = house.server()
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


def test_a_copy_of_the_life_files_in_their_place_hides_no_process(house: House) -> None:
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


def test_life_files_that_were_made_anew_six_times_hide_no_process(house: House) -> None:
    house.defaults = SLOW
    server, a = house.server(), house.engine("a")
    a.holds()
    forked = a.child("fork", keep=False)
    for _ in range(6):
        shutil.rmtree(house.run_dir / "life")
        server.kill()
        server = house.server()
        server.has_back(a)
    b = house.engine("b")
    b.wants()
    server.shows(lambda status: bool(status.waiters), "b waits")
    a.kill()
    server.fences("held by a process that did not join")
    b.never_hears("granted")
    forked.kill()
    b.granted()


@pytest.mark.parametrize(("count", "show"), [(401, True), (201, False)], ids=["the server's bound", "a client's bound"])
def test_more_old_life_files_than_are_looked_at_withhold_the_proof(house: House, count: int, show: bool) -> None:
    """The program that has the lock of the oldest one is never granted past, nor after its end: it isn't looked at."""
    house.defaults = SLOW
    server, a = house.server(), house.engine("a")
    a.holds()
    hidden = a.do("had_lives", directory=str(house.directory / "lives"), count=count, show=show)["pid"]
    if not show:
        server.kill()
        server = house.server()
        server.has_back(a)
    until(lambda: "life_files_not_looked_at" in house.log.read_text(), "the server says that it doesn't see them all")
    b = house.engine("b")
    b.wants()
    server.shows(lambda status: bool(status.waiters), "b waits")
    a.kill()
    server.fences("held by a process that did not join")
    os.kill(hidden, signal.SIGKILL)
    server.shows(lambda status: any("restart this server" in alarm for alarm in status.alarms), "an alarm says so")
    b.never_hears("granted")


def test_as_many_old_life_files_as_are_looked_at_cost_no_takeover(house: House) -> None:
    house.defaults = SLOW
    server, a = house.server(), house.engine("a")
    a.holds()
    hidden = a.do("had_lives", directory=str(house.directory / "lives"), count=400, show=True)["pid"]
    b = house.engine("b")
    b.wants()
    server.shows(lambda status: bool(status.waiters), "b waits")
    a.kill()
    server.fences("held by a process that did not join")
    b.never_hears("granted")
    os.kill(hidden, signal.SIGKILL)
    b.granted()


def only_its_main_process(status: Status) -> bool:
    return status.holder is not None and len(status.holder.members) == 1


def test_children_that_were_adopted_and_have_ended_are_not_kept(house: House) -> None:
    """More of them than an engine may have processes."""
    house.defaults = SLOW
    server, a = house.server(), house.engine("a")
    a.holds()
    descriptors = []
    for number in range(210):
        child = a.child("fork", keep=False)
        a.do("vouch_for", pid=child.pid)
        child.kill()
        if number in (5, 209):
            server.shows(
                lambda status: status.holder is not None and len(status.holder.members) == 1, "they have ended"
            )
            descriptors.append(len(os.listdir(f"/proc/{a.pid}/fd")))
    assert descriptors[1] <= descriptors[0] + 1
    server.kill()
    server = house.server()
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
    assert bool(found.processes.pid_namespace) is own_proc


# -- life files that callers show ----


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[dict[str, int]]:
    """What a caller may send as life files."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "leased").touch()
    fds = {
        "a file": os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT),
        "a FIFO": os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK),
        "a leased file": os.open(tmp_path / "leased", os.O_RDWR),
        "a directory": os.open(tmp_path, os.O_RDONLY),
    }
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel asks the lease's owner to let go
    fcntl.fcntl(fds["a leased file"], fcntl.F_SETLEASE, fcntl.F_WRLCK)
    try:
        yield fds
    finally:
        signal.signal(signal.SIGIO, before)
        for fd in fds.values():
            os.close(fd)


def test_only_a_process_of_an_incarnation_shows_its_old_life_files(house: House, shown: dict[str, int]) -> None:
    server = house.server()
    a = house.engine("a")
    a.holds()
    before = len(server.descriptors())
    life_files = m.OldLives(incarnation=a.tree)
    with Caller(house.run_dir) as stranger:
        stranger.ask(life_files, [shown["a file"]])
        assert "introduce yourself" in stranger.next(m.Problem).why
    with server.observer() as observer:
        observer.ask(life_files, [shown["a file"]])
        assert "no process of" in observer.next(m.Problem).why
    until(lambda: len(server.descriptors()) <= before, "what they sent is closed")
    with Waiter(house.run_dir, "b") as b:
        b.ask(life_files, [shown["a file"]])
        assert "no process of" in b.next(m.Problem).why


@pytest.mark.parametrize("what", ["a FIFO", "a leased file", "a directory"])
def test_what_is_no_life_file_keeps_no_waiter_waiting_and_leaves_nothing(
    house: House, shown: dict[str, int], what: str
) -> None:
    server = house.server()
    with Waiter(house.run_dir, "b") as b:
        b.next(m.Granted)
        old = m.OldLives(incarnation=f"b.{b.life.path.name.rpartition('.')[2]}")
        counts = []
        for _ in range(5):
            b.ask(old, [shown["a file"], shown[what]])
            b.ask(m.Ping())
            b.next(m.Pong)
            counts.append(len(server.descriptors()))
        assert counts[0] == counts[-1], "the one before it is looked at once"
        assert house.log.read_text().count("life_file_unreadable") == 1, "it is said once"

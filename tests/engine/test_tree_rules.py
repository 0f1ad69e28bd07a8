"""The rules of two small parts, each alone: `tree.py` (start, find, kill, collect, who holds a life lock) and
`shm_cleanup.py` (what of /dev/shm is ours). Together, in a shim: `test_shim_rules.py`.
"""

import ctypes
import errno
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_shim.shell import life_locks, paths, shm_cleanup
from engine_shim.shell.shm_cleanup import ShmCleanup
from sidecar.kernel import process_tree
from sidecar.kernel.lifelock import LifeLock, LifeProbe
from tests.engine.shims import alone
from tests.support.processes import Process
from tests.support.waiting import until

FOREVER = "import threading; threading.Event().wait()"


# -- tree: start -------------------------------------------------------------------------------------------------------


def started(program: str, tmp_path: Path) -> str:
    """What a child of `process_tree.start` says of itself."""
    said = tmp_path / "said"
    reading, writing = os.pipe()
    with open(said, "wb") as output:
        own = os.dup(0)
        os.dup2(reading, 0)
        pid = process_tree.start((sys.executable, "-c", program), dict(os.environ), output=output.fileno())
        os.dup2(own, 0)
    for fd in (own, reading, writing):
        os.close(fd)
    assert os.waitpid(pid, 0)[1] == 0, said.read_text()
    return said.read_text().strip()


def test_a_child_has_a_session_of_its_own_and_no_input(tmp_path: Path) -> None:
    said = started(
        "import os; print(os.getsid(0) == os.getpid() == os.getpgid(0), os.readlink('/proc/self/fd/0'))", tmp_path
    )
    assert said == f"True {os.devnull}"


def test_a_child_hears_all_signals_whatever_its_parent_did_with_them(tmp_path: Path) -> None:
    program = "import re; print(*re.findall(r'Sig(?:Blk|Ign):\\s(\\w+)', open('/proc/self/status').read()))"
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        blocked, ignored = (int(word, 16) for word in started(program, tmp_path).split())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        signal.signal(signal.SIGUSR1, before)
    assert not blocked & 1 << (signal.SIGTERM - 1) and not ignored & 1 << (signal.SIGUSR1 - 1)


# -- tree: find, kill, collect -----------------------------------------------------------------------------------------


def test_a_kill_of_the_group_and_of_each_that_was_found_reaches_all_and_the_dead_are_taken_away(tmp_path: Path) -> None:
    alone(kill_and_collect, tmp_path / "said")


def kill_and_collect() -> None:
    environment = dict(os.environ)
    family = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {FOREVER!r}]); {FOREVER}"
    before = set(process_tree.descendants(os.getpid()))

    def found() -> set[int]:
        return set(process_tree.descendants(os.getpid())) - before

    first = process_tree.start((sys.executable, "-c", family), environment)
    second = process_tree.start((sys.executable, "-c", FOREVER), environment)
    until(lambda: len(found()) == 3, "two children and a grandchild")
    group = [Process(pid) for pid in found() - {second}]
    assert process_tree.collect() == ({}, True)
    process_tree.kill((), first)
    until(lambda: all(process.dead for process in group), "all of the group is gone")
    assert found() == {second}, "and no other"
    process_tree.kill([second], 0)
    until(lambda: not found(), "the other one, too")
    ended, left = process_tree.collect()
    assert (ended, left) == ({first: -signal.SIGKILL, second: -signal.SIGKILL}, False)


def test_children_of_a_thread_that_lives_on_are_found() -> None:
    start = f"subprocess.Popen([sys.executable, '-c', {FOREVER!r}]).wait()"
    program = f"import subprocess, sys, threading; threading.Thread(target=lambda: {start}).start()"
    before = set(process_tree.descendants(os.getpid()))
    child = process_tree.start((sys.executable, "-c", program), dict(os.environ))
    try:
        until(lambda: len(set(process_tree.descendants(os.getpid())) - before) == 2, "the child and its child")
    finally:
        process_tree.kill((), child)
        os.waitpid(child, 0)


def test_exit_codes_are_collected(tmp_path: Path) -> None:
    alone(collect_a_code, tmp_path / "said")


def collect_a_code() -> None:
    pid = process_tree.start((sys.executable, "-c", "raise SystemExit(64)"), dict(os.environ))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert process_tree.collect() == ({pid: 64}, False)


# -- tree: files -------------------------------------------------------------------------------------------------------


def test_a_life_lock_of_any_start_of_this_engine_is_held_and_of_no_other(tmp_path: Path) -> None:
    life = tmp_path / "life"
    assert not life_locks.look(tmp_path, "a.b").held
    life.mkdir()
    for name in ("a.b.00000000000000aa", "b.00000000000000cc", "a.00000000000000cc", "axb.00000000000000cc"):
        LifeLock.create(life, name).close()
        assert not life_locks.look(tmp_path, "a.b").held
    others = [
        LifeLock.create(life, name) for name in ("b.00000000000000dd", "axb.00000000000000dd", "a.b.c.00000000000000dd")
    ]
    assert not life_locks.look(tmp_path, "a.b").held
    ours = LifeLock.create(life, "a.b.00000000000000bb")
    assert life_locks.look(tmp_path, "a.b").held
    ours.close()
    assert not life_locks.look(tmp_path, "a.b").held
    for other in others:
        other.close()


def test_what_cant_be_looked_at_counts_as_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = tmp_path / "life"
    life.mkdir()
    LifeLock.create(life, "a.00000000000000aa").close()

    def refused(directory: Path, name: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(LifeProbe, "open", refused)
        found = life_locks.look(tmp_path, "a")
        assert found.held and "a.00000000000000aa: Permission denied" in found.why
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", lambda _: refused(life, ""))
        assert life_locks.look(tmp_path, "a").held
    assert not life_locks.look(tmp_path, "a").held


@pytest.mark.parametrize("closed", [False, True], ids=["open", "mapped only"])
@pytest.mark.parametrize("first", [True, False], ids=["who made it", "who joined"])
def test_where_the_life_files_are_removed_the_processes_are_asked(tmp_path: Path, first: bool, closed: bool) -> None:
    life = tmp_path / "life"
    life.mkdir()
    made = LifeLock.create(life, "a.00000000000000aa")
    how = f"LifeLock.{'create' if first else 'join'}(Path({str(life)!r}), 'a.00000000000000{'bb' if first else 'aa'}')"
    program = "import os; from pathlib import Path; from sidecar.kernel.lifelock import LifeLock; "
    program += f"held = {how}; {'os.close(held.fd); ' * closed}print(flush=True); {FOREVER}"
    with (
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as holder,
        LifeProbe.open(life, "a.00000000000000aa") or pytest.fail("it is there"),
    ):
        assert holder.stdout is not None and holder.stdout.readline()
        made.close()
        shutil.rmtree(life)
        found = life_locks.look(tmp_path, "a")
        assert found.held and f"process {holder.pid} holds a life lock" in found.why
        assert not life_locks.look(tmp_path, "b").held
        holder.kill()
        holder.wait()
        found = life_locks.look(tmp_path, "a")
        assert not found.held and "its own tree has ended" in found.why, "a process that only looks holds nothing"


def test_the_sockets_of_earlier_grants_go_and_nothing_else(tmp_path: Path) -> None:
    paths.remove_endpoints(tmp_path, "a.b")
    engine = tmp_path / "engine"
    engine.mkdir()
    stays = {"a.b.shim.sock", "b.17.sock", "axb.17.sock", "a.b.c.17.sock", "a.b.lock", "a.b.17.sock.old"}
    for name in (*stays, "a.b.17.sock", "a.b.4.sock"):
        (engine / name).touch()
    paths.remove_endpoints(tmp_path, "a.b")
    assert set(os.listdir(engine)) == stays


# -- leftovers ---------------------------------------------------------------------------------------------------------


class Shelf:
    """A directory that is watched; this process is the whole tree."""

    def __init__(self, directory: Path, notes: Path) -> None:
        self.directory = directory
        self.notes = notes
        self.leftovers = self.successor()
        assert self.leftovers.watch()
        self.kept: list[int] = []

    def successor(self) -> ShmCleanup:
        return ShmCleanup(lambda: [os.getpid()], self.notes, self.directory)

    def put(self, name: str, *, keep: bool = False) -> None:
        """A file of that name. It stays open, if it is to be kept, and else no process ever has it open."""
        path = self.directory / name
        if keep:
            self.kept.append(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR))
        else:
            os.mknod(path)

    def open(self, name: str) -> None:
        self.kept.append(os.open(self.directory / name, os.O_RDWR))

    def looked(self) -> None:
        """It has heard of everything so far, and looked: a last one, which is ours, was found."""
        name = f"psm_last_{len(self.kept)}"
        self.put(name, keep=True)
        until(lambda: name in self.leftovers.ours, "it was seen")

    def removed(self) -> set[str]:
        return {name for name in self.leftovers.remove() if "last" not in name}

    def there(self) -> set[str]:
        return set(os.listdir(self.directory))


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="failover-engine-", dir=shm if shm.is_dir() else tmp_path) as directory:
        shelf = Shelf(Path(directory), tmp_path / "a.leftovers")
        yield shelf
        shelf.leftovers.remove()
        shelf.leftovers._directory = tmp_path  # its thread outlives the other one
        for fd in shelf.kept:
            os.close(fd)


@pytest.mark.parametrize("name", ["psm_1", "sem.mp-1", "vllm_dist_1"])
def test_what_the_tree_was_seen_to_have_goes_and_what_no_process_of_it_has_stays(shelf: Shelf, name: str) -> None:
    shelf.put(name, keep=True)
    shelf.put("psm_others")
    shelf.put("notes_of_a_person", keep=True)
    shelf.looked()
    assert shelf.removed() == {name}
    assert shelf.there() == {"psm_others", "notes_of_a_person"}


def test_a_file_of_another_process_stays_though_it_came_at_the_same_time(shelf: Shelf) -> None:
    program = f"import os, sys; os.open(sys.argv[1], os.O_CREAT); print(flush=True); {FOREVER}"
    path = str(shelf.directory / "psm_others")
    with subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        shelf.put("psm_ours", keep=True)
        shelf.looked()
        assert shelf.removed() == {"psm_ours"}
        other.kill()
    assert shelf.there() == {"psm_others"}


def test_a_file_that_is_only_mapped_is_ours_too(shelf: Shelf) -> None:
    shelf.put("early", keep=True)
    os.ftruncate(shelf.kept[-1], mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = (
        ctypes.c_void_p,
        [*(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)],
    )
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(
        None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, shelf.kept[-1], 0
    )  # Python's keeps it open
    try:
        os.close(shelf.kept.pop())
        os.rename(shelf.directory / "early", shelf.directory / "sem.mp-1")
        shelf.looked()
        assert shelf.removed() == {"sem.mp-1"}, "a semaphore gets its name when it is mapped already"
    finally:
        libc.munmap(address, mmap.PAGESIZE)


def test_whose_a_file_is_may_show_later(shelf: Shelf) -> None:
    shelf.put("psm_1")
    shelf.looked()
    assert "psm_1" not in shelf.leftovers.ours
    shelf.open("psm_1")
    until(lambda: "psm_1" in shelf.leftovers.ours, "it is looked at again")


def test_what_the_tree_did_not_have_when_it_was_gone_is_never_its_own(shelf: Shelf) -> None:
    shelf.put("psm_1")
    shelf.looked()
    shelf.leftovers.remove()
    shelf.open("psm_1")
    shelf.looked()
    assert shelf.removed() == set() and shelf.there() == {"psm_1"}


def test_whose_a_file_is_is_not_asked_for_ever(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_cleanup, "AGAIN_MS", (1, 1))
    shelf.looked()  # with the times that hold now
    shelf.put("psm_1")
    shelf.looked()
    until(lambda: not shelf.leftovers._unknown, "it is given up")
    shelf.open("psm_1")
    shelf.looked()
    assert shelf.removed() == set()


def test_another_file_of_the_same_name_stays(shelf: Shelf) -> None:
    shelf.put("psm_1", keep=True)
    shelf.looked()
    os.unlink(shelf.directory / "psm_1")
    shelf.put("psm_1")
    shelf.looked()
    assert shelf.removed() == set() and shelf.there() == {"psm_1"}


def test_a_successor_removes_what_its_predecessor_had_seen_and_forgets_it(shelf: Shelf) -> None:
    shelf.put("psm_1", keep=True)
    shelf.put("psm_2")
    shelf.looked()
    until(lambda: shelf.notes.exists() and "psm_1" in shelf.notes.read_text(), "it is written down")
    assert "psm_1" in shelf.successor().remove() and shelf.there() == {"psm_2"}
    assert not shelf.notes.exists()
    assert shelf.successor().remove() == []


@pytest.mark.parametrize("name", ["precious", "psm_x/../precious"])
def test_a_list_that_is_nonsense_removes_nothing(shelf: Shelf, name: str) -> None:
    shelf.put("precious")
    (shelf.directory / "psm_x").mkdir()
    inode = os.stat(shelf.directory / "precious").st_ino
    shelf.notes.write_text(f"{inode} {name}\nx psm_1\npsm_2\n\n")
    assert shelf.successor().remove() == [] and shelf.there() == {"precious", "psm_x"}

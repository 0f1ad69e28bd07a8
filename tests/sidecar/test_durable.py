"""Durable files: whole or not at all, whatever fails and whenever the writer is killed."""

import contextlib
import errno
import fcntl
import os
import resource
import socket
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sidecar.kernel import durable
from sidecar.kernel.durable import AlreadyLocked, DirectoryLock, DurableFile, nobody_has
from tests.support.children import Child, stay
from tests.support.descriptors import no_descriptor_leaks

Say = Callable[[str], None]


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    with no_descriptor_leaks():
        yield


@pytest.fixture
def file(tmp_path: Path) -> DurableFile:
    return DurableFile(tmp_path, "holder.json")


def test_what_was_written_is_read(file: DurableFile) -> None:
    assert file.read() is None
    (file.directory / "holder.json.spare").write_bytes(b"left by a crash, and longer than what comes")
    for data in (b"one", b"", b"x" * 100_000, b"short"):
        file.write(data)
        assert file.read() == data
    assert sorted(os.listdir(file.directory)) == ["holder.json", "holder.json.spare"]
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_the_contents_are_on_the_disk_before_the_name_and_the_name_before_the_return(
    file: DurableFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def spy(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            kind = "directory" if name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}") else "file"
            done.append(f"{name} {kind}" if name == "fsync" else name)
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    def exchanged(*_: object) -> int:
        done.append("exchange")
        return 0

    file.write(b"before")
    monkeypatch.setattr(durable, "_exchange", exchanged)
    for name in ("pwrite", "fsync"):
        spy(name)
    file.write(b"x")
    assert done == ["pwrite", "fsync file", "exchange", "fsync directory"]


@pytest.mark.parametrize("call", ["pwrite", "ftruncate", "fsync", "open"])
def test_a_failure_keeps_the_old_contents(file: DurableFile, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    file.write(b"old")

    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(os, call, fail)
        file.write(b"new")
    assert file.read() == b"old"
    file.write(b"new")
    assert file.read() == b"new"


def test_a_filesystem_that_cant_exchange_names_has_one_renamed(
    file: DurableFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "_exchange", lambda *_: errno.EINVAL)
    for data in (b"one", b"two"):
        file.write(data)
        assert file.read() == data


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
@pytest.mark.parametrize("options", ["size=64k", "nr_inodes=6"])
def test_what_is_no_larger_than_before_is_written_on_a_full_disk(tmp_path: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)], check=True)
    try:
        file = DurableFile(tmp_path, "holder.json")
        file.reserve()
        for number in range(50):
            with contextlib.suppress(OSError), open(tmp_path / f"fill{number}", "wb") as other:
                other.write(b"x" * 4096 if options.startswith("size") else b"")
        for number in range(20):
            data = (b"%d" % number) * (1 + number * 100)
            file.write(data)
            assert file.read() == data
        with pytest.raises(OSError) as caught:
            DurableFile(tmp_path, "another.json").reserve()
        assert caught.value.errno == errno.ENOSPC
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_at_the_beginning_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DurableFile(tmp_path / "gone", "holder.json").reserve()


@pytest.mark.parametrize("what", ["fifo", "symlink", "socket", "directory"])
def test_what_is_no_file_is_never_waited_for(file: DurableFile, what: str) -> None:
    for path in (file.path, file.path.with_name("holder.json.spare")):
        if what == "fifo":
            os.mkfifo(path)
        elif what == "directory":
            path.mkdir()
            (path / "kept").touch()
        elif what == "symlink":
            path.symlink_to("/dev/zero")
        else:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(str(path))
    with pytest.raises(OSError):
        file.read()
    file.set_aside()
    file.write(b"whole")
    assert file.read() == b"whole"


def test_a_disk_that_is_full_halfway_keeps_the_old_contents(file: DurableFile) -> None:
    file.write(b"old")

    def write(say: Say) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # stands in for the disk: the second write fails
        try:
            file.write(b"x" * 2000)
        except OSError as error:
            say(errno.errorcode[error.errno or 0])

    with Child(write) as child:
        assert child.line() == "EFBIG"
    assert file.read() == b"old"


def test_a_lost_directory_is_an_error(tmp_path: Path) -> None:
    file = DurableFile(tmp_path / "gone", "holder.json")
    assert file.read() is None
    with pytest.raises(FileNotFoundError):
        file.write(b"x")


def test_a_writer_that_is_killed_at_any_moment_leaves_whole_contents(file: DurableFile) -> None:
    def write(say: Say) -> None:
        for number in range(1_000_000):
            file.write(f"{number:07d}".encode() * 2000)
            say("")

    for rounds in range(15):
        with Child(write) as child:
            for _ in range(rounds + 1):
                child.line()
            child.kill()
        data = file.read()
        assert data is not None
        assert data == data[:7] * 2000
    file.write(b"after a crash")
    assert file.read() == b"after a crash"


def test_an_unreadable_file_is_set_aside_and_none_before_it_is_lost(file: DurableFile) -> None:
    now = datetime(2026, 11, 20, 10, 0, 0, 123, tzinfo=UTC)
    kept: list[Path] = []
    for data in (b"torn", b"torn again", b"and again"):
        file.write(data)
        kept.append(file.set_aside(now))
        assert file.read() is None
    assert kept[0].name == "holder.json.unreadable-20261120T100000.000123Z"
    assert [path.read_bytes() for path in kept] == [b"torn", b"torn again", b"and again"]
    with pytest.raises(FileNotFoundError):
        file.set_aside(now)
    file.write(b"x")
    assert file.set_aside() not in kept


def test_the_newest_that_was_set_aside_is_named_in_ascii(file: DurableFile) -> None:
    assert file.newest_aside() == ""
    for microsecond in (123, 7):
        file.write(b"torn")
        file.set_aside(datetime(2026, 11, 20, 10, 0, 0, microsecond, tzinfo=UTC))
    assert file.newest_aside() == "holder.json.unreadable-20261120T100000.000123Z"
    (file.directory / os.fsdecode(b"holder.json.unreadable-\xff")).touch()
    assert file.newest_aside() == "holder.json.unreadable-\\udcff"


def test_one_process_has_the_directory_and_the_next_learns_which(tmp_path: Path) -> None:
    def hold(say: Say) -> None:
        DirectoryLock(tmp_path, "server.lock").acquire()
        say("locked")
        stay()

    with Child(hold) as child:
        assert child.line() == "locked"
        with pytest.raises(AlreadyLocked, match=f"process {child.pid}; stop it first") as caught:
            DirectoryLock(tmp_path, "server.lock").acquire()
        assert caught.value.pid == child.pid
        child.kill()
        with DirectoryLock(tmp_path, "server.lock") as lock:
            assert lock.path.read_text() == f"{os.getpid()}\n"
            assert lock.holds()
    DirectoryLock(tmp_path, "server.lock").acquire().close()


def test_a_lock_file_that_says_no_pid_is_locked_all_the_same(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path, "server.lock") as lock:
        lock.path.write_text("")
        with pytest.raises(AlreadyLocked, match="another process") as caught:
            DirectoryLock(tmp_path, "server.lock").acquire()
        assert caught.value.pid is None


def test_a_removed_lock_file_shows(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path, "server.lock") as lock:
        lock.path.unlink()
        assert not lock.holds()
        with DirectoryLock(tmp_path, "server.lock") as second:
            assert second.holds()
            assert not lock.holds()


def test_a_lock_file_that_is_replaced_while_it_is_being_locked_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DirectoryLock(tmp_path, "server.lock")
    real = fcntl.flock
    calls: list[int] = []

    def flock(fd: int, operation: int) -> None:
        real(fd, operation)
        calls.append(fd)
        if len(calls) == 1:
            lock.path.unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock:
        assert len(calls) == 2
        assert lock.holds()


def test_whether_a_lock_is_free_is_told_without_writing(tmp_path: Path) -> None:
    with nobody_has(tmp_path, "a.lock") as free:
        assert free
    assert not list(tmp_path.iterdir()), "a lock that was never there is not made"
    strange = tmp_path / "poetry.lock"
    strange.write_text("another program's")
    with nobody_has(tmp_path, strange.name) as free:
        assert free
        with pytest.raises(AlreadyLocked):
            DirectoryLock(tmp_path, strange.name).acquire()
    assert strange.read_text() == "another program's"
    with DirectoryLock(tmp_path, "a.lock"), nobody_has(tmp_path, "a.lock") as free:
        assert not free

"""Life locks on the real kernel: what holds them, what frees them, and that asking disturbs no process."""

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.kernel import lifelock
from sidecar.kernel.lifelock import (
    LifeFileExists,
    LifeFileGone,
    LifeLock,
    LifeLockError,
    LifeProbe,
    LocksUnsupported,
)
from tests.support.children import Child, stay, wait_until_dead
from tests.support.descriptors import no_descriptor_leaks
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    with no_descriptor_leaks():
        yield


def probe_of(directory: Path, name: str = "life") -> LifeProbe:
    probe = LifeProbe.open(directory, name)
    assert probe is not None
    return probe


def test_held_while_the_maker_holds_it_and_free_when_it_closes(tmp_path: Path) -> None:
    lock = LifeLock.create(tmp_path, "life")
    with probe_of(tmp_path) as probe:
        assert probe.inode == lock.inode == (lock.path.stat().st_dev, lock.path.stat().st_ino)
        assert probe.locked()
        lock.close()
        lock.close()
        assert not probe.locked()


def test_the_file_is_this_user_s_alone_and_nothing_of_it_is_inherited(tmp_path: Path) -> None:
    with LifeLock.create(tmp_path, "life") as lock, probe_of(tmp_path) as probe:
        assert lock.path.stat().st_mode & 0o777 == 0o600
        assert not os.get_inheritable(lock.fd)
        assert not os.get_inheritable(probe._fd)


def test_held_until_the_last_of_several_members_lets_go(tmp_path: Path) -> None:
    first = LifeLock.create(tmp_path, "life")
    second = LifeLock.join(tmp_path, "life")
    assert first.inode == second.inode
    with probe_of(tmp_path) as probe:
        first.close()
        assert probe.locked()
        second.close()
        assert not probe.locked()


def test_a_forked_grandchild_holds_it_after_the_taker_is_dead(tmp_path: Path) -> None:
    def take_and_fork(say: object) -> None:
        LifeLock.create(tmp_path, "life")
        grandchild = os.fork()
        if grandchild == 0:
            stay()
        assert callable(say)
        say(str(grandchild))

    with Child(take_and_fork) as child:
        grandchild = os.pidfd_open(int(child.line()))
        assert os.waitstatus_to_exitcode(child.wait()) == 0
        with probe_of(tmp_path) as probe:
            assert probe.locked()
            signal.pidfd_send_signal(grandchild, signal.SIGKILL)
            wait_until_dead(grandchild)
            # Whatever looks at its memory at that moment (/proc, or the kernel's own watcher) keeps it for a while.
            until(lambda: not probe.locked(), "it is free")
        os.close(grandchild)


def test_asking_takes_nothing_and_refuses_no_process(tmp_path: Path) -> None:
    """A probe with flock made members that were just starting fail."""
    LifeLock.create(tmp_path, "life").close()

    def ask(say: object) -> None:
        probe = probe_of(tmp_path)
        assert callable(say)
        say("asking")
        while True:
            probe.locked()

    with Child(ask) as child:
        assert child.line() == "asking"
        for _ in range(2000):
            LifeLock.join(tmp_path, "life").close()


def test_closing_a_probe_lets_go_of_no_lock(tmp_path: Path) -> None:
    """With POSIX locks, closing any descriptor of the file would."""
    with LifeLock.create(tmp_path, "life"):
        probe_of(tmp_path).close()
        with probe_of(tmp_path) as probe:
            assert probe.locked()


def test_a_second_incarnation_of_one_name_is_refused(tmp_path: Path) -> None:
    with LifeLock.create(tmp_path, "life"), pytest.raises(LifeFileExists, match="new name"):
        LifeLock.create(tmp_path, "life")


def test_joining_what_isnt_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LifeFileGone, match="is over"):
        LifeLock.join(tmp_path, "life")
    with pytest.raises(LifeFileGone):
        LifeLock.join(tmp_path / "nowhere", "life")
    with pytest.raises(LifeFileGone):
        LifeLock.create(tmp_path / "nowhere", "life")
    assert LifeProbe.open(tmp_path, "life") is None


def test_a_file_that_is_removed_while_it_is_being_locked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LifeLock.create(tmp_path, "life").close()
    take = lifelock._take_read_lock

    def take_and_lose(path: Path, fd: int) -> None:
        take(path, fd)
        path.unlink()

    monkeypatch.setattr(lifelock, "_take_read_lock", take_and_lose)
    with pytest.raises(LifeFileGone, match="removed or replaced"):
        LifeLock.join(tmp_path, "life")


def test_a_new_life_file_has_its_lock_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take = lifelock._take_read_lock
    named_before_locked = []

    def take_and_look(path: Path, fd: int) -> None:
        named_before_locked.append(path.exists())
        take(path, fd)

    monkeypatch.setattr(lifelock, "_take_read_lock", take_and_look)
    with LifeLock.create(tmp_path, "life") as lock:
        assert lock.same_file()
    assert named_before_locked == [False]
    assert [path.name for path in tmp_path.iterdir()] == ["life"]


def test_a_new_file_under_the_old_name_deceives_neither_side(tmp_path: Path) -> None:
    with LifeLock.create(tmp_path, "life") as old, probe_of(tmp_path) as probe:
        old.path.unlink()
        assert not old.same_file()
        assert probe.locked()
        with LifeLock.create(tmp_path, "life") as new:
            assert new.same_file()
            assert not old.same_file()
            assert probe.locked() and probe.inode != new.inode


def test_a_lost_directory_is_a_lost_file(tmp_path: Path) -> None:
    directory = tmp_path / "life"
    directory.mkdir()
    with LifeLock.create(directory, "a") as lock, probe_of(directory, "a") as probe:
        directory.rename(tmp_path / "elsewhere")
        assert not lock.same_file()
        assert probe.locked()
        directory.write_text("now a file")
        assert not lock.same_file()
        assert probe.locked()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/etc/passwd", "a\0b"])
def test_a_name_can_not_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    for make in (LifeLock.create, LifeLock.join, LifeProbe.open):
        with pytest.raises(ValueError, match="can't be the name"):
            make(tmp_path, name)


def test_what_is_no_regular_file_is_no_life_file_and_keeps_no_caller_waiting(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "directory", "fifo"):
        assert LifeProbe.open(tmp_path, name) is None
        with pytest.raises(LifeFileGone):
            LifeLock.join(tmp_path, name)


def test_a_write_lock_of_another_process_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "life").touch()
    fd = os.open(tmp_path / "life", os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lifelock._ANY_LOCK)
    with pytest.raises(LifeLockError, match="write lock"):
        LifeLock.join(tmp_path, "life")
    os.close(fd)


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_filesystem_without_such_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    LifeLock.create(tmp_path, "life").close()
    with probe_of(tmp_path) as probe:

        def refuse(*_: object) -> bytes:
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(fcntl, "fcntl", refuse)
        with pytest.raises(LocksUnsupported, match="no OFD locks"):
            probe.locked()
        with pytest.raises(LocksUnsupported, match="no OFD locks"):
            LifeLock.join(tmp_path, "life")


def test_an_error_of_the_disk_is_not_taken_for_a_missing_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(OSError) as caught:
        LifeLock.create(tmp_path, "life")
    assert caught.value.errno == errno.EIO


def test_a_directory_can_be_checked_beforehand_and_nothing_stays_in_it(tmp_path: Path) -> None:
    lifelock.check_directory(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_filesystem_that_accepts_locks_and_keeps_none_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifelock, "_take_read_lock", lambda path, fd: None)
    with pytest.raises(LocksUnsupported, match="doesn't keep them"):
        lifelock.check_directory(tmp_path)
    assert list(tmp_path.iterdir()) == []

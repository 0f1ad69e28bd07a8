"""Who is at the other end and is it dead: on this kernel, and as an older one would have it."""

import ctypes
import errno
import os
import platform
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.kernel import peers
from sidecar.kernel.peers import Evidence, KillResult
from tests.sidecar.namespaces import in_new_pid_namespace
from tests.support.children import Child, stay, wait_until_dead
from tests.support.descriptors import no_descriptor_leaks

UNKNOWN_OPTION = 9999


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    with no_descriptor_leaks():
        yield


@pytest.fixture
def old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux 5.15: no SO_PEERPIDFD, and a pidfd is an anonymous inode as an eventfd is."""
    monkeypatch.setattr(peers, "SO_PEERPIDFD", UNKNOWN_OPTION)
    monkeypatch.setattr(peers, "_pidfs_device", lambda: None)


needs_peer_pidfd = pytest.mark.skipif(
    peers.kernel_evidence() is not Evidence.PEER, reason="SO_PEERPIDFD needs Linux 6.5"
)
needs_pidfs = pytest.mark.skipif(peers._pidfs_device() is None, reason="pidfs needs Linux 6.9")


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen()
        yield sock


def connected(listener: socket.socket) -> socket.socket:
    """In a child: a connection to the listener."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(listener.getsockname())
    return sock


def close(*descriptors: int | None) -> None:
    for fd in descriptors:
        if fd is not None:
            os.close(fd)


def test_credentials_are_those_of_the_process_that_connected(listener: socket.socket) -> None:
    def connect(say: object) -> None:
        sock = connected(listener)
        stay()
        sock.close()

    with Child(connect) as child, listener.accept()[0] as sock:
        assert peers.credentials(sock) == (child.pid, os.getuid(), os.getgid())


@needs_peer_pidfd
def test_the_kernel_names_the_peer_and_its_pidfd_is_closed_in_other_programs(listener: socket.socket) -> None:
    def connect(say: object) -> None:
        sock = connected(listener)
        stay()
        sock.close()

    with Child(connect) as child, listener.accept()[0] as sock:
        pidfd = peers.peer_pidfd(sock)
        assert pidfd is not None
        assert not os.get_inheritable(pidfd)
        assert peers.pidfd_pid(pidfd) == child.pid
        assert not peers.is_dead(pidfd)
        child.kill()
        assert peers.is_dead(pidfd), "dead, though its parent hasn't collected it"
        child.wait()
        assert peers.is_dead(pidfd)
        assert peers.pidfd_pid(pidfd) == -1
        assert peers.kill(pidfd) is KillResult.ALREADY_DEAD
        close(pidfd)


@needs_peer_pidfd
def test_a_peer_that_is_dead_and_collected_is_dead_or_gone_but_never_unknown(listener: socket.socket) -> None:
    def connect(say: object) -> None:
        connected(listener).send(b"x")

    with Child(connect) as child, listener.accept()[0] as sock:
        child.wait()
        try:
            pidfd = peers.peer_pidfd(sock)
        except peers.PeerGone:
            return
        assert pidfd is not None
        assert peers.is_dead(pidfd)
        close(pidfd)


@needs_peer_pidfd
def test_a_forked_child_that_keeps_the_connection_doesnt_hide_the_death_of_who_made_it(listener: socket.socket) -> None:
    def connect(say: object) -> None:
        sock = connected(listener)
        if os.fork() == 0:
            sock.send(b"child")
            stay()
        stay()

    with Child(connect) as child, listener.accept()[0] as sock:
        assert sock.recv(5) == b"child"
        pidfd = peers.peer_pidfd(sock)
        assert pidfd is not None
        child.kill()
        assert peers.is_dead(pidfd)
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)  # and no end of file
        close(pidfd)


def test_an_older_kernel_names_no_peer_and_the_peer_sends_its_own_pidfd(
    listener: socket.socket, old_kernel: None
) -> None:
    def connect(say: object) -> None:
        sock = connected(listener)
        socket.send_fds(sock, [b"x"], [peers.own_pidfd()])
        stay()

    with Child(connect) as child, listener.accept()[0] as sock:
        assert peers.kernel_evidence() is Evidence.SENT
        assert peers.peer_pidfd(sock) is None
        _, [pidfd], _, _ = socket.recv_fds(sock, 1, 1)
        assert peers.pidfd_pid(pidfd) == child.pid == peers.credentials(sock).pid
        assert peers.pidfd_inode(pidfd) is None
        assert not peers.is_dead(pidfd)
        child.kill()
        assert peers.is_dead(pidfd)
        close(pidfd)


def test_without_pidfds_there_is_no_evidence(monkeypatch: pytest.MonkeyPatch, old_kernel: None) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert peers.kernel_evidence() is Evidence.NONE


class Socket(socket.socket):
    """A connection whose kernel answers the question for the peer with an error."""

    error = 0

    def getsockopt(self, level: int, option: int, size: int = 0) -> bytes:  # type: ignore[override]
        raise OSError(self.error, os.strerror(self.error))


@pytest.mark.parametrize("error", [errno.ENOPROTOOPT, errno.ENODATA, errno.EINVAL])
def test_a_kernel_that_cant_name_peers_is_not_mistaken_for_a_dead_peer(old_kernel: None, error: int) -> None:
    with Socket() as sock:
        sock.error = error
        assert peers.peer_pidfd(sock) is None


@needs_peer_pidfd
@pytest.mark.parametrize("error", [errno.ESRCH, errno.EINVAL])
def test_a_dead_peer_is_not_mistaken_for_a_kernel_that_cant_name_peers(error: int) -> None:
    with Socket() as sock:
        sock.error = error
        with pytest.raises(peers.PeerGone):
            peers.peer_pidfd(sock)


def test_running_out_of_descriptors_is_neither() -> None:
    with Socket() as sock:
        sock.error = errno.EMFILE
        with pytest.raises(OSError) as caught:
            peers.peer_pidfd(sock)
        assert caught.value.errno == errno.EMFILE


@needs_pidfs
def test_the_inode_of_a_pidfd_is_one_for_a_process_and_differs_between_processes() -> None:
    with Child(lambda say: stay()) as one, Child(lambda say: stay()) as other:
        again = os.pidfd_open(one.pid)
        mine = peers.own_pidfd()
        inodes = [peers.pidfd_inode(fd) for fd in (one.pidfd, again, other.pidfd, mine)]
        assert None not in inodes
        assert inodes[0] == inodes[1]
        assert len(set(inodes)) == 3
        close(again, mine)


def test_pidfds_that_share_an_anonymous_inode_have_no_inode_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself, on a kernel whose pidfd sits where an eventfd does."""
    monkeypatch.setattr(peers, "own_pidfd", lambda: os.eventfd(0))
    assert peers._pidfs_device.__wrapped__() is None


def test_something_else_that_is_sent_as_a_pidfd_is_recognised() -> None:
    for fd in (os.eventfd(1), os.open("/dev/null", os.O_RDONLY), os.memfd_create("x")):
        assert peers.pidfd_inode(fd) is None
        with pytest.raises(peers.NotAPidfd):
            peers.pidfd_pid(fd)
        close(fd)


def test_a_closed_descriptor_never_passes_for_a_death() -> None:
    pidfd = peers.own_pidfd()
    close(pidfd)
    for question in (peers.is_dead, peers.pidfd_pid, peers.pidfd_inode, peers.kill):
        with pytest.raises(OSError) as caught:
            question(pidfd)
        assert caught.value.errno == errno.EBADF


def test_own_pidfd_names_this_process_and_is_closed_in_other_programs() -> None:
    pidfd = peers.own_pidfd()
    assert peers.pidfd_pid(pidfd) == os.getpid()
    assert not os.get_inheritable(pidfd)
    assert not peers.is_dead(pidfd)
    close(pidfd)


def test_a_killed_process_is_dead_by_sigkill() -> None:
    with Child(lambda say: stay()) as child:
        assert peers.kill(child.pidfd) is KillResult.SENT
        assert os.waitstatus_to_exitcode(child.wait()) == -signal.SIGKILL
        assert peers.kill(child.pidfd) is KillResult.ALREADY_DEAD


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the number of the call exit")
def test_a_process_whose_leading_thread_has_ended_is_not_dead() -> None:
    """/proc shows Z for it, and its memory is all there."""
    number = 60 if platform.machine() == "x86_64" else 93

    def leave_a_thread(say: object) -> None:
        threading.Thread(target=lambda: os.read(end, 1), daemon=True).start()
        ctypes.CDLL(None).syscall(number, 0)

    end, write = os.pipe()
    with Child(leave_a_thread) as child:
        stat = Path(f"/proc/{child.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            os.sched_yield()
        assert not peers.is_dead(child.pidfd)
        os.write(write, b"x")  # the thread ends, and with it the process
        wait_until_dead(child.pidfd)
        assert peers.is_dead(child.pidfd)
    close(end, write)


def test_the_boot_id_is_the_kernel_s_and_stays() -> None:
    assert len(peers.boot_id()) == 36
    assert peers.boot_id() == peers.boot_id()


@pytest.mark.root
def test_a_process_of_another_user_can_be_out_of_reach() -> None:
    with Child(lambda say: stay()) as target:

        def try_it(say: object) -> None:
            os.setuid(65534)
            os._exit(0 if peers.kill(target.pidfd) is KillResult.OUT_OF_REACH else 1)

        with Child(try_it) as child:
            assert os.waitstatus_to_exitcode(child.wait()) == 0
        assert not peers.is_dead(target.pidfd)


@pytest.mark.root
@needs_pidfs
def test_across_sibling_pid_namespaces_a_peer_has_no_pid_but_a_pidfd_and_an_inode(listener: socket.socket) -> None:
    def client(say: object) -> None:
        sock = connected(listener)
        again = connected(listener)
        stay()
        sock.close()
        again.close()

    def server(say: object) -> None:
        sock, again = listener.accept()[0], listener.accept()[0]
        assert peers.credentials(sock).pid == 0
        pidfd, second = peers.peer_pidfd(sock), peers.peer_pidfd(again)
        assert pidfd is not None
        assert second is not None
        assert peers.pidfd_inode(pidfd) == peers.pidfd_inode(second) != None  # noqa: E711
        assert not peers.is_dead(pidfd)
        assert peers.kill(pidfd) is KillResult.OUT_OF_REACH
        os.write(ready[1], b"x")
        wait_until_dead(pidfd)
        assert peers.is_dead(pidfd)

    ready = os.pipe()
    with in_new_pid_namespace(client) as client_child, in_new_pid_namespace(server) as server_child:
        os.read(ready[0], 1)
        client_child.kill()
        assert os.waitstatus_to_exitcode(server_child.wait()) == 0
    close(*ready)

"""Who is at the other end of a Unix socket, which process that is, and whether it is dead.

Only a pidfd decides that a process is gone: pids are reused and are 0 across sibling PID namespaces, a socket's end of
file comes early or never, and /proc shows a zombie that still holds memory. So everything here is about getting a pidfd
and asking it.

Kernels differ, and every difference is a `None` or an enum, never a guess:

* Linux >= 6.5 names the peer of a connection (`SO_PEERPIDFD`); before, the peer sends a pidfd of itself (`own_pidfd`).
* Linux >= 6.9 gives pidfds inodes of their own (pidfs): equal for every pidfd of one process, different between
  processes, visible across PID namespaces. Before, all pidfds share one anonymous inode, which tells nothing.

What this file may not do: keep state, wait, or decide what a death means. Descriptors that it returns belong to the
caller.
"""

import enum
import errno
import functools
import os
import select
import signal
import socket
import struct
from pathlib import Path
from typing import NamedTuple

# Constants of the module, so that a test can make this kernel an older one.
SO_PEERPIDFD = 77
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""These say nothing about what the kernel can do."""
_UCRED = struct.Struct("=iII")
_INT = struct.Struct("=i")


class Credentials(NamedTuple):
    """The peer as the kernel saw it when the connection was made. pid is 0 for a peer in a sibling PID namespace."""

    pid: int
    uid: int
    gid: int


class PeerGone(Exception):
    """The process that made this connection is dead and its parent has collected it; no pidfd of it can be had."""


class NotAPidfd(ValueError):
    """This descriptor, which was sent as a pidfd, is something else."""


class KillResult(enum.Enum):
    """What came of a SIGKILL."""

    SENT = "sent"
    ALREADY_DEAD = "already dead"
    OUT_OF_REACH = "another PID namespace, or another user"
    REFUSED = "pidfd_send_signal is refused here: allow it in the seccomp profile"


class Evidence(enum.Enum):
    """How a server on this kernel gets a pidfd of a process that connects to it."""

    PEER = "kernel names the peer"
    SENT = "peer sends its pidfd"
    NONE = "none"


def credentials(sock: socket.socket) -> Credentials:
    """The pid, uid and gid that the peer had when it connected."""
    return Credentials(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def peer_pidfd(sock: socket.socket) -> int | None:
    """A close-on-exec pidfd of the process that made this connection; None where the kernel doesn't say.

    Raises PeerGone when that process is dead and collected already, on a kernel that says so.
    """
    try:
        fd: int = _INT.unpack(sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, _INT.size))[0]
    except OSError as error:
        if error.errno == errno.ESRCH:
            raise PeerGone("the process that made this connection is gone") from error
        if error.errno == errno.EINVAL and _kernel_names_peers():
            # Linux 6.5 to 6.14 say EINVAL for a peer that is dead and collected.
            raise PeerGone("the process that made this connection is gone") from error
        if error.errno in (errno.ENOPROTOOPT, errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP):
            return None
        raise
    return fd


def own_pidfd() -> int:
    """A close-on-exec pidfd of this process, to send to a server whose kernel doesn't name its peers. Raises OSError.

    Where a seccomp profile refuses pidfd_open, the kernel names this process as the peer of a connection to itself.
    """
    try:
        return os.pidfd_open(os.getpid())
    except OSError as error:
        named = None if error.errno in _NO_ROOM else _named_by_the_kernel()
        if named is None:
            raise
        return named


def pidfd_inode(fd: int) -> int | None:
    """What names this pidfd's process until the machine reboots; None where pidfds have no inodes of their own.

    None also for a descriptor that is no pidfd: `pidfd_pid` tells the difference.
    """
    status = os.fstat(fd)
    return status.st_ino if status.st_dev == _pidfs_device() else None


def pidfd_pid(fd: int) -> int:
    """The pid that /proc gives for a pidfd: 0 = in a PID namespace unseen from here, -1 = dead and collected.

    Raises NotAPidfd for any other descriptor.
    """
    os.fstat(fd)  # a closed descriptor is EBADF, not a missing file in /proc
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("Pid:"):
                return int(line.removeprefix("Pid:"))
    raise NotAPidfd(f"descriptor {fd} was sent as a pidfd but names no process")


def await_end(pidfd: int, timeout_s: float | None = None) -> bool:
    """Blocks until the process has ended. False: the time is over first."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def is_dead(pidfd: int) -> bool:
    """Every thread of the process has ended. Its parent needn't have collected it."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    for _, events in poll.poll(0):
        if events & select.POLLNVAL:  # a closed descriptor must never pass for a death
            raise OSError(errno.EBADF, f"descriptor {pidfd} is closed; it was asked whether its process is dead")
        return bool(events & select.POLLIN)
    return False


def kill(pidfd: int) -> KillResult:
    """Sends SIGKILL. The process is dead when `is_dead` says so, not when this returns."""
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return KillResult.ALREADY_DEAD
    except OSError as error:
        if _signals_are_refused():
            return KillResult.REFUSED
        # EINVAL: a sibling PID namespace. The kernel has no pid to tell the sender by.
        if isinstance(error, PermissionError) or error.errno == errno.EINVAL:
            return KillResult.OUT_OF_REACH
        raise
    return KillResult.SENT


def _signals_are_refused() -> bool:
    """Not only for that process: this one may not even send itself a signal by pidfd. (A seccomp profile says EPERM or
    ENOSYS, and EPERM is also what the kernel says about another user's process.)
    """
    try:
        own = own_pidfd()
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(own, 0)
    except OSError:
        return True
    finally:
        os.close(own)
    return False


def boot_id() -> str:
    """Differs between any two boots of any machines."""
    return BOOT_ID_FILE.read_text(encoding="ascii").strip()


def kernel_evidence() -> Evidence:
    """What this kernel can do for a server; `own_pidfd` works at the clients wherever it works here."""
    if _kernel_names_peers():
        return Evidence.PEER
    try:
        os.close(own_pidfd())
    except OSError:  # no such call (before 5.3), or a seccomp profile that doesn't know it
        return Evidence.NONE
    return Evidence.SENT


def _kernel_names_peers() -> bool:
    """Asked of a connection to ourselves, because error numbers alone don't tell "can't" from "that peer is gone"."""
    own = _named_by_the_kernel()
    if own is not None:
        os.close(own)
    return own is not None


def _named_by_the_kernel() -> int | None:
    """A pidfd of this process, as the peer of a connection to itself."""
    try:
        ours, other = socket.socketpair()
        with ours, other:
            return int(_INT.unpack(ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, _INT.size))[0])
    except OSError:  # an older kernel, or a seccomp profile that refuses it
        return None


@functools.cache
def _pidfs_device() -> int | None:
    """The device number of pidfs; None where a pidfd is an anonymous inode, as an eventfd is."""
    try:
        pidfd = own_pidfd()
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        return None
    anonymous = os.eventfd(0)
    try:
        device = os.fstat(pidfd).st_dev
        return None if device == os.fstat(anonymous).st_dev else device
    finally:
        os.close(pidfd)
        os.close(anonymous)

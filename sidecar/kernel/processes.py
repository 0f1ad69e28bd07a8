"""The processes that a server knows: a pidfd of each under a number, whose it is, and its end.

A caller is the process that the kernel names for its connection; on kernels that name none, the process whose pidfd
it sent (`peers.py` has the differences). Pidfds that come by other ways (of a third process) are taken as they are.

What this file may not do: decide what an end means, or kill on its own account.
"""

import enum
import errno
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sidecar.kernel import peers
from sidecar.machine.loop import Loop
from sidecar.wire.frames import close_all


class Unidentified(Exception):
    """It can't be told which process this is; the text says why."""


class Named(NamedTuple):
    process: int | None
    """The number under which its pidfd is kept; None where none is to be had."""
    identity: str
    """The kernel's name for the process, the same for every pidfd of it; empty where there is none."""
    pid: int
    """Its number as it says itself, where none is known here."""
    local_pid: int = 0
    """Its number in this process's own PID namespace; 0 where it has none."""


class Whereabouts(enum.Enum):
    GONE = "its number is free, or another process's by now"
    UNKNOWN = "this kernel can't tell"


class Processes:
    def __init__(self, loop: Loop, pidfds: str = "auto") -> None:
        self.evidence = (
            peers.kernel_evidence()
            if pidfds == "auto"
            else {"peer": peers.Evidence.PEER, "sent": peers.Evidence.SENT, "none": peers.Evidence.NONE}[pidfds]
        )
        self._has_inodes = pidfds == "auto"
        self._loop = loop
        self._pidfds: dict[int, int] = {}
        self._next = 0

    def identify(self, sock: socket.socket, descriptors: tuple[int, ...], said_pid: int) -> Named:
        """The process that introduces itself on this connection: the kernel's word where it gives one, else the pidfd
        that came along. Takes care of the descriptors. Raises Unidentified, and PeerGone.
        """
        try:
            pidfd = peers.peer_pidfd(sock) if self.evidence is peers.Evidence.PEER else None
        except peers.PeerGone:
            close_all(descriptors)
            raise
        except OSError as error:
            close_all(descriptors)
            raise Unidentified(f"no pidfd of yours can be had: {error.strerror}") from None
        credentials = peers.credentials(sock)
        if pidfd is not None:
            close_all(descriptors)
            try:
                return self.keep(pidfd, credentials.pid or said_pid, credentials.pid)
            except OSError as error:
                os.close(pidfd)
                raise Unidentified(f"your pidfd can't be looked at: {error.strerror}") from None
        if self.evidence is peers.Evidence.NONE:
            close_all(descriptors)
            return Named(None, "", credentials.pid or said_pid, credentials.pid)
        try:
            return self._take_at_its_word(descriptors, credentials.pid, said_pid)
        except BaseException:
            close_all(descriptors)
            raise

    def _take_at_its_word(self, descriptors: tuple[int, ...], peer_pid: int, said_pid: int) -> Named:
        if len(descriptors) != 1:
            raise Unidentified(
                "this kernel does not name its peers: send a pidfd of your own process with this message"
            )
        try:
            pid = peers.pidfd_pid(descriptors[0])
            if peer_pid > 0 and pid > 0 and pid != peer_pid:
                raise Unidentified(f"the pidfd names process {pid}, and you are {peer_pid}")
            return self.keep(descriptors[0], peer_pid or said_pid, peer_pid)
        except (peers.NotAPidfd, OSError) as error:
            raise Unidentified(str(error)) from None

    def keep(self, pidfd: int, pid: int = 0, local_pid: int = 0) -> Named:
        """Owns this pidfd from now on; unless it raises NotAPidfd or OSError."""
        found = peers.pidfd_pid(pidfd)
        inode = peers.pidfd_inode(pidfd) if self._has_inodes else None
        self._next += 1
        self._pidfds[self._next] = pidfd
        identity = f"pidfs:{inode}" if inode is not None else ""
        return Named(self._next, identity, pid or max(found, 0), local_pid or max(found, 0))

    def look_up(self, local_pid: int, identity: str) -> "Named | Whereabouts":
        """What has become of a process that had this number here. If it is there still, its pidfd is kept."""
        try:
            pidfd = os.pidfd_open(local_pid)
        except ProcessLookupError:
            return Whereabouts.GONE
        except OSError as error:  # by now the number is that of a thread: of no process, so not of that one
            of_a_thread = error.errno in (errno.ENOENT, errno.EINVAL)
            return Whereabouts.GONE if of_a_thread else Whereabouts.UNKNOWN
        try:
            named = self.keep(pidfd, local_pid, local_pid)
        except (peers.NotAPidfd, OSError):
            os.close(pidfd)
            return Whereabouts.UNKNOWN
        if identity and named.identity == identity:
            return named
        self.forget_all([named])
        return Whereabouts.GONE if identity and named.identity else Whereabouts.UNKNOWN

    def keep_all(self, pidfds: tuple[int, ...]) -> list[Named]:
        """All of them or, when one is no pidfd, none and Unidentified. Takes care of the descriptors."""
        named: list[Named] = []
        try:
            for fd in pidfds:
                named.append(self.keep(fd))
        except (peers.NotAPidfd, OSError) as error:
            self.forget_all(named)
            close_all(pidfds[len(named) :])
            raise Unidentified(str(error)) from None
        return named

    def pidfds(self, processes: Sequence[int]) -> list[int]:
        """The pidfds of those processes that are still known."""
        return [self._pidfds[process] for process in processes if process in self._pidfds]

    def on_death(self, process: int, dead: Callable[[], None]) -> None:
        """Calls it once, when the process is dead; unless that is forgotten before."""
        pidfd = self._pidfds[process]

        def readable(_: int) -> None:
            if not peers.is_dead(pidfd):
                return  # a late event of a connection that was closed in this round, whose number this pidfd has
            self._loop.remove(pidfd)
            dead()

        self._loop.add(pidfd, readable)

    def pid(self, process: int) -> int:
        """Its number in this process's own PID namespace; 0 or less where it has none."""
        try:
            return peers.pidfd_pid(self._pidfds[process])
        except (KeyError, OSError):  # forgotten, or no descriptor is left to look with
            return 0

    def is_dead(self, process: int) -> bool:
        """At this moment, whether or not `on_death` has been called."""
        return process not in self._pidfds or peers.is_dead(self._pidfds[process])

    def kill(self, process: int) -> peers.KillResult:
        return peers.kill(self._pidfds[process])

    def forget(self, process: int) -> None:
        pidfd = self._pidfds.pop(process, None)
        if pidfd is not None:
            self._loop.remove(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        """Forgets all of them."""
        for process in list(self._pidfds):
            self.forget(process)

    def forget_all(self, named: Iterable[Named]) -> None:
        for one in named:
            if one.process is not None:
                self.forget(one.process)

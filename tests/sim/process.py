"""One process of the simulated kernel, and its system calls.

Descriptors are small numbers, the lowest free one first, because a dying process releases them in the order of their
numbers. A call of a dead process raises `Killed`, which unwinds the code that was running in it. Deaths: kernel.py.
"""

import errno
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tests.sim.events import Event, Killed, Namespace, Watch
from tests.sim.files import File, Kind, Lock, OpenFile, error
from tests.sim.openfiles import (
    AddressSpace,
    Allocation,
    Connection,
    InFlight,
    Listener,
    Pidfd,
    Received,
)

if TYPE_CHECKING:
    from tests.sim.kernel import Kernel

__all__ = ["Event", "Killed", "Namespace", "Process", "Watch"]


class Process:
    __slots__ = (
        "alive",
        "children",
        "deferred",
        "descriptors",
        "dies_with_parent",
        "gone",
        "is_subreaper",
        "kernel",
        "leader_ended",
        "memory",
        "name",
        "namespace",
        "parent",
        "pid",
        "pidfds",
        "pidfs_inode",
        "pins",
        "reaped",
        "reaps_children",
        "stopped",
        "watches",
    )

    def __init__(
        self,
        kernel: "Kernel",
        name: str,
        pid: int,
        pidfs_inode: int,
        parent: "Process | None",
        namespace: Namespace,
        memory: AddressSpace,
    ) -> None:
        self.kernel = kernel
        self.name = name
        self.pid = pid
        self.pidfs_inode = pidfs_inode
        self.parent = parent
        self.namespace = namespace
        self.memory = memory
        self.alive = True  # runs code, unless it is stopped
        self.stopped = False
        self.gone = False  # wholly: pidfds are readable
        self.reaped = False
        self.leader_ended = False
        self.dies_with_parent = False
        self.reaps_children = True  # False: its dead children stay zombies until Kernel.reap
        self.is_subreaper = False
        self.descriptors: dict[int, OpenFile] = {}
        self.watches: dict[int, Watch] = {}
        self.children: dict[Process, None] = {}
        self.pidfds: list[Pidfd] = []
        self.pins: list[tuple[OpenFile, float]] = []
        self.deferred: list[Event] = []

    def __repr__(self) -> str:
        return f"{self.name}[{self.pid}]"

    def must_live(self) -> None:
        if not self.alive:
            raise Killed(self)

    # Descriptors

    def _add(self, file: OpenFile) -> int:
        fd = 3
        while fd in self.descriptors:
            fd += 1
        file.references += 1
        self.descriptors[fd] = file
        return fd

    def _file(self, fd: int) -> OpenFile:
        if not self.alive:
            raise Killed(self)
        file = self.descriptors.get(fd)
        if file is None:
            raise error(errno.EBADF, fd)
        return file

    def close(self, fd: int) -> None:
        file = self._file(fd)
        self.unwatch(fd)
        del self.descriptors[fd]
        file.drop()

    def dup(self, fd: int) -> int:
        return self._add(self._file(fd))

    def readable(self, fd: int) -> bool:
        """poll with no wait."""
        return self._file(fd).readable()

    def on_readable(self, fd: int, call: Callable[[int], None]) -> None:
        """Calls `call(fd)` when a connection, listener or pidfd becomes readable, or is. One watch per descriptor."""
        file = self._file(fd)
        self.unwatch(fd)
        watch = self.watches[fd] = Watch(self, fd, file, call)
        file.watchers.append(watch)
        if file.readable():
            watch.wake()

    on_death = on_readable  # the same, for a pidfd

    def unwatch(self, fd: int) -> None:
        watch = self.watches.pop(fd, None)
        if watch:
            watch.file.watchers.remove(watch)

    def after(self, delay_s: float, call: Callable[[], None]) -> Event:
        self.must_live()
        return self.kernel.after(delay_s, call, self)

    # Processes

    def fork(self, name: str) -> "Process":
        """The child shares every open file, and has every mapping that was not marked dont_fork."""
        return self._child(name, self.descriptors, self.memory.forked())

    def spawn(self, name: str, inherit: Iterable[int] = ()) -> "Process":
        """fork and exec: nothing but the descriptors in `inherit`, under their numbers."""
        return self._child(name, {fd: self._file(fd) for fd in inherit}, AddressSpace())

    def clone_vm(self, name: str) -> "Process":
        """A child in the same address space: its memory stays as long as either lives."""
        self.memory.users += 1
        return self._child(name, self.descriptors, self.memory)

    def _child(self, name: str, descriptors: dict[int, OpenFile], memory: AddressSpace) -> "Process":
        self.must_live()
        child = self.kernel.new_process(name, self, self.namespace, memory)
        child.descriptors = dict(descriptors)
        for file in descriptors.values():
            file.references += 1
        return child

    def exit(self) -> None:
        self.kernel.kill(self)

    def die_with_parent(self) -> None:
        """PR_SET_PDEATHSIG. A parent that died before this call kills nobody: look at `parent` afterwards."""
        self.must_live()
        self.dies_with_parent = True

    def end_leader(self) -> None:
        """The first thread calls pthread_exit and others live on: `Z` in /proc, and nothing is released."""
        self.must_live()
        self.leader_ended = True
        self.kernel.orphan(self)

    @property
    def parent_pid(self) -> int:
        """getppid: 1 for an orphan, 0 when the parent is out of sight."""
        if self.parent is None:
            return 1
        return self.parent.pid if self.namespace.sees(self.parent.namespace) else 0

    @property
    def proc_state(self) -> str | None:
        """The letter in /proc/PID/stat, which proves nothing."""
        if self.reaped:
            return None
        if self.gone or self.leader_ended:
            return "Z"
        return "T" if self.stopped else "S"

    def kill_pid(self, pid: int) -> None:
        """kill(2): hits whoever has the pid today."""
        self.must_live()
        target = self.kernel.processes.get(pid)
        if target is None or not self.namespace.sees(target.namespace):
            raise error(errno.ESRCH, pid)
        self.kernel.kill(target)

    # Pidfds

    def pidfd_open(self, pid: int) -> int:
        self.must_live()
        target = self.kernel.processes.get(pid)
        if target is None or not self.namespace.sees(target.namespace):
            raise error(errno.ESRCH, pid)
        return self._add(Pidfd(target))

    def peer_pidfd(self, fd: int) -> int:
        """SO_PEERPIDFD: who connected (or listened), even when it is dead and another holds its end by now."""
        connection = self._connection(fd)
        if not self.kernel.has_peer_pidfd:
            raise error(errno.ENOPROTOOPT, fd)
        target = connection.peer.maker
        if target.reaped and self.kernel.peer_pidfd_of_reaped_errno:
            raise error(self.kernel.peer_pidfd_of_reaped_errno, fd)
        return self._add(Pidfd(target))

    def peer_pid(self, fd: int) -> int:
        """SO_PEERCRED's pid: 0 when the peer lives in a PID namespace that this process does not see."""
        target = self._connection(fd).peer.maker
        return target.pid if self.namespace.sees(target.namespace) else 0

    def is_dead(self, fd: int) -> bool:
        return self._pidfd(fd).readable()

    def pidfd_inode(self, fd: int) -> int | None:
        """One number per process and boot; None where the kernel has no pidfs."""
        target = self._pidfd(fd).process
        return target.pidfs_inode if self.kernel.has_pidfs else None

    def pidfd_pid(self, fd: int) -> int:
        """The `Pid:` of fdinfo: 0 is out of sight, -1 is dead and reaped."""
        target = self._pidfd(fd).process
        if target.reaped:
            return -1
        return target.pid if self.namespace.sees(target.namespace) else 0

    def pidfd_kill(self, fd: int) -> None:
        target = self._pidfd(fd).process
        if not self.namespace.sees(target.namespace):
            raise error(errno.EINVAL, fd)
        if target.reaped:
            raise error(errno.ESRCH, fd)
        self.kernel.kill(target)

    def _pidfd(self, fd: int) -> Pidfd:
        file = self._file(fd)
        if not isinstance(file, Pidfd):
            raise error(errno.EBADF, fd)
        return file

    # Sockets

    def listen(self, path: str) -> int:
        self.must_live()
        inode = self.kernel.files.create(path, Kind.SOCKET)
        listener = inode.listener = Listener(self, inode)
        return self._add(listener)

    def connect(self, path: str) -> int:
        self.must_live()
        inode = self.kernel.files.find(path)
        listener = inode.listener
        if not isinstance(listener, Listener):
            raise error(errno.ECONNREFUSED, path)
        near, far = Connection(self), Connection(listener.maker)
        near.peer, far.peer = far, near
        far.hold()
        listener.backlog.append(far)
        listener.wake()
        return self._add(near)

    def accept(self, fd: int) -> int | None:
        """None: nobody waits."""
        listener = self._file(fd)
        if not isinstance(listener, Listener):
            raise error(errno.EINVAL, fd)
        if not listener.backlog:
            return None
        connection = listener.backlog.popleft()
        accepted = self._add(connection)
        connection.drop()
        return accepted

    def send(self, fd: int, message: object, descriptors: Iterable[int] = ()) -> None:
        connection = self._connection(fd)
        passed = tuple(self._file(number) for number in descriptors)
        if connection.ended:
            raise error(errno.EPIPE, fd)
        for file in passed:
            file.hold()
        connection.peer.queue.append(InFlight(message, passed))
        connection.peer.wake()

    def receive(self, fd: int) -> tuple[list[Received], bool]:
        """All that is there, and whether the end of file comes after it."""
        connection = self._connection(fd)
        received = []
        while connection.queue:
            message, passed = connection.queue.popleft()
            received.append(Received(message, tuple(self._add(file) for file in passed)))
            for file in passed:
                file.drop()
        return received, connection.ended

    def _connection(self, fd: int) -> Connection:
        file = self._file(fd)
        if not isinstance(file, Connection):
            raise error(errno.ENOTSOCK, fd)
        return file

    # Files and locks

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        self.must_live()
        return self._add(self.kernel.files.open(path, create=create, exclusive=exclusive))

    def unlink(self, path: str) -> None:
        self.must_live()
        self.kernel.files.unlink(path)

    def rename(self, source: str, target: str) -> None:
        self.must_live()
        self.kernel.files.rename(source, target)

    def stat(self, path: str) -> int:
        """The inode that the path names now."""
        self.must_live()
        return self.kernel.files.find(path).number

    def fstat(self, fd: int) -> int:
        return self._regular(fd).inode.number

    def list_directory(self, path: str) -> list[str]:
        self.must_live()
        return list(self.kernel.files.find(path).entries)

    def read_file(self, path: str) -> bytes:
        self.must_live()
        return self.kernel.files.find(path).data

    def write_durable(self, path: str, data: bytes) -> None:
        """Temporary, fsync, rename, fsync of the directory. `Kernel.fault` may kill the process at every step."""
        self.must_live()
        files, temporary = self.kernel.files, path + ".tmp"
        fd = self._add(files.open(temporary, create=True, exclusive=False))
        inode = self._regular(fd).inode
        inode.data = data[: len(data) // 2]
        self.kernel.checkpoint(self, "durable: half written")
        if files.disk_errno:
            self.close(fd)
            files.unlink(temporary)
            raise error(files.disk_errno, path)
        inode.data = data
        self.close(fd)
        self.kernel.checkpoint(self, "durable: written")
        files.rename(temporary, path)
        self.kernel.checkpoint(self, "durable: renamed")

    def lock(self, fd: int, kind: Lock, start: int = 0, length: int = 1) -> None:
        """F_OFD_SETLK; Lock.NONE unlocks. Refused with EAGAIN."""
        file = self._regular(fd)
        if kind is not Lock.NONE and file.inode.conflict(file, kind, start, length):
            raise error(errno.EAGAIN, fd)
        file.inode.set_lock(file, kind, start, length)

    def is_locked(self, fd: int, kind: Lock = Lock.WRITE, start: int = 0, length: int = 1) -> bool:
        """F_OFD_GETLK: would another open file description stand in the way? Takes nothing."""
        file = self._regular(fd)
        return file.inode.conflict(file, kind, start, length)

    def try_flock(self, fd: int) -> bool:
        """flock, exclusive, without waiting."""
        file = self._regular(fd)
        if file.inode.flock_owner in (None, file):
            file.inode.flock_owner = file
            return True
        return False

    def _regular(self, fd: int) -> File:
        file = self._file(fd)
        if not isinstance(file, File):
            raise error(errno.EBADF, fd)
        return file

    # Memory

    def allocate(self, device: str, size: int) -> int:
        """A descriptor that keeps device memory; pass it to share it. ENOMEM when it does not fit."""
        self.must_live()
        found = self.kernel.devices[device]
        if size > found.free_bytes:
            raise error(errno.ENOMEM, device)
        return self._add(Allocation(found, size, self))

    def allocate_mapped(self, device: str, size: int, *, dont_fork: bool = True) -> int:
        """Memory that belongs to the address space and to no descriptor. Returns the mapping."""
        fd = self.allocate(device, size)
        mapping = self.map(fd, dont_fork=dont_fork)
        self.close(fd)
        return mapping

    def map(self, fd: int, *, dont_fork: bool = False) -> int:
        """Keeps the open file, with its locks and memory, until unmapped."""
        return self.memory.map(self._file(fd), dont_fork=dont_fork)

    def unmap(self, mapping: int) -> None:
        self.must_live()
        self.memory.unmap(mapping)

    def pin(self, fd: int, late_s: float) -> None:
        """io_uring or a driver keeps the open file until `late_s` after this process is gone."""
        file = self._file(fd)
        self.kernel.pin(file)
        self.pins.append((file, late_s))

"""One process of the simulated kernel, and its system calls.

Descriptors are small numbers, the lowest free one first, because a dying process releases them in the order of their
numbers. A call of a dead process raises `Killed`, which unwinds the code that was running in it. Deaths: kernel.py.
"""

import contextlib
import errno
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tests.sim.events import Event, Killed, Namespace, Watch
from tests.sim.files import File, Inode, Kind, Lock, OpenFile, error
from tests.sim.filesystem import FileSystem
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

SPARE, SECOND_SPARE = ".spare", ".spare-2"


class Process:
    __slots__ = (
        "alive",
        "children",
        "deferred",
        "descriptors",
        "dies_with_parent",
        "doomed",
        "files",
        "frozen",
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
        "program",
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
        files: FileSystem,
    ) -> None:
        self.kernel = kernel
        self.name = name
        self.pid = pid
        self.pidfs_inode = pidfs_inode
        self.parent = parent
        self.namespace = namespace
        self.memory = memory
        self.files = files  # as its mount namespace shows them
        self.program = 0  # how many it has executed: what the one before was to do later is not done
        self.alive = True  # runs code, unless it is stopped
        self.stopped = False
        self.frozen = self.doomed = False  # stopped, and a kill waits; one does
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

    def on_death(self, fd: int, call: Callable[[int], None]) -> None:
        """The same, for a pidfd."""
        self.on_readable(fd, call)

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
        child = self.kernel.new_process(name, self, self.namespace, memory, self.files)
        child.descriptors = dict(descriptors)
        for file in descriptors.values():
            file.references += 1
        return child

    def execute(self, inherit: Iterable[int] = ()) -> None:
        """execve: the same process with the same children, and of its memory, descriptors and threads nothing but the
        descriptors in `inherit`. The program that was running is not continued.
        """
        kept = set(inherit)
        self.must_live()
        self.memory.leave()
        self.memory = AddressSpace()
        for fd in sorted(self.descriptors):
            if fd not in kept:
                self.close(fd)
        for fd in list(self.watches):
            self.unwatch(fd)
        self.program += 1
        self.leader_ended = False

    def exit(self) -> None:
        self.kernel.kill(self)

    def die_with_parent(self) -> None:
        """PR_SET_PDEATHSIG. A parent that died before this call kills nothing: look at `parent` afterwards."""
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
        """kill(2): hits the process that has the pid today."""
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
        if self.kernel.pidfd_kill_errno:
            raise error(self.kernel.pidfd_kill_errno, fd)
        if not self.namespace.sees(target.namespace):
            raise error(errno.EINVAL, fd)
        if target.reaped:
            raise error(errno.ESRCH, fd)
        self.kernel.kill(target)

    def behind(self, fd: int) -> "Process":
        """The process of a pidfd, in the truth."""
        return self._pidfd(fd).process

    def _pidfd(self, fd: int) -> Pidfd:
        file = self._file(fd)
        if not isinstance(file, Pidfd):
            raise error(errno.EBADF, fd)
        return file

    # Sockets

    def listen(self, path: str) -> int:
        self.must_live()
        inode = self.files.create(path, Kind.SOCKET)

        def forget() -> None:
            inode.listener = None

        listener = inode.listener = Listener(self, forget)
        return self._add(listener)

    def listen_abstract(self, name: str) -> int:
        """A socket without a path: its name is in use until its last descriptor is closed, in whatever process."""
        self.must_live()
        if name in self.kernel.names:
            raise error(errno.EADDRINUSE, name)

        def forget() -> None:
            del self.kernel.names[name]

        listener = self.kernel.names[name] = Listener(self, forget)
        return self._add(listener)

    def connect(self, path: str, at: int | None = None) -> int:
        self.must_live()
        return self._connect(self.files.find(path, self._directory(at)).listener, path)

    def connect_abstract(self, name: str) -> int:
        self.must_live()
        return self._connect(self.kernel.names.get(name), name)

    def _connect(self, listener: OpenFile | None, where: str) -> int:
        if not isinstance(listener, Listener):
            raise error(errno.ECONNREFUSED, where)
        near, far = Connection(self), Connection(listener.maker)
        near.peer, far.peer = far, near
        far.hold()
        listener.backlog.append(far)
        listener.wake()
        return self._add(near)

    def accept(self, fd: int) -> int | None:
        """None: no connection waits."""
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

    def unread(self, fd: int) -> list[InFlight]:
        """In the truth: what was sent over this connection and not received yet."""
        return list(self._connection(fd).peer.queue)

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

    def _directory(self, fd: int | None) -> Inode | None:
        """Where a relative path begins: a directory that is held open. (In the real world: /proc/self/fd/FD/...)"""
        return None if fd is None else self._regular(fd).inode

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, at: int | None = None) -> int:
        self.must_live()
        return self._add(self.files.open(path, create=create, exclusive=exclusive, at=self._directory(at)))

    def open_directory(self, path: str) -> int:
        self.must_live()
        return self._add(self.files.open_directory(path))

    def mkdir(self, path: str, at: int | None = None) -> None:
        self.must_live()
        self.files.create(path, Kind.DIRECTORY, self._directory(at))

    def unlink(self, path: str) -> None:
        self.must_live()
        self.files.unlink(path)

    def rename(self, source: str, target: str) -> None:
        self.must_live()
        self.files.rename(source, target)

    def stat(self, path: str, at: int | None = None) -> int:
        """The inode that the path names now."""
        self.must_live()
        return self.files.find(path, self._directory(at)).number

    def directory_inode(self, fd: int) -> Inode:
        """No system call: for a check that must know the truth."""
        return self._regular(fd).inode

    def fstat(self, fd: int) -> int:
        return self._regular(fd).inode.number

    def list_directory(self, path: str) -> list[str]:
        self.must_live()
        return list(self.files.find(path).entries)

    def read_file(self, path: str) -> bytes:
        self.must_live()
        return self.files.find(path).data

    def write_durable(self, path: str, data: bytes) -> None:
        """Into a spare file beside it, fsync, the two change names, fsync of the directory: so a full disk keeps
        nothing from being written once there is a spare. `Kernel.fault` may kill the process at every step.
        """
        self.must_live()
        files, spare = self.files, path + SPARE
        fd = self._add(files.open(spare, create=True, exclusive=False))
        inode = self._regular(fd).inode
        inode.data = data[: len(data) // 2]
        self.kernel.checkpoint(self, "durable: half written")
        if files.disk_errno not in (0, errno.ENOSPC):
            self.close(fd)
            raise error(files.disk_errno, path)
        inode.data = data
        self.close(fd)
        self.kernel.checkpoint(self, "durable: written")
        try:
            files.exchange(spare, path)
        except FileNotFoundError:
            files.rename(spare, path)
            with contextlib.suppress(FileNotFoundError):
                files.rename(path + SECOND_SPARE, spare)
        self.kernel.checkpoint(self, "durable: renamed")
        with contextlib.suppress(OSError):
            self.close(self.open(spare, create=True))

    def reserve(self, path: str) -> None:
        """Sees to it that there is room for the next durable writes: ENOSPC where there is none."""
        self.close(self.open(path + SPARE, create=True))
        if self.files.directory_of(path)[1] not in self.list_directory(path.rpartition("/")[0]):
            self.close(self.open(path + SECOND_SPARE, create=True))

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

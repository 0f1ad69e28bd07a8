"""Would the agreement scripts notice a wrong simulated kernel? Each mutant is one belief that measurements killed.

A mutant is noticed when a script's answer is not the one that the script demands (and that test_kernel_agrees.py has
seen on the real kernel), or when a race shows an order that the real kernel never does.
"""

import errno
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim import cases_files, cases_paths, cases_processes, cases_sockets
from tests.sim.cases_races import RACES
from tests.sim.files import File, Inode, Kind, Lock, OpenFile
from tests.sim.filesystem import FileSystem
from tests.sim.kernel import ADDRESS_SPACE, Kernel
from tests.sim.openfiles import AddressSpace, Connection, Mapping, Pidfd
from tests.sim.process import Process
from tests.sim.sim_world import SimWorld, UnwokenError

SCRIPTS = cases_processes.SCRIPTS + cases_sockets.SCRIPTS + cases_files.SCRIPTS + cases_paths.SCRIPTS
Mutation = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, Mutation] = {}
SEEDS = 5


def mutant(belief: str) -> Callable[[Mutation], Mutation]:
    def register(mutation: Mutation) -> Mutation:
        MUTANTS[belief] = mutation
        return mutation

    return register


def complaint() -> str | None:
    """The first script or race that the kernel, as it is now, does not pass."""
    for script in SCRIPTS:
        world = SimWorld(seed=1)
        for step in script.steps:
            try:
                answer = world.play(step)
            except (UnwokenError, AssertionError, KeyError, StopIteration) as error:
                return f"{script.name}: {step}: {error!r}"
            if step.expected not in (None, answer):
                return f"{script.name}: {step}, not {answer}"
    for race in RACES:
        for seed in range(SEEDS):
            order = SimWorld(seed).orders_of(race)
            for first, second in race.shown:
                if order.index(first) > order.index(second):
                    return f"{race.name}: {second} before {first}"
    return None


def after(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, then: Callable[..., None]) -> None:
    """Does something more after a method, with the same arguments."""
    original = getattr(owner, name)

    def both(*arguments: object, **named: object) -> object:
        result = original(*arguments, **named)
        then(*arguments)
        return result

    monkeypatch.setattr(owner, name, both)


@mutant("the connection ends with its connector, though a forked child has it")
def _end_with_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_connections(kernel: Kernel, dead: Process) -> None:
        for process in kernel.processes.values():
            for file in process.descriptors.values():
                if isinstance(file, Connection) and file.maker is dead:
                    file.peer.ended = True

    after(monkeypatch, Kernel, "_gone", end_connections)


@mutant("a lock goes with the first close")
def _posix_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Process.close

    def close(self: Process, fd: int) -> None:
        file = self.descriptors[fd]
        original(self, fd)
        if isinstance(file, File):
            file.inode.forget(file)

    monkeypatch.setattr(Process, "close", close)


@mutant("a lock and memory go with the unmapping, though a descriptor is open")
def _freed_at_unmap(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmap(self: AddressSpace, mapping: int) -> None:
        file = self.mappings.pop(mapping).file
        file.references = 1
        file.drop()

    monkeypatch.setattr(AddressSpace, "unmap", unmap)


@mutant("a lock belongs to the process that took it")
def _lock_of_process(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[Process, File]] = []

    def remember(process: Process, fd: int, *_: object) -> None:
        file = process.descriptors[fd]
        if isinstance(file, File):
            taken.append((process, file))

    def forget(_: Kernel, dead: Process) -> None:
        for process, file in taken:
            if process is dead:
                file.inode.forget(file)

    after(monkeypatch, Process, "lock", remember)
    after(monkeypatch, Kernel, "_gone", forget)


@mutant("a mapping keeps nothing")
def _mapping_without_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def map_file(self: AddressSpace, file: OpenFile, *, dont_fork: bool) -> int:
        self.last_mapping += 1
        self.mappings[self.last_mapping] = Mapping(OpenFile(), dont_fork)
        return self.last_mapping

    monkeypatch.setattr(AddressSpace, "map", map_file)


@mutant("every mapping is in the forked child")
def _dont_fork_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    original = AddressSpace.map
    monkeypatch.setattr(AddressSpace, "map", lambda self, file, **_: original(self, file, dont_fork=False))


@mutant("readers hinder readers")
def _exclusive_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Inode.conflict
    monkeypatch.setattr(Inode, "conflict", lambda self, owner, _, *where: original(self, owner, Lock.WRITE, *where))


@mutant("a pidfd is readable as soon as the process is killed")
def _dead_at_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pidfd, "readable", lambda self: not self.process.alive)


@mutant("a pidfd is readable once the first thread ended")
def _dead_with_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pidfd, "readable", lambda self: self.process.gone or self.process.leader_ended)


@mutant("a pidfd is readable only when the process was reaped")
def _dead_when_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pidfd, "readable", lambda self: self.process.reaped)


@mutant("descriptors are released lowest first")
def _lowest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Kernel.kill

    def kill(self: Kernel, process: Process) -> None:
        original(self, process, order=sorted(process.descriptors))

    monkeypatch.setattr(Kernel, "kill", kill)


@mutant("the address space goes before the descriptors")
def _memory_first(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Kernel.kill
    monkeypatch.setattr(Kernel, "kill", lambda self, process: original(self, process, order=[ADDRESS_SPACE]))


@mutant("memory is gone with the first of those who share an address space")
def _memory_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(self: AddressSpace) -> None:
        while self.mappings:
            self.mappings.popitem()[1].file.drop()

    monkeypatch.setattr(AddressSpace, "leave", leave)


@mutant("memory never outlives the descriptor and its process")
def _no_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "pin", lambda *_: None)


@mutant("a container's init dies without its container")
def _container_outlives_init(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernel, "_leave_namespace", Kernel._gone)


@mutant("the socket of a container's init closes only when the container is gone")
def _container_first(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Kernel.kill

    def kill(self: Kernel, process: Process, *arguments: object) -> None:
        namespace = process.namespace
        others = [each for each in namespace.members if each is not process] if namespace.init is process else []
        for other in others:
            original(self, other)
        while not all(other.gone for other in others) and self.step():
            continue
        original(self, process)

    monkeypatch.setattr(Kernel, "kill", kill)


@mutant("a spawned child inherits everything")
def _spawn_inherits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "spawn", lambda self, name, _: self.fork(name))


@mutant("arming is inherited")
def _armed_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Process.fork

    def fork(self: Process, name: str) -> Process:
        child = original(self, name)
        child.dies_with_parent = self.dies_with_parent
        return child

    monkeypatch.setattr(Process, "fork", fork)


@mutant("arming after the parent's death kills at once")
def _armed_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill_orphan(process: Process) -> None:
        if process.parent and process.parent.name == "world":
            process.kernel.kill(process)

    after(monkeypatch, Process, "die_with_parent", kill_orphan)


@mutant("only the parent's last thread kills the children that asked for it")
def _armed_to_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "end_leader", lambda self: setattr(self, "leader_ended", True))


@mutant("what was sent before a death is lost")
def _pending_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Connection.release

    def release(self: Connection) -> None:
        self.peer.queue.clear()
        original(self)

    monkeypatch.setattr(Connection, "release", release)


@mutant("descriptors in flight keep nothing")
def _in_flight_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncount(process: Process, fd: int, message: object, descriptors: list[int]) -> None:
        for each in descriptors:
            process.descriptors[each].references -= 1

    after(monkeypatch, Process, "send", uncount)


@mutant("the peer is the process that holds the connection now")
def _peer_is_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    def peer_pidfd(self: Process, fd: int) -> int:
        end = self._connection(fd).peer
        holders = [each for each in self.kernel.processes.values() if end in each.descriptors.values()]
        return self._add(Pidfd(holders[0] if holders else end.maker))

    monkeypatch.setattr(Process, "peer_pidfd", peer_pidfd)


@mutant("every connection has its own pidfs inode")
def _inode_per_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "pidfd_inode", lambda self, fd: id(self._file(fd)))


@mutant("a pidfs inode is a pid")
def _inode_is_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "pidfd_inode", lambda self, fd: self._pidfd(fd).process.pid)


@mutant("a namesake has its predecessor's pidfs inode")
def _inode_is_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "pidfd_inode", lambda self, fd: self._pidfd(fd).process.name.rstrip("0123456789"))


@mutant("a pidfd kills in any container")
def _kill_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def pidfd_kill(self: Process, fd: int) -> None:
        target = self._pidfd(fd).process
        if target.reaped:
            raise OSError(errno.ESRCH, "dead and reaped")
        self.kernel.kill(target)

    monkeypatch.setattr(Process, "pidfd_kill", pidfd_kill)


@mutant("a pid is seen in every container")
def _pids_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "peer_pid", lambda self, fd: self._connection(fd).peer.maker.pid)


@mutant("a replaced directory is the same")
def _same_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystem, "remove_tree", lambda self, path: self._empty(self.find(path)))


@mutant("a lock belongs to the path")
def _lock_of_path(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: dict[tuple[FileSystem, str], Inode] = {}
    original = FileSystem.open

    def open_file(self: FileSystem, path: str, **how: Any) -> File:
        file = original(self, path, **how)
        file.inode.ranges = ranges.setdefault((self, path), file.inode).ranges
        return file

    monkeypatch.setattr(FileSystem, "open", open_file)


@mutant("a socket listens by path, not by inode")
def _listen_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystem, "unlink", lambda *_: None)


@mutant("a failed durable write leaves its temporary")
def _temporary_left(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Process.write_durable

    def write(self: Process, path: str, data: bytes) -> None:
        try:
            original(self, path, data)
        except OSError:
            directory, name = self.kernel.files.directory_of(path)
            directory.entries[name + ".tmp"] = Inode(0, Kind.FILE)
            raise

    monkeypatch.setattr(Process, "write_durable", write)


@mutant("a kill ends a frozen process at once")
def _killed_while_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernel, "freeze", Kernel.stop)


@mutant("a stopped process misses what happened")
def _missed_while_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def cont(_: Kernel, process: Process) -> None:
        process.stopped = False
        process.deferred.clear()

    monkeypatch.setattr(Kernel, "cont", cont)


@mutant("wake-ups are lost")
def _lost_wakeups(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = itertools.count()
    original = Kernel.wake
    monkeypatch.setattr(Kernel, "wake", lambda self, watch: original(self, watch) if next(seen) % 3 else None)


@mutant("a path leads for ever where it led once")
def _remembered_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    original = FileSystem.directory_of

    def directory_of(self: FileSystem, path: str, at: Inode | None = None) -> tuple[Inode, str]:
        self._found_in = self.disk.layout
        return original(self, path, at)

    monkeypatch.setattr(FileSystem, "directory_of", directory_of)


@mutant("a directory that is held open is looked up by its path")
def _held_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: dict[Inode, str] = {}
    original = FileSystem.open_directory

    def open_directory(self: FileSystem, path: str) -> File:
        file = original(self, path)
        paths[file.inode] = path
        return file

    def at(self: Process, fd: int | None) -> Inode | None:
        return None if fd is None else self.files.find(paths[self._regular(fd).inode])

    monkeypatch.setattr(FileSystem, "open_directory", open_directory)
    monkeypatch.setattr(Process, "_directory", at)


@mutant("a circle of symlinks is no such file")
def _no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    original = FileSystem._walk

    def walk(self: FileSystem, *arguments: Any, **how: Any) -> Inode:
        try:
            return original(self, *arguments, **how)
        except OSError as error:
            raise OSError(errno.ENOENT if error.errno == errno.ELOOP else error.errno, "") from None

    monkeypatch.setattr(FileSystem, "_walk", walk)


@mutant("a closed directory can be entered")
def _open_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystem, "close_directory", lambda self, path, closed: None)


@mutant("what is mounted hides nothing")
def _no_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystem, "mount", lambda self, path: None)


@mutant("a directory that was removed takes files")
def _removed_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    after(monkeypatch, FileSystem, "_empty", lambda self, inode: setattr(inode, "removed", False))


@mutant("an abstract name is free when its maker is gone")
def _name_of_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(kernel: Kernel, dead: Process) -> None:
        for name, listener in list(kernel.names.items()):
            if listener.maker is dead:
                del kernel.names[name]
                listener.forget = lambda: None

    after(monkeypatch, Kernel, "_gone", forget)


@mutant("an abstract name can be taken twice")
def _name_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Process.listen_abstract

    def listen(self: Process, name: str) -> int:
        self.kernel.names.pop(name, None)
        return original(self, name)

    monkeypatch.setattr(Process, "listen_abstract", listen)


@mutant("another program keeps what was mapped")
def _maps_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AddressSpace, "leave", lambda self: None)


@mutant("another program keeps every descriptor")
def _descriptors_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Process.execute
    monkeypatch.setattr(Process, "execute", lambda self, inherit=(): original(self, list(self.descriptors)))


@mutant("another program is another process")
def _another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(self: Process, *_: object) -> None:
        self.pidfs_inode += 1000

    after(monkeypatch, Process, "execute", execute)


@mutant("two names are changed one after the other")
def _exchange_by_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystem, "exchange", lambda self, one, other: self.rename(one, other))


def test_the_kernel_without_mutation_passes() -> None:
    assert complaint() is None


@pytest.mark.parametrize("belief", [pytest.param(each, id=each.replace(" ", "-")) for each in MUTANTS])
def test_a_wrong_kernel_is_noticed(belief: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[belief](monkeypatch)
    noticed = complaint()
    print(f"{belief}: noticed by {noticed}")
    assert noticed, belief

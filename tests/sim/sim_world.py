"""Plays scripts on the simulated kernel, and says what was seen.

Beside the answers it holds one promise of the simulated kernel that no poll can show: a watcher of a descriptor was
woken once it became readable (`UnwokenError`).
"""

import errno
import random
from collections.abc import Callable

from tests.sim.files import Lock
from tests.sim.kernel import Kernel, ReleaseOrder
from tests.sim.names import Names
from tests.sim.process import Process
from tests.sim.scripts import Race, Step

PIN_LATE_S = 0.3


class UnwokenError(AssertionError):
    """A descriptor is readable, and nothing told its watcher."""


class SimWorld:
    def __init__(
        self,
        seed: int,
        order: ReleaseOrder = ReleaseOrder.HIGHEST_FIRST,
        has_pidfs: bool = True,
        peer_pidfd_of_reaped_errno: int = 0,
    ) -> None:
        self.kernel = Kernel(
            random.Random(seed),
            order=order,
            has_pidfs=has_pidfs,
            peer_pidfd_of_reaped_errno=peer_pidfd_of_reaped_errno,
        )
        self.processes: dict[str, Process] = {}
        self.names: dict[str, dict[str, int]] = {}
        self.maps: dict[str, dict[str, int]] = {}
        self.woken: set[tuple[str, int]] = set()
        self.seen = Names()
        self._add("world", self.kernel.spawn("world"), {}, {})
        self.processes["world"].is_subreaper = True

    def play(self, step: Step) -> str:
        act: Callable[..., str | None]
        try:
            if step.who == "outside":
                act = getattr(self, "outside_" + step.verb)
                answer = act(*step.arguments)
            else:
                act = getattr(self, "do_" + step.verb)
                answer = act(self.processes[step.who], *step.arguments)
        except OSError as error:
            answer = errno.errorcode[error.errno or 0]
        self.kernel.run()
        return answer or "ok"

    def gone(self) -> list[str]:
        return [name for name, process in self.processes.items() if process.gone]

    def orders_of(self, race: Race) -> tuple[str, ...]:
        """The order in which a death's events become visible, seen after every single event of the kernel."""
        for step in race.steps:
            self.play(step)
        server, names = self.processes["server"], self.names["server"]
        questions: dict[str, Callable[[], bool]] = {"dead": lambda: server.is_dead(names[race.pidfd])}
        if race.connection != "-":
            questions["end"] = lambda: server.readable(names[race.connection])
        if race.probe != "-":
            questions["unlocked"] = lambda: not server.is_locked(names[race.probe])
        if race.device != "-":
            device = self.kernel.devices[race.device]
            before = device.free_bytes
            questions["freed"] = lambda: device.free_bytes > before
        server.pidfd_kill(names[race.pidfd])
        order: list[str] = []
        while self.kernel.step():
            order += [event for event, happened in questions.items() if event not in order and happened()]
        return tuple(order)

    def _add(self, name: str, process: Process, names: dict[str, int], maps: dict[str, int]) -> None:
        process.reaps_children = False
        self.processes[name] = process
        self.names[name] = dict(names)
        self.maps[name] = dict(maps)
        for fd in self.names[name].values():
            self._watch(process, fd)

    def _name(self, process: Process, name: str, fd: int) -> None:
        self.names[process.name][name] = fd
        self._watch(process, fd)

    def _watch(self, process: Process, fd: int) -> None:
        key = (process.name, fd)
        self.woken.discard(key)
        process.on_readable(fd, lambda _: self.woken.add(key))

    def _fd(self, process: Process, name: str) -> int:
        fd = self.names[process.name].get(name)
        if fd is None:
            raise OSError(errno.EBADF, name)
        return fd

    def _process_name(self, pid: int, seer: Process) -> str:
        if pid in (0, -1):
            return str(pid)
        return next(each.name for each in self.processes.values() if each.pid == pid and each.namespace)

    # Outside

    def outside_kill(self, name: str) -> None:
        self.kernel.kill(self.processes[name])

    def outside_stop(self, name: str) -> None:
        self.kernel.stop(self.processes[name])

    def outside_cont(self, name: str) -> None:
        self.kernel.cont(self.processes[name])

    def outside_freeze(self, name: str) -> None:
        self.kernel.freeze(self.processes[name])

    def outside_thaw(self, name: str) -> None:
        self.kernel.thaw(self.processes[name])

    def outside_state(self, name: str) -> str:
        return self.processes[name].proc_state or "none"

    def outside_mkdir(self, path: str) -> None:
        self.kernel.make_directories(path)

    def outside_replace(self, path: str) -> None:
        self.kernel.replace_directory(path)

    def outside_symlink(self, target: str, path: str) -> None:
        self.kernel.files.symlink(target, path)

    def outside_mount(self, path: str) -> None:
        self.kernel.files.mount(path)

    def outside_unmount(self, path: str) -> None:
        self.kernel.files.unmount(path)

    def outside_close(self, path: str) -> None:
        self.kernel.files.close_directory(path, closed=True)

    def outside_reopen(self, path: str) -> None:
        self.kernel.files.close_directory(path, closed=False)

    def outside_device(self, device: str, units: str) -> None:
        self.kernel.add_device(device, int(units))

    def outside_await_free(self, device: str, units: str) -> str:
        return "ok" if self.kernel.read_free_bytes(device) == int(units) else "never"

    # Processes

    def do_fork(self, process: Process, name: str) -> None:
        self._add(name, process.fork(name), self.names[process.name], self.maps[process.name])

    def do_fork_again(self, process: Process, name: str, dead: str) -> None:
        pid = self.processes[dead].pid
        self.kernel.last_pid = pid - 1
        self.do_fork(process, name)
        if self.processes[name].pid != pid:
            raise AssertionError(f"pid {pid} is not free")

    def do_spawn(self, process: Process, name: str, *inherited: str) -> None:
        kept = {each: self._fd(process, each) for each in inherited}
        self._add(name, process.spawn(name, kept.values()), kept, {})

    def do_container(self, process: Process, name: str) -> None:
        self._add(name, self.kernel.spawn(name, parent=process, container=True), {}, {})

    def do_clone_vm(self, process: Process, name: str) -> None:
        self._add(name, process.clone_vm(name), {}, {})

    def do_execute(self, process: Process, *inherited: str) -> None:
        kept = {each: self._fd(process, each) for each in inherited}
        process.execute(kept.values())
        self.woken = {(name, fd) for name, fd in self.woken if name != process.name}
        self.names[process.name], self.maps[process.name] = {}, {}
        for name, fd in kept.items():
            self._name(process, name, fd)

    def do_obey_modes(self, process: Process) -> None:
        """Every process does here."""

    def do_end_leader(self, process: Process) -> None:
        process.end_leader()

    def do_die_with_parent(self, process: Process) -> None:
        process.die_with_parent()

    def do_parent(self, process: Process) -> str:
        return self._process_name(process.parent_pid, process)

    def do_reap(self, process: Process, name: str) -> None:
        child = self.processes[name]
        if child.parent is not process or child.reaped:
            raise OSError(errno.ECHILD, name)
        if not child.gone:
            raise OSError(errno.EAGAIN, name)
        self.kernel.reap(child)

    # Descriptors and files

    def do_close(self, process: Process, name: str) -> None:
        fd = self._fd(process, name)
        del self.names[process.name][name]
        self.woken.discard((process.name, fd))
        process.close(fd)

    def do_dup(self, process: Process, name: str, new: str) -> None:
        self._name(process, new, process.dup(self._fd(process, name)))

    def do_readable(self, process: Process, name: str) -> str:
        fd = self._fd(process, name)
        if not process.readable(fd):
            return "no"
        if (process.name, fd) not in self.woken:
            raise UnwokenError(f"{process} was not told about {name}")
        return "yes"

    def do_open(self, process: Process, name: str, path: str, *how: str) -> None:
        self._name(process, name, process.open(path, create="create" in how, exclusive="exclusive" in how))

    def do_unlink(self, process: Process, path: str) -> None:
        process.unlink(path)

    def do_rename(self, process: Process, source: str, target: str) -> None:
        process.rename(source, target)

    def do_stat(self, process: Process, path: str) -> str:
        return self.seen.name("f", process.stat(path))

    def do_fstat(self, process: Process, name: str) -> str:
        return self.seen.name("f", process.fstat(self._fd(process, name)))

    def do_directory(self, process: Process, name: str, path: str) -> None:
        self._name(process, name, process.open_directory(path))

    def do_open_at(self, process: Process, name: str, directory: str, path: str, *how: str) -> None:
        self._name(process, name, process.open(path, create="create" in how, at=self._fd(process, directory)))

    def do_stat_at(self, process: Process, directory: str, path: str) -> str:
        return self.seen.name("f", process.stat(path, at=self._fd(process, directory)))

    def do_exchange(self, process: Process, one: str, other: str) -> None:
        process.files.exchange(one, other)

    def do_real_path(self, process: Process, path: str) -> str:
        return process.files.real_path(path)

    def do_list(self, process: Process, path: str) -> str:
        return " ".join(sorted(process.list_directory(path))) or "empty"

    def do_read(self, process: Process, path: str) -> str:
        return process.read_file(path).decode()

    def do_write(self, process: Process, path: str, text: str) -> None:
        process.write_durable(path, text.encode())

    def do_run_out_of_disk(self, process: Process) -> None:
        self.kernel.files.disk_errno = errno.EFBIG

    def do_lock(self, process: Process, name: str, kind: str, start: str, length: str) -> None:
        process.lock(self._fd(process, name), Lock(kind), int(start), int(length))

    def do_probe(self, process: Process, name: str, kind: str, start: str, length: str) -> str:
        return "held" if process.is_locked(self._fd(process, name), Lock(kind), int(start), int(length)) else "free"

    def do_flock(self, process: Process, name: str) -> str:
        return "ok" if process.try_flock(self._fd(process, name)) else "EAGAIN"

    # Memory

    def do_map(self, process: Process, new: str, name: str, *how: str) -> None:
        self.maps[process.name][new] = process.map(self._fd(process, name), dont_fork="dont_fork" in how)

    def do_unmap(self, process: Process, name: str) -> None:
        process.unmap(self.maps[process.name].pop(name))

    def do_allocate(self, process: Process, name: str, device: str, units: str) -> None:
        self._name(process, name, process.allocate(device, int(units)))

    def do_free(self, process: Process, device: str) -> str:
        return str(self.kernel.read_free_bytes(device))

    def do_pin(self, process: Process, name: str) -> None:
        process.pin(self._fd(process, name), PIN_LATE_S)

    def do_ballast(self, process: Process, mebibytes: str) -> None:
        """Dying takes its time here anyway."""

    def do_ballast_file(self, process: Process, name: str, mebibytes: str) -> None:
        self._name(process, name, process.open(f"/ballast-{process.name}", create=True))

    # Sockets

    def do_listen(self, process: Process, name: str, path: str) -> None:
        self._name(process, name, process.listen(path))

    def do_connect(self, process: Process, name: str, path: str) -> None:
        self._name(process, name, process.connect(path))

    def do_listen_abstract(self, process: Process, name: str, abstract: str) -> None:
        self._name(process, name, process.listen_abstract(abstract))

    def do_connect_abstract(self, process: Process, name: str, abstract: str) -> None:
        self._name(process, name, process.connect_abstract(abstract))

    def do_connect_at(self, process: Process, name: str, directory: str, path: str) -> None:
        self._name(process, name, process.connect(path, at=self._fd(process, directory)))

    def do_accept(self, process: Process, name: str, listener: str) -> str:
        fd = self._fd(process, listener)
        accepted = process.accept(fd)
        self._read(process, fd)
        if accepted is None:
            return "none"
        self._name(process, name, accepted)
        return "ok"

    def do_send(self, process: Process, name: str, text: str, *passed: str) -> None:
        process.send(self._fd(process, name), text, [self._fd(process, each) for each in passed])

    def do_receive(self, process: Process, name: str, *names: str) -> str:
        fd, new_names, seen = self._fd(process, name), list(names), []
        received, ended = process.receive(fd)
        self._read(process, fd)
        for text, descriptors in received:
            seen.append(f"{text}+{len(descriptors)}" if descriptors else str(text))
            for passed in descriptors:
                if new_names:
                    self._name(process, new_names.pop(0), passed)
                else:
                    process.close(passed)
        return " ".join([*seen, "end" if ended else "open"])

    def _read(self, process: Process, fd: int) -> None:
        if not process.readable(fd):
            self.woken.discard((process.name, fd))

    # Pidfds

    def do_pidfd(self, process: Process, name: str, target: str) -> None:
        pid = self.processes[target].pid
        self._name(process, name, process.pidfd_open(pid))

    def do_peer(self, process: Process, name: str, connection: str) -> None:
        self._name(process, name, process.peer_pidfd(self._fd(process, connection)))

    def do_peer_pid(self, process: Process, connection: str) -> str:
        return self._process_name(process.peer_pid(self._fd(process, connection)), process)

    def do_dead(self, process: Process, name: str) -> str:
        return "dead" if self.do_readable(process, name) == "yes" else "alive"

    def do_inode(self, process: Process, name: str) -> str:
        return self.seen.name("p", process.pidfd_inode(self._fd(process, name)))

    def do_pidfd_pid(self, process: Process, name: str) -> str:
        return self._process_name(process.pidfd_pid(self._fd(process, name)), process)

    def do_pidfd_kill(self, process: Process, name: str) -> None:
        process.pidfd_kill(self._fd(process, name))

"""A small Linux for the simulator: processes that die slowly, under a virtual clock, from one seed.

`Kernel` owns the clock, the event queue, the processes and the faults; `Process` (process.py) has the system calls,
which raise the OSError that Linux would raise. Nothing here waits, reads a clock or uses a thread: the same seed gives
the same run. That this kernel behaves as the real one is held by test_kernel_agrees.py: a rule added here belongs in a
script there.

Death is not an instant. After SIGKILL a process runs no more code; its descriptors go one by one (highest first, or
any order), then its address space; a container's init then takes its container with it; only then is the process
`gone`: its pidfd is readable, its children are orphans (and killed if they asked for it), and it waits to be reaped.
Wake-ups at equal times come in any order.
"""

import enum
import heapq
import random
from collections.abc import Callable, Sequence

from tests.sim.events import Event, Killed, Namespace, Watch
from tests.sim.files import Inode, OpenFile
from tests.sim.filesystem import FileSystem
from tests.sim.openfiles import AddressSpace, Device, Listener
from tests.sim.process import Process

__all__ = ["BusyLoop", "Kernel", "Killed", "Process", "ReleaseOrder"]

ADDRESS_SPACE = -1  # stands among the descriptors in the order of a death


class ReleaseOrder(enum.Enum):
    HIGHEST_FIRST = "highest first"  # one thread, as measured: the address space comes last
    ANY = "any"  # several threads: descriptors and address space in any order


class BusyLoop(Exception):
    """A process has itself called again and again."""


class Kernel:
    __slots__ = (
        "_heap",
        "_last_pidfs_inode",
        "_pins",
        "_sequence",
        "boot_id",
        "devices",
        "fault",
        "files",
        "has_peer_pidfd",
        "has_pidfs",
        "last_pid",
        "names",
        "now",
        "order",
        "orphans_wait_s",
        "peer_pidfd_of_reaped_errno",
        "pidfd_kill_errno",
        "processes",
        "release_step_s",
        "reuses_pids",
        "rng",
        "root_namespace",
        "shuffles",
        "wake_s",
        "wall_offset_s",
    )

    def __init__(
        self,
        rng: random.Random,
        *,
        order: ReleaseOrder = ReleaseOrder.HIGHEST_FIRST,
        release_step_s: float = 0.001,
        wake_s: float = 0.0001,
        shuffles: bool = True,
        reuses_pids: bool = False,
        has_peer_pidfd: bool = True,
        has_pidfs: bool = True,
        peer_pidfd_of_reaped_errno: int = 0,
    ) -> None:
        self.rng = rng
        self.order = order
        self.release_step_s = release_step_s  # each step of a death takes up to this long
        self.wake_s = wake_s  # a wake-up takes up to this long
        self.shuffles = shuffles  # events of one time come in any order
        self.reuses_pids = reuses_pids  # the lowest free pid is given again at once
        self.has_peer_pidfd = has_peer_pidfd  # Linux >= 6.5
        self.has_pidfs = has_pidfs  # Linux >= 6.9
        self.peer_pidfd_of_reaped_errno = peer_pidfd_of_reaped_errno  # Linux < 6.16 refuses; 0 here: it names the dead
        self.pidfd_kill_errno = 0  # a seccomp profile refuses pidfd_send_signal
        self.orphans_wait_s = 0.0  # for so long those without a parent stay zombies: a container's init is busy, say
        self.fault: Callable[[Process, str], None] | None = None  # called inside long system calls; it may kill
        self.now = 0.0
        self.wall_offset_s = 1_700_000_000.0
        self.processes: dict[int, Process] = {}  # by pid, the zombies among them
        self.devices: dict[str, Device] = {}
        self.files = FileSystem()
        """As it is seen outside of every container."""
        self.names: dict[str, Listener] = {}
        """Abstract sockets: the one network namespace's."""
        self.root_namespace = Namespace(None)
        self._heap: list[tuple[float, float, int, Event]] = []
        self._sequence = 0
        self._pins: dict[OpenFile, int] = {}
        self.last_pid = 1  # the next process has the first free pid after it: set it to bring an old pid back
        self._last_pidfs_inode = 0
        self.boot_id = self._new_boot_id()

    # The clock and the queue

    def after(self, delay_s: float, call: Callable[[], None], process: Process | None = None) -> Event:
        """Calls after a delay. With a process: only if it lives then, and not while it is stopped."""
        event = Event(call, process)
        self._push(self.now + delay_s, event)
        return event

    def step(self) -> bool:
        """Delivers the next event. False: there is none."""
        if not self._heap:
            return False
        self.now, _, _, event = heapq.heappop(self._heap)
        if event.cancelled:
            return True
        process = event.process
        if process is None:
            event.call()
        elif process.alive and event.program == process.program:
            if process.stopped:
                process.deferred.append(event)
                return True
            try:
                event.call()
            except Killed as killed:  # the process was killed in the middle of its own code
                if killed.process is not process:
                    raise
        return True

    def run(self, until: float | None = None, most_events: int = 1 << 62) -> None:
        """Runs to a time, or until nothing is left to happen. Raises BusyLoop when there is no end to it."""
        while self._heap and (until is None or self._heap[0][0] <= until):
            self.step()
            if self._sequence > most_events:
                raise BusyLoop(f"more than {most_events} events until {self.now:.4f} s")
        if until is not None and until > self.now:
            self.now = until

    def _push(self, at: float, event: Event) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at, self.rng.random() if self.shuffles else 0.0, self._sequence, event))

    @property
    def events(self) -> int:
        """How many were ever queued."""
        return self._sequence

    @property
    def wall_time_s(self) -> float:
        return self.now + self.wall_offset_s

    def jump_wall_clock(self, seconds: float) -> None:
        """What NTP or a person does. Timers do not notice."""
        self.wall_offset_s += seconds

    # Processes

    def spawn(self, name: str, *, parent: Process | None = None, container: bool = False) -> Process:
        """A process with no descriptors, as a container runtime starts it. `container`: init of a new PID namespace,
        with a view of its own of what is mounted where.
        """
        inside = parent.namespace if parent else self.root_namespace
        files = parent.files if parent else self.files
        namespace = Namespace(inside) if container else inside
        process = self.new_process(
            name, parent, namespace, AddressSpace(), files.another_view() if container else files
        )
        if container:
            namespace.init = process
        return process

    def new_process(
        self, name: str, parent: Process | None, namespace: Namespace, memory: AddressSpace, files: FileSystem
    ) -> Process:
        pid = 2 if self.reuses_pids else self.last_pid + 1
        while pid in self.processes:
            pid += 1
        self.last_pid = pid
        self._last_pidfs_inode += 1
        process = Process(self, name, pid, self._last_pidfs_inode, parent, namespace, memory, files)
        self.processes[pid] = process
        inside: Namespace | None = namespace
        while inside:
            inside.members[process] = None
            inside = inside.parent
        if parent:
            parent.children[process] = None
        return process

    def stop(self, process: Process) -> None:
        process.stopped = process.alive

    def freeze(self, process: Process) -> None:
        """By a cgroup of version 1, or in the kernel (D): it runs no code, and a kill waits for the thaw."""
        process.stopped = process.frozen = process.alive

    def thaw(self, process: Process) -> None:
        process.frozen = False
        if process.doomed:
            self.kill(process)
        else:
            self.cont(process)

    def cont(self, process: Process) -> None:
        if process.frozen:
            return
        process.stopped = False
        deferred, process.deferred = process.deferred, []
        for event in deferred:
            self._push(self.now, event)

    def kill(self, process: Process, order: Sequence[int] | None = None, step_s: float | None = None) -> None:
        """SIGKILL. `order`: descriptors to release first. A large `step_s` is a process stuck in a driver."""
        if not process.alive:
            return
        if process.frozen:
            process.doomed = True
            return
        process.alive = False
        process.stopped = False
        process.deferred.clear()
        for fd in list(process.watches):
            process.unwatch(fd)
        steps = sorted(process.descriptors, reverse=True)
        steps.append(ADDRESS_SPACE)
        if order is not None:
            steps = [*order, *(step for step in steps if step not in order)]
        elif self.order is ReleaseOrder.ANY:
            self.rng.shuffle(steps)
        self._die(process, steps, 0, self.release_step_s if step_s is None else step_s)

    def _die(self, process: Process, steps: list[int], done: int, step_s: float) -> None:
        def next_step() -> None:
            if process.gone:  # the machine was rebooted
                return
            if done == len(steps):
                self._leave_namespace(process)
                return
            if steps[done] == ADDRESS_SPACE:
                process.memory.leave()
            else:
                process.descriptors.pop(steps[done]).drop()
            self._die(process, steps, done + 1, step_s)

        self.after(self.rng.random() * step_s, next_step)

    def _leave_namespace(self, process: Process) -> None:
        """A container's init waits until its whole container is gone; by then its own connections have long ended."""
        namespace = process.namespace
        if namespace.init is process and len(namespace.members) > 1:
            namespace.init_waits = True
            for member in list(namespace.members):
                self.kill(member)
            return
        self._gone(process)

    def _gone(self, process: Process) -> None:
        process.gone = True
        self.orphan(process)
        for pidfd in process.pidfds:
            pidfd.wake()
        for pinned, late_s in process.pins:
            self.after(late_s, self._unpin(pinned))
        self._reap_if_none_waits(process)
        inside: Namespace | None = process.namespace
        while inside:
            del inside.members[process]
            if inside.init_waits and len(inside.members) == 1 and inside.init:
                inside.init_waits = False
                self._gone(inside.init)
            inside = inside.parent

    def orphan(self, process: Process) -> None:
        """The parent thread ended: the children that asked for it are killed, and all find a new parent."""
        for child in list(process.children):
            if child.dies_with_parent:
                self.kill(child)
            if process.gone:
                del process.children[child]
                child.parent = self._new_parent(process)
                if child.parent:
                    child.parent.children[child] = None
                if child.gone:
                    self._reap_if_none_waits(child)

    def _new_parent(self, dead: Process) -> Process | None:
        ancestor = dead.parent
        while ancestor and ancestor.namespace is dead.namespace:
            if ancestor.alive and (ancestor.is_subreaper or ancestor is dead.namespace.init):
                return ancestor
            ancestor = ancestor.parent
        init = dead.namespace.init
        return init if init is not dead else None

    def _reap_if_none_waits(self, process: Process) -> None:
        parent = process.parent
        if parent is None and self.orphans_wait_s:
            self.after(self.orphans_wait_s, lambda: self.reap(process))
        elif parent is None or parent.reaps_children or (parent is process.namespace.init and not parent.alive):
            self.reap(process)

    def reap(self, process: Process) -> None:
        """The parent waited for it: the pid may be used again, and kill says ESRCH."""
        if process.gone and not process.reaped:
            process.reaped = True
            del self.processes[process.pid]
            if process.parent:
                process.parent.children.pop(process, None)

    def pin(self, file: OpenFile) -> None:
        file.hold()
        self._pins[file] = self._pins.get(file, 0) + 1

    def _unpin(self, file: OpenFile) -> Callable[[], None]:
        def unpin() -> None:
            if self._pins.get(file):
                self._pins[file] -= 1
                file.drop()

        return unpin

    def wake(self, watch: Watch) -> None:
        self.after(self.rng.random() * self.wake_s, watch.deliver, watch.process)

    def checkpoint(self, process: Process, where: str) -> None:
        """A place inside a system call where the process may be killed."""
        if self.fault:
            self.fault(process, where)
            process.must_live()

    # Memory, disk, and the machine

    def add_device(self, name: str, capacity: int) -> Device:
        device = self.devices[name] = Device(name, capacity)
        return device

    def read_free_bytes(self, name: str) -> int | None:
        """What NVML or the ledger says. None: the reader fails, or there is no such device."""
        device = self.devices.get(name)
        return device.free_bytes if device and device.reader_works else None

    def tear(self, path: str, length: int | None = None) -> None:
        """Only the first bytes of the file reached the disk."""
        inode = self.files.find(path)
        inode.data = inode.data[: self.rng.randrange(len(inode.data) + 1) if length is None else length]

    def corrupt(self, path: str) -> None:
        """One bit is wrong."""
        inode = self.files.find(path)
        if inode.data:
            where = self.rng.randrange(len(inode.data))
            flipped = inode.data[where] ^ (1 << self.rng.randrange(8))
            inode.data = inode.data[:where] + bytes([flipped]) + inode.data[where + 1 :]

    def replace_directory(self, path: str) -> Inode:
        """Same path, new inode, empty. What was open in it stays open."""
        self.files.remove_tree(path)
        self.make_directories(path)
        return self.files.find(path)

    def make_directories(self, path: str) -> None:
        """mkdir -p"""
        self.files.make_directories(path)

    def reboot(self, keep: Sequence[str] = ()) -> None:
        """Every process is gone at once, none is told; a new boot id; only the directories in `keep` are on a disk.

        Pids and pidfs inodes begin again, so that they mean nothing without the boot id."""
        processes = list(self.processes.values())
        for process in processes:
            process.alive, process.gone, process.reaped = False, True, True
        for process in processes:
            while process.descriptors:
                process.descriptors.popitem()[1].drop()
            process.memory.leave()
        for file, count in self._pins.items():
            for _ in range(count):
                file.drop()
        self._pins.clear()
        self.processes.clear()
        for device in self.devices.values():
            device.foreign_bytes = 0
        kept = {path: self.files.find(path, follow=False) for path in keep}
        self.files.root.entries.clear()
        self.files.mounts.clear()
        self.files.disk.layout += 1
        for path, inode in kept.items():
            directory, _, name = path.rpartition("/")
            self.make_directories(directory)
            self.files.find(directory).entries[name] = inode
        self.root_namespace = Namespace(None)
        self.last_pid, self._last_pidfs_inode = 1, 0
        self.boot_id = self._new_boot_id()

    def _new_boot_id(self) -> str:
        return f"boot-{self.rng.getrandbits(64):016x}"

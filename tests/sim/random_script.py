"""A random script from a seed: it plays on the simulated kernel as it grows, so that every name in it means something.

Left out: sockets passed over sockets (a cycle of them in flight is freed by a garbage collector that is not simulated;
the fixed scripts pass sockets), and whatever needs root. It ends with a look at everything that can be seen.
"""

import random
from collections.abc import Callable

from tests.sim.files import File
from tests.sim.openfiles import Allocation, Connection, Listener, Pidfd
from tests.sim.process import Process
from tests.sim.scripts import Step, parse
from tests.sim.sim_world import SimWorld

STEPS = 40
PROCESSES_MAX = 6
DEVICE_UNITS = 4
FILES = ("/d/x", "/d/y")
SOCKETS = ("/d/s", "/t")

BEGIN = f"""
    outside mkdir /d
    outside device gpu {DEVICE_UNITS}
    world fork a
    world fork b
    a listen h1 /t
    b connect h2 /t
    a accept h3 h1
    a open h4 /d/x create
    b open h5 /d/x
"""


def random_script(seed: int) -> tuple[Step, ...]:
    writer = Writer(seed)
    for step in parse(BEGIN):
        writer.add(step)
    for _ in range(STEPS):
        writer.grow()
    writer.look_around()
    return tuple(writer.steps)


class Writer:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = SimWorld(seed)
        self.steps: list[Step] = []
        self.handles = 5
        self.choices: list[tuple[int, Callable[[Process], str | None]]] = [
            (3, self.start),
            (3, self.end),
            (2, self.reap),
            (2, self.stop_or_continue),
            (6, self.socket),
            (8, self.talk),
            (8, self.listen_to),
            (6, self.open_file),
            (3, self.change_directory),
            (10, self.lock),
            (6, self.memory),
            (4, self.map_or_unmap),
            (6, self.pidfd),
            (4, self.close_or_dup),
            (2, self.family),
        ]

    def add(self, step: Step) -> None:
        self.world.play(step)
        self.steps.append(step)

    def grow(self) -> None:
        running = [each for each in self.world.processes.values() if self._obeys(each)]
        if not running:
            self.add(Step("world", "fork", (self._new_process(),)))
            return
        while True:
            choose = self.rng.choices([each for _, each in self.choices], [weight for weight, _ in self.choices])[0]
            line = choose(self.rng.choice(running))
            if line:
                self.add(parse(line)[0])
                return

    def look_around(self) -> None:
        for process in list(self.world.processes.values()):
            if not self._obeys(process):
                self.add(Step("outside", "state", (process.name,)))
                continue
            for name, fd in list(self.world.names[process.name].items()):
                file = process.descriptors[fd]
                if isinstance(file, Pidfd):
                    self.add(Step(process.name, "dead", (name,)))
                elif isinstance(file, Connection):
                    self.add(Step(process.name, "receive", (name,)))
                elif isinstance(file, File):
                    self.add(Step(process.name, "probe", (name, "write", "0", "0")))
            self.add(Step(process.name, "free", ("gpu",)))

    @staticmethod
    def _obeys(process: Process) -> bool:
        return process.alive and not process.stopped and process.name != "world"

    def _new_process(self) -> str:
        return f"p{len(self.world.processes)}"

    def _new(self) -> str:
        self.handles += 1
        return f"h{self.handles}"

    def _handle(self, process: Process, *kinds: type) -> str | None:
        names = self.world.names[process.name]
        fitting = [name for name, fd in names.items() if isinstance(process.descriptors[fd], kinds)]
        return self.rng.choice(fitting) if fitting else None

    def _any_process(self) -> str:
        return self.rng.choice([name for name in self.world.processes if name != "world"])

    def start(self, process: Process) -> str | None:
        if sum(each.alive for each in self.world.processes.values()) > PROCESSES_MAX:
            return None
        if self.rng.random() < 0.05:
            names = self.world.names[process.name]
            kept = [name for name in names if self.rng.random() < 0.5]
            return f"{process.name} spawn {self._new_process()} {' '.join(kept)}"
        who = "world" if self.rng.random() < 0.3 else process.name
        return f"{who} fork {self._new_process()}"

    def end(self, process: Process) -> str | None:
        if self.rng.random() < 0.1 and not process.leader_ended:
            return f"{process.name} end_leader"
        return f"outside kill {self._any_process()}"

    def reap(self, process: Process) -> str:
        return f"{self.rng.choice(['world', process.name])} reap {self._any_process()}"

    def stop_or_continue(self, process: Process) -> str:
        stopped = [each.name for each in self.world.processes.values() if each.stopped]
        if stopped and self.rng.random() < 0.8:
            return f"outside cont {self.rng.choice(stopped)}"
        return f"outside stop {process.name}"

    def socket(self, process: Process) -> str | None:
        path = self.rng.choice(SOCKETS)
        if self.rng.random() < 0.3:
            return f"{process.name} listen {self._new()} {path}"
        if self.rng.random() < 0.1:
            return f"{process.name} unlink {path}"
        return f"{process.name} connect {self._new()} {path}"

    def talk(self, process: Process) -> str | None:
        line = self._handle(process, Connection)
        passed = [self._handle(process, File, Allocation, Pidfd) for _ in range(self.rng.choice((0, 0, 1, 2)))]
        return line and f"{process.name} send {line} m{len(self.steps)} {' '.join(filter(None, passed))}"

    def listen_to(self, process: Process) -> str | None:
        if self.rng.random() < 0.4:
            door = self._handle(process, Listener)
            return door and f"{process.name} accept {self._new()} {door}"
        line = self._handle(process, Connection)
        if line and self.rng.random() < 0.3:
            return f"{process.name} readable {line}"
        return line and f"{process.name} receive {line} {self._new()} {self._new()}"

    def open_file(self, process: Process) -> str:
        how = self.rng.choice(("", "create", "create exclusive"))
        return f"{process.name} open {self._new()} {self.rng.choice((*FILES, *SOCKETS))} {how}"

    def change_directory(self, process: Process) -> str | None:
        file = self._handle(process, File)
        return self.rng.choice(
            (
                "outside replace /d",
                f"{process.name} unlink {self.rng.choice(FILES)}",
                f"{process.name} rename {self.rng.choice(FILES)} {self.rng.choice(FILES)}",
                f"{process.name} stat {self.rng.choice((*FILES, *SOCKETS, '/d'))}",
                f"{process.name} list /d",
                f"{process.name} write {self.rng.choice(FILES)} text{len(self.steps)}",
                file and f"{process.name} fstat {file}",
            )
        )

    def lock(self, process: Process) -> str | None:
        file = self._handle(process, File)
        start, length = self.rng.randrange(4), self.rng.randrange(4)
        what = self.rng.choice(("lock", "lock", "probe", "flock"))
        if what == "flock":
            return file and f"{process.name} flock {file}"
        kind = self.rng.choice(("read", "write", "none") if what == "lock" else ("read", "write"))
        return file and f"{process.name} {what} {file} {kind} {start} {length}"

    def memory(self, process: Process) -> str:
        if self.rng.random() < 0.5:
            return f"{process.name} free gpu"
        return f"{process.name} allocate {self._new()} gpu {self.rng.randrange(1, DEVICE_UNITS)}"

    def map_or_unmap(self, process: Process) -> str | None:
        # A number of a mapping that its forked child does not have must not be unmapped there
        maps = [name for name, at in self.world.maps[process.name].items() if at in process.memory.mappings]
        if maps and self.rng.random() < 0.5:
            return f"{process.name} unmap {self.rng.choice(maps)}"
        file = self._handle(process, File, Allocation)
        return file and f"{process.name} map {self._new()} {file} {self.rng.choice(('', 'dont_fork'))}"

    def pidfd(self, process: Process) -> str | None:
        pidfd, line = self._handle(process, Pidfd), self._handle(process, Connection)
        return self.rng.choice(
            (
                f"{process.name} pidfd {self._new()} {self._any_process()}",
                line and f"{process.name} peer {self._new()} {line}",
                line and f"{process.name} peer_pid {line}",
                pidfd and f"{process.name} dead {pidfd}",
                pidfd and f"{process.name} inode {pidfd}",
                pidfd and f"{process.name} pidfd_pid {pidfd}",
                (pidfd and self.rng.random() < 0.3 and f"{process.name} pidfd_kill {pidfd}") or None,
            )
        )

    def close_or_dup(self, process: Process) -> str | None:
        name = self._handle(process, object)
        if name and self.rng.random() < 0.7:
            return f"{process.name} close {name}"
        return name and f"{process.name} dup {name} {self._new()}"

    def family(self, process: Process) -> str:
        return f"{process.name} {self.rng.choice(('die_with_parent', 'parent'))}"

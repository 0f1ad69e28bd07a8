"""Plays scripts on the real kernel: real processes, sockets, locks and memory in a directory of their own on tmpfs.

Every process of a script is a `linux_actor.py` with a control socket, all of them below one `world`, and the worlds
below one zygote, because forking it takes a millisecond and starting a program twenty. Nothing sleeps: what is to
die is waited for by pidfd, what is to stop by its state in /proc, all with deadlines. `close` kills everything.
"""

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from tests.sim import linux_actor
from tests.sim.names import Names
from tests.sim.scripts import Race, Step

DEADLINE_S = 5.0
FREEZER = Path("/sys/fs/cgroup/freezer")
STARTS = {"fork", "fork_again", "spawn", "container"}


class Actor(NamedTuple):
    control: socket.socket
    pidfd: int
    pid: int
    pid_inside: int  # in its container
    container: str

    @property
    def proc(self) -> Path:
        return Path(f"/proc/{self.pid}")


def wait_until(what: str, happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {DEADLINE_S} s")
        os.sched_yield()


def proc_state(process: Path) -> str:
    """S for a process that lives in any way: whether it sleeps or runs just now is no news."""
    try:
        text = (process / "stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return "none"
    letter = text.rpartition(")")[2].split()[0]
    return letter if letter in "TZ" else "S"


def thread_states(actor: Actor) -> set[str]:
    """Without those that ended: a stopped process whose leader ended shows Z."""
    return {proc_state(thread) for thread in (actor.proc / "task").iterdir()} - {"Z", "none"}


def is_gone(actor: Actor) -> bool:
    return linux_actor.readable(actor.pidfd)


def kill(actor: Actor) -> None:
    try:
        signal.pidfd_send_signal(actor.pidfd, signal.SIGKILL)
    except ProcessLookupError:  # dead and reaped: just as well
        return


def _hello(control: socket.socket, container: str) -> Actor:
    data, descriptors, _, _ = socket.recv_fds(control, 100, 1)
    if not descriptors:
        raise ConnectionError("a process of the script died before its hello")
    with open(f"/proc/self/fdinfo/{descriptors[0]}", encoding="ascii") as lines:
        pid = next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))
    return Actor(control, descriptors[0], pid, int(data), container)


def _ask(actor: Actor, *words: str) -> str:
    actor.control.send(json.dumps(words).encode())
    return actor.control.recv(65536).decode() or "died"


def _start(by: Actor, container: str, *words: str) -> Actor:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE_S)
    with theirs:
        socket.send_fds(by.control, [json.dumps(words).encode()], [theirs.fileno()])
    answer = by.control.recv(65536).decode()
    if answer != "ok":
        raise OSError(f"{' '.join(words)}: {answer or 'died'}")
    return _hello(ours, container)


@contextmanager
def zygote() -> Iterator[Actor]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE_S)
    command = [sys.executable, "-I", "-S", linux_actor.__file__, str(theirs.fileno()), "{}"]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL) as process:
        theirs.close()
        try:
            actor = _hello(ours, "")
            _ask(actor, "sweep")
            yield actor
            os.close(actor.pidfd)
        finally:
            process.kill()


class Features(NamedTuple):
    """In what real kernels differ, so that the simulated one is made as old."""

    has_peer_pidfd: bool
    has_pidfs: bool
    peer_pidfd_of_reaped_errno: int
    has_io_uring: bool


def features() -> Features:
    reaped_errno, has_io_uring = 0, True
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("")  # an abstract name that the kernel chooses
        door.listen()
        child = os.fork()
        if child == 0:
            socket.socket(socket.AF_UNIX).connect(door.getsockname())
            os._exit(0)
        own, other = os.pidfd_open(os.getpid()), os.pidfd_open(child)
        has_pidfs = os.fstat(own).st_ino != os.fstat(other).st_ino
        os.close(own)
        os.close(other)
        os.waitpid(child, 0)
        with door.accept()[0] as line:
            try:
                os.close(struct.unpack("i", line.getsockopt(socket.SOL_SOCKET, linux_actor.SO_PEERPIDFD, 4))[0])
            except OSError as error:
                reaped_errno = error.errno or 0
    try:
        os.close(linux_actor.new_ring())
    except OSError:
        has_io_uring = False
    return Features(reaped_errno != errno.ENOPROTOOPT, has_pidfs, reaped_errno, has_io_uring)


class LinuxWorld:
    def __init__(self, zygote: Actor) -> None:
        shared_memory = "/dev/shm"
        self.root = tempfile.mkdtemp(prefix="sim-", dir=shared_memory if os.path.isdir(shared_memory) else None)
        self.actors = {"world": _start(zygote, "", "fork")}
        _ask(self.actors["world"], "subreaper")
        self.seen = Names()
        self.mounts: list[str] = []
        self.frozen: Path | None = None

    def close(self) -> None:
        """Kills, and waits until none is left: the zygote reaps them."""
        if self.frozen is not None:
            (self.frozen / "freezer.state").write_text("THAWED")
        for actor in self.actors.values():
            kill(actor)
        for name, actor in self.actors.items():
            wait_until(f"death of {name}", lambda actor=actor: is_gone(actor))  # type: ignore[misc]
            actor.control.close()
            os.close(actor.pidfd)
        for path in reversed(self.mounts):
            linux_actor.check(linux_actor.libc.umount2(path.encode(), linux_actor.MNT_DETACH))
        rmtree(self.root)
        if self.frozen is not None:
            self.frozen.rmdir()

    def __enter__(self) -> "LinuxWorld":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def play(self, step: Step) -> str:
        arguments = [self.root + each if each.startswith("/") else each for each in step.arguments]
        if step.who == "outside":
            act: Callable[..., str | None] = getattr(self, "outside_" + step.verb)
            return act(*arguments) or "ok"
        actor = self.actors[step.who]
        if step.verb in STARTS:
            self._start_process(step, actor, arguments)
            return "ok"
        if step.verb == "clone_vm":
            actor.control.send(json.dumps([step.verb]).encode())
            self.actors[arguments[0]] = _hello(actor.control, actor.container)
            return actor.control.recv(65536).decode()
        if step.verb == "execute":
            actor.control.send(json.dumps([step.verb, *arguments]).encode())
            os.close(actor.pidfd)
            self.actors[step.who] = _hello(actor.control, actor.container)
            return "ok"
        if step.verb.endswith("_abstract"):
            arguments[1] = f"{self.root}/{arguments[1]}"  # the name is this world's own
        if step.verb in ("allocate", "free"):
            where = 1 if step.verb == "allocate" else 0
            arguments[where] = self._device(arguments[where])
        if step.verb in ("reap", "pidfd"):
            arguments[-1] = str(self._pid_for(actor, arguments[-1]))
        answer = _ask(actor, step.verb, *arguments)
        if step.verb == "end_leader":
            wait_until("the leader's end", lambda: proc_state(actor.proc) == "Z")
        if step.verb == "pidfd_kill" and answer == "died":
            return "ok"  # it killed itself
        return self._readable_by_people(step.verb, answer, actor)

    def gone(self, expected: list[str]) -> list[str]:
        """Who is gone, once all are that are expected to be."""
        for name in expected:
            actor = self.actors[name]
            wait_until(f"the death of {name}", lambda actor=actor: is_gone(actor))  # type: ignore[misc]
        return [name for name, actor in self.actors.items() if is_gone(actor)]

    def intervals_of(self, race: Race) -> dict[str, list[int]]:
        """For each event of a death: when it had not happened yet, and when it was first seen."""
        for step in race.steps:
            self.play(step)
        device = self._device(race.device) if race.device != "-" else "-"
        answer = _ask(self.actors["server"], "watch_death", race.pidfd, race.connection, race.probe, device)
        intervals: dict[str, list[int]] = json.loads(answer)
        return intervals

    def _start_process(self, step: Step, by: Actor, arguments: list[str]) -> None:
        name, *rest = arguments
        if step.verb == "fork_again":
            rest = [str(self.actors[rest[0]].pid_inside)]
        actor = _start(by, name if step.verb == "container" else by.container, step.verb, *rest)
        if step.verb == "fork_again" and actor.pid_inside != int(rest[0]):
            raise AssertionError(f"the kernel gave pid {actor.pid_inside}, wanted {rest[0]}")
        self.actors[name] = actor

    def _device(self, name: str) -> str:
        return f"{self.root}/device-{name}"

    def _pid_for(self, seer: Actor, name: str) -> int:
        other = self.actors[name]
        return other.pid_inside if seer.container and seer.container == other.container else other.pid

    def _readable_by_people(self, verb: str, answer: str, seer: Actor) -> str:
        """Numbers that differ from kernel to kernel become names."""
        if verb == "real_path":
            return answer.removeprefix(self.root)
        if not answer.lstrip("-").isdigit():
            return answer
        if verb in ("stat", "fstat", "stat_at"):
            return self.seen.name("f", answer)
        if verb == "inode":
            return self.seen.name("p", answer)
        if verb in ("parent", "peer_pid", "pidfd_pid") and answer not in ("0", "-1"):
            return next(name for name in reversed(self.actors) if self._pid_for(seer, name) == int(answer))
        return answer

    # Outside

    def outside_kill(self, name: str) -> None:
        kill(self.actors[name])

    def outside_stop(self, name: str) -> None:
        signal.pidfd_send_signal(self.actors[name].pidfd, signal.SIGSTOP)
        wait_until(f"{name} stopped", lambda: thread_states(self.actors[name]) == {"T"})

    def outside_cont(self, name: str) -> None:
        signal.pidfd_send_signal(self.actors[name].pidfd, signal.SIGCONT)
        wait_until(f"{name} continued", lambda: thread_states(self.actors[name]) == {"S"})

    def outside_freeze(self, name: str) -> None:
        """One process at a time, in a cgroup of version 1."""
        cgroup = self.frozen = FREEZER / f"sim-{self.actors[name].pid}"
        cgroup.mkdir()
        (cgroup / "cgroup.procs").write_text(str(self.actors[name].pid))
        (cgroup / "freezer.state").write_text("FROZEN")
        wait_until(f"{name} frozen", lambda: (cgroup / "freezer.state").read_text() == "FROZEN\n")

    def outside_thaw(self, name: str) -> None:
        assert self.frozen is not None, f"{name} isn't frozen"
        (self.frozen / "freezer.state").write_text("THAWED")

    def outside_state(self, name: str) -> str:
        return proc_state(self.actors[name].proc)

    def outside_mkdir(self, path: str) -> None:
        os.makedirs(path)

    def outside_replace(self, path: str) -> None:
        rmtree(path)
        os.mkdir(path)

    def outside_symlink(self, target: str, path: str) -> None:
        os.symlink(target, path)

    def outside_mount(self, path: str) -> None:
        linux_actor.check(linux_actor.libc.mount(b"none", path.encode(), b"tmpfs", 0, None))
        self.mounts.append(path)

    def outside_unmount(self, path: str) -> None:
        self.mounts.remove(path)
        linux_actor.check(linux_actor.libc.umount2(path.encode(), 0))

    def outside_close(self, path: str) -> None:
        os.chmod(path, 0)

    def outside_reopen(self, path: str) -> None:
        os.chmod(path, 0o700)

    def outside_device(self, name: str, units: str) -> None:
        with open(self._device(name), "wb") as device:
            device.truncate(int(units) * linux_actor.UNIT)

    def outside_await_free(self, name: str, units: str) -> None:
        wait_until("memory free", lambda: linux_actor.free_units(self._device(name)) == int(units))

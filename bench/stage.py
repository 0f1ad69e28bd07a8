"""Where the benchmarks take place: run directories on tmpfs and on disk, a real lock server, and a mute one.

The mute server gives the floor its victims. A process's end takes as long as what it has: memory, threads, open files.
So the floor kills the same kind of process, with the same client registered and granted; only that the server that
granted it takes no notice of its end.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lockserver.observer import Observer
from lockserver.rules import messages as m
from lockserver.shell.rundir import LIFE, SOCKET, connect
from sidecar.wire.frames import Channel, close_all
from sidecar.wire.sockets import address_of

ROOT = Path(__file__).resolve().parent.parent
TMPFS = Path("/dev/shm")
DEADLINE_S = 30.0


class Broken(Exception):
    """The benchmark itself can't go on."""


@contextlib.contextmanager
def directory(parent: Path) -> Iterator[Path]:
    """A fresh run directory, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="failover-bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class LockServer:
    """A real one, and an observer to tell when it is ready for the next round."""

    def __init__(self, run_dir: Path, process: subprocess.Popen[bytes], observer: Observer) -> None:
        self.run_dir = run_dir
        self.process = process
        self.observer = observer

    def status(self) -> m.Status:
        return self.observer.ask(m.AskStatus(), m.Status)

    def until(self, done: Callable[[m.Status], bool], what: str) -> None:
        """Looks again and again: this is between the measurements, not in one."""
        until(lambda: done(self.status()), what)


@contextlib.contextmanager
def listening(run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m lockserver`, as in the pod, until it listens; its log goes to a file, as a container's does."""
    command = [sys.executable, "-m", "lockserver", "--run-dir", str(run_dir), "--memory", "none"]
    with open(run_dir.with_name(run_dir.name + ".log"), "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: _listens(run_dir, process), "a lock server that listens")
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def lock_server(parent: Path) -> Iterator[LockServer]:
    with directory(parent) as scratch, listening(scratch / "run") as process, Observer(scratch / "run") as observer:
        server = LockServer(scratch / "run", process, observer)
        server.until(lambda status: status.state == "FREE", "a free lock")
        yield server


def _listens(run_dir: Path, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        log = run_dir.with_name(run_dir.name + ".log").read_text(encoding="utf-8", errors="replace")
        raise Broken(f"the lock server ended with code {process.returncode}:\n{log[-2000:]}")
    try:
        connect(run_dir).close()
    except OSError:
        return False
    return True


def until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > end:
            raise Broken(f"waited {DEADLINE_S:g} s for {what}")
        time.sleep(0.0005)


class MuteServer:
    """Welcomes one client at a time, grants what it asks for, and after the lock `active` never looks at it again."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        (run_dir / LIFE).mkdir()
        self._kept: list[Channel] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with address_of(run_dir / SOCKET) as address:
            self._listener.bind(address)
        self._listener.listen()
        self._listener.settimeout(DEADLINE_S)

    def serve_one(self) -> None:
        """The next client to come: until it has been granted the lock."""
        sock, _ = self._listener.accept()
        channel = Channel(sock, m.from_client)
        self._kept.append(channel)
        end = time.monotonic() + DEADLINE_S
        while True:
            for message, descriptors in channel.receive():
                close_all(descriptors)
                if isinstance(message, m.Register):
                    policy = m.Policy(presume_dead=False, window_s=10, settle_s=2)
                    channel.send(m.Welcome(server_incarnation="mute", number=1, policy=policy))
                elif isinstance(message, m.Acquire):
                    channel.send(m.Granted(lock=message.lock, token=len(self._kept)))
                    if message.lock == m.ACTIVE:
                        return
            if channel.eof or time.monotonic() > end:
                raise Broken("a client of the mute server left before it was granted")
            time.sleep(0.0002)

    def forget_the_dead(self) -> None:
        """All but the newest, which is the next victim."""
        while len(self._kept) > 1:
            self._kept.pop(0).close()
        for path in sorted((self.run_dir / LIFE).iterdir(), key=lambda path: path.stat().st_mtime)[:-1]:
            path.unlink()

    def close(self) -> None:
        for channel in self._kept:
            channel.close()
        self._listener.close()


@contextlib.contextmanager
def mute_server(parent: Path) -> Iterator[MuteServer]:
    with directory(parent) as run_dir:
        server = MuteServer(run_dir)
        try:
            yield server
        finally:
            server.close()


def filesystem(path: Path) -> str:
    """The kind of the filesystem that a path is on."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mounted_on, fs_type, *_ = line.split()
        inside = os.path.commonpath([mounted_on, path.resolve()]) == mounted_on
        if inside and len(mounted_on) >= len(best):
            best, kind = mounted_on, fs_type
    return kind


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def tcp_listener(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port), backlog=4096)
    listener.setblocking(False)
    return listener

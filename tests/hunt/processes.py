"""The hunt with real processes: contenders with workers, and a lock server; one fault after the other, chosen by the
seed. What must hold: never two holders, no holder lost that was healthy, no token twice, and at the end one holds.

The seed chooses what is done; how the processes run into each other is the machine's. What the documentation doesn't
promise is not done: no path is switched while a process is stopped.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from sidecar.kernel import peers
from tests.support import seccomp

ENGINES = "abc"
FREEZER = Path("/sys/fs/cgroup/freezer")
SETTLE_S = 10.0
"""A holder ends when no server has it back in a new directory within this: servers start late on a busy machine."""
PATIENCE_S = 240.0
MOST_PAUSE_S = 8.0
MOST_INODES = 4000
"""Of the filesystem that the run directory is on, where one can be mounted."""
REFUSED = {"pidfd_send_signal": "EPERM", "inotify_init1": "EMFILE"}
"""What a server may have to do without: it kills nothing then, or looks at its path every second."""
_SERVER = ("--memory", "none", "--settle-s", f"{SETTLE_S:g}", "--window-s", "20")


class Found(Exception):
    """Something that must hold did not."""


class Hunt:
    def __init__(self, seed: int, base: Path) -> None:
        self.rng = random.Random(seed)
        self.base = base
        self.place = base / "place"
        self.link, self.run_dir = self.place / "link", self.place / "link" / "pair"
        self.log, self.witness = base / "log", base / "witness"
        self.log.touch()
        self.faults: Counter[str] = Counter()
        self.grants = 0
        self.engines: dict[str, subprocess.Popen[bytes]] = {}
        self.server: subprocess.Popen[bytes] | None = None
        self._stopped: dict[int, float] = {}
        """pid -> when it goes on."""
        self._ever_stopped: set[int] = set()
        self._path_moved_at = -PATIENCE_S
        self._moved = 0
        self._read = 0
        self._token = 0
        self._holder = 0
        self._grants_before = 0
        self._next_fault_at = 0.0
        self._full_until = 0.0
        """0: there are inodes."""
        self.place.mkdir()
        self.mounted = _mount(self.place)
        (self.place / "one").mkdir()
        self.witness.mkdir()
        self.link.symlink_to("one")

    # -- what must hold --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """At everything that was written into the log since the last look."""
        with open(self.log, "rb") as log:
            log.seek(self._read)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            _, pid, _, what, *rest = line.split(" ")
            if what == "conflict":
                raise Found(f"two are awake: {line}")
            if what == "granted":
                token = int(rest[0])
                if token <= self._token:
                    raise Found(f"{line}: after token {self._token}")
                self._token, self._holder, self.grants = token, int(pid), self.grants + 1
            elif what == "lost" and int(pid) not in self._ever_stopped:
                raise Found(f"it was healthy: {line}")

    # -- processes -------------------------------------------------------------------------------------------------

    def keep_going(self) -> None:
        """What has ended is started again, what was stopped goes on."""
        for pid, at in list(self._stopped.items()):
            if time.monotonic() >= at:
                del self._stopped[pid]
                self._thaw(pid)
                _signal(pid, signal.SIGCONT)
        if self._full_until and time.monotonic() >= self._full_until:
            self._give_inodes_back()
        for name in ENGINES:
            if name not in self.engines or self.engines[name].poll() is not None:
                words = (str(self.run_dir), name, str(self.witness), str(self.log))
                self.engines[name] = _start(sys.executable, "-m", "tests.hunt.contender", *words)
        if self.server is None or self.server.poll() is not None:
            refused = {call: error for call, error in REFUSED.items() if self.rng.random() < 0.2}
            self.faults.update(f"without {call}" for call in refused)
            through = [*(seccomp.through(**refused) if refused else ()), sys.executable]
            self.server = _start(*through, "-m", "lockserver", "--run-dir", str(self.run_dir), *_SERVER)

    def fault(self) -> None:
        faults = ("kill the holder", "kill the server", "kill any", "stop", "freeze", "path", "no inodes")
        what = self.rng.choices(faults, (30, 25, 10, 10, 10, 20, 10))[0]
        if what == "kill the holder" and self._holder:
            _signal(self._holder, signal.SIGKILL)
        elif what == "kill the server" and self.server is not None:
            self.server.kill()
        elif what == "kill any":
            self.engines[self.rng.choice(ENGINES)].kill()
        elif (
            what in ("stop", "freeze") and time.monotonic() > self._path_moved_at + SETTLE_S and self.server is not None
        ):
            pid = self.rng.choice([self.server, *self.engines.values()]).pid
            self._ever_stopped.add(pid)
            self._stopped[pid] = time.monotonic() + self.rng.random() * 2
            if what == "stop" or not self._freeze(pid):
                what = "stop"
                _signal(pid, signal.SIGSTOP)
            elif self.rng.random() < 0.5:  # no kill ends it before it thaws
                what = "freeze and kill"
                _signal(pid, signal.SIGKILL)
        elif what == "path" and not self._stopped and not self._full_until:
            what = self._switch_the_path()
        elif what == "no inodes" and self.mounted and self.run_dir.exists():
            self._take_all_inodes()
        else:
            return
        self.faults[what] += 1

    def _take_all_inodes(self) -> None:
        """For a while. What holds or waits goes on, and the server starts again; an engine that starts waits."""
        self._full_until = time.monotonic() + self.rng.random() * MOST_PAUSE_S
        with contextlib.suppress(OSError):
            for number in range(MOST_INODES):
                (self.place / f"filler{number}").touch()

    def _give_inodes_back(self) -> None:
        self._full_until = 0.0
        for filler in self.place.glob("filler*"):
            filler.unlink()

    def _freeze(self, pid: int) -> bool:
        """By its cgroup, of version 1: there SIGKILL waits for the thaw. False where that isn't possible."""
        group = FREEZER / f"{self.base.name}.{pid}"
        try:
            group.mkdir()
            (group / "cgroup.procs").write_text(str(pid))
            (group / "freezer.state").write_text("FROZEN")
        except OSError:
            self._thaw(pid)
            return False
        return True

    def _thaw(self, pid: int) -> None:
        group = FREEZER / f"{self.base.name}.{pid}"
        if not group.exists():
            return
        (group / "freezer.state").write_text("THAWED")
        for one in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has ended
                (FREEZER / "cgroup.procs").write_text(one)
        with contextlib.suppress(OSError):  # one that is ending is in it yet
            group.rmdir()

    def _switch_the_path(self) -> str:
        self._path_moved_at, self._moved = time.monotonic(), self._moved + 1
        what = self.rng.choice(("renamed", "renamed above", "switched", "deleted", "emptied"))
        if what == "renamed":
            self.run_dir.rename(self.link / f"pair.{self._moved}")
        elif what == "renamed above":
            above = self.link.resolve()
            above.rename(self.place / f"above.{self._moved}")
            above.mkdir()
        elif what == "switched":
            other = self.place / f"other.{self._moved}"
            other.mkdir()
            early = self.place / f"link.{self._moved}"
            early.symlink_to(other.name)
            early.rename(self.link)
        elif what == "deleted":
            shutil.rmtree(self.run_dir, ignore_errors=True)
        else:
            for each in list(self.run_dir.glob("*")):
                shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink(missing_ok=True)
        return f"the directory is {what}"

    # -- a hunt ----------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.keep_going()
            time.sleep(self.rng.random() * 0.4)
            self.look()
            if self._is_time_for_a_fault():
                self._fault_or_not()
        self._the_next_one_is_granted()

    def _is_time_for_a_fault(self) -> bool:
        """When something has come of the last one; or after a while, so that faults meet each other, too."""
        if self.grants == self._grants_before and time.monotonic() < self._next_fault_at:
            return False
        self._grants_before = self.grants
        self._next_fault_at = time.monotonic() + (self.rng.random() ** 2 * MOST_PAUSE_S if self.grants else PATIENCE_S)
        return self.grants > 0

    def _fault_or_not(self) -> None:
        try:
            self.fault()
        except FileNotFoundError:
            return  # the directory isn't there (yet)

    def _the_next_one_is_granted(self) -> None:
        """Once the faults stop."""
        grants, end = self.grants, time.monotonic() + PATIENCE_S
        if self._holder:
            _signal(self._holder, signal.SIGKILL)
        while self.grants == grants:
            if time.monotonic() > end:
                raise Found(f"no engine was granted within {PATIENCE_S:g} s after the faults")
            self._stopped = dict.fromkeys(self._stopped, 0.0)
            self._give_inodes_back()
            self.keep_going()
            time.sleep(0.05)
            self.look()

    def close(self) -> None:
        processes = [*self.engines.values(), *([self.server] if self.server is not None else [])]
        for process in processes:
            process.kill()
            self._thaw(process.pid)
        for process in processes:
            process.wait()
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.place)], check=True)


def _mount(place: Path) -> bool:
    """A filesystem of its own, whose inodes can be used up; only root can have one."""
    command = ["mount", "-t", "tmpfs", "-o", f"nr_inodes={MOST_INODES},mode=0700", "tmpfs", str(place)]
    return os.geteuid() == 0 and subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0


def _start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def _signal(pid: int, number: int) -> None:
    """To a child of ours, which has its number until it was waited for."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not peers.is_dead(pidfd):
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


def hunt(seed: int, seconds: float) -> str:
    """What was done. Raises Found, and keeps the log then."""
    shm = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="failover-hunt-", dir=shm if shm.is_dir() else None))
    one = Hunt(seed, base)
    try:
        one.run(seconds)
    except Found as found:
        raise Found(f"{found}\n  what all said: {one.log}") from None
    finally:
        one.close()
    shutil.rmtree(base, ignore_errors=True)
    done = ", ".join(f"{fault} {count}" for fault, count in one.faults.most_common())
    return f"{one.grants} grants, no two at a time, no healthy holder lost, no token twice; {done}"

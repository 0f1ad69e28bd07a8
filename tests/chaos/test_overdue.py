"""A takeover that hangs on a process that doesn't end: an alarm says what lives, how it is, and what to do.

The processes are real ones: a guard that is stopped, a thread under a tracer that doesn't wait, a frozen cgroup.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evidence.shell.lifefiles import locked_by
from lockserver import doctor
from lockserver.shell.rundir import GUARD
from sidecar.kernel import process_state
from sidecar.kernel.lifelock import LifeLock
from sidecar.terminal.findings import Level
from tests.chaos.house import House, Server
from tests.support.descriptors import descriptors_left
from tests.support.processes import ROOT, Process
from tests.support.root import needs_root
from tests.support.waiting import until

pytestmark = pytest.mark.chaos

SEIZES = """
import ctypes, signal, sys
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
print(libc.ptrace(0x4206, int(sys.argv[1]), 0, 0), flush=True)
signal.pause()  # and never waits for it
"""


def alarmed(server: Server, *words: str) -> str:
    status = server.shows(
        lambda s: any(all(word in alarm for word in words) for alarm in s.alarms), f"an alarm with {words}"
    )
    assert status.state == "FENCING"
    (alarm,) = status.alarms
    return alarm


def test_a_stopped_guard_is_named_with_what_to_do(house: House) -> None:
    server = house.server("--window-s", "0.5")
    words = ["--run-dir", str(house.run_dir), "hold", "--engine-id", "a", "--", "sleep", "1000"]
    # In the process group of its parent: of an orphaned group the kernel wakes those who are stopped.
    held = house.run({"do": "exec", "argv": [sys.executable, "-m", "lockserver.cli.lockctl", *words]})
    server.shows(lambda s: s.state == "HELD")
    (pid,) = [int(one) for one in Path(f"/proc/{held.pid}/task/{held.pid}/children").read_text().split()]
    assert Path(f"/proc/{pid}/comm").read_text().strip() == GUARD
    guard = Process(pid)
    guard.stop()
    b = house.engine("b")
    b.wants()
    held.kill()
    alarm = alarmed(server, "a is not proven gone after 0.5 s", f"process {pid} ({GUARD})", "is stopped (T)")
    assert f"kill -CONT {pid}" in alarm
    found = [finding for finding in doctor.examine(house.run_dir, 10) if finding.check == "alarm"]
    assert [(finding.level, finding.found) for finding in found] == [(Level.FAIL, alarm)]
    assert not b.heard("granted")
    guard.go_on()
    b.granted()
    server.shows(lambda s: not s.alarms)


def test_a_thread_under_a_tracer_that_does_not_wait_is_named_with_its_tracer(house: House) -> None:
    server = house.server("--window-s", "0.5")
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    thread = max(int(task.name) for task in Path(f"/proc/{a.pid}/task").iterdir())
    assert thread != a.pid, "an engine has a thread for its lock"
    tracer = subprocess.Popen([sys.executable, "-c", SEIZES, str(thread)], stdout=subprocess.PIPE)
    try:
        assert tracer.stdout is not None
        if tracer.stdout.readline().strip() != b"0":
            pytest.skip("this machine lets no process trace another")
        a.signal(signal.SIGKILL)
        alarmed(server, f"main process {a.pid} of a", f"traced by process {tracer.pid}", f"kill -9 {tracer.pid}")
        assert not b.heard("granted")
    finally:
        tracer.kill()
        tracer.wait()
    assert b.granted()["dead"] == [True]
    server.shows(lambda s: not s.alarms)


def test_a_waiter_that_is_stopped_and_alone_is_named(house: House) -> None:
    server = house.server("--window-s", "0.5")
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    b.stop()
    a.kill()
    alarmed(server, "none was granted", f"main process {b.pid} is stopped (T)", f"kill -CONT {b.pid}")
    b.go_on()
    assert b.granted()["dead"] == [True]
    server.shows(lambda s: not s.alarms)


@contextlib.contextmanager
def cgroup(version: int) -> Iterator[Path]:
    roots = (Path("/sys/fs/cgroup/freezer"),) if version == 1 else process_state._V2
    wanted = "freezer.state" if version == 1 else "cgroup.freeze"
    for root in roots:
        made = root / f"failover-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            made.mkdir()
            if (made / wanted).exists():
                break
            made.rmdir()
    else:
        pytest.skip(f"no cgroup v{version} that can be written here")
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):
            (made / wanted).write_text("THAWED" if version == 1 else "0")
        until(lambda: not (made / "cgroup.procs").read_text().strip(), "the cgroup is empty")
        made.rmdir()


@pytest.mark.root
@needs_root
def test_a_leftover_in_a_frozen_cgroup_which_no_kill_ends_is_named_with_its_cgroup(house: House) -> None:
    """Of version 1: there a kill waits for the thaw."""
    server = house.server("--window-s", "0.5")
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    worker = a.child("exec").joins(a.tree).joined()
    b.wants(watching=[a, worker])
    server.shows(lambda s: s.waiters)
    with cgroup(1) as frozen:
        (frozen / "cgroup.procs").write_text(str(worker.pid))
        (frozen / "freezer.state").write_text("FROZEN")
        until(lambda: (frozen / "freezer.state").read_text().strip() == "FROZEN", "it freezes")
        a.kill()
        alarmed(server, f"process {worker.pid} of a is frozen", f"echo THAWED > {frozen}/freezer.state")
        assert not b.heard("granted")
        (frozen / "freezer.state").write_text("THAWED")
        assert b.granted()["dead"] == [True, True]


@pytest.mark.root
@needs_root
def test_a_process_in_a_cgroup_that_an_ancestor_freezes_is_seen_to_be_frozen(house: House) -> None:
    with cgroup(2) as above:
        below = above / "below"
        below.mkdir()
        sleeper = subprocess.Popen(["sleep", "1000"])
        try:
            (below / "cgroup.procs").write_text(str(sleeper.pid))
            (above / "cgroup.freeze").write_text("1")
            until(lambda: "frozen 1" in (below / "cgroup.events").read_text(), "it freezes")
            assert process_state.state_of(sleeper.pid) == f"is frozen by its cgroup: echo 0 > {above}/cgroup.freeze"
        finally:
            sleeper.kill()
            sleeper.wait()
            (above / "cgroup.freeze").write_text("0")
            until(lambda: not (below / "cgroup.procs").read_text().strip(), "it is empty")
            below.rmdir()


def test_a_process_in_the_kernels_hands_is_seen_to_be(tmp_path: Path) -> None:
    """One that has begun to start a program, whose first file no process opens: it waits in vfork."""
    os.mkfifo(tmp_path / "fifo")
    opens = "file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], 0, 0)]"
    code = f"import os, sys; os.posix_spawn('/bin/true', ['true'], {{}}, {opens})"
    waits = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "fifo")], cwd=ROOT)
    try:
        until(lambda: "(D)" in process_state.state_of(waits.pid), "it waits in the kernel")
        assert f"cat /proc/{waits.pid}/stack" in process_state.state_of(waits.pid)
    finally:
        with open(os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK)):
            waits.wait()


def test_who_has_a_life_lock_is_not_named_where_no_descriptor_is_left_to_look_with(tmp_path: Path) -> None:
    """And nothing raises: the thread that looks would be gone for good, and every later alarm poorer."""
    with LifeLock.create(tmp_path, "a.1") as life:
        with descriptors_left(0):
            assert locked_by(life.inode) == {}
        assert list(locked_by(life.inode)) == [os.getpid()]


def test_who_lives_and_runs_is_said_to_and_so_is_who_cannot_be_looked_at() -> None:
    assert process_state.state_of(os.getpid()).startswith("is alive (R")
    assert "another PID namespace" in process_state.state_of(0)

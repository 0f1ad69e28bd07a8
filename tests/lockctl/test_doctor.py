"""`lockctl doctor`: what it finds, what it says to do, and that it disturbs nothing."""

import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from evidence.shell.lifefiles import life_files
from lockserver import doctor
from lockserver.observer import TIMEOUT_S
from lockserver.shell.rundir import HOLDER, LIFE
from sidecar.kernel import io_uring, peers
from sidecar.kernel.filesystems import filesystem
from sidecar.kernel.lifelock import LifeLock
from sidecar.terminal.findings import Finding, Level
from tests.lockctl.programs import House
from tests.support.children import Child
from tests.support.processes import gone
from tests.support.waiting import until


def checked(house: House) -> tuple[int, list[dict[str, Any]]]:
    code, out, err = house.ask("doctor", "--json")
    assert err == ""
    report = json.loads(out)
    assert report["healthy"] is (code == 0)
    assert report["run_dir"] == str(house.run_dir)
    assert all(check["level"] in ("ok", "warn", "FAIL") for check in report["checks"])
    assert all(check["do"] for check in report["checks"] if check["level"] != "ok"), "whatever is wrong has a way out"
    return code, report["checks"]


def about(checks: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [check for check in checks if check["check"] == name]


@pytest.mark.slow
def test_a_healthy_house_is_0_and_every_check_is_named_and_so_are_waiters_and_strangers(house: House) -> None:
    house.serve()
    house.holds("engine-a")
    house.hold("engine-b")
    house.until(lambda status: bool(status.waiters), "engine-b waits")
    code, checks = checked(house)
    names = {check["check"] for check in checks}
    wanted = "kernel pidfds seccomp identity descriptors inotify clock GPUs directory filesystem space server"
    wanted += " evidence memory leftovers"
    assert set(wanted.split()) | {"core dumps", "/dev/shm", "OFD locks", "life lock"} <= names
    failing = [check for check in checks if check["level"] == "FAIL"]
    assert not failing
    assert code == 0
    code, out, _ = house.ask("doctor")
    assert code == 0
    assert " 0 FAIL" in out.splitlines()[-1]
    with LifeLock.create(house.run_dir / LIFE, "stranger.0123456789abcdef"):
        _, checks = checked(house)
    found = {check["found"].split(".")[0]: check for check in about(checks, "life lock")}
    assert found["engine-b"]["level"] == "ok"
    assert found["stranger"]["level"] == "warn"
    assert "the server doesn't know it" in found["stranger"]["found"]
    assert str(os.getpid()) in found["stranger"]["found"]


@pytest.mark.slow
def test_no_server_and_no_directory_fail_with_what_to_do(house: House) -> None:
    code, checks = checked(house)
    assert code == 1
    assert about(checks, "directory")[0]["level"] == "FAIL"
    assert about(checks, "server")[0]["do"] == f"lockserver --run-dir {house.run_dir}"
    house.serve().kill()
    code, checks = checked(house)
    assert code == 1
    assert about(checks, "directory")[0]["level"] == "ok"
    assert "without a server" in about(checks, "leftovers")[0]["found"]


@pytest.mark.slow
def test_it_names_the_processes_that_hold_a_life_lock(house: House) -> None:
    house.serve()
    holder = house.hold("engine-a", command=("sh", "-c", "sleep 1234 & echo started $!; exec sleep 1000"))
    child = int(holder.out.with_words("started").split()[1])
    pidfd = house.pidfd(child)
    _, checks = checked(house)
    found = about(checks, "life lock")[0]
    assert found["level"] == "warn"
    assert f"{holder.pid} (" in found["found"]
    assert f"{child} (sleep 1234)" in found["found"]
    assert found["found"].endswith(f"never joined: {child}")
    assert f"kill -9 {child}" in found["do"]
    with house.stray(holder):
        holder.kill()
        house.until(lambda s: bool(s.fencing and any("did not join" in r for r in s.fencing.waiting_for)), "kept")
        do = about(checked(house)[1], "life lock")[0]["do"]
        assert do.startswith("this engine is to be gone, and no engine is granted before they are: kill -9 "), do
        assert f"{os.getpid()} (" in about(checked(house)[1], "life lock")[0]["found"]
    assert gone(pidfd)
    house.until(lambda status: status.state == "FREE", "released")
    assert not about(checked(house)[1], "life lock")


def test_it_names_a_process_of_the_holder_that_is_stopped(house: House) -> None:
    house.serve()
    holder = house.hold("engine-a", command=("sh", "-c", "echo started $$; exec sleep 1000"))
    stopped = int(holder.out.with_words("started").split()[1])
    assert not about(checked(house)[1], "processes")
    os.kill(stopped, signal.SIGSTOP)
    try:
        until(lambda: bool(about(checked(house)[1], "processes")), "the doctor sees it")
        (found,) = about(checked(house)[1], "processes")
        assert f"process {stopped} is stopped (T)" in found["found"] and found["level"] == "warn"
        assert found["do"].startswith(f"kill -CONT {stopped}")
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_where_no_process_of_the_holder_is_seen_it_isnt_said_where_that_is(house: House) -> None:
    """Its life file can't be read; or it is in another container."""
    house.serve()
    house.holds("engine-a")
    assert "the holder" not in about(checked(house)[1], "/dev/shm")[0]["found"]
    shutil.rmtree(house.run_dir / LIFE)
    (found,) = about(checked(house)[1], "/dev/shm")
    assert found["found"].endswith("no process of the holder is seen from here, and it may have another one"), found


def test_it_finds_what_was_left_lying_about(house: House) -> None:
    house.serve()
    house.until(lambda status: status.state == "FREE", "free")
    LifeLock.create(house.run_dir / LIFE, "engine-x.0123456789abcdef").close()
    aside = house.run_dir / f"{HOLDER}.unreadable-20260101T000000.000000Z"
    aside.write_text("?")
    _, checks = checked(house)
    assert "engine-x.0123456789abcdef" in about(checks, "life files")[0]["found"]
    assert about(checks, "leftovers")[0]["found"].startswith(aside.name)
    assert house.ask("doctor")[1].count("->") >= 2


def test_permissions_that_let_any_user_in_fail(house: House) -> None:
    house.serve()
    house.run_dir.chmod(0o777)
    code, checks = checked(house)
    assert code == 1
    assert about(checks, "directory")[0]["do"] == f"chmod 700 {house.run_dir}"
    house.run_dir.chmod(0o1777)
    assert "a directory of its own" in about(checked(house)[1], "directory")[0]["do"], "no person is told to chmod /tmp"


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user")
@pytest.mark.parametrize("closed", ["the run directory", "what it is in"])
def test_another_user_is_told_what_it_cant_see(house: House, closed: str) -> None:
    house.serve()
    house.run_dir.parent.chmod(0o755 if closed == "the run directory" else 0o700)

    def look(say: Callable[[str], None]) -> None:
        os.setuid(65534)
        found = [finding for finding in doctor.examine(house.run_dir, TIMEOUT_S) if finding.level is not Level.OK]
        for finding in found:
            say(f"{finding.level.value} {finding.check}: {finding.do}")
        say("end")

    with Child(look) as child:
        said = list(iter(child.line, "end"))
    assert any(line.startswith("FAIL directory: ") for line in said)
    assert "FAIL server: be its user" in said
    assert any(line.startswith("warn life files: run this as") for line in said)


def test_alarms_and_weak_evidence_fail(house: House) -> None:
    house.serve("--pidfds", "none")
    _, checks = checked(house)
    assert about(checks, "evidence")[0]["level"] == "FAIL"
    server = house.status().server_pid
    resource.prlimit(server, resource.RLIMIT_FSIZE, (0, resource.prlimit(server, resource.RLIMIT_FSIZE)[1]))
    house.hold("engine-a")
    house.until(lambda status: bool(status.alarms), "the holder file can't be written")
    code, checks = checked(house)
    assert code == 1
    assert "holder.json can't be written" in about(checks, "alarm")[0]["found"]


def test_it_disturbs_nothing(house: House) -> None:
    """Nothing is made, moved or removed, and a life lock that it looks at is never held by it."""
    house.serve()
    house.holds("engine-a")
    name = next((house.run_dir / LIFE).iterdir()).name
    before = sorted(path.relative_to(house.run_dir) for path in house.run_dir.rglob("*"))
    status = house.status()
    looking = house.lockctl("doctor")
    seen: set[int] = set()

    def done() -> bool:
        (file,) = life_files(house.run_dir / LIFE)[0]
        assert file.name == name
        seen.update(file.locked_by)
        return looking.process.poll() is not None

    until(done, "doctor ends")
    assert looking.pid not in seen
    assert os.getpid() not in seen
    assert sorted(path.relative_to(house.run_dir) for path in house.run_dir.rglob("*")) == before
    assert house.status() == status


# -- what other kernels and machines have ------------------------------------------------------------------------------


def findings(house: House, name: str) -> list[Finding]:
    return [finding for finding in doctor.examine(house.run_dir, TIMEOUT_S) if finding.check == name]


def test_an_older_kernel_is_told_and_is_no_failure_but_one_without_pidfds_is(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(peers, "SO_PEERPIDFD", 9999)
    monkeypatch.setattr(peers, "_pidfs_device", lambda: None)
    for check in ("pidfds", "identity"):
        assert [finding.level for finding in findings(house, check)] == [Level.WARN]
    monkeypatch.setattr(peers, "own_pidfd", refused)
    assert [finding.level for finding in findings(house, "pidfds")] == [Level.FAIL]


def test_a_clock_that_was_set_back_is_told(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.serve()
    house.holds("engine-a")
    assert [finding.level for finding in findings(house, "clock")] == [Level.OK]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86400)
    (finding,) = findings(house, "clock")
    assert finding.level is Level.WARN
    assert "before the holder's grant" in finding.found


class Nvml:
    """What pynvml says of three GPUs."""

    NVML_COMPUTEMODE_DEFAULT, NVML_COMPUTEMODE_PROHIBITED, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 0, 2, 3
    NVMLError = RuntimeError

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeMode(self, handle: int) -> int:
        return [0, 3, 2][handle]


def test_a_gpu_that_lets_one_process_in_fails(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    first, second, last = findings(house, "GPUs")
    assert (first.level, first.do) == (Level.FAIL, "nvidia-smi -i 1 -c DEFAULT")
    assert "exclusive-process" in first.found
    assert "prohibited" in second.found
    assert last.level is Level.OK
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert [finding.level for finding in findings(house, "GPUs")] == [Level.OK]


def test_the_filesystem_of_a_path_is_the_one_mounted_nearest() -> None:
    assert filesystem(Path("/proc/self/status"))[0] == "proc"
    assert filesystem(Path("/"))[1] == "/"


@pytest.mark.parametrize(("free", "when"), [(0, "until then"), (1 << 20, "with nothing free")])
def test_a_run_directory_that_is_nearly_full_says_where_to_make_room_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, when: str
) -> None:
    space = os.statvfs_result((1, 1, 1 << 20, free, free, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: space)
    found = doctor.room(tmp_path)
    assert found.do == f"make room in {filesystem(tmp_path)[1]}; {when} a takeover depends on one spare file"


@pytest.mark.skipif(bool(io_uring.why_impossible()), reason="there is no io_uring here anyway")
def test_a_holder_that_may_have_io_uring_is_named_and_no_process_of_another_container(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.serve()
    holder, *_ = house.holds("engine-a")
    (found,) = about(checked(house)[1], "io_uring")
    assert found["level"] == "warn" and str(holder.pid) in found["found"]
    status = house.status()
    assert status.holder is not None
    members = [replace(member, pid=os.getpid()) for member in status.holder.members]  # a number of another container's
    elsewhere = replace(status, holder=replace(status.holder, members=members))
    patient = doctor.Patient(house.run_dir, elsewhere, None)
    assert {one.level for one in doctor._late_writes(patient)} == {Level.OK}, "no other process is accused"
    assert not any("the holder" in one.found for one in doctor._core_dumps(patient))
    monkeypatch.setattr(doctor, "SHM_SMALL", 1 << 60)  # this container's, and none of the engines'
    assert [one.level for one in doctor._shared_memory(patient)] == [Level.OK]
    (small,) = doctor._shared_memory(doctor.Patient(house.run_dir, status, None))
    assert small.level is Level.WARN


def test_where_the_kernel_refuses_io_uring_the_doctor_says_so(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysctl = tmp_path / "io_uring_disabled"
    sysctl.write_text("2\n")
    monkeypatch.setattr(io_uring, "DISABLED", str(sysctl))
    (found,) = findings(house, "io_uring")
    assert found.level is Level.OK and found.found == "kernel.io_uring_disabled is 2"
    sysctl.write_text("1\n")
    assert "disabled is 2" not in findings(house, "io_uring")[0].found.partition("(")[0]

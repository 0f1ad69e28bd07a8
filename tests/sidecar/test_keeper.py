"""A keeper above a server, as real processes: it starts the server again, and ends with it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Process, cmdline
from tests.support.waiting import DEADLINE_S, until


class Kept:
    """A keeper, and the server that it keeps."""

    def __init__(self, directory: Path, *words: str, through: tuple[str, ...] = ()) -> None:
        self.directory = directory
        command = (sys.executable, "-m", "tests.sidecar.kept_server", str(directory), "--restart", "in-place", *words)
        self.log = directory / "log"
        with open(self.log, "wb") as log:
            self.keeper = subprocess.Popen((*through, *command), cwd=ROOT, stdout=log, stderr=log)

    def start(self, number: int) -> int:
        """The pid of the server's start of this number, once it serves."""
        path = self.directory / f"start-{number}"
        until(path.exists, f"start {number}: {self.said()}")
        return int(path.read_text())

    def server(self, number: int) -> Process:
        return Process(self.start(number))

    def tell(self, number: signal.Signals) -> None:
        self.keeper.send_signal(number)

    def code(self) -> int:
        return self.keeper.wait(DEADLINE_S)

    def said(self) -> str:
        return self.log.read_text()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Nothing that was started for it is left when the test is over."""
    yield tmp_path
    left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if os.fsencode(tmp_path) in cmdline(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "a server outlived its keeper"


def test_a_server_that_is_killed_is_started_again_and_again(directory: Path) -> None:
    kept = Kept(directory)
    for number in (1, 2):
        kept.server(number).kill()
    kept.start(3)
    kept.tell(signal.SIGTERM)
    assert kept.code() == 0
    said = [line.partition(" alarm kept ")[2] for line in kept.said().splitlines() if " alarm " in line]
    assert said == [
        "ended server=tests.sidecar.kept_server how=SIGKILL again_in_s=0.0",
        "ended server=tests.sidecar.kept_server how=SIGKILL again_in_s=0.5",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_ends_with_its_server(directory: Path, number: signal.Signals) -> None:
    kept = Kept(directory)
    server = kept.server(1)
    kept.tell(number)
    assert kept.code() == 0
    assert server.dead and not (directory / "start-2").exists()


def test_a_server_that_minds_nothing_is_killed_within_the_grace(directory: Path) -> None:
    kept = Kept(directory, "--mood", "ignores")
    server = kept.server(1)
    kept.tell(signal.SIGTERM)
    assert kept.code() == 128 + signal.SIGKILL
    assert server.dead and "did not end within 0.5 s" in kept.said()


@pytest.mark.parametrize(("mood", "code", "starts"), [("wrong", 64, 1), ("refuses", 1, 2)])
def test_what_a_person_has_to_put_right_ends_it_with_the_servers_code(
    directory: Path, mood: str, code: int, starts: int
) -> None:
    kept = Kept(directory, "--mood", mood)
    assert kept.code() == code
    assert kept.said().count(f"the mood is {mood}") == len(list(directory.glob("start-*"))) == starts


def test_a_mistake_in_the_settings_is_found_before_anything_is_started(directory: Path) -> None:
    kept = Kept(directory, "--no-such-flag")
    assert kept.code() == 64 and not list(directory.glob("start-*"))


def test_other_signals_are_the_servers(directory: Path) -> None:
    kept = Kept(directory)
    server = kept.server(1)
    for number in (signal.SIGHUP, signal.SIGUSR1):
        kept.tell(number)
        until((directory / f"told-{int(number)}").exists, f"{number.name} is passed on")
    assert not server.dead
    kept.tell(signal.SIGTERM)
    assert kept.code() == 0


def test_a_signal_that_the_server_dies_of_ends_everything(directory: Path) -> None:
    kept = Kept(directory, "--mood", "plain")
    server = kept.server(1)
    kept.tell(signal.SIGHUP)
    assert kept.code() == 128 + signal.SIGHUP and server.dead


def test_a_kill_of_the_keeper_leaves_nothing_behind(directory: Path) -> None:
    kept = Kept(directory)
    server = kept.server(1)
    kept.keeper.kill()
    server.wait()
    assert kept.code() == -signal.SIGKILL


def test_orphans_are_adopted_and_collected(directory: Path) -> None:
    kept = Kept(directory, "--mood", "orphan")
    kept.start(1)
    until((directory / "orphan-ended").exists, "the orphan has ended")
    pid = int((directory / "orphan").read_text())
    until(lambda: not os.path.exists(f"/proc/{pid}"), "and it was collected")
    kept.tell(signal.SIGTERM)
    assert kept.code() == 0


def container() -> tuple[str, ...]:
    """Runs a program as PID 1 of a namespace of its own, without root where the kernel allows that."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare")
    command = (unshare, "--user", "--map-root-user", "--fork", "--pid", "--mount-proc", "--kill-child")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("user namespaces are forbidden here (user.max_user_namespaces, kernel.apparmor_restrict_...)")
    return command


def test_as_pid_1_of_a_container_it_starts_again_collects_and_ends(directory: Path) -> None:
    kept = Kept(directory, "--mood", "orphan", through=container())
    assert kept.start(1) > 1
    (pid_1,) = [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and _stands_for(int(entry), "1") and os.fsencode(directory) in cmdline(int(entry))
    ]
    first = Process(_child_of(pid_1))
    first.kill()
    kept.start(2)
    os.kill(pid_1, signal.SIGTERM)
    assert kept.code() == 0


def _stands_for(pid: int, number: str) -> bool:
    """Whether this process has that number in the innermost of its PID namespaces."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    return len(numbers) > 1 and numbers[-1] == number


def _child_of(pid: int) -> int:
    return next(
        int(child)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if b"kept_server" in cmdline(int(child))
    )


LOADED = """
import sys
from {module}.__main__ import parser
from sidecar.machine import keeper
parser().parse_args(sys.argv[1:])
print(*sorted(sys.modules))
"""


@pytest.mark.parametrize(("module", "words"), [("lockserver", ()), ("gms", ("--devices", "cuda"))])
def test_a_keeper_loads_nothing_of_the_server_that_it_keeps(module: str, words: tuple[str, ...]) -> None:
    """A restart in a busy pod waits for the keeper first: what it loads is loaded twice."""
    command = [sys.executable, "-c", LOADED.format(module=module), "--run-dir", "/run/x", *words]
    loaded = set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())
    assert "sidecar.machine.supervisor" in loaded
    assert loaded & {"msgspec", "prometheus_client", "lockserver.shell.server", "gms.shell.supervisor"} == set()

"""Processes that outlive their parent: what the kernel was to kill and didn't, and what a shim gets as the adopter of
orphans or as PID 1 of a container.
"""

import os
import shutil
import signal
from pathlib import Path

import pytest

from lockserver import doctor
from sidecar.kernel import io_uring, process_tree
from sidecar.terminal.findings import Level
from tests.engine.kinds import REFERENCE, TOY, there
from tests.engine.shims import House, Program, Shim
from tests.engine.test_scenarios import all_dead, settled
from tests.support.processes import ROOT, Process
from tests.support.root import needs_root
from tests.support.seccomp import through
from tests.support.slow_exits import dies_slowly, hangs_in_exit
from tests.support.waiting import DEADLINE_S, NEVER_S, until

pytestmark = pytest.mark.chaos
reference = pytest.mark.skipif(REFERENCE not in there(), reason="there is no reference engine")
UNARMED = ROOT / "tests/engine/unarmed"


def without_pdeathsig(house: House) -> tuple[Shim, Shim, Process]:
    """A pair, and a worker of the active one that won't die with its parent, and doesn't see its end either."""
    house.environment["PYTHONPATH"] = f"{UNARMED}:{ROOT}"
    a, b = house.pair(REFERENCE)
    worker = a.workers()[0]
    worker.signal(signal.SIGSTOP)
    return a, b, worker


@reference
def test_a_worker_that_outlives_its_main_process_is_killed_by_the_shim(house: House) -> None:
    """By the shim alone: the lock server, which would kill it too, is stopped."""
    a, b, worker = without_pdeathsig(house)
    assert house.lock is not None
    house.lock.signal(signal.SIGSTOP)
    a.main().kill()
    worker.wait()
    house.lock.signal(signal.SIGCONT)
    settled(house, REFERENCE, b, a)


@reference
def test_a_worker_that_outlives_its_main_process_and_its_shim_is_killed_before_the_other_is_granted(
    house: House,
) -> None:
    a, b, worker = without_pdeathsig(house)
    main = a.main()
    a.kill()
    main.wait()
    b.until("Active", ready=True)
    assert worker.dead
    settled(house, REFERENCE, b, house.shim(REFERENCE, "a"))


@reference
def test_no_engine_is_granted_while_a_worker_lives_that_outlived_its_main_process(house: House) -> None:
    a, b, worker = without_pdeathsig(house)
    traced = Process(worker.pid, os.dup(worker.pidfd))
    with dies_slowly(traced) as let_it_end:
        a.main().kill()
        hangs_in_exit(traced)  # it was killed, and isn't dead
        with pytest.raises(AssertionError, match="not within"):
            until(lambda: house.holder() == "b", "b is granted", deadline_s=NEVER_S)
        assert b.state()["state"] == "Standby" and a.state()["starts"] == 1
        assert not worker.dead
        let_it_end()
        b.until("Active", ready=True)
    settled(house, REFERENCE, b, a)


def container() -> tuple[str, ...]:
    unshare = shutil.which("unshare")
    assert unshare is not None
    return unshare, "--fork", "--pid", "--mount-proc", "--kill-child"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def orphans(shim: Shim) -> list[Process]:
    """What the toy engine has left without a parent (its fault `orphan`)."""
    return [process for process in shim.tree() if b"orphan" in command_of(process.pid)]


def the_shim(shim: Shim) -> Process:
    """Under `unshare` it is that one's child."""
    found = [shim.pid, *process_tree.descendants(shim.pid)]
    return Process(next(pid for pid in found if command_of(pid)[1:3] == [b"-m", b"engine_shim"]))


def command_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.mark.parametrize("where", ["plain", pytest.param("pid 1", marks=[pytest.mark.root, needs_root])])
def test_a_shim_adopts_orphans_takes_the_dead_ones_away_and_ends_the_others_with_their_engine(
    house: House, where: str
) -> None:
    (house.faults("a") / "orphan").touch()
    a = house.one(TOY, through=container() if where == "pid 1" else ())
    shim = the_shim(a)
    if where == "pid 1":
        status = Path(f"/proc/{shim.pid}/status").read_text()
        assert next(line for line in status.splitlines() if line.startswith("NSpid")).split()[-1] == "1"
    until(lambda: len(orphans(a)) == 2, "it has left two")
    first, second = orphans(a)
    until(lambda: parent_of(first.pid) == parent_of(second.pid) == shim.pid, "the shim has them")
    first.kill()
    until(lambda: not os.path.exists(f"/proc/{first.pid}"), "the dead one was taken away")
    assert a.state()["deaths"] == 0 and not second.dead
    before = a.main()
    before.kill()
    second.wait()
    a.until("Active", ready=True, starts=2)
    assert before.pid != a.main().pid
    until(lambda: not os.path.exists(f"/proc/{second.pid}"), "this one, too")
    everything = a.tree()
    shim.signal(signal.SIGTERM)
    assert a.code() == 0
    assert all(process.dead for process in everything)


@pytest.mark.root
@needs_root
def test_as_pid_1_its_end_is_that_of_all_and_only_then_the_other_serves(house: House) -> None:
    (house.faults("a") / "orphan").touch()
    a = house.one(TOY, through=container())
    b = house.shim(TOY, "b")
    b.until("Standby", ready=True)
    everything = [*a.tree(), *orphans(a)]
    assert len(everything) >= 6
    the_shim(a).kill()
    b.until("Active", ready=True)
    assert all(process.dead for process in everything)
    a.wait()


@reference
@pytest.mark.root
@needs_root
def test_a_pair_of_containers_fails_over_and_back(house: House) -> None:
    a = house.one(REFERENCE, through=container())
    b = house.shim(REFERENCE, "b", through=container())
    b.until("Standby", ready=True)
    for active, standby in ((a, b), (b, a)):
        active.main().kill()
        standby.until("Active", ready=True)
        settled(house, REFERENCE, standby, active)
    the_shim(a).kill()
    b.until("Active", ready=True)
    house.answers_as_ever(REFERENCE)


@pytest.mark.root
@needs_root
def test_failover_up_as_pid_1_of_a_container_is_a_pair_and_its_end_is_that_of_all(house: House) -> None:
    place = ("--run-dir", str(house.run_dir))
    words = ("engine_shim.cli.failover", "up", *place, "--engine", TOY.engine, "--devices", "none")
    up = Program(house, "up", *words, through=container())
    house.add(up)
    until(lambda: " a serves at " in up.said() or " b serves at " in up.said(), "an engine serves")
    first = house.holder()
    until(lambda: (s := house.status()) is not None and any(w.ready for w in s.waiters), "an engine is ready")
    everything = [Process(pid) for pid in process_tree.descendants(up.pid)]
    assert len(everything) >= 6  # itself, the lock server, two shims, two engines
    # From outside the numbers that the lock server says are other processes'. (`down` finds its process by the file.)
    outside = Program(house, "outside", "engine_shim.cli.failover", "kill", "active", *place)
    house.add(outside)
    assert outside.code() == 1
    assert "in another PID namespace" in outside.said() and "in its container" in outside.said()
    assert house.holder() == first and not any(process.dead for process in everything)
    one = next(
        pid for pid in process_tree.descendants(up.pid) if command_of(pid)[1:3] == [b"-m", b"engine_shim.cli.failover"]
    )
    into = ("nsenter", "--target", str(one), "--pid", "--mount")
    killed = Program(house, "kill", "engine_shim.cli.failover", "kill", "active", *place, through=into)
    house.add(killed)
    assert killed.code() == 0, killed.said()
    assert house.holder() not in ("", first)
    down = Program(house, "down", "engine_shim.cli.failover", "down", *place, through=into)
    house.add(down)
    assert up.code() == 0
    down.wait()  # with the container's last process
    all_dead(everything)
    assert up.said().splitlines()[-1].endswith("everything has ended")


@reference
@pytest.mark.skipif(bool(io_uring.why_impossible()), reason="there is no io_uring here anyway")
def test_no_process_of_an_engines_tree_has_io_uring(house: House) -> None:
    """What it reads would arrive after the process's end, in memory that is its successor's by then."""
    a, _ = house.pair(REFERENCE)
    tree = process_tree.descendants(a.pid)
    assert len(tree) > 1 and a.workers()
    assert all(io_uring.is_filtered(pid) for pid in [a.pid, *tree])
    (found,) = (each for each in doctor.examine(house.run_dir, DEADLINE_S) if each.check == "io_uring")
    assert found.level is Level.OK and "seccomp" in found.found


@reference
@pytest.mark.skipif(bool(io_uring.why_impossible()), reason="there is no io_uring here anyway")
def test_an_engine_that_cant_be_kept_from_io_uring_runs_all_the_same_and_its_shim_says_so(house: House) -> None:
    a = house.one(REFERENCE, through=tuple(through(seccomp="EPERM")))
    (said,) = (line for line in a.said().splitlines() if "io_uring_not_forbidden" in line)
    assert "warning" in said and "Operation not permitted" in said and "no engine adopts" in said

"""The design's table of beliefs, through the real server: what is believed of a process's end, and what the lock goes
by. The rows that older kernels see in another way: `test_fallbacks.py`."""

import shutil
from datetime import datetime

import pytest

from tests.chaos.house import House
from tests.support.root import needs_root
from tests.support.slow_exits import dies_slowly, hangs_in_exit
from tests.support.waiting import DEADLINE_S, readable

pytestmark = pytest.mark.chaos

MiB = 1 << 20


@pytest.mark.root
@needs_root
def test_a_killed_container_counts_as_alive_until_its_last_child_has_let_go_of_its_memory(house: House) -> None:
    """Belief: the holder's socket closes = it is dead. PID 1's files are closed at once; it ends only when its
    namespace is empty."""
    server = house.server()
    a, _ = house.container()
    a.start("a").holds()
    worker = a.child("fork", keep=False)
    worker.do("hold", size=16 * MiB)
    b = house.engine("b")
    b.wants(watching=[a, worker])
    with dies_slowly(worker) as let_it_end:
        a.signal(9)
        hangs_in_exit(worker)
        server.fences("main process")
        b.never_hears("granted")
        assert not a.dead and not worker.dead
        let_it_end()
    assert b.granted()["dead"] == [True, True]


def test_a_life_lock_on_a_high_descriptor_does_not_release_before_a_lot_of_memory_does(house: House) -> None:
    """The same without any art: the memory's descriptor is low, so it goes last."""
    house.server()
    a, b = house.engine(), house.engine("b")
    a.do("hold", size=384 * MiB)
    a.do("raw_start", run_dir=str(house.run_dir), engine_id="a", high=500)
    b.wants(watching=[a])
    a.kill()
    assert b.granted()["dead"] == [True]


def test_a_spawned_child_that_joins_after_its_parent_was_killed_may_not_and_is_killed_with_the_tree(
    house: House,
) -> None:
    """Belief: children inherit the lock's descriptor. A spawned one has nothing, lives on, and could touch the device
    later."""
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    late, keeper = a.child("exec"), a.child("fork")
    b.wants(watching=[a, late, keeper])
    a.kill()
    server.fences("life lock")
    late.joins(a.tree)
    assert readable(late.pidfd, DEADLINE_S)
    b.never_hears("granted", for_s=0.2)
    keeper.kill()
    assert b.granted()["dead"] == [True, True, True]


def test_memory_that_outlives_its_process_is_waited_for_up_to_the_bound_and_then_granted_with_an_alarm(
    house: House,
) -> None:
    """Belief: a pidfd means the memory is free. A process outside of the tree, to whom it was exported, keeps it in
    use."""
    bound_s = 1.5
    server = house.server(*house.with_memory(), "--memory-bound-s", str(bound_s))
    device = house.device("0", 1000)
    a, b = house.engine("a"), house.engine("b")
    a.holds(needs={device: 600})
    assert server.status().memory == "verified"
    a.do("allocate", path=str(house.devices / "0"), start=0, length=600)
    a.hears("memory")
    b.wants(needs={device: 600})
    a.kill()
    server.fences("memory: b needs 600")
    b.granted()
    status = server.status()
    assert status.state == "HELD" and status.memory == "unverified"
    awaited, granted = (datetime.fromisoformat(server.history(e)[-1].at) for e in ("memory_awaited", "granted"))
    assert (granted - awaited).total_seconds() >= bound_s - 0.01
    assert "b is granted though the memory" in str(server.history("alarm")[-1].detail["text"])


@pytest.mark.root
@needs_root
def test_across_sibling_namespaces_a_member_that_cannot_be_killed_is_named_and_waited_for(house: House) -> None:
    """Belief: pid and start time name a process. The server sees pid 0 here, and its kill is EINVAL."""
    unshare = shutil.which("unshare")
    assert unshare is not None
    server = house.server(through=[unshare, "--fork", "--pid", "--mount-proc", "--kill-child"])
    assert server.status().server_pid == 1
    init, _ = house.container()
    a = init.child("fork", keep=False)
    a.start("a").holds()
    worker = a.child("exec").joins(a.tree).joined()
    b = house.engine("b")
    b.wants(watching=[a, worker])
    a.kill()
    server.fences("can't be killed from here")
    b.never_hears("granted")
    assert not worker.dead
    worker.kill()
    assert b.granted()["dead"] == [True, True]


def test_a_zombie_leader_whose_files_are_closed_is_not_dead(house: House) -> None:
    server = house.server()
    a, b = house.engine(), house.engine("b")
    a.do("hold", size=MiB)
    a.do("raw_start", run_dir=str(house.run_dir), engine_id="a")
    b.wants(watching=[a])
    a.do("end_main_thread")
    a.do("raw_close", part="life")
    a.do("raw_close", part="socket")
    server.fences(f"main process {a.pid} of a is alive")
    b.never_hears("granted")
    a.kill()
    assert b.granted()["dead"] == [True]

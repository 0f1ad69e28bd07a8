"""The rules of the lock on a server that runs: those of `machine.py`'s docstring and the parts of the design's "The
proof", one or more tests each.

What a server does that (re)starts stands in `test_recovery_table.py`, switchover in `test_switchover.py`. `bench.py`
plays the world and checks after every event that nobody is granted while another lives, that tokens grow, that the
disk knew first, and that no handle is lost or forgotten twice.
"""

import math
from typing import Any

import pytest

from lockserver import events as e
from lockserver import messages as m
from lockserver.desk import MEMBERS_MAX
from lockserver.machine import RETRY_PERSIST_S
from lockserver.messages import ACTIVE
from lockserver.queue import ASK_AGAIN_S
from tests.lockserver.bench import Bench, Disk, Engine, Kernel

every_kernel = pytest.mark.parametrize("kernel", list(Kernel), ids=lambda kernel: kernel.name)
with_pidfds = pytest.mark.parametrize("kernel", [Kernel.PIDFS, Kernel.SENT], ids=lambda kernel: kernel.name)
BOUND_S = 30.0


@pytest.fixture
def bench() -> Bench:
    return settled()


def settled(kernel: Kernel = Kernel.PIDFS, *, memory: dict[str, tuple[int, int]] | None = None, **config: Any) -> Bench:
    """A server that runs for a while, with nobody there."""
    bench = Bench(kernel, memory=memory, **config).start()
    bench.advance(3)
    assert bench.state == "FREE"
    return bench


# -- rule 1: fencing begins with either sign, and only the proof ends it -------------------------------------------


@every_kernel
def test_a_death_hands_the_lock_on_at_once(kernel: Kernel) -> None:
    bench = settled(kernel)
    a, b = bench.holder("a"), bench.waiter("b")
    at = bench.now
    bench.kill(a.main)
    assert b.token == a.token + 1 and bench.now == at


@with_pidfds
def test_an_end_of_file_alone_proves_nothing(kernel: Kernel) -> None:
    bench = settled(kernel)
    a, b = bench.holder("a"), bench.waiter("b")
    bench.hangs_up(a.main)
    assert bench.state == "FENCING" and str(a.main.pid) in bench.waiting_for
    bench.advance(300)
    assert not b.holds


def test_a_pidfd_starts_the_fencing_where_the_end_of_file_never_comes(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    child = a.fork()  # it inherited the connection
    bench.dies(a.main)
    bench.pidfd_readable(a.main)
    assert bench.state == "FENCING" and not b.holds
    bench.kill(child)
    bench.advance(1)
    assert b.holds


def test_the_end_of_file_may_come_long_after_the_pidfd(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    conn = a.conn
    bench.dies(a.main)
    bench.pidfd_readable(a.main)
    assert b.holds
    bench.feed(e.Closed(conn))
    assert bench.state == "HELD"


def test_a_free_life_lock_alone_proves_nothing(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    a.main.locks.clear()
    bench.hangs_up(a.main)
    bench.advance(60)
    assert not b.holds


def test_dead_members_alone_prove_nothing_while_somebody_who_did_not_join_has_the_life_lock(bench: Bench) -> None:
    a, b = bench.holder("a", children=1), bench.waiter("b")
    grandchild = a.fork()
    bench.kill(*a.processes[:2])
    bench.advance(300)
    assert not b.holds and "did not join" in bench.waiting_for
    bench.kill(grandchild)
    bench.advance(0.2)
    assert b.holds


def test_every_member_must_be_gone(bench: Bench) -> None:
    a, b = bench.holder("a", children=3), bench.waiter("b")
    bench.unkillable.update(a.processes[1:])
    bench.kill(a.main)
    for child in a.processes[1:]:
        assert not b.holds and str(child.pid) in bench.waiting_for
        bench.kill(child)
    assert b.holds


def test_the_same_process_may_come_back_after_an_end_of_file_and_goes_on(bench: Bench) -> None:
    a, b = bench.holder("a", children=1), bench.waiter("b")
    bench.hangs_up(a.main)
    bench.advance(5)
    a.register()
    assert bench.state == "HELD" and not a.refused and bench.tokens == [a.token]
    welcome = a.last(m.Welcome)
    assert welcome is not None and welcome.holds == {ACTIVE: a.token}
    bench.advance(60)
    assert not b.holds


def test_after_its_pidfd_was_readable_nobody_comes_back_under_its_name(bench: Bench) -> None:
    a = bench.holder("a", children=1)
    bench.unkillable.add(a.processes[1])
    bench.kill(a.main)
    a.register(process=a.processes[1])
    assert "fenced" in a.refused


def test_a_child_that_died_before_counts_no_more(bench: Bench) -> None:
    a, b = bench.holder("a", children=2), bench.waiter("b")
    bench.kill(a.processes[1])
    holder = bench.status.holder
    assert bench.state == "HELD" and holder is not None
    assert [member.pid for member in holder.members] == [a.main.pid, a.processes[2].pid]
    bench.kill_tree(a)
    assert b.holds


def test_the_members_are_on_the_disk_as_they_come(bench: Bench) -> None:
    a = bench.holder("a", children=2)
    assert bench.record is not None and bench.record.active is not None
    assert [member.pid for member in bench.record.active.members] == [process.pid for process in a.processes]
    assert all(member.identity for member in bench.record.active.members)


def test_the_pidfd_is_watched_before_the_grant(bench: Bench) -> None:
    a = bench.engine("a").register()
    assert any(bench.handles[handle] is a.main for handle in bench.watched)
    a.acquire()
    assert a.holds


def test_without_any_pidfds_the_connections_and_the_life_lock_decide() -> None:
    bench = settled(Kernel.NONE, evidence="end-of-file only")
    a, b = bench.holder("a", children=1), bench.waiter("b")
    bench.kill(a.main)
    bench.advance(60)
    assert not b.holds and bench.status.evidence == "end-of-file only"
    bench.kill(a.processes[1])
    bench.advance(0.2)
    assert b.holds


# -- killing what outlives its main process ------------------------------------------------------------------------


@with_pidfds
def test_what_outlives_its_main_process_is_killed(kernel: Kernel) -> None:
    bench = settled(kernel)
    a, b = bench.holder("a", children=3), bench.waiter("b")
    bench.kill(a.main)
    assert not a.alive and b.holds


def test_what_outlives_a_waiters_main_process_is_killed_too(bench: Bench) -> None:
    bench.holder("a")
    b = bench.waiter("b")
    b.join()
    bench.kill(b.main)
    assert not b.alive and bench.state == "HELD"


def test_nobody_is_killed_for_an_end_of_file(bench: Bench) -> None:
    a = bench.holder("a", children=2)
    bench.hangs_up(a.main)
    bench.advance(60)
    assert all(process.alive for process in a.processes)


def test_what_cannot_be_killed_is_named_and_waited_for(bench: Bench) -> None:
    a, b = bench.holder("a", children=1), bench.waiter("b")
    child = a.processes[1]
    bench.unkillable.add(child)
    bench.kill(a.main)
    assert f"process {child.pid} of a is alive, which can't be killed from here" in bench.waiting_for
    bench.advance(300)
    assert not b.holds
    bench.kill(child)
    assert b.holds


# -- rule 2: nobody joins what is condemned ------------------------------------------------------------------------


def joins(engine: Engine) -> str:
    """A late child's answer: empty when it was welcomed."""
    before = set(engine.bench.said)
    engine.join()
    (conn,) = set(engine.bench.said) - before
    refused = engine.bench.last(conn, m.Refused)
    assert refused is not None or engine.bench.last(conn, m.Welcome) is not None
    return refused.why if refused else ""


def test_nobody_joins_a_tree_whose_main_process_is_dead(bench: Bench) -> None:
    a = bench.holder("a", children=1)
    bench.unkillable.add(a.processes[1])
    bench.kill(a.main)
    assert "fenced" in joins(a)


def test_nobody_joins_a_tree_whose_main_process_has_lost_its_connection(bench: Bench) -> None:
    a = bench.holder("a")
    bench.hangs_up(a.main)
    assert "fenced" in joins(a)
    a.register()
    assert joins(a) == ""


def test_nobody_joins_a_tree_that_is_proven_gone_even_before_the_disk_knows(bench: Bench) -> None:
    a = bench.holder("a")
    bench.disk = Disk.FAILS
    bench.kill(a.main)
    assert "gone" in joins(a)
    bench.advance(30)
    assert "gone" in joins(a)


def test_nobody_joins_a_tree_that_was_told_to_exit(bench: Bench) -> None:
    a = bench.holder("a")
    bench.waiter("b")
    asker = bench.observer()
    bench.receive(asker, m.Switchover())
    drain = a.last(m.Drain)
    assert drain is not None
    a.says(m.Drained(round=drain.round))
    assert a.heard(m.Exit)
    assert "fenced" in joins(a)


def test_a_join_without_the_life_lock_is_refused(bench: Bench) -> None:
    a = bench.holder("a")
    child = a.fork()
    child.locks.clear()
    before = len(bench.status.holder.members)  # type: ignore[union-attr]
    a.join(child)
    assert child not in a.numbers
    assert len(bench.status.holder.members) == before  # type: ignore[union-attr]


def test_a_registration_without_the_life_lock_is_refused(bench: Bench) -> None:
    a = bench.engine("a")
    a.main.locks.clear()
    a.register()
    assert "life file" in a.refused


def test_a_join_is_acknowledged_only_when_the_holder_file_names_the_process(bench: Bench) -> None:
    a = bench.holder("a")
    bench.disk = Disk.SLOW
    child = a.join()
    assert child not in a.numbers
    bench.write_lands()
    assert bench.record is not None and bench.record.active is not None
    assert child.pid in [member.pid for member in bench.record.active.members]
    assert any(bench.last(conn, m.Welcome) for conn, owner in bench.conns.items() if owner is child)


def test_a_join_whose_write_fails_is_not_acknowledged_until_one_succeeds(bench: Bench) -> None:
    a = bench.holder("a")
    bench.disk = Disk.FAILS
    child = a.join()
    bench.advance(5)
    conn = next(conn for conn, owner in bench.conns.items() if owner is child)
    assert not bench.heard(conn, m.Welcome)
    bench.disk = Disk.WORKS
    bench.advance(RETRY_PERSIST_S)
    assert len(bench.heard(conn, m.Welcome)) == 1


def test_an_unacknowledged_process_counts_all_the_same(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    bench.disk = Disk.SLOW
    child = a.join()
    bench.unkillable.add(child)
    bench.kill(a.main)
    while bench.writes:
        bench.write_lands()
    bench.advance(30)
    assert not b.holds and str(child.pid) in bench.waiting_for


def test_an_adopted_child_counts_like_one_that_joined(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    child = a.fork()
    a.says(m.Adopt(child=7, pid=child.pid), [child])
    assert a.last(m.Adopted) == m.Adopted(child=7)
    bench.unkillable.add(child)
    bench.kill(a.main)
    assert not b.holds and str(child.pid) in bench.waiting_for
    bench.kill(child)
    assert b.holds


def test_adopt_takes_exactly_one_pidfd(bench: Bench) -> None:
    a = bench.engine("a").register()
    a.says(m.Adopt(child=1, pid=5), [])
    assert a.heard(m.Problem) and not a.connected


def test_a_child_that_connects_again_stays_one_member(bench: Bench) -> None:
    a = bench.holder("a", children=1)
    for _ in range(5):
        bench.hangs_up(a.processes[1])
        a.join(a.processes[1])
    holder = bench.status.holder
    assert holder is not None and len(holder.members) == 2


def test_a_tree_has_a_bound(bench: Bench) -> None:
    a = bench.engine("a").register()
    for _ in range(MEMBERS_MAX - 1):
        assert joins(a) == ""
    assert str(MEMBERS_MAX) in joins(a)
    child = a.fork()
    a.says(m.Adopt(child=1, pid=child.pid), [child])
    assert a.heard(m.Problem)


def test_a_child_that_says_the_main_process_number_does_not_take_its_place(bench: Bench) -> None:
    a = bench.engine("a")
    a.join(number=1)
    a.register()
    assert not a.refused


# -- rule 3: memory ------------------------------------------------------------------------------------------------


def on_a_gpu(free: int = 80, **config: Any) -> Bench:
    return settled(memory={"gpu": (free, 80)}, **config)


def test_the_next_one_is_granted_only_when_its_memory_is_free() -> None:
    bench = on_a_gpu()
    a, b = bench.holder("a"), bench.waiter("b", gpu=60)
    bench.memory = {"gpu": (20, 80)}
    bench.kill(a.main)
    bench.advance(5)
    assert bench.state == "FENCING" and not b.holds
    assert "memory: b needs 60 bytes of gpu, and less is free" in bench.waiting_for
    bench.memory = {"gpu": (60, 80)}
    bench.advance(0.05)
    assert b.holds and bench.status.memory == "verified"


def test_every_device_that_is_needed_must_have_it_free() -> None:
    bench = settled(memory={"gpu0": (80, 80), "gpu1": (10, 80)})
    b = bench.waiter("b", gpu0=50, gpu1=50)
    bench.advance(5)
    assert not b.holds
    bench.memory = {"gpu0": (80, 80), "gpu1": (50, 80)}
    bench.advance(0.05)
    assert b.holds


def test_a_reading_from_before_the_death_proves_nothing() -> None:
    bench = on_a_gpu()
    a, b = bench.holder("a"), bench.waiter("b", gpu=60)
    bench.reads_answered = False
    bench.memory = {"gpu": (0, 80)}
    bench.kill(a.main)
    assert not b.holds
    bench.advance(1)
    assert not b.holds


def test_at_the_bound_the_next_whose_need_is_met_is_tried() -> None:
    bench = on_a_gpu()
    a = bench.holder("a")
    big, small = bench.waiter("big", gpu=70), bench.waiter("small", gpu=10)
    bench.memory = {"gpu": (30, 80)}
    bench.kill(a.main)
    bench.advance(BOUND_S - 0.1)
    assert not big.holds and not small.holds
    bench.advance(0.3)
    assert small.holds and not big.holds and bench.status.memory == "verified"


def test_at_the_bound_with_nobodys_need_met_the_first_is_granted_with_an_alarm() -> None:
    bench = on_a_gpu()
    a = bench.holder("a")
    b, c = bench.waiter("b", gpu=70), bench.waiter("c", gpu=60)
    bench.memory = {"gpu": (30, 80)}
    bench.kill(a.main)
    bench.advance(BOUND_S + 0.3)
    assert b.holds and not c.holds
    assert bench.shouted("memory that it needs was not free") and bench.status.memory == "unverified"


def test_the_bound_begins_only_when_everything_else_is_proven() -> None:
    bench = on_a_gpu()
    a, b = bench.holder("a"), bench.waiter("b", gpu=70)
    stray = a.fork()
    bench.memory = {"gpu": (30, 80)}
    bench.kill(a.main)
    bench.advance(BOUND_S * 3)
    assert not b.holds
    bench.kill(stray)
    bench.advance(BOUND_S - 0.5)
    assert not b.holds
    bench.advance(1)
    assert b.holds


def test_the_bound_is_never_a_way_round_the_life_lock() -> None:
    bench = on_a_gpu(memory_bound_s=1.0)
    a, b = bench.holder("a"), bench.waiter("b", gpu=70)
    a.fork()
    bench.kill(a.main)
    bench.advance(300)
    assert not b.holds


def test_a_silent_one_is_not_waited_for_when_the_next_fits_at_the_bound() -> None:
    bench = on_a_gpu()
    a = bench.holder("a")
    big, silent, small = bench.waiter("big", gpu=70), bench.waiter("silent", gpu=5), bench.waiter("small", gpu=10)
    silent.wakes = None
    bench.memory = {"gpu": (30, 80)}
    bench.kill(a.main)
    bench.advance(BOUND_S + 3)
    assert small.holds and not silent.holds and not big.holds


def test_more_than_the_device_has_is_refused_at_once() -> None:
    bench = on_a_gpu()
    a = bench.engine("a").register().acquire(gpu=81)
    assert "81 bytes of gpu are needed, and it has 80 in all" in a.refused
    assert a.connected and not bench.status.waiters


def test_a_device_that_is_not_there_is_refused_at_once_and_the_answer_names_those_that_are() -> None:
    bench = on_a_gpu()
    a = bench.engine("a").register().acquire(gpx=1)
    assert "'gpx'" in a.refused and "gpu" in a.refused


def test_needs_may_be_updated_and_are_looked_at_anew() -> None:
    bench = on_a_gpu(free=20)
    b = bench.waiter("b", gpu=60)
    bench.advance(1)
    assert not b.holds
    b.says(m.Ready(needs={"gpu": 20}))
    assert bench.status.waiters == [] and b.holds
    c = bench.waiter("c", gpu=1)
    c.says(m.Ready(needs={"gpu": 1000}))
    assert "1000 bytes" in c.refused


def test_a_reader_that_fails_is_an_alarm_and_the_bound_still_holds() -> None:
    bench = on_a_gpu()
    a, b = bench.holder("a"), bench.waiter("b", gpu=10)
    bench.reader_problem = "NVMLError: gone"
    bench.kill(a.main)
    bench.advance(1)
    assert "NVMLError: gone" in bench.alarms and not b.holds and bench.status.memory == "unverified"
    bench.advance(BOUND_S)
    assert b.holds and bench.status.memory == "unverified"


def test_a_reader_that_works_again_calms_its_alarm() -> None:
    bench = on_a_gpu()
    a, b = bench.holder("a"), bench.waiter("b", gpu=10)
    bench.reader_problem = "NVMLError: gone"
    bench.kill(a.main)
    bench.advance(1)
    bench.reader_problem = ""
    bench.advance(1)
    assert b.holds and not bench.alarms and bench.status.memory == "verified"


def test_where_nobody_reads_memory_status_says_so(bench: Bench) -> None:
    a = bench.engine("a").register().acquire(gpu=10**12)
    assert a.holds and bench.status.memory == "unverified"


def test_one_who_needs_nothing_waits_for_no_memory_and_is_not_called_verified() -> None:
    bench = on_a_gpu(free=0)
    a = bench.waiter("a")
    assert a.holds and bench.status.memory == "unverified"


# -- rule 4: there, alive, ready, and has looked -------------------------------------------------------------------


def test_waiters_are_granted_in_their_order(bench: Bench) -> None:
    a = bench.holder("a")
    line = [bench.waiter(name) for name in "bcd"]
    for before, after in zip([a, *line], line, strict=False):
        bench.kill(before.main)
        assert after.holds
    assert bench.tokens == sorted(bench.tokens)


def test_acquiring_again_keeps_the_place(bench: Bench) -> None:
    a, b, c = bench.holder("a"), bench.waiter("b"), bench.waiter("c")
    b.acquire()
    bench.kill(a.main)
    assert b.holds and not c.holds


def test_one_who_is_not_ready_is_passed_over_and_keeps_its_place(bench: Bench) -> None:
    a, b, c = bench.holder("a"), bench.waiter("b"), bench.waiter("c")
    b.says(m.Ready(ready=False))
    bench.kill(a.main)
    assert c.holds and not b.holds
    d = bench.waiter("d")
    b.says(m.Ready())
    bench.kill(c.main)
    assert b.holds and not d.holds


def test_with_nobody_ready_the_lock_is_free_and_the_first_who_becomes_ready_gets_it(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    b.says(m.Ready(ready=False))
    bench.kill(a.main)
    assert bench.state == "FREE"
    b.says(m.Ready())
    assert b.holds


def test_the_next_one_is_asked_while_the_proof_is_collected(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    b.wakes = None
    bench.hangs_up(a.main)
    assert b.heard(m.Prepare), "the old holder isn't even known to be dead"
    b.looks()
    bench.dies(a.main)
    bench.pidfd_readable(a.main)
    assert b.holds


def test_what_a_waiter_said_of_its_engine_before_the_loss_does_not_count(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    b.wakes = None
    bench.kill(a.main)
    assert not b.holds
    b.says(m.Prepared(round=bench.machine.queue.round - 1, ok=True))
    assert not b.holds
    b.looks()
    assert b.holds


def test_a_silent_one_is_passed_over_after_its_time_and_keeps_its_place(bench: Bench) -> None:
    a, silent, c = bench.holder("a"), bench.waiter("silent"), bench.waiter("c")
    silent.wakes = None
    bench.kill(a.main)
    assert not c.holds and "silent: asked whether its engine can wake" in bench.waiting_for
    bench.advance(0.9)
    assert not c.holds
    bench.advance(0.2)
    assert c.holds
    assert [waiter.engine_id for waiter in bench.status.waiters] == ["silent"]
    silent.wakes = True
    d = bench.waiter("d")
    bench.kill(c.main)
    assert silent.holds and not d.holds


def test_one_whose_engine_is_broken_is_passed_over_at_once_and_asked_again(bench: Bench) -> None:
    a, broken, c = bench.holder("a"), bench.waiter("broken"), bench.waiter("c")
    broken.wakes = False
    bench.kill(a.main)
    assert c.holds
    bench.kill(c.main)
    assert not broken.holds and bench.noted("not_prepared")
    bench.advance(ASK_AGAIN_S * 3)
    assert not broken.holds
    broken.wakes = True
    bench.advance(ASK_AGAIN_S * 1.1)
    assert broken.holds


def test_a_late_answer_is_good_enough_when_nobody_else_is_there(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    b.wakes = None
    bench.kill(a.main)
    bench.advance(50)
    assert not b.holds
    b.looks()
    assert b.holds


def test_one_who_died_is_never_granted(bench: Bench) -> None:
    a, b, c = bench.holder("a"), bench.waiter("b"), bench.waiter("c")
    bench.kill(b.main)
    bench.kill(a.main)
    assert c.holds
    assert b.token == 0


@with_pidfds
def test_one_who_dies_while_it_is_asked_is_passed_over(kernel: Kernel) -> None:
    bench = settled(kernel)
    a, b, c = bench.holder("a"), bench.waiter("b"), bench.waiter("c")
    b.wakes = None
    bench.kill(a.main)
    bench.kill(b.main)
    assert c.holds


def test_one_whose_connection_ended_must_ask_again(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    bench.hangs_up(b.main)
    bench.kill(a.main)
    assert bench.state == "FREE"
    b.register()
    assert not b.holds
    b.acquire()
    assert b.holds


# -- rule 5: first on the disk, then told --------------------------------------------------------------------------


def test_nobody_is_told_before_the_write_has_landed(bench: Bench) -> None:
    bench.disk = Disk.SLOW
    a = bench.waiter("a")
    assert bench.writes and not a.heard(m.Granted)
    assert bench.state == "FENCING" and "is being written" in bench.waiting_for
    assert bench.status.holder is None
    bench.write_lands()
    assert a.holds and bench.state == "HELD"


def test_the_record_names_the_holder_its_token_and_its_life_file(bench: Bench) -> None:
    a = bench.holder("a")
    assert bench.record is not None and bench.record.active is not None
    tenure = bench.record.active
    assert (tenure.engine_id, tenure.incarnation, tenure.token, tenure.life_file) == (
        "a",
        a.incarnation,
        a.token,
        a.name,
    )
    assert tenure.granted_at.endswith("Z") and tenure.members[0].pid == a.main.pid
    assert tenure.secret == a.secret


def test_a_grant_that_cannot_be_written_is_not_made_and_somebody_is_called(bench: Bench) -> None:
    bench.disk = Disk.FAILS
    a = bench.waiter("a")
    bench.advance(60)
    assert not a.holds and "holder.json can't be written (No space left on device)" in bench.alarms
    assert "can't be written" in bench.waiting_for
    bench.disk = Disk.WORKS
    bench.advance(RETRY_PERSIST_S)
    assert a.holds and not bench.alarms


def test_a_grant_that_failed_is_decided_anew_by_what_is_so_then(bench: Bench) -> None:
    bench.disk = Disk.FAILS
    a, b = bench.waiter("a"), bench.waiter("b")
    bench.advance(3)
    bench.kill(a.main)
    bench.disk = Disk.WORKS
    bench.advance(RETRY_PERSIST_S * 2)
    assert b.holds and a.token == 0


def test_a_grant_that_failed_leaves_the_waiter_its_place(bench: Bench) -> None:
    bench.disk = Disk.SLOW
    a = bench.waiter("a")
    b = bench.waiter("b")
    bench.write_fails()
    assert [waiter.engine_id for waiter in bench.status.waiters] == ["a", "b"]
    bench.disk = Disk.WORKS
    bench.advance(RETRY_PERSIST_S)
    assert a.holds and not b.holds


def test_a_token_that_was_not_told_is_not_used_again(bench: Bench) -> None:
    bench.disk = Disk.SLOW
    a = bench.waiter("a")
    first = bench.writes[0].record.token
    bench.write_fails()
    bench.disk = Disk.WORKS
    bench.advance(1)
    assert a.token > first


def test_one_who_lost_its_connection_during_the_write_learns_of_its_grant_when_it_is_back(bench: Bench) -> None:
    bench.disk = Disk.SLOW
    a, b = bench.waiter("a"), bench.waiter("b")
    bench.hangs_up(a.main)
    bench.disk = Disk.WORKS
    bench.write_lands()
    assert not a.holds and bench.state == "FENCING"
    a.register()
    assert a.holds and bench.state == "HELD" and not b.holds


def test_one_who_dies_during_the_write_never_holds_and_the_next_one_does(bench: Bench) -> None:
    bench.disk = Disk.SLOW
    a, b = bench.waiter("a"), bench.waiter("b")
    bench.kill(a.main)
    while bench.writes:
        bench.write_lands()
    assert a.token == 0 and b.holds


def test_while_the_disk_fails_a_death_hands_nothing_on(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    bench.disk = Disk.FAILS
    bench.kill(a.main)
    bench.advance(30)
    assert not b.holds
    bench.disk = Disk.WORKS
    bench.advance(RETRY_PERSIST_S)
    assert b.holds


# -- rule 6: the life file goes last -------------------------------------------------------------------------------


def test_a_holders_life_file_is_unlinked_only_when_its_end_is_on_the_disk(bench: Bench) -> None:
    a = bench.holder("a")
    bench.disk = Disk.SLOW
    bench.kill(a.main)
    assert a.name in bench.life
    assert a.name in bench.writes[0].record.gone
    bench.write_lands()
    assert a.name not in bench.life


def test_the_end_of_a_holder_is_written_though_nobody_waits(bench: Bench) -> None:
    a = bench.holder("a")
    bench.kill(a.main)
    assert bench.record is not None and bench.record.active is None and a.name not in bench.life


def test_a_waiters_life_file_goes_with_its_proof(bench: Bench) -> None:
    bench.holder("a")
    b = bench.waiter("b")
    stray = b.fork()
    bench.kill(b.main)
    bench.advance(1)
    assert b.name in bench.life
    bench.kill(stray)
    bench.advance(1)
    assert b.name not in bench.life


def test_life_files_that_nobody_holds_are_cleared_away_by_a_server_that_knows_of_no_holder(bench: Bench) -> None:
    bench.kill_tree(bench.holder("a"))
    stale = bench.engine("stale")
    bench.dies(stale.main)
    bench.restart()
    assert stale.name not in bench.life


def test_the_restarted_namesake_does_not_keep_its_predecessor_alive(bench: Bench) -> None:
    a = bench.holder("a", children=1)
    bench.unkillable.add(a.processes[1])
    bench.kill(a.main)
    again = bench.waiter("a")
    bench.advance(5)
    assert not again.holds, "its predecessor dies slowly"
    bench.kill(a.processes[1])
    assert again.holds and again.token == a.token + 1


# -- identity ------------------------------------------------------------------------------------------------------


def test_a_new_connection_of_the_same_process_replaces_its_old_one(bench: Bench) -> None:
    a = bench.holder("a")
    first = a.conn
    a.register()
    assert first not in bench.conns and a.connected
    assert bench.state == "HELD" and not bench.noted("fencing")
    bench.feed(e.Closed(first))
    assert bench.state == "HELD"


def test_a_waiter_that_replaces_its_connection_hears_on_the_new_one(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    b.register().acquire()
    bench.kill(a.main)
    assert b.holds


@every_kernel
def test_another_process_with_the_same_name_and_incarnation_is_refused(kernel: Kernel) -> None:
    bench = settled(kernel)
    a = bench.holder("a")
    impostor, conn = a.fork(), a.conn
    a.register(process=impostor, secret="guessed")
    assert "another process" in a.refused
    assert conn in bench.conns and bench.state == "HELD"


@every_kernel
def test_two_starts_of_one_engine_are_two_and_wait_for_each_other(kernel: Kernel) -> None:
    bench = settled(kernel)
    first, second = bench.holder("a"), bench.waiter("a")
    assert not second.holds and len(bench.status.waiters) == 1
    bench.kill(first.main)
    assert second.holds


def test_where_pidfds_have_inodes_the_secret_is_not_needed(bench: Bench) -> None:
    a = bench.holder("a")
    bench.hangs_up(a.main)
    a.register(secret="")
    assert bench.state == "HELD"


@pytest.mark.parametrize("kernel", [Kernel.SENT], ids=["SENT"])
def test_on_older_kernels_the_secret_is_needed(kernel: Kernel) -> None:
    bench = settled(kernel)
    a = bench.holder("a")
    secret = a.secret
    bench.hangs_up(a.main)
    a.register(secret="")
    assert a.refused
    a.register(secret=secret)
    assert bench.state == "HELD"


def test_a_claim_of_a_token_that_has_ended_is_refused(bench: Bench) -> None:
    a = bench.holder("a")
    token = a.token
    bench.kill(a.main)
    ghost = bench.engine("ghost").register(claims={ACTIVE: token})
    assert "has ended" in ghost.refused


def test_a_claim_against_a_holder_is_refused(bench: Bench) -> None:
    bench.holder("a")
    ghost = bench.engine("ghost").register(claims={ACTIVE: 10**9})
    assert "a was granted the lock" in ghost.refused and bench.state == "HELD"


# -- rule 8, and copies for the server's successor -----------------------------------------------------------------


def test_tokens_only_grow_across_restarts_and_lost_files(bench: Bench) -> None:
    for lost in (False, True, False, True):
        a = bench.holder("a")
        bench.kill(a.main)
        bench.advance(1)
        if lost:
            bench.crash().file = None
        bench.restart()
        bench.advance(3)
    assert len(bench.tokens) == 4  # that they grow is checked with every grant


def test_the_first_waiters_keep_copies_of_the_holders_pidfds() -> None:
    bench = settled(keepers=2)
    a = bench.holder("a", children=2)
    b, c, d = bench.waiter("b"), bench.waiter("c"), bench.waiter("d")
    for keeper in (b, c):
        keep, processes = keeper.copies[a.name]
        assert keep.token == a.token and keep.numbers == [1, 2, 3] and list(processes) == a.processes
    assert not d.copies


def test_when_a_keeper_leaves_the_next_one_gets_the_copies() -> None:
    bench = settled(keepers=1)
    a, b, c = bench.holder("a"), bench.waiter("b"), bench.waiter("c")
    assert a.name not in c.copies
    bench.kill(b.main)
    assert c.copies[a.name][1] == (a.main,)


def test_copies_follow_the_members_and_go_out_before_the_join_is_acknowledged(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    bench.disk = Disk.SLOW
    child = a.join()
    assert child in b.copies[a.name][1], "the join isn't even acknowledged"
    assert child not in a.numbers


def test_a_main_process_keeps_its_own_childrens_pidfds(bench: Bench) -> None:
    bench.holder("a")
    b = bench.waiter("b")
    child = b.join()
    keep, processes = b.copies[b.name]
    assert keep.numbers == [2] and processes == (child,)


def test_copies_of_the_dead_are_not_handed_out(bench: Bench) -> None:
    a = bench.holder("a", children=1)
    child = a.processes[1]
    bench.kill(child)
    b = bench.waiter("b")
    assert b.copies[a.name][1] == (a.main,)


def test_a_hand_back_to_a_server_that_knows_better_changes_nothing(bench: Bench) -> None:
    a, b = bench.holder("a", children=1), bench.waiter("b")
    b.hand_back(a)
    b.hand_back(a)
    assert bench.state == "HELD" and len(bench.status.holder.members) == 2  # type: ignore[union-attr]
    bench.kill_tree(a)
    assert b.holds


# -- the permit `init` ---------------------------------------------------------------------------------------------


def wants_permit(engine: Engine) -> Engine:
    engine.says(m.Acquire(lock="init"))
    return engine


def has_permit(engine: Engine) -> bool:
    return engine.bench.status.permits["init"].holder == engine.engine_id and bool(
        [g for g in engine.heard(m.Granted) if g.lock == "init"]
    )


def test_one_engine_at_a_time_initialises_device_memory(bench: Bench) -> None:
    a, b, c = (wants_permit(bench.engine(name).register()) for name in "abc")
    assert has_permit(a) and not has_permit(b) and bench.status.permits["init"].waiters == ["b", "c"]
    a.says(m.Release())
    assert has_permit(b)
    bench.kill(b.main)
    assert has_permit(c)


def test_a_permit_is_free_only_when_its_holder_is_proven_gone(bench: Bench) -> None:
    a, b = wants_permit(bench.engine("a").register()), wants_permit(bench.engine("b").register())
    stray = a.fork()
    bench.kill(a.main)
    bench.advance(30)
    assert not has_permit(b) and "life lock of a" in str(bench.status.permits["init"].waiting_for)
    bench.kill(stray)
    bench.advance(1)
    assert has_permit(b)


def test_no_permit_between_a_holders_death_and_its_successors_active(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    a.says(m.Serving(url="unix:a"))
    stray = a.fork()
    bench.kill(a.main)
    c = wants_permit(bench.engine("c").register())
    bench.advance(1)
    assert not has_permit(c) and "FENCING" in str(bench.status.permits["init"].waiting_for)
    bench.kill(stray)
    bench.advance(1)
    assert b.holds and not has_permit(c) and "b is waking" in str(bench.status.permits["init"].waiting_for)
    b.says(m.Serving(url="unix:b"))
    assert has_permit(c)


def test_a_waiter_that_is_silent_does_not_keep_others_from_the_permit(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    a.says(m.Serving(url="unix:a"))
    b.wakes = None
    bench.kill(a.main)
    c = wants_permit(bench.engine("c").register())
    assert not has_permit(c) and "FENCING" in str(bench.status.permits["init"].waiting_for)
    bench.advance(1.1)
    assert has_permit(c)
    c.says(m.Release())
    c.acquire()
    assert c.holds


def test_a_permit_is_persisted_before_it_is_told(bench: Bench) -> None:
    bench.disk = Disk.SLOW
    a = wants_permit(bench.engine("a").register())
    assert not a.heard(m.Granted)
    bench.write_lands()
    assert has_permit(a)


def test_a_permit_whose_write_failed_is_given_when_the_disk_works(bench: Bench) -> None:
    bench.disk = Disk.FAILS
    a = wants_permit(bench.engine("a").register())
    bench.advance(3)
    assert not a.heard(m.Granted)
    bench.disk = Disk.WORKS
    bench.advance(RETRY_PERSIST_S)
    assert has_permit(a)


def test_the_holder_of_both_gives_both_back_by_dying(bench: Bench) -> None:
    a = wants_permit(bench.engine("a").register())
    a.acquire()
    assert a.holds and has_permit(a)
    b = bench.waiter("b")
    wants_permit(b)
    bench.kill(a.main)
    assert b.holds
    b.says(m.Serving(url="u"))
    assert has_permit(b) and a.name not in bench.life


def test_a_withdrawn_wish_for_the_permit_leaves_the_line(bench: Bench) -> None:
    a, b = (wants_permit(bench.engine(name).register()) for name in "ab")
    b.says(m.Release())
    a.says(m.Release())
    assert bench.status.permits["init"].holder is None and not has_permit(b)


# -- observers -----------------------------------------------------------------------------------------------------


def test_only_the_holder_serves_and_everybody_may_know_where(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    a.says(m.Serving(url="unix:/run/a.sock"))
    assert bench.status.holder is not None and bench.status.holder.endpoint == "unix:/run/a.sock"
    assert (
        bench.record is not None
        and bench.record.active is not None
        and bench.record.active.endpoint == "unix:/run/a.sock"
    )
    b.says(m.Serving(url="unix:/run/b.sock"))
    assert b.heard(m.Problem) and not b.connected


def test_an_address_can_be_taken_back(bench: Bench) -> None:
    a = bench.holder("a")
    a.says(m.Serving(url="u"))
    a.says(m.Serving(url=""))
    assert bench.status.holder is not None and bench.status.holder.endpoint is None


def test_a_successor_does_not_inherit_the_address(bench: Bench) -> None:
    a, b = bench.holder("a"), bench.waiter("b")
    a.says(m.Serving(url="u"))
    bench.kill(a.main)
    assert b.holds and bench.status.holder is not None and bench.status.holder.endpoint is None


def test_every_change_of_state_is_published(bench: Bench) -> None:
    def published() -> bool:
        return e.Publish() in bench.effects

    watcher = bench.observer()
    bench.receive(watcher, m.Watch())
    assert published() and bench.machine.desk.watchers() == [watcher]
    a = bench.holder("a")
    assert published()
    a.says(m.Serving(url="u"))
    assert published()
    b = bench.waiter("b")
    assert published()
    b.says(m.Ready(ready=False))
    assert published()
    child = a.join()
    assert published()
    bench.kill(child)
    assert published()
    bench.hangs_up(a.main)
    assert published() and bench.state == "FENCING"
    bench.hangs_up(bench.conns[watcher])
    assert bench.machine.desk.watchers() == []


def test_the_end_of_the_window_is_published_too() -> None:
    bench = settled()
    bench.holder("a")
    bench.restart()
    bench.advance(bench.machine.deadline - bench.now)
    assert bench.state in ("RECOVERING", "FENCING")
    while bench.state == "RECOVERING":
        bench.effects = []
        bench.now = bench.machine.deadline
        bench.feed(e.Tick())
    assert e.Publish() in bench.effects


def test_status_history_and_ping_are_answered(bench: Bench) -> None:
    bench.holder("a")
    conn = bench.observer()
    for question in (m.AskStatus(), m.AskHistory(), m.Ping()):
        bench.receive(conn, question)
    status, history, pong = bench.said[conn]
    assert isinstance(status, m.Status) and status.state == "HELD"
    assert isinstance(history, m.History) and "granted" in [event.event for event in history.events]
    assert pong == m.Pong(server_incarnation=bench.machine.config.server_incarnation)


def test_the_history_has_a_bound() -> None:
    bench = settled(history_size=10)
    for _ in range(20):
        bench.kill(bench.holder("a").main)
    conn = bench.observer()
    bench.receive(conn, m.AskHistory())
    history = bench.last(conn, m.History)
    assert history is not None and len(history.events) == 10


def test_a_mistake_costs_the_sender_its_connection_and_nobody_else_anything(bench: Bench) -> None:
    a = bench.holder("a")
    mistakes: list[tuple[m.ClientMessage, m.ClientMessage | None]] = [
        (m.Ping(), None),
        (m.Observe(protocol=m.PROTOCOL), m.Observe(protocol=m.PROTOCOL)),
        (m.Observe(protocol=m.PROTOCOL), m.Acquire()),
        (m.Observe(protocol=99), None),
    ]
    for first, second in mistakes:
        conn = bench.connect(bench.process())
        bench.receive(conn, first)
        if second is not None:
            bench.receive(conn, second)
        assert conn not in bench.conns
        assert isinstance(bench.said[conn][-1], m.Problem | m.Refused)
    child = a.join()
    conn = next(conn for conn, owner in bench.conns.items() if owner is child)
    bench.receive(conn, m.Acquire())
    assert "main process" in bench.heard(conn, m.Problem)[0].why
    assert bench.state == "HELD" and a.connected


def test_a_protocol_that_is_not_spoken_is_refused_with_the_one_that_is(bench: Bench) -> None:
    a = bench.engine("a").register(protocol=2)
    assert f"speaks {m.PROTOCOL}" in a.refused


# -- rest ----------------------------------------------------------------------------------------------------------


@every_kernel
def test_a_server_at_rest_sleeps(kernel: Kernel) -> None:
    bench = settled(kernel, memory={"gpu": (80, 80)})
    assert bench.machine.deadline == math.inf
    a = bench.holder("a", children=2)
    assert bench.machine.deadline == math.inf
    bench.waiter("b", gpu=10)
    bench.waiter("c")
    bench.observer()
    bench.advance(1)
    assert bench.state == "HELD" and bench.machine.deadline == math.inf
    a.says(m.Serving(url="u"))
    assert bench.machine.deadline == math.inf


def test_a_living_process_that_lost_its_connection_wakes_nobody(bench: Bench) -> None:
    bench.holder("a")
    b = bench.waiter("b")
    bench.hangs_up(b.main)
    assert bench.machine.deadline == math.inf


def test_after_a_recovery_and_a_handoff_the_server_sleeps_again(bench: Bench) -> None:
    a = bench.holder("a")
    bench.restart()
    a.register()
    bench.kill(a.main)
    bench.advance(20)
    bench.holder("b")
    bench.advance(1)
    assert bench.machine.deadline == math.inf


def test_an_answer_about_a_life_lock_may_come_when_its_tree_is_back(bench: Bench) -> None:
    a = bench.holder("a")
    bench.crash()
    bench.life_answered = False
    bench.start()
    a.register()
    for answer in bench.late_answers:
        bench.feed(answer)
    bench.life_answered = True
    b = bench.waiter("b")
    bench.kill(a.main)
    bench.advance(30)
    assert b.holds

"""The rules of the lock on a server that runs: those of `machine.py`'s docstring and the parts of the design's "The
proof", one or more tests each.

What a server does that (re)starts stands in `test_recovery_table.py`, switchover in `test_switchover.py`. `harness.py`
plays the world and checks after every event that no engine is granted while another lives, that tokens grow, that the
disk knew first, and that no handle is lost or forgotten twice.
"""

import math
from typing import Any

import pytest

from evidence.rules import callers
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.rules.queue import ASK_AGAIN_S
from sidecar.machine.disk_writes import RETRY_S
from tests.lockserver.harness import LONG_S, Disk, Engine, Harness, Kernel, every_kernel, with_pidfds
from tests.support.status import holder_of

BOUND_S = 30.0


@pytest.fixture
def harness() -> Harness:
    return settled()


def settled(
    kernel: Kernel = Kernel.PIDFS, *, memory: dict[str, tuple[int, int]] | None = None, **config: Any
) -> Harness:
    """A server that runs for a while, with no client."""
    harness = Harness(kernel, memory=memory, **config).start()
    harness.advance(3)
    assert harness.state == "FREE"
    return harness


# -- rule 1: fencing begins with either sign, and only the proof ends it -------------------------------------------


@every_kernel
def test_a_death_hands_the_lock_on_at_once(kernel: Kernel) -> None:
    harness = settled(kernel)
    a, b = harness.holder("a"), harness.waiter("b")
    at = harness.now
    harness.kill(a.main)
    assert b.token == a.token + 1 and harness.now == at and not b.proven, "no memory was looked at"


@with_pidfds
def test_an_end_of_file_alone_proves_nothing(kernel: Kernel) -> None:
    harness = settled(kernel)
    a, b = harness.holder("a"), harness.waiter("b")
    harness.hangs_up(a.main)
    assert harness.state == "FENCING" and str(a.main.pid) in harness.waiting_for
    harness.advance(LONG_S)
    assert not b.holds


def test_a_pidfd_starts_the_fencing_where_the_end_of_file_never_comes(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    child = a.fork()  # it inherited the connection
    harness.dies(a.main)
    harness.pidfd_readable(a.main)
    assert harness.state == "FENCING" and not b.holds
    harness.kill(child)
    harness.advance(1)
    assert b.holds


def test_the_end_of_file_may_come_long_after_the_pidfd(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    conn = a.conn
    harness.dies(a.main)
    harness.pidfd_readable(a.main)
    assert b.holds
    harness.feed(e.Closed(conn))
    assert harness.state == "HELD"


def test_dead_members_alone_prove_nothing_while_a_process_that_did_not_join_has_the_life_lock(harness: Harness) -> None:
    a, b = harness.holder("a", children=1), harness.waiter("b")
    grandchild = a.fork()
    harness.kill(*a.processes[:2])
    harness.advance(LONG_S)
    assert not b.holds and "did not join" in harness.waiting_for
    assert harness.status.fencing is not None and harness.status.fencing.life_lock == "held"
    harness.kill(grandchild)
    harness.advance(0.2)
    assert b.holds


def test_the_same_process_may_come_back_after_an_end_of_file_and_goes_on(harness: Harness) -> None:
    a, b = harness.holder("a", children=1), harness.waiter("b")
    harness.hangs_up(a.main)
    harness.advance(5)
    assert all(process.alive for process in a.processes), "none is killed for an end of file"
    a.register()
    assert harness.state == "HELD" and not a.refused and harness.tokens == [a.token]
    assert a.welcomed_with == {ACTIVE: a.token}
    harness.advance(60)
    assert not b.holds


def test_a_client_that_was_closed_in_a_process_that_lives_on_is_forgotten(harness: Harness) -> None:
    """A program that asks for a moment only, each time with a client of its own."""
    a, b = harness.holder("a"), harness.waiter("b")
    worker = b.join()
    pidfds = set(harness.watched)
    for how in ("closes", "its worker ends first"):
        c = harness.waiter("c")
        if how != "closes":
            harness.kill(c.join())
        harness.hangs_up(c.main)
        harness.advance(1)
        assert harness.machine.reception.knows(c.name) and harness.watched > pidfds, (
            "it may be back: it has its life lock"
        )
        c.main.locks.clear()
        harness.advance(60)
        assert not harness.machine.reception.knows(c.name) and harness.watched == pidfds and c.name not in harness.life
        assert c.main.alive
    harness.hangs_up(b.main)
    b.main.locks.clear()
    harness.advance(60)
    assert harness.machine.reception.knows(b.name) and worker.alive, "its worker lives, and is watched"
    harness.hangs_up(a.main)
    a.main.locks.clear()
    harness.advance(60)
    assert harness.machine.reception.knows(a.name) and harness.state == "FENCING", "only the proof ends a holder"


def test_a_client_that_comes_back_before_it_is_closed_is_not_forgotten(harness: Harness) -> None:
    b = harness.waiter("b")
    for _ in range(3):
        harness.hangs_up(b.main)
        harness.advance(30)
        b.register().acquire()
    assert b.holds


def test_without_any_pidfds_the_connections_and_the_life_lock_decide() -> None:
    harness = settled(Kernel.NONE, evidence="end-of-file only")
    a, b = harness.holder("a", children=1), harness.waiter("b")
    harness.kill(a.main)
    harness.advance(60)
    assert not b.holds and harness.status.evidence == "end-of-file only"
    harness.kill(a.processes[1])
    harness.advance(0.2)
    assert b.holds


# -- killing what outlives its main process ------------------------------------------------------------------------


def test_what_outlives_a_waiters_main_process_is_killed_too(harness: Harness) -> None:
    harness.holder("a")
    b = harness.waiter("b")
    b.join()
    harness.kill(b.main)
    assert not b.alive and harness.state == "HELD"


# -- rule 2: no process joins what is condemned --------------------------------------------------------------------


def joins(engine: Engine) -> str:
    """A late child's answer: empty when it was welcomed."""
    before = set(engine.harness.said)
    engine.join()
    (conn,) = set(engine.harness.said) - before
    refused = engine.harness.last(conn, m.Refused) or engine.harness.last(conn, m.Busy)
    assert refused is not None or engine.harness.last(conn, m.Welcome) is not None
    return refused.why if refused else ""


def test_no_process_joins_a_tree_whose_main_process_has_lost_its_connection(harness: Harness) -> None:
    a = harness.holder("a")
    harness.hangs_up(a.main)
    before = set(harness.said)
    assert "fenced" in joins(a)
    (conn,) = set(harness.said) - before
    assert harness.last(conn, m.Busy) is not None, "not for good: the main process may be back in a moment"
    a.register()
    assert joins(a) == ""


def test_no_process_joins_a_tree_that_is_proven_gone_even_before_the_disk_knows(harness: Harness) -> None:
    a = harness.holder("a")
    harness.disk = Disk.FAILS
    harness.kill(a.main)
    assert "gone" in joins(a)
    harness.advance(30)
    assert "gone" in joins(a)


def test_a_join_is_acknowledged_only_when_the_holder_file_names_the_process(harness: Harness) -> None:
    a = harness.holder("a")
    harness.disk = Disk.SLOW
    child = a.join()
    assert child not in a.numbers
    harness.write_lands()
    assert child.pid in [member.pid for member in harness.members_on_disk]
    assert any(harness.last(conn, m.Welcome) for conn, owner in harness.conns.items() if owner is child)


def test_a_join_whose_write_fails_is_not_acknowledged_until_one_succeeds(harness: Harness) -> None:
    a = harness.holder("a")
    harness.disk = Disk.FAILS
    child = a.join()
    harness.advance(5)
    conn = next(conn for conn, owner in harness.conns.items() if owner is child)
    assert not harness.heard(conn, m.Welcome)
    harness.disk = Disk.WORKS
    harness.advance(RETRY_S)
    assert len(harness.heard(conn, m.Welcome)) == 1


def test_an_unacknowledged_process_counts_all_the_same(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    harness.disk = Disk.SLOW
    child = a.join()
    harness.unkillable.add(child)
    harness.kill(a.main)
    while harness.writes:
        harness.write_lands()
    harness.advance(30)
    assert not b.holds and str(child.pid) in harness.waiting_for


def test_an_adopted_child_counts_like_one_that_joined(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    child = a.fork()
    a.says(m.Vouch(child=7, pid=child.pid), [child])
    assert a.last(m.Vouched) == m.Vouched(child=7)
    harness.unkillable.add(child)
    harness.kill(a.main)
    assert not b.holds and str(child.pid) in harness.waiting_for
    harness.kill(child)
    assert b.holds


# -- rule 3: memory ------------------------------------------------------------------------------------------------


def on_a_gpu(free: int = 80, **config: Any) -> Harness:
    return settled(memory={"gpu": (free, 80)}, **config)


def test_at_a_pairs_first_start_it_is_said_what_the_first_one_waits_for() -> None:
    harness = on_a_gpu()
    harness.reads_answered = False
    a = harness.waiter("a", gpu=60)
    assert harness.state == "FENCING" and not a.holds
    assert harness.waiting_for == "memory: the server is finding out whether as much is free as a needs"


def test_the_next_one_is_granted_only_when_its_memory_is_free() -> None:
    harness = on_a_gpu()
    a, b = harness.holder("a"), harness.waiter("b", gpu=60)
    harness.memory = {"gpu": (20, 80)}
    harness.kill(a.main)
    harness.advance(5)
    assert harness.state == "FENCING" and not b.holds
    assert "memory: b needs 60 bytes of gpu, and less is free" in harness.waiting_for
    harness.memory = {"gpu": (60, 80)}
    harness.advance(0.05)
    assert b.holds and harness.status.memory == "verified"


def test_one_whose_need_cannot_be_looked_at_is_asked_all_the_same_and_the_alarm_says_why_it_waits() -> None:
    """It came while the driver hung, and the holder dies."""
    harness = on_a_gpu()
    a = harness.holder("a")
    harness.reads_answered = False
    b = harness.waiter("b", gpu=60)
    harness.kill(a.main)
    harness.advance(5)
    assert not b.holds and any("does the driver hang?" in alarm for alarm in harness.status.alarms)
    assert not any("asked whether" in why for why in harness.waiting_for.split("; "))


def test_after_a_while_the_next_whose_need_is_met_is_tried() -> None:
    harness = on_a_gpu()
    a = harness.holder("a")
    big, small = harness.waiter("big", gpu=70), harness.waiter("small", gpu=10)
    harness.memory = {"gpu": (30, 80)}
    harness.kill(a.main)
    harness.advance(BOUND_S - 0.1)
    assert not big.holds and not small.holds
    harness.advance(0.3)
    assert small.holds and not big.holds and harness.status.memory == "verified"


def test_with_no_need_met_no_waiter_is_granted_and_a_person_is_woken() -> None:
    harness = on_a_gpu()
    a, b = harness.holder("a"), harness.waiter("b", gpu=70)
    harness.memory = {"gpu": (30, 80)}
    harness.kill(a.main)
    harness.advance(BOUND_S + 0.3)
    assert "the memory that b needs is not free" in harness.alarms
    harness.advance(BOUND_S)
    assert not b.holds
    harness.memory = {"gpu": (70, 80)}
    harness.advance(1)
    assert b.holds and not harness.alarms and harness.status.memory == "verified"


def test_with_a_bound_the_first_is_granted_at_it_with_an_alarm() -> None:
    harness = on_a_gpu(memory_bound_s=BOUND_S)
    a = harness.holder("a")
    b, c = harness.waiter("b", gpu=70), harness.waiter("c", gpu=60)
    harness.memory = {"gpu": (30, 80)}
    harness.kill(a.main)
    harness.advance(BOUND_S + 0.3)
    assert b.holds and not c.holds
    assert harness.shouted("memory that it needs was not free") and harness.status.memory == "unverified"


def test_the_bound_begins_only_when_everything_else_is_proven() -> None:
    harness = on_a_gpu(memory_bound_s=BOUND_S)
    a, b = harness.holder("a"), harness.waiter("b", gpu=70)
    stray = a.fork()
    harness.memory = {"gpu": (30, 80)}
    harness.kill(a.main)
    harness.advance(BOUND_S * 3)
    assert not b.holds
    harness.kill(stray)
    harness.advance(BOUND_S - 0.5)
    assert not b.holds
    harness.advance(1)
    assert b.holds


def test_a_silent_one_is_not_waited_for_when_the_next_fits_at_the_bound() -> None:
    harness = on_a_gpu()
    a = harness.holder("a")
    big, silent, small = harness.waiter("big", gpu=70), harness.waiter("silent", gpu=5), harness.waiter("small", gpu=10)
    silent.wakes = None
    harness.memory = {"gpu": (30, 80)}
    harness.kill(a.main)
    harness.advance(BOUND_S + 3)
    assert small.holds and not silent.holds and not big.holds


def test_what_can_never_be_had_is_refused_at_once_and_the_answer_names_what_there_is() -> None:
    harness = on_a_gpu()
    a = harness.engine("a").register().acquire(gpu=81)
    assert "81 bytes of gpu are needed, and it has 80 in all" in a.refused
    assert a.connected and not harness.status.waiters
    b = harness.engine("b").register().acquire(gpx=1)
    assert "'gpx'" in b.refused and "gpu" in b.refused


def test_needs_may_be_updated_and_are_looked_at_anew() -> None:
    harness = on_a_gpu(free=20)
    b = harness.waiter("b", gpu=60)
    harness.advance(1)
    assert not b.holds
    b.says(m.Ready(needs={"gpu": 20}))
    assert harness.status.waiters == [] and b.holds
    c = harness.waiter("c", gpu=1)
    c.says(m.Ready(needs={"gpu": 1000}))
    assert "1000 bytes" in c.refused


def test_a_reader_that_fails_is_an_alarm_and_the_bound_still_holds() -> None:
    harness = on_a_gpu(memory_bound_s=BOUND_S)
    a, b = harness.holder("a"), harness.waiter("b", gpu=10)
    harness.reader_problem = "NVMLError: gone"
    harness.kill(a.main)
    harness.advance(1)
    assert "NVMLError: gone" in harness.alarms and not b.holds and harness.status.memory == "unverified"
    harness.advance(BOUND_S)
    assert b.holds and harness.status.memory == "unverified"


def test_a_reader_that_works_again_calms_its_alarm() -> None:
    harness = on_a_gpu()
    a, b = harness.holder("a"), harness.waiter("b", gpu=10)
    harness.reader_problem = "NVMLError: gone"
    harness.kill(a.main)
    harness.advance(1)
    harness.reader_problem = ""
    harness.advance(1)
    assert b.holds and not harness.alarms and harness.status.memory == "verified"


def test_where_memory_is_not_read_status_says_so(harness: Harness) -> None:
    a = harness.engine("a").register().acquire(gpu=10**12)
    assert a.holds and harness.status.memory == "unverified"


def test_one_who_needs_nothing_waits_for_no_memory_and_is_not_called_verified() -> None:
    harness = on_a_gpu(free=0)
    a = harness.waiter("a")
    assert a.holds and harness.status.memory == "unverified"


# -- rule 4: there, alive, ready, and has looked -------------------------------------------------------------------


def test_waiters_are_granted_in_their_order(harness: Harness) -> None:
    a = harness.holder("a")
    line = [harness.waiter(name) for name in "bcd"]
    for before, after in zip([a, *line], line, strict=False):
        harness.kill(before.main)
        assert after.holds
    assert harness.tokens == sorted(harness.tokens)


def test_acquiring_again_keeps_the_place(harness: Harness) -> None:
    a, b, c = harness.holder("a"), harness.waiter("b"), harness.waiter("c")
    b.acquire()
    harness.kill(a.main)
    assert b.holds and not c.holds


def test_one_who_is_not_ready_is_passed_over_and_keeps_its_place(harness: Harness) -> None:
    a, b, c = harness.holder("a"), harness.waiter("b"), harness.waiter("c")
    b.says(m.Ready(ready=False))
    harness.kill(a.main)
    assert c.holds and not b.holds
    d = harness.waiter("d")
    b.says(m.Ready())
    harness.kill(c.main)
    assert b.holds and not d.holds


def test_with_no_waiter_ready_the_lock_is_free_and_the_first_who_becomes_ready_gets_it(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    b.says(m.Ready(ready=False))
    harness.kill(a.main)
    assert harness.state == "FREE"
    b.says(m.Ready())
    assert b.holds


def test_the_next_one_is_asked_while_the_proof_is_collected(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    b.wakes = None
    harness.hangs_up(a.main)
    assert b.heard(m.Prepare), "the old holder isn't even known to be dead"
    b.looks()
    harness.dies(a.main)
    harness.pidfd_readable(a.main)
    assert b.holds


def test_what_a_waiter_said_of_its_engine_before_the_loss_does_not_count(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    b.wakes = None
    harness.kill(a.main)
    assert not b.holds
    b.says(m.Prepared(round=harness.machine.succession.queue.round - 1, ok=True))
    assert not b.holds
    b.looks()
    assert b.holds


def test_a_silent_one_is_passed_over_after_its_time_and_keeps_its_place(harness: Harness) -> None:
    a, silent, c = harness.holder("a"), harness.waiter("silent"), harness.waiter("c")
    silent.wakes = None
    harness.kill(a.main)
    assert not c.holds and "silent: asked whether its engine can wake" in harness.waiting_for
    harness.advance(0.9)
    assert not c.holds
    harness.advance(0.2)
    assert c.holds
    assert [waiter.engine_id for waiter in harness.status.waiters] == ["silent"]
    silent.wakes = True
    d = harness.waiter("d")
    harness.kill(c.main)
    assert silent.holds and not d.holds


def test_one_whose_engine_is_broken_is_passed_over_at_once_and_asked_again(harness: Harness) -> None:
    a, broken, c = harness.holder("a"), harness.waiter("broken"), harness.waiter("c")
    broken.wakes = False
    harness.kill(a.main)
    assert c.holds
    harness.kill(c.main)
    assert not broken.holds and harness.noted("not_prepared")
    harness.advance(ASK_AGAIN_S * 3)
    assert not broken.holds
    broken.wakes = True
    harness.advance(ASK_AGAIN_S * 1.1)
    assert broken.holds


@with_pidfds
def test_one_who_dies_while_it_is_asked_is_passed_over(kernel: Kernel) -> None:
    harness = settled(kernel)
    a, b, c = harness.holder("a"), harness.waiter("b"), harness.waiter("c")
    b.wakes = None
    harness.kill(a.main)
    harness.kill(b.main)
    assert c.holds


def test_one_whose_connection_ended_must_ask_again(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    harness.hangs_up(b.main)
    harness.kill(a.main)
    assert harness.state == "FREE"
    b.register()
    assert not b.holds
    b.acquire()
    assert b.holds


# -- rule 5: first on the disk, then told --------------------------------------------------------------------------


def test_no_engine_is_told_before_the_write_has_landed(harness: Harness) -> None:
    harness.disk = Disk.SLOW
    a = harness.waiter("a")
    assert harness.writes and not a.heard(m.Granted)
    assert harness.state == "FENCING" and "is being written" in harness.waiting_for
    assert harness.status.holder is None
    harness.write_lands()
    assert a.holds and harness.state == "HELD"


def test_a_grant_that_cannot_be_written_is_not_made_and_a_person_is_called(harness: Harness) -> None:
    harness.disk = Disk.FAILS
    a = harness.waiter("a")
    harness.advance(60)
    assert not a.holds and "holder.json can't be written (No space left on device)" in harness.alarms
    assert "can't be written" in harness.waiting_for
    harness.disk = Disk.WORKS
    harness.advance(RETRY_S)
    assert a.holds and not harness.alarms


def test_a_grant_that_failed_is_decided_anew_by_what_is_so_then(harness: Harness) -> None:
    harness.disk = Disk.FAILS
    a, b = harness.waiter("a"), harness.waiter("b")
    harness.advance(3)
    harness.kill(a.main)
    harness.disk = Disk.WORKS
    harness.advance(RETRY_S * 2)
    assert b.holds and a.token == 0


def test_a_grant_that_failed_leaves_the_waiter_its_place_and_its_token_is_not_used_again(harness: Harness) -> None:
    harness.disk = Disk.SLOW
    a, b = harness.waiter("a"), harness.waiter("b")
    failed = harness.writes[0].record.token
    harness.write_fails()
    assert [waiter.engine_id for waiter in harness.status.waiters] == ["a", "b"]
    harness.disk = Disk.WORKS
    harness.advance(RETRY_S)
    assert a.token > failed and not b.holds


def test_one_who_lost_its_connection_during_the_write_learns_of_its_grant_when_it_is_back(harness: Harness) -> None:
    harness.disk = Disk.SLOW
    a, b = harness.waiter("a"), harness.waiter("b")
    harness.hangs_up(a.main)
    harness.disk = Disk.WORKS
    harness.write_lands()
    assert not a.holds and harness.state == "FENCING"
    a.register()
    assert a.holds and harness.state == "HELD" and not b.holds


def test_one_who_dies_during_the_write_never_holds_and_the_next_one_does(harness: Harness) -> None:
    harness.disk = Disk.SLOW
    a, b = harness.waiter("a"), harness.waiter("b")
    harness.kill(a.main)
    while harness.writes:
        harness.write_lands()
    assert a.token == 0 and b.holds


# -- rule 6: the life file goes last -------------------------------------------------------------------------------


def test_a_holders_life_file_is_unlinked_only_when_its_end_is_on_the_disk(harness: Harness) -> None:
    a = harness.holder("a")
    harness.disk = Disk.SLOW
    harness.kill(a.main)
    assert a.name in harness.life
    assert a.name in harness.writes[0].record.processes.gone
    harness.write_lands()
    assert a.name not in harness.life


def test_a_waiters_life_file_goes_with_its_proof(harness: Harness) -> None:
    harness.holder("a")
    b = harness.waiter("b")
    stray = b.fork()
    harness.kill(b.main)
    harness.advance(1)
    assert b.name in harness.life
    harness.kill(stray)
    harness.advance(1)
    assert b.name not in harness.life


def test_life_files_that_no_process_holds_are_cleared_away_by_a_server_that_knows_no_holder(harness: Harness) -> None:
    harness.kill_tree(harness.holder("a"))
    stale = harness.engine("stale")
    harness.dies(stale.main)
    harness.restart()
    assert stale.name not in harness.life


def test_the_restarted_namesake_does_not_keep_its_predecessor_alive(harness: Harness) -> None:
    a = harness.holder("a", children=1)
    harness.unkillable.add(a.processes[1])
    harness.kill(a.main)
    again = harness.waiter("a")
    harness.advance(5)
    assert not again.holds, "its predecessor dies slowly"
    harness.kill(a.processes[1])
    assert again.holds and again.token == a.token + 1


# -- identity ------------------------------------------------------------------------------------------------------


def test_a_new_connection_of_the_same_process_replaces_its_old_one(harness: Harness) -> None:
    a = harness.holder("a")
    first = a.conn
    a.register()
    assert first not in harness.conns and a.connected
    assert harness.state == "HELD" and not harness.noted("fencing")
    harness.feed(e.Closed(first))
    assert harness.state == "HELD"


# -- rule 8, and copies for the server's successor -----------------------------------------------------------------


def test_the_first_waiters_keep_copies_of_the_holders_pidfds() -> None:
    harness = settled(recipients=2)
    a = harness.holder("a", children=2)
    b, c, d = harness.waiter("b"), harness.waiter("c"), harness.waiter("d")
    for keeper in (b, c):
        keep, processes = keeper.copies[a.name]
        assert keep.mark == a.token and keep.numbers == [1, 2, 3] and list(processes) == a.processes
    assert not d.copies


def test_when_a_keeper_leaves_the_next_one_gets_the_copies() -> None:
    harness = settled(recipients=1)
    a, b, c = harness.holder("a"), harness.waiter("b"), harness.waiter("c")
    assert a.name not in c.copies
    harness.kill(b.main)
    assert c.copies[a.name][1] == (a.main,)


def test_copies_follow_the_members_and_go_out_before_the_join_is_acknowledged(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    harness.disk = Disk.SLOW
    child = a.join()
    assert child in b.copies[a.name][1], "the join isn't even acknowledged"
    assert child not in a.numbers


def test_a_keeper_that_takes_nothing_is_given_so_many_copies_and_the_others_when_it_has_taken_them() -> None:
    harness = settled(copies_under_way=3)
    a, b = harness.holder("a"), harness.waiter("b")
    b.answers_keep = False
    for _ in range(6):
        a.join()
    assert len(b.copies[a.name][1]) == 4, "the first was taken before"
    b.answers_keep = True
    b.says(m.Kept(copies=3))
    assert set(b.copies[a.name][1]) == set(a.processes)


def test_a_hand_back_to_a_server_that_knows_better_changes_nothing(harness: Harness) -> None:
    a, b = harness.holder("a", children=1), harness.waiter("b")
    b.hand_back(a)
    b.hand_back(a)
    assert harness.state == "HELD" and len(holder_of(harness.status).members) == 2
    harness.kill_tree(a)
    assert b.holds


def test_a_process_that_the_holder_hands_back_is_one_that_waiters_keep_copies_of(harness: Harness) -> None:
    """The server may be killed again before that process itself has come."""
    a, b = harness.holder("a"), harness.waiter("b")
    worker = harness.process()
    a.says(m.HandBack(mark=a.token, tree=a.name, numbers=[2]), (worker,))
    assert worker in b.copies[a.name][1]


# -- the permit `init` ---------------------------------------------------------------------------------------------


def test_one_engine_at_a_time_initialises_device_memory(harness: Harness) -> None:
    a, b, c = (harness.engine(name).register().wants_permit() for name in "abc")
    assert a.has_permit and not b.has_permit and harness.status.permits["init"].waiters == ["b", "c"]
    a.says(m.Release())
    assert b.has_permit
    harness.kill(b.main)
    assert c.has_permit


def test_a_write_that_fails_asks_for_no_other_one_at_once(harness: Harness) -> None:
    """Two writes follow from one event: a member joins the holder, and as that tries the disk again, the permit is
    given away, too. The end of the first must not be taken for the end of the second: the server would do nothing else.
    """
    a = harness.holder("a")
    a.says(m.Serving(url="http://a"))
    harness.disk = Disk.FAILS
    b = harness.engine("b").register().wants_permit()
    harness.disk = Disk.SLOW
    a.join()
    first, second = (write.seq for write in harness.writes)
    harness.write_fails()
    assert [write.seq for write in harness.writes] == [second] != [first]
    harness.write_fails()
    assert not harness.writes
    harness.disk = Disk.WORKS
    harness.advance(RETRY_S)
    assert b.has_permit


def test_a_permit_is_free_only_when_its_holder_is_proven_gone(harness: Harness) -> None:
    a, b = harness.engine("a").register().wants_permit(), harness.engine("b").register().wants_permit()
    stray = a.fork()
    harness.kill(a.main)
    harness.advance(30)
    assert not b.has_permit and "life lock of a" in harness.permit_waits_for
    harness.kill(stray)
    harness.advance(1)
    assert b.has_permit


def test_no_permit_between_a_holders_death_and_its_successors_active(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    a.says(m.Serving(url="unix:a"))
    stray = a.fork()
    harness.kill(a.main)
    c = harness.engine("c").register().wants_permit()
    harness.advance(1)
    assert not c.has_permit and "FENCING" in harness.permit_waits_for
    harness.kill(stray)
    harness.advance(1)
    assert b.holds and not c.has_permit and "b is waking" in harness.permit_waits_for
    b.says(m.Serving(url="unix:b"))
    assert c.has_permit


def test_a_waiter_that_is_silent_does_not_keep_others_from_the_permit(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    a.says(m.Serving(url="unix:a"))
    b.wakes = None
    harness.kill(a.main)
    c = harness.engine("c").register().wants_permit()
    assert not c.has_permit and "FENCING" in harness.permit_waits_for
    harness.advance(1.1)
    assert c.has_permit
    c.says(m.Release())
    c.acquire()
    assert c.holds


def test_a_permit_is_persisted_before_it_is_told(harness: Harness) -> None:
    harness.disk = Disk.SLOW
    a = harness.engine("a").register().wants_permit()
    assert not a.heard(m.Granted)
    harness.write_lands()
    assert a.has_permit


def test_the_holder_of_both_gives_both_back_by_dying(harness: Harness) -> None:
    a = harness.engine("a").register().wants_permit()
    a.acquire()
    assert a.holds and a.has_permit
    b = harness.waiter("b")
    b.wants_permit()
    harness.kill(a.main)
    assert b.holds
    b.says(m.Serving(url="u"))
    assert b.has_permit and a.name not in harness.life


def test_a_withdrawn_wish_for_the_permit_leaves_the_line(harness: Harness) -> None:
    a, b = (harness.engine(name).register().wants_permit() for name in "ab")
    b.says(m.Release())
    a.says(m.Release())
    assert harness.status.permits["init"].holder is None and not b.has_permit


# -- giving up -----------------------------------------------------------------------------------------------------


def test_a_waiter_that_withdraws_is_told_so_and_is_not_granted_until_it_asks_again(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    b.says(m.Withdraw(number=3))
    assert b.heard(m.Withdrawn) == [m.Withdrawn(lock=ACTIVE, number=3)]
    harness.kill(a.main)
    assert not b.holds
    b.acquire()
    assert b.holds


def test_a_withdrawal_that_comes_after_the_grant_changes_nothing(harness: Harness) -> None:
    b = harness.holder("b")
    b.says(m.Withdraw(number=1))
    assert b.holds and not b.heard(m.Withdrawn) and harness.status.state == "HELD"


def test_a_withdrawal_while_the_grant_is_being_written_makes_it_come_to_nothing_if_it_cant_be(harness: Harness) -> None:
    harness.disk = Disk.SLOW
    b = harness.waiter("b")
    b.says(m.Withdraw(number=1))
    assert not b.heard(m.Withdrawn), "the grant came first"
    harness.disk = Disk.WORKS
    harness.write_fails()
    harness.advance(RETRY_S)
    assert not b.holds and harness.status.state == "FREE"


def test_a_withdrawn_permit_is_given_back_even_if_it_was_granted(harness: Harness) -> None:
    a, b = (harness.engine(name).register().wants_permit() for name in "ab")
    a.says(m.Withdraw(lock=INIT, number=5))
    assert a.heard(m.Withdrawn) == [m.Withdrawn(lock=INIT, number=5)] and b.has_permit


# -- observers -----------------------------------------------------------------------------------------------------


def test_only_the_holder_serves_and_every_client_may_know_where(harness: Harness) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    a.says(m.Serving(url="unix:/run/a.sock"))
    assert holder_of(harness.status).endpoint == harness.tenure.endpoint == "unix:/run/a.sock"
    b.says(m.Serving(url="unix:/run/b.sock"))
    assert b.heard(m.Problem) and not b.connected
    a.says(m.Serving(url=""))
    assert holder_of(harness.status).endpoint is None, "it can be taken back"


def test_every_change_of_state_is_published(harness: Harness) -> None:
    def published() -> bool:
        return e.Publish() in harness.effects

    watcher = harness.observer()
    harness.receive(watcher, m.Watch())
    assert published() and harness.machine.callers.watchers() == [watcher]
    a = harness.holder("a")
    assert published()
    a.says(m.Serving(url="u"))
    assert published()
    b = harness.waiter("b")
    assert published()
    b.says(m.Ready(ready=False))
    assert published()
    child = a.join()
    assert published()
    harness.kill(child)
    assert published()
    harness.hangs_up(a.main)
    assert published() and harness.state == "FENCING"
    harness.hangs_up(harness.conns[watcher])
    assert harness.machine.callers.watchers() == []


def test_the_end_of_the_window_is_published_too() -> None:
    harness = settled()
    harness.holder("a")
    harness.restart()
    harness.advance(harness.machine.deadline - harness.now)
    assert harness.state in ("RECOVERING", "FENCING")
    while harness.state == "RECOVERING":
        harness.effects = []
        harness.now = harness.machine.deadline
        harness.feed(e.Tick())
    assert e.Publish() in harness.effects


def test_status_history_and_ping_are_answered(harness: Harness) -> None:
    harness.holder("a")
    conn = harness.observer()
    for question in (m.AskStatus(), m.AskHistory(), m.Ping()):
        harness.receive(conn, question)
    status, history, pong = harness.said[conn]
    assert isinstance(status, m.Status) and status.state == "HELD"
    assert isinstance(history, m.History) and "granted" in [event.event for event in history.events]
    assert pong == m.Pong(server_incarnation=harness.machine.config.server_incarnation)


def test_the_history_has_a_bound() -> None:
    harness = settled(history_size=10)
    for _ in range(20):
        harness.kill(harness.holder("a").main)
    conn = harness.observer()
    harness.receive(conn, m.AskHistory())
    history = harness.last(conn, m.History)
    assert history is not None and len(history.events) == 10


def test_a_mistake_costs_the_sender_its_connection_and_no_other_anything(harness: Harness) -> None:
    a = harness.holder("a")
    mistakes: list[tuple[m.ClientMessage, m.ClientMessage | None]] = [
        (m.Ping(), None),
        (m.Observe(protocol=m.PROTOCOL), m.Observe(protocol=m.PROTOCOL)),
        (m.Observe(protocol=m.PROTOCOL), m.Acquire()),
        (m.Observe(protocol=99), None),
    ]
    for first, second in mistakes:
        conn = harness.connect(harness.process())
        harness.receive(conn, first)
        if second is not None:
            harness.receive(conn, second)
        assert conn not in harness.conns
        assert isinstance(harness.said[conn][-1], m.Problem | m.Refused | m.Incompatible)
    child = a.join()
    conn = next(conn for conn, owner in harness.conns.items() if owner is child)
    harness.receive(conn, m.Acquire())
    assert "main process" in harness.heard(conn, m.Problem)[0].why
    assert harness.state == "HELD" and a.connected


def test_a_token_that_is_claimed_by_one_that_cannot_talk_and_is_not_believed_counts_for_nothing(
    harness: Harness,
) -> None:
    a, b = harness.holder("a"), harness.waiter("b")
    harness.engine("c").register(protocol=99, claims={ACTIVE: a.token + 50})
    harness.kill_tree(a)
    assert b.holds and b.token == a.token + 1


def test_only_a_process_of_a_tree_shows_life_files_of_it(harness: Harness) -> None:
    a, why_not = harness.engine("a").register(), harness.machine.reception.why_not_show_lives
    assert why_not(a.conn, a.name) == "" and "no process" in why_not(a.conn, "b.00000000")
    assert "no process" in why_not(harness.observer(), a.name)
    assert "introduce yourself" in why_not(harness.connect(harness.process()), a.name)


def test_an_observer_too_many_is_told_to_come_again_and_one_that_is_thrown_out_makes_room(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "MOST_OBSERVERS", 1)
    first, second = harness.observer(), harness.observer()
    assert harness.heard(second, m.Busy) and second not in harness.conns
    harness.receive(first, m.Acquire())
    assert harness.heard(first, m.Problem) and harness.observer() in harness.conns


# -- rest ----------------------------------------------------------------------------------------------------------


@every_kernel
def test_a_server_at_rest_sleeps(kernel: Kernel) -> None:
    harness = settled(kernel, memory={"gpu": (80, 80)})
    assert harness.machine.deadline == math.inf
    a = harness.holder("a", children=2)
    assert harness.machine.deadline == math.inf
    harness.waiter("b", gpu=10)
    harness.waiter("c")
    harness.observer()
    harness.advance(1)
    assert harness.state == "HELD" and harness.machine.deadline == math.inf
    a.says(m.Serving(url="u"))
    assert harness.machine.deadline == math.inf


def test_a_living_process_that_lost_its_connection_soon_wakes_the_server_no_more(harness: Harness) -> None:
    harness.holder("a")
    b = harness.waiter("b")
    harness.hangs_up(b.main)
    harness.advance(60)
    assert harness.machine.deadline == math.inf
    b.main.locks.clear()
    harness.advance(60)
    assert harness.machine.deadline == math.inf and harness.machine.reception.knows(b.name)
    harness.engine("c").register()
    assert not harness.machine.reception.knows(b.name), "what happens next finds that it has closed its client"


def test_an_answer_about_a_life_lock_may_come_when_its_tree_is_back(harness: Harness) -> None:
    a = harness.holder("a")
    harness.crash()
    harness.life_answered = False
    harness.start()
    a.register()
    for answer in harness.late_answers:
        harness.feed(answer)
    harness.life_answered = True
    b = harness.waiter("b")
    harness.kill(a.main)
    harness.advance(30)
    assert b.holds


def test_a_grant_is_proven_when_every_process_was_seen_to_have_ended_and_the_memory_to_be_free() -> None:
    harness = on_a_gpu()
    a, b = harness.holder("a"), harness.waiter("b", gpu=60)
    assert not a.proven, "nothing is known of what was there before"
    harness.kill(a.main)
    harness.advance(1)
    assert b.holds and b.proven

"""What the holder file doesn't tell, on the machine alone: it may be an older copy of itself, name none, or be lost.
The harness knows the truth: no test passes in which a waiter is granted while a former holder lives.
"""

import msgspec
import pytest

from evidence.rules.incarnations import BOTH_BACK_S
from evidence.rules.record import Processes
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.record import Record, encode
from tests.lockserver.harness import BOOT, Harness, Kernel, every_kernel

SETTLE_S = 2.0
MEMORY = {"GPU": (80, 80)}


def older(harness: Harness) -> bytes:
    """From before the first grant."""
    return encode(Record(Processes(BOOT, pid_namespace=harness.pid_namespace), token=0))


def in_one_namespace() -> Harness:
    harness = Harness()
    harness.pid_namespace = "ns"
    return harness.start()


# -- who tells of a grant ends no process ------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["the standby", "the holder"])
def test_a_standbys_own_workers_say_nothing_of_the_holder(first: str) -> None:
    """Its copies of them have the token that was the newest when they joined: no claim is older for that."""
    harness = Harness().start()
    a = harness.holder("a")
    b = harness.engine("b").register()
    b.join()
    b.acquire()
    assert list(b.copies) == [b.name, a.name], "its own are handed back first"
    harness.crash().file = older(harness)
    harness.start()
    if first == "the standby":
        b.comes_back()
    a.register()
    assert not a.refused and harness.state == "HELD" and not b.holds


def test_the_holders_workers_are_heard_of_behind_ones_own() -> None:
    harness = Harness().start()
    a = harness.holder("a", children=1)
    b = harness.engine("b").register()
    b.join()
    b.acquire()
    harness.unkillable.add(a.processes[1])
    harness.crash().file = older(harness)
    harness.dies(a.main)
    harness.start()
    b.comes_back()
    assert not b.holds
    harness.advance(SETTLE_S)
    assert not b.holds and f"process {a.processes[1].pid} of a is alive" in harness.waiting_for


def test_a_process_that_lives_as_another_engine_since_is_not_the_holder_that_an_older_file_names() -> None:
    """It held, executed its program anew, and another engine was granted the lock."""
    harness = in_one_namespace()
    x = harness.holder("x")
    before = harness.file
    a = harness.engine("a").register().acquire()
    harness.named["the path"].discard(x.main)
    harness.hangs_up(x.main)
    again = x.executes_anew().register()
    harness.advance(BOTH_BACK_S + 1)
    assert a.holds
    harness.crash().file = before
    harness.start()
    a.register()
    assert not a.refused and harness.state == "HELD"
    again.register()
    b = harness.waiter("b")
    harness.kill_tree(a)
    harness.advance(BOTH_BACK_S + SETTLE_S)
    assert b.holds


def test_a_claim_that_is_put_off_may_be_made_again() -> None:
    harness = Harness().start()
    a = harness.holder("a")
    harness.crash().file = older(harness)
    harness.start()
    conn = harness.connect(a.main)
    harness.receive(conn, a.hello(), (harness.peer(a.main, a.main.pid),), life_held=False)
    assert harness.last(conn, m.Busy) is not None
    a.register()
    assert not a.refused and harness.state == "HELD"


def test_the_next_token_is_greater_than_one_that_was_only_heard_of() -> None:
    harness = Harness().start(token_floor=0)
    b = harness.engine("b").register()
    b.says(m.HandBack(mark=50, tree=b.name, numbers=[]))
    b.acquire()
    harness.advance(SETTLE_S)
    assert b.token > 50


# -- who lives and may hold is waited for ------------------------------------------------------------------------------


@every_kernel
def test_a_worker_whose_main_process_has_not_come_may_be_the_holders(kernel: Kernel) -> None:
    harness = Harness(kernel).start()
    a = harness.holder("a", children=1)
    worker = a.processes[1]
    harness.crash().file = older(harness)
    harness.dies(a.main)
    harness.start()
    a.join(worker)
    b = harness.waiter("b")
    harness.advance(SETTLE_S * 10)
    assert not b.holds and "no engine is granted: a process of a is alive" in str(harness.alarms)
    harness.kill(worker)
    harness.advance(SETTLE_S)
    assert b.holds and not harness.alarms


@pytest.mark.parametrize("boot", [BOOT, "boot-0"], ids=["this boot's", "another boot's"])
def test_a_file_that_names_an_older_holder_does_not_pass_over_a_worker_of_a_newer_one(boot: str) -> None:
    harness = in_one_namespace()
    x = harness.holder("x")
    record = harness.record
    assert record is not None
    a = harness.engine("a").register().acquire()
    harness.kill_tree(x)
    x.main.reaped = True
    harness.advance(SETTLE_S)
    assert a.holds
    worker = a.join()
    older = msgspec.structs.replace(record.processes, boot_id=boot)
    harness.crash().file = encode(msgspec.structs.replace(record, processes=older))
    harness.dies(a.main)
    a.main.reaped = True
    harness.start()
    a.join(worker)
    b = harness.waiter("b")
    harness.advance(SETTLE_S * 10)
    assert not b.holds
    harness.kill(worker)
    harness.advance(SETTLE_S)
    assert b.holds


def test_a_living_worker_that_is_handed_back_counts_though_all_in_the_file_have_ended() -> None:
    harness = in_one_namespace()
    a = harness.holder("a")
    before = harness.file
    worker = a.join()
    b = harness.waiter("b")
    harness.unkillable.add(worker)
    harness.crash().file = before
    harness.dies(a.main)
    a.main.reaped = True
    worker.locks.clear()  # it is dying
    harness.start()
    assert harness.state == "FREE"
    b.comes_back()
    assert not b.holds
    harness.unkillable.clear()
    harness.kill(worker)
    harness.advance(SETTLE_S)
    assert b.holds


def test_a_number_that_was_given_again_does_not_hide_a_process() -> None:
    harness = in_one_namespace()
    a = harness.holder("a", children=2)
    before = harness.file
    harness.kill(a.processes[2])
    a.processes[2].reaped = True
    harness.advance(1)
    harness.restart()
    a.register()
    a.join(a.processes[1])
    again = a.join()
    assert a.numbers[again] == 3
    b = harness.waiter("b")
    harness.unkillable.add(again)
    harness.crash().file = before
    harness.dies(a.main)  # the other one lives, so that the file's holder isn't proven gone
    a.main.reaped = True
    again.locks.clear()
    harness.start()
    b.comes_back()
    harness.kill(a.processes[1])
    harness.advance(SETTLE_S)
    assert not b.holds and f"process {again.pid} of a is alive" in harness.waiting_for


def test_a_standby_that_is_back_and_dies_is_not_waited_for() -> None:
    harness = Harness().start()
    c = harness.engine("c").register()
    worker = c.join()
    harness.unkillable.add(worker)
    b = harness.waiter("b")
    harness.kill(c.main)
    harness.advance(SETTLE_S)
    assert worker.alive and b.holds


def test_a_life_lock_of_a_stranger_costs_the_settling_time_where_the_file_names_no_holder() -> None:
    harness = Harness().start()
    harness.crash().file = older(harness)
    stranger = harness.engine("s")
    harness.start()
    b = harness.waiter("b")
    harness.advance(SETTLE_S / 2)
    assert not b.holds and stranger.name in harness.waiting_for
    harness.advance(SETTLE_S)
    assert b.holds


# -- what is gone stays gone -------------------------------------------------------------------------------------------


def test_no_process_joins_a_holder_that_was_proven_gone_not_even_by_a_life_file_made_anew() -> None:
    harness = Harness().start()
    a = harness.holder("a")
    b = harness.waiter("b")
    harness.kill_tree(a)
    harness.advance(SETTLE_S)
    assert b.holds and a.name not in harness.machine.evidence.incarnations.pending_unlinks
    ghost = a.fork()
    harness.life.add(a.name)
    a.join(ghost)
    assert ghost not in a.numbers and a.name not in harness.machine.evidence.incarnations.known


# -- what is too old counts for nothing --------------------------------------------------------------------------------


def test_a_life_lock_that_was_taken_since_the_last_look_is_seen() -> None:
    harness = Harness(memory=dict(MEMORY)).start()
    b = harness.engine("b").register().acquire(GPU=40)
    harness.advance(SETTLE_S / 4)
    stranger = harness.engine("s")
    harness.advance(SETTLE_S)
    assert not b.holds and stranger.name in harness.waiting_for


def test_memory_that_was_read_before_the_holder_took_it_is_not_free() -> None:
    harness = Harness(memory=dict(MEMORY)).start()
    a = harness.engine("a").register().acquire(GPU=40)
    harness.advance(SETTLE_S)
    b = harness.engine("b").register().acquire(GPU=40)
    harness.advance(0.1)
    harness.reads_answered = False
    harness.engine("c").register().acquire(GPU=40)  # the reading begins
    before = dict(MEMORY)
    harness.memory = {"GPU": (0, 80)}
    harness.kill_tree(a)  # its memory outlives it for a moment
    harness.feed(e.MemoryRead(before))
    assert not b.holds


def test_a_process_that_is_found_dead_and_not_waited_for_was_not_seen_alive() -> None:
    """The whole directory of an older holder is back. The one that held since is dying: it has lost its names."""
    harness = in_one_namespace()
    x = harness.holder("x")
    before = harness.file
    a = harness.engine("a").register().acquire()
    harness.kill_tree(x)
    harness.advance(SETTLE_S)
    assert a.holds
    harness.crash().file = before
    harness.life = {x.name}
    harness.start()
    harness.named["the path"].discard(a.main)
    b = harness.waiter("b")
    harness.advance(SETTLE_S / 4)
    assert not b.holds


def test_a_newer_holder_is_heard_of_while_the_one_of_an_older_file_is_being_proven_gone() -> None:
    """Found with real processes: the parent of the older one hadn't collected it, so that its pidfd could be had and
    was readable; what a waiter handed back was dropped, and the next engine granted beside a stopped worker.
    """
    harness = in_one_namespace()
    x = harness.holder("x")
    before = harness.file
    a = harness.engine("a").register().acquire()
    harness.kill_tree(x)
    b = harness.waiter("b")
    worker = a.join()
    harness.unkillable.add(worker)
    harness.crash().file = before
    harness.kill(a.main)
    harness.start()
    assert harness.state == "FENCING"
    b.comes_back()
    harness.advance(60)
    assert not b.holds and str(worker.pid) in harness.waiting_for
    harness.kill(worker)
    harness.advance(60)
    assert b.holds


def test_a_holder_of_which_a_waiter_tells_after_another_was_granted_is_waited_for_by_the_next_grant() -> None:
    """Found by the simulator (20283109): the waiter had been stopped, and the clock was behind the older file's."""
    harness = in_one_namespace()
    harness.kill_tree(harness.holder("x"))
    a = harness.holder("a")
    worker = a.join()
    b = harness.waiter("b")
    harness.unkillable.add(worker)
    harness.crash().file = older(harness)
    harness.kill(a.main)
    worker.locks.clear()  # it is dying
    harness.tokens.clear()
    harness.start(token_floor=1)
    harness.allows_two = True  # nothing tells of the worker yet
    c = harness.engine("c").register().acquire()
    harness.advance(60)
    assert c.holds and c.token < a.token
    harness.allows_two = False
    b.comes_back()
    harness.kill_tree(c)
    harness.advance(60)
    assert not b.holds and "a process of a is alive" in harness.waiting_for
    harness.kill(worker)
    harness.advance(60)
    assert b.holds


def test_a_holder_that_has_come_itself_is_displaced_by_no_hearsay() -> None:
    """Its worker was away when it died, so there is doubt; but not of who the holder is."""
    harness = Harness().start()
    a = harness.holder("a", children=1)
    harness.crash().start()
    a.register()
    b = harness.waiter("b")
    harness.kill(a.main)
    assert harness.state == "FENCING" and harness.machine.active.doubt is not None
    b.says(m.HandBack(mark=harness.machine.active.token + 9, tree="ghost.0", numbers=[]))
    assert harness.machine.active.holder is not None and harness.machine.active.holder.engine_id == "a"


def test_a_server_that_lacks_a_process_of_the_holder_gives_no_copies_of_the_others() -> None:
    """What it gives replaces what waiters have: they may have a copy of that one."""
    harness = Harness().start()
    a = harness.holder("a", children=1)
    harness.crash().start()
    a.register()
    harness.kill(a.main)
    late = harness.waiter("late")
    assert harness.state == "FENCING" and not [keep for keep in late.heard(m.Keep) if keep.tree == a.name]

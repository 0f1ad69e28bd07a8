"""The design's recovery table, row by row: what a lock server does with what it finds when it (re)starts.

Each row where it differs on a kernel with pidfds that have inodes (identity) and on older ones (a secret; no pidfds
at all). `harness.py` plays the world. What the rules are for a server that didn't restart stands in `test_rules.py`.
"""

import pytest

from evidence.rules.incarnations import BOTH_BACK_S
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.rules.recovery import RETURN_S
from tests.lockserver.harness import LONG_S, Disk, Engine, Harness, Kernel, every_kernel, older_kernels, with_pidfds

WINDOW_S, SETTLE_S = 10.0, 2.0


def held(
    kernel: Kernel = Kernel.PIDFS,
    *,
    children: int = 0,
    memory: dict[str, tuple[int, int]] | None = None,
    **config: object,
) -> tuple[Harness, Engine]:
    """A server, a holder, and no more."""
    harness = Harness(kernel, memory=memory, **config).start()
    return harness, harness.holder("a", children=children)


# -- another boot id -----------------------------------------------------------------------------------------------


@every_kernel
def test_a_holder_of_another_boot_is_dead_and_the_lock_is_free_at_once(kernel: Kernel) -> None:
    harness, a = held(kernel, children=2)
    harness.dies(*a.processes)
    harness.restart(boot_id="boot-2")
    assert harness.state == "FREE"
    assert harness.noted("died_with_its_boot")
    b = harness.waiter("b")
    assert b.token > a.token


def test_after_another_boot_the_disk_knows_it_and_only_then_the_life_file_goes() -> None:
    harness, a = held()
    harness.dies(a.main)
    harness.crash().disk = Disk.SLOW
    harness.start(boot_id="boot-2")
    assert a.name in harness.life
    harness.write_lands()
    assert harness.record is not None and harness.record.active is None and harness.record.processes.boot_id == "boot-2"
    assert a.name not in harness.life


# -- a holder, life lock free, and memory or handed-back pidfds prove it -------------------------------------------


@with_pidfds
def test_handed_back_pidfds_of_the_dead_prove_the_end_and_no_window_is_waited_out(kernel: Kernel) -> None:
    harness, a = held(kernel, children=2)
    b = harness.waiter("b")
    harness.crash()
    harness.dies(*a.processes)
    harness.start()
    at = harness.now
    b.register()
    b.acquire()
    assert not b.holds
    b.hand_back(a)
    assert b.token > a.token
    assert harness.now == at


@with_pidfds
def test_handed_back_pidfds_of_the_living_prove_nothing_until_the_last_of_them_dies(kernel: Kernel) -> None:
    harness, a = held(kernel, children=1)
    b = harness.waiter("b")
    harness.crash().start()
    b.comes_back()
    harness.dies(a.main)
    harness.pidfd_readable(a.main)
    # The child is killed with its main process, by the copy that was handed back.
    assert not a.alive
    assert b.holds


@with_pidfds
def test_a_child_out_of_reach_is_waited_for_by_its_handed_back_pidfd(kernel: Kernel) -> None:
    harness, a = held(kernel, children=1)
    b = harness.waiter("b")
    child = a.processes[1]
    harness.unkillable.add(child)
    harness.dies(a.main)
    harness.restart()
    b.comes_back()
    harness.advance(LONG_S)
    assert not b.holds and str(child.pid) in harness.waiting_for
    harness.kill(child)
    harness.advance(1)
    assert b.holds


def test_a_reaped_process_is_recognised_by_its_inode() -> None:
    harness, a = held(children=1)
    b = harness.waiter("b")
    harness.dies(*a.processes)
    for process in a.processes:
        process.reaped = True
    harness.restart()
    b.comes_back()
    assert b.holds


def test_a_pidfd_of_another_process_proves_nothing() -> None:
    harness, a = held()
    b = harness.waiter("b")
    harness.restart()
    b.register()
    stranger = harness.process()
    harness.dies(stranger)
    a.main.locks.clear()
    b.says(m.HandBack(mark=a.token, tree=a.name, numbers=[1]), [stranger])
    b.acquire()
    harness.advance(WINDOW_S / 2)
    assert not b.holds


def test_pidfds_handed_back_with_another_token_are_of_another_holder() -> None:
    harness, a = held()
    b = harness.waiter("b")
    harness.dies(a.main)
    harness.restart()
    b.register()
    b.says(m.HandBack(mark=a.token + 7, tree=a.name, numbers=[1]), [a.main])
    b.acquire()
    assert not b.holds


def test_some_of_the_pidfds_are_not_all_of_them() -> None:
    harness, a = held(children=1)
    b = harness.waiter("b")
    harness.dies(*a.processes)
    harness.restart()
    b.register()
    b.acquire()
    b.says(m.HandBack(mark=a.token, tree=a.name, numbers=[1]), [a.main])
    harness.advance(WINDOW_S * 3)
    assert not b.holds
    b.hand_back(a)
    harness.advance(1)
    assert b.holds


@every_kernel
def test_memory_that_is_free_proves_the_end_and_no_window_is_waited_out(kernel: Kernel) -> None:
    harness, a = held(kernel, memory={"gpu": (80, 80)})
    harness.dies(*a.processes)
    harness.restart()
    b = harness.waiter("b", gpu=70)
    harness.advance(0.05)
    assert b.holds
    assert harness.status.memory == "verified"


def test_free_memory_proves_nothing_of_a_process_that_can_let_go_of_its_life_lock() -> None:
    harness = Harness(memory={"gpu": (80, 80)}).start()
    a = harness.engine("a").register(mapped=False).acquire()
    harness.advance(3)
    assert a.holds
    harness.restart()
    a.main.locks.clear()  # it lives, has allocated nothing yet, and has closed everything
    b = harness.waiter("b", gpu=70)
    harness.advance(LONG_S)
    assert not b.holds and "--grant-unproven" in harness.alarms


# -- a holder, and its processes can be looked up ------------------------------------------------------------------


def seen(children: int = 0) -> tuple[Harness, Engine]:
    """Its processes have numbers in the server's PID namespace."""
    harness = Harness(Kernel.PIDFS)
    harness.pid_namespace = "pid:[1]"
    return harness, harness.start().holder("a", children=children)


@pytest.mark.parametrize("reaped", [True, False])
def test_after_a_restart_the_file_and_the_kernel_tell_who_is_gone(reaped: bool) -> None:
    harness, a = seen(children=2)
    harness.dies(*a.processes)
    for process in a.processes:
        process.reaped = reaped
    harness.restart()
    at, b = harness.now, harness.waiter("b")
    assert b.holds and harness.now == at


def test_numbers_of_another_pid_namespace_tell_nothing() -> None:
    harness, a = seen()
    harness.dies(a.main)
    a.main.reaped = True
    harness.pid_namespace = "pid:[2]"
    harness.restart()
    b = harness.waiter("b")
    harness.advance(WINDOW_S * 3)
    assert not b.holds and "--grant-unproven" in harness.alarms


def test_a_process_that_lives_is_watched_from_the_start_though_it_does_not_come_back() -> None:
    harness, a = seen()
    harness.restart()
    b = harness.waiter("b")
    a.main.locks.clear()
    harness.advance(WINDOW_S * 3)
    assert not b.holds and "is alive" in harness.waiting_for
    harness.dies(a.main)
    harness.pidfd_readable(a.main)
    harness.advance(1)
    assert b.holds


def test_memory_that_is_not_free_proves_nothing() -> None:
    harness, a = held(memory={"gpu": (10, 80)})
    harness.dies(*a.processes)
    harness.restart()
    b = harness.waiter("b", gpu=70)
    harness.advance(LONG_S)
    assert not b.holds
    harness.memory = {"gpu": (75, 80)}
    harness.advance(1)
    assert b.holds


def test_free_memory_proves_nothing_to_a_waiter_that_needs_none() -> None:
    harness, a = held(memory={"gpu": (80, 80)})
    harness.dies(a.main)
    harness.restart()
    b = harness.waiter("b")
    zero = harness.waiter("c", gpu=0)
    harness.advance(WINDOW_S / 2)
    assert not b.holds and not zero.holds


# -- a holder, life lock free, neither of those --------------------------------------------------------------------


@every_kernel
def test_without_proof_the_window_is_waited_out_and_then_by_default_a_person_is_called(kernel: Kernel) -> None:
    harness, a = held(kernel)
    harness.dies(*a.processes)
    harness.restart()
    b = harness.waiter("b")
    harness.advance(WINDOW_S - 0.1)
    assert harness.state == "RECOVERING" and not harness.alarms
    harness.advance(0.2)
    assert harness.state == "FENCING" and "--grant-unproven" in harness.alarms
    assert "--grant-unproven" in harness.waiting_for
    harness.advance(LONG_S)
    assert not b.holds


@every_kernel
def test_grant_unproven_grants_when_the_window_is_over_and_says_so(kernel: Kernel) -> None:
    harness, a = held(kernel, grant_unproven=True)
    harness.dies(*a.processes)
    harness.restart()
    b = harness.waiter("b")
    harness.advance(WINDOW_S - 0.1)
    assert not b.holds
    harness.advance(0.2)
    assert b.token > a.token
    assert harness.shouted("--grant-unproven")


@with_pidfds
def test_grant_unproven_never_grants_against_a_living_member(kernel: Kernel) -> None:
    harness, a = held(kernel, grant_unproven=True)
    b = harness.waiter("b")
    a.main.locks.clear()  # it closed its life lock's descriptor, and lives
    harness.restart()
    b.comes_back()
    harness.advance(LONG_S)
    assert a.alive and not b.holds and str(a.main.pid) in harness.waiting_for


@with_pidfds
def test_proof_that_comes_after_the_window_still_counts_and_calms_the_alarm(kernel: Kernel) -> None:
    harness, a = held(kernel)
    b = harness.waiter("b")
    harness.dies(a.main)
    harness.restart()
    harness.advance(WINDOW_S + 5)
    assert harness.alarms
    b.comes_back()
    assert b.holds and not harness.alarms


def test_a_life_file_that_is_missing_proves_nothing_though_memory_is_free() -> None:
    harness, a = held(memory={"gpu": (80, 80)})
    harness.dies(a.main)
    harness.life.clear()
    harness.restart()
    b = harness.waiter("b", gpu=1)
    harness.advance(WINDOW_S - 0.2)
    assert not b.holds and "missing" in harness.waiting_for
    harness.advance(WINDOW_S)
    assert not b.holds and "--grant-unproven" in harness.alarms


# -- a holder, life lock held --------------------------------------------------------------------------------------


@every_kernel
def test_a_holder_that_comes_back_goes_on_unnoticed(kernel: Kernel) -> None:
    harness, a = held(kernel, children=2)
    b = harness.waiter("b")
    token, before = a.token, harness.status.holder
    assert before is not None and before.granted_at
    granted_at = before.granted_at
    harness.restart()
    assert harness.state == "RECOVERING"
    b.comes_back()
    a.comes_back()
    for child in a.processes[1:]:
        a.join(child)
    assert harness.state == "HELD" and a.token == token and not a.refused
    assert harness.status.holder is not None and harness.status.holder.granted_at == granted_at
    assert a.welcomed_with == {ACTIVE: token}
    holder = harness.machine.active.holder
    assert holder is not None and len(holder.members) == 3
    harness.advance(LONG_S)
    assert harness.state == "HELD" and not b.holds


@every_kernel
def test_two_hundred_restarts_leave_the_holder_its_lock_and_its_token(kernel: Kernel) -> None:
    harness, a = held(kernel, children=1)
    b = harness.waiter("b")
    for _ in range(200):
        harness.restart()
        b.comes_back()
        a.comes_back()
        a.join(a.processes[1])
        harness.advance(0.05)
    assert harness.state == "HELD" and harness.tokens == [a.token]
    holder = harness.status.holder
    assert holder is not None and len(holder.members) == 2


@pytest.mark.parametrize("grant_unproven", [False, True])
@every_kernel
def test_the_window_over_and_the_life_lock_still_held_no_waiter_is_ever_granted(
    kernel: Kernel, grant_unproven: bool
) -> None:
    harness, a = held(kernel, grant_unproven=grant_unproven)
    harness.restart()
    b = harness.waiter("b")
    harness.advance(WINDOW_S + 0.1)
    assert harness.state == "FENCING"
    assert "a" in harness.waiting_for and "life lock" in harness.waiting_for
    harness.advance(LONG_S)
    assert not b.holds and a.alive


@with_pidfds
def test_after_a_restart_an_ordinary_death_of_the_holder_is_an_ordinary_handoff(kernel: Kernel) -> None:
    harness, a = held(kernel, children=1)
    b = harness.waiter("b")
    harness.restart()
    b.comes_back()
    a.comes_back()
    a.join(a.processes[1])
    at = harness.now
    harness.kill_tree(a)
    assert b.holds and harness.now == at


@with_pidfds
def test_a_child_that_was_not_back_when_its_main_process_died_is_proven_gone_by_a_copy(kernel: Kernel) -> None:
    harness, a = held(kernel, children=1)
    b = harness.waiter("b")
    harness.restart()
    a.comes_back()
    b.comes_back()
    harness.kill_tree(a)
    assert b.holds


def test_a_child_of_which_only_the_file_tells_keeps_the_lock_from_being_granted() -> None:
    harness, a = held(children=1)
    harness.restart()
    a.register()
    b = harness.waiter("b")
    harness.kill_tree(a)
    harness.advance(WINDOW_S * 5)
    assert not b.holds and "no proof of its end" in harness.waiting_for
    assert "--grant-unproven" in harness.alarms


@every_kernel
def test_presume_dead_takes_the_window_for_the_proof_and_says_so(kernel: Kernel) -> None:
    harness, a = held(kernel, presume_dead=True)
    harness.allows_two = True
    harness.restart()
    b = harness.waiter("b")
    harness.advance(WINDOW_S - 0.1)
    assert not b.holds
    harness.advance(0.2)
    assert b.holds and a.alive
    assert harness.shouted("--unsafe-presume-dead")
    a.register()
    assert a.refused


def test_the_policy_is_told_with_the_welcome() -> None:
    for presume_dead in (False, True):
        _, a = held(presume_dead=presume_dead, window_s=7.0, settle_s=1.0)
        welcome = a.last(m.Welcome)
        assert welcome is not None
        assert welcome.policy == m.Policy(presume_dead=presume_dead, window_s=7.0, settle_s=1.0)


# -- who may say that it is the holder -----------------------------------------------------------------------------


def test_another_process_does_not_pass_for_the_holder_where_the_kernel_names_it() -> None:
    harness, a = held()
    harness.restart()
    impostor = a.fork()
    a.register(process=impostor)
    assert "another process" in a.refused and harness.state == "RECOVERING"
    a.register()
    assert harness.state == "HELD"


@older_kernels
def test_on_older_kernels_the_secret_of_the_grant_tells_the_holder(kernel: Kernel) -> None:
    harness, a = held(kernel)
    harness.restart()
    impostor, secret = a.fork(), a.secret
    for guess in ("", "guessed"):
        a.register(process=impostor, secret=guess)
        assert "another process" in a.refused
    assert harness.state == "RECOVERING"
    a.register(secret=secret)
    assert harness.state == "HELD"


# -- the holder reconnects, but never learned that it was granted --------------------------------------------------


@every_kernel
def test_a_grant_that_reached_the_disk_and_no_client_is_made_anew(kernel: Kernel) -> None:
    """The names that went with it were lost with the server: another process may have them by now."""
    harness = Harness(kernel).start()
    harness.advance(SETTLE_S)
    a = harness.engine("a").register()
    harness.disk = Disk.CRASH_AFTER
    a.acquire()
    older = harness.tenure.token
    assert not a.holds
    harness.disk = Disk.WORKS
    harness.start()
    a.register()
    assert not a.holds and harness.state == "FREE"
    a.acquire()
    assert a.token > older and harness.state == "HELD"


@every_kernel
def test_a_grant_that_did_not_reach_the_disk_was_never_made(kernel: Kernel) -> None:
    harness = Harness(kernel).start()
    harness.advance(SETTLE_S)
    a = harness.engine("a").register()
    harness.disk = Disk.CRASH_BEFORE
    a.acquire()
    assert not a.holds
    harness.disk = Disk.WORKS
    harness.start()
    a.register()
    assert a.welcomed_with == {}
    b = harness.waiter("b")
    harness.advance(SETTLE_S + 1)
    assert b.holds


# -- no holder file ------------------------------------------------------------------------------------------------


@every_kernel
def test_without_a_file_no_waiter_is_granted_before_the_settling_time(kernel: Kernel) -> None:
    harness = Harness(kernel).start()
    a = harness.waiter("a")
    harness.advance(SETTLE_S - 0.05)
    assert harness.state == "RECOVERING" and not a.holds
    harness.advance(0.1)
    assert a.holds


def test_without_a_file_free_memory_shortens_the_settling_to_the_time_in_which_a_live_holder_is_back() -> None:
    harness = Harness(memory={"gpu": (80, 80)}).start()
    a = harness.waiter("a", gpu=70)
    harness.advance(SETTLE_S / 2 - 0.01)
    assert not a.holds
    harness.advance(0.05)
    assert a.holds


@every_kernel
def test_a_hello_that_carries_a_token_becomes_the_holder(kernel: Kernel) -> None:
    harness, a = held(kernel)
    harness.crash().file = None
    harness.start()
    b = harness.waiter("b")
    a.register()
    assert harness.state == "HELD" and harness.tenure.engine_id == "a"
    assert harness.status.holder is not None and harness.status.holder.granted_at == "", "it isn't known when"
    harness.advance(SETTLE_S * 10)
    assert not b.holds
    harness.kill_tree(a)
    harness.advance(1)
    assert b.holds == (kernel is not Kernel.NONE), "without pidfds it may be dying yet"
    harness.advance(SETTLE_S)
    assert b.token > a.token


def test_tokens_begin_above_the_floor_where_the_file_was_lost() -> None:
    harness = Harness().start(token_floor=5_000_000)
    a = harness.holder("a")
    assert a.token > 5_000_000


def test_a_life_lock_of_an_engine_that_does_not_come_keeps_the_lock_from_being_granted() -> None:
    harness, a = held()
    harness.crash().file = None
    harness.start()
    b = harness.waiter("b")
    harness.advance(SETTLE_S * 20)
    assert not b.holds and a.name in harness.waiting_for
    harness.kill(a.main)
    harness.advance(SETTLE_S + 0.2)
    assert b.holds and not harness.alarms


@pytest.mark.parametrize("grant_unproven", [False, True])
@pytest.mark.parametrize("unreadable", ["", "torn"], ids=["no file", "unreadable file"])
def test_a_person_is_called_when_a_life_lock_is_held_by_an_engine_that_does_not_come(
    unreadable: str, grant_unproven: bool
) -> None:
    harness, a = held(grant_unproven=grant_unproven)
    harness.crash().file = harness.file if unreadable else None
    harness.start(unreadable=unreadable)
    b = harness.waiter("b")
    harness.advance(WINDOW_S * 3)
    assert a.alive and not b.holds and a.name in harness.alarms and a.name in harness.waiting_for
    fencing = harness.status.fencing
    assert harness.state == "FENCING" and fencing is not None and fencing.life_lock == "unknown"


def test_a_living_member_whose_main_process_is_not_back_keeps_the_lock_from_being_granted() -> None:
    harness, a = held(children=1)
    harness.crash().file = None
    harness.dies(a.main)
    harness.start()
    a.join(a.processes[1])
    b = harness.waiter("b")
    harness.advance(SETTLE_S * 20)
    assert not b.holds
    harness.kill(a.processes[1])
    harness.advance(SETTLE_S + 0.2)
    assert b.holds


@with_pidfds
def test_a_waiter_tells_of_the_holder_that_the_lost_file_named(kernel: Kernel) -> None:
    harness, a = held(kernel)
    b = harness.waiter("b")
    harness.crash().file = None
    harness.life.clear()
    harness.probes.clear()
    harness.life.add(b.name)
    harness.start()
    b.comes_back()
    assert harness.status.holder is not None and harness.status.holder.engine_id == "a"
    harness.advance(SETTLE_S * 20)
    assert not b.holds, "the holder lives, its pidfd says so"
    harness.kill(a.main)
    harness.advance(WINDOW_S)
    assert b.token > a.token


def test_a_living_holder_with_a_newer_token_is_not_refused_for_an_older_one_known_by_hearsay() -> None:
    harness, a = held()
    old, straggler = a, harness.waiter("straggler")
    harness.hangs_up(straggler.main)
    b = harness.waiter("b")
    harness.kill_tree(old)
    assert b.token > old.token
    harness.crash().file = None
    harness.start()
    straggler.register()
    straggler.hand_back(old)
    b.register()
    assert not b.refused
    assert harness.state == "HELD"


def test_an_older_claim_is_refused_where_a_waiter_knows_of_a_newer_holder() -> None:
    harness, a = held()
    b = harness.waiter("b")
    harness.crash().file = None
    harness.start()
    b.comes_back()
    late = harness.engine("late").register(claims={ACTIVE: a.token - 1})
    assert "a was granted the lock" in late.refused


def test_a_holder_told_of_by_a_waiter_and_proven_gone_does_not_end_the_settling_time() -> None:
    harness, a = held()
    b = harness.waiter("b")
    harness.crash().file = None
    harness.dies(a.main)
    harness.start()
    b.comes_back()
    assert not b.holds, "there may have been a newer holder"
    harness.advance(SETTLE_S + 0.2)
    assert b.token > a.token


def test_a_file_that_says_that_no_engine_holds_grants_at_once() -> None:
    harness, a = held()
    harness.kill_tree(a)
    harness.advance(1)
    assert harness.record is not None and harness.record.active is None
    harness.restart()
    assert harness.state == "FREE"
    b = harness.waiter("b")
    assert b.token > a.token


# -- a file that can't be read -------------------------------------------------------------------------------------


@every_kernel
def test_a_file_that_cannot_be_read_is_a_holder_that_must_be_proven_gone(kernel: Kernel) -> None:
    harness, a = held(kernel)
    harness.dies(*a.processes)
    harness.restart(unreadable="its checksum is wrong")
    assert "its checksum is wrong" in harness.alarms
    b = harness.waiter("b")
    harness.advance(WINDOW_S - 0.1)
    assert harness.state == "RECOVERING" and not b.holds
    harness.advance(LONG_S)
    assert not b.holds and "--grant-unproven" in harness.alarms


@every_kernel
def test_a_holder_whose_file_cannot_be_read_comes_back_and_goes_on(kernel: Kernel) -> None:
    harness, a = held(kernel)
    harness.restart(unreadable="torn")
    a.register()
    assert harness.state == "HELD" and not harness.alarms and harness.tenure


def test_free_memory_and_no_life_lock_prove_it_though_the_file_cannot_be_read() -> None:
    harness, a = held(memory={"gpu": (80, 80)})
    harness.dies(a.main)
    harness.restart(unreadable="torn")
    b = harness.waiter("b", gpu=70)
    harness.advance(RETURN_S + 0.05)
    assert b.holds and not harness.alarms


# -- its directory or socket was replaced --------------------------------------------------------------------------


def test_a_server_whose_directory_was_replaced_stops_and_grants_nothing_more() -> None:
    harness, a = held()
    b = harness.waiter("b")
    harness.feed(e.DirectoryReplaced("the run directory was replaced"))
    assert "replaced" in harness.stopped
    harness.kill_tree(a)
    b.says(m.Prepared(round=harness.machine.succession.queue.round, ok=True))
    harness.advance(LONG_S)
    assert not b.holds


@pytest.mark.parametrize(
    ("at_rest", "removed", "has_holder", "meant"),
    [
        (True, True, False, True),
        (False, True, False, False),
        (True, False, False, False),
        (True, True, True, False),
    ],
)
def test_only_the_removal_of_one_of_many_that_no_engine_has_is_meant(
    at_rest: bool, removed: bool, has_holder: bool, meant: bool
) -> None:
    harness = Harness(at_rest=at_rest).start()
    harness.advance(SETTLE_S)
    if has_holder:
        a = harness.waiter("a")
        harness.receive(harness.observer(), m.Wake())
        harness.advance(SETTLE_S)
        assert a.holds
    harness.feed(e.DirectoryReplaced("the run directory was replaced", removed=removed))
    (stop,) = (effect for effect in harness.effects if isinstance(effect, e.Stop))
    assert stop.meant is meant
    assert not harness.machine.is_started


@pytest.mark.parametrize("why", ["unreadable", "permit", "a process that hasn't come back"])
def test_a_removal_is_not_meant_while_an_engine_may_have_memory_of_which_no_file_names_a_holder(why: str) -> None:
    harness = Harness(at_rest=True)
    if why == "a process that hasn't come back":
        harness.start().advance(SETTLE_S)
        harness.receive(harness.observer(), m.Wake())
        older, a = harness.file, harness.waiter("a")
        worker = a.join()
        harness.crash().file = older
    harness.start(unreadable="torn" if why == "unreadable" else "")
    if why != "unreadable":
        harness.advance(SETTLE_S)
    if why == "a process that hasn't come back":
        assert a.holds and older is not None
        a.join(worker)
    if why == "permit":
        harness.waiter("a").says(m.Acquire(lock=INIT))
        assert harness.status.permits[INIT].holder == "a"
    harness.feed(e.DirectoryReplaced("the run directory was replaced", removed=True))
    (stop,) = (effect for effect in harness.effects if isinstance(effect, e.Stop))
    assert not stop.meant


# -- the permit `init` across a restart ----------------------------------------------------------------------------


@every_kernel
def test_the_permit_is_its_holders_after_a_restart_too(kernel: Kernel) -> None:
    harness = Harness(kernel).start()
    harness.advance(SETTLE_S)
    a = harness.engine("a").register().wants_permit()
    assert a.has_permit
    harness.restart()
    b = harness.engine("b").register().wants_permit()
    a.register(claims={INIT: 0})
    harness.advance(WINDOW_S * 5)
    assert not b.heard(m.Granted) and harness.status.permits[INIT].holder == "a"
    a.says(m.Release())
    assert b.has_permit


@every_kernel
def test_a_permit_whose_holder_died_with_the_server_is_free_when_its_life_lock_is(kernel: Kernel) -> None:
    harness = Harness(kernel).start()
    harness.advance(SETTLE_S)
    a = harness.engine("a").register().wants_permit()
    harness.dies(a.main)
    harness.restart()
    b = harness.engine("b").register().wants_permit()
    harness.advance(0.2)
    assert b.has_permit


def test_a_permit_is_not_given_before_the_settling_time_when_the_file_is_lost() -> None:
    harness = Harness().start()
    a = harness.engine("a").register().wants_permit()
    harness.advance(SETTLE_S - 0.05)
    assert not a.heard(m.Granted) and "may come back" in harness.permit_waits_for
    harness.advance(0.1)
    assert a.heard(m.Granted)


@pytest.mark.parametrize("kernel", [Kernel.PIDFS, Kernel.NONE], ids=lambda kernel: kernel.name)
def test_everything_was_killed_at_once_and_who_starts_may_initialise_and_then_prove_it_by_memory(
    kernel: Kernel,
) -> None:
    """Its pidfds are lost, memory proves its end as soon as an engine says what it needs, and none can that was never
    let initialise.
    """
    harness, a = held(kernel, memory={"gpu": (10, 10)})
    harness.dies(*a.processes)
    harness.restart()
    b = harness.engine("b").register().wants_permit()
    harness.advance(WINDOW_S - 1)
    assert not b.heard(m.Granted), "it may still come back"
    harness.advance(2)
    assert b.has_permit
    b.says(m.Release())
    b.acquire(gpu=5)
    harness.advance(1)
    assert b.holds


def test_one_that_did_not_come_back_and_still_has_its_life_lock_keeps_others_from_the_permit() -> None:
    harness, _ = held()
    harness.restart()
    b = harness.engine("b").register().wants_permit()
    harness.advance(LONG_S)
    assert not b.heard(m.Granted)


# -- first on disk, then told, also for one that comes back --------------------------------------------------------


def test_a_claim_that_isnt_on_disk_is_welcomed_the_second_time_as_little_as_the_first() -> None:
    """Found by Hypothesis: the second time nothing was new, so nothing was waited for."""
    harness, a = held()
    harness.crash().file = None
    harness.disk = Disk.FAILS
    harness.start()
    for _ in range(3):
        a.register()
        assert a.last(m.Welcome) is None
        harness.hangs_up(a.main)
    a.register()
    harness.disk = Disk.WORKS
    harness.advance(1)
    assert a.welcomed_with == {ACTIVE: a.token}
    assert harness.tenure.life_file == a.name


# -- files restored from a backup, and reboots ---------------------------------------------------------------------


def test_an_older_file_doesnt_end_the_holder_and_no_token_is_given_twice() -> None:
    harness, a = held()
    older = harness.file
    b = harness.waiter("b")
    harness.kill(a.main)
    assert b.holds
    harness.crash().file = older
    harness.start(token_floor=0)
    b.register()
    assert harness.state == "HELD" and not b.refused and b.welcomed_with == {ACTIVE: b.token}
    c = harness.waiter("c")
    harness.kill(b.main)
    assert not c.holds, "no file names its processes: one that hasn't come may be dying"
    harness.advance(SETTLE_S)
    assert c.token > b.token > a.token


def test_an_older_file_and_a_waiter_that_kept_the_newer_holders_pidfds() -> None:
    """The newer holder is stopped: only the copies tell of it."""
    harness, a = held()
    older = harness.file
    b = harness.waiter("b")
    harness.kill(a.main)
    c = harness.waiter("c")
    assert b.holds
    harness.crash().file = older
    harness.start(token_floor=0)
    c.comes_back()
    holder = harness.machine.active.holder
    assert holder is not None and holder.name == b.name and holder.members, "its copies are kept: no file names them"
    harness.advance(WINDOW_S * 3)
    assert not c.holds, "b lives"
    harness.dies(b.main)
    harness.pidfd_readable(b.main)
    harness.advance(1)
    assert c.token > b.token


def test_a_newer_holder_is_heard_of_though_the_older_one_is_proven_gone_already() -> None:
    """No engine waited, so the lock was free; who comes next knows better."""
    harness, a = seen()
    older = harness.file
    b = harness.waiter("b")
    harness.kill(a.main)
    a.main.reaped = True
    child, c = b.join(), harness.waiter("c")
    assert b.holds
    harness.crash().file = older
    harness.dies(b.main)  # and with it go the names that came with the grant
    harness.start(token_floor=0)
    harness.advance(WINDOW_S + 1)
    assert harness.state == "FREE", "the older one's life file is gone, so that took the window"
    c.comes_back()
    harness.advance(WINDOW_S)
    assert c.token > b.token and not child.alive, "what is left of b is killed, and its end awaited"


@pytest.mark.parametrize("memory", [True, False])
def test_a_member_that_an_older_file_does_not_name_may_be_dying_when_it_lets_go(memory: bool) -> None:
    """It has closed its life file, which is not the end of its end. The main process and all with copies are dead,
    so no process tells of it; that it was there shows in a life lock that outlives all who are known.
    """
    harness = Harness(Kernel.PIDFS, memory={"gpu": (40, 100)} if memory else None)
    harness.pid_namespace = "pid:[1]"
    a = harness.start().holder("a")
    older = harness.file
    child = a.join()
    harness.crash().file = older
    harness.dies(a.main)
    a.main.reaped = True
    harness.start()
    b = harness.engine("b").register().acquire(gpu=60)
    harness.advance(1)
    assert "held by a process that did not join" in harness.waiting_for and not b.holds
    harness.dies(child)
    harness.advance(1)
    assert "may be dying" in harness.waiting_for and not b.holds
    if memory:
        harness.memory = {"gpu": (100, 100)}
        harness.advance(1)
    else:
        harness.advance(WINDOW_S)
    assert b.holds and not b.proven


# -- the names in the network namespace ----------------------------------------------------------------------------


def test_a_holder_that_is_not_known_keeps_the_names_though_it_is_stopped_and_the_directory_is_new() -> None:
    harness, a = held(memory={"gpu": (80, 80)})
    harness.crash().file = None
    harness.life.clear()
    harness.start()
    b = harness.waiter("b", gpu=70)
    harness.advance(LONG_S)
    assert not b.holds and "another process has the path" in harness.alarms
    harness.dies(a.main)
    harness.advance(SETTLE_S - 0.1)
    assert not b.holds and not harness.alarms and "may be dying" in str(harness.waiting_for)
    harness.advance(0.3)
    assert b.holds


def test_a_server_that_is_stopped_keeps_the_names() -> None:
    harness, a = held()
    stopped = harness.server
    harness.dies(a.main)
    harness.crash().file = None
    stopped.alive = True
    harness.life.clear()
    harness.start()
    b = harness.waiter("b")
    harness.advance(60)
    assert not b.holds and harness.state == "FENCING" and "the path" in harness.alarms
    stopped.alive = False
    harness.advance(SETTLE_S + 1)
    assert b.holds


# -- another version -----------------------------------------------------------------------------------------------


def test_a_holder_of_another_version_is_watched_and_fenced_by_its_pidfd_alone() -> None:
    harness, a = held(memory={"gpu": (80, 80)})
    harness.restart()
    a.register(protocol=98, newest=99)
    assert a.last(m.Incompatible) is not None and not a.refused and not a.connected
    b = harness.waiter("b", gpu=70)
    harness.advance(LONG_S)
    assert not b.holds and "98 to 99" in harness.alarms and "98 to 99" in harness.waiting_for
    harness.dies(a.main)
    harness.pidfd_readable(a.main)
    harness.advance(1)
    assert b.holds and not harness.alarms


@pytest.mark.parametrize("comes_after_s", [0.0, SETTLE_S * 2])
def test_a_holder_of_another_version_is_believed_by_a_server_without_a_file(comes_after_s: float) -> None:
    harness, a = held()
    harness.named.clear()
    harness.crash().file = None
    harness.start()
    harness.advance(comes_after_s)
    a.register(protocol=98, newest=99)
    b = harness.waiter("b")
    harness.advance(LONG_S)
    assert not b.holds
    harness.restart()
    harness.advance(LONG_S)
    assert not b.holds, "it is in the file"
    harness.dies(a.main)


def test_a_holder_whose_upgrade_is_finished_is_back() -> None:
    harness, a = held()
    harness.restart()
    a.register(protocol=98, newest=99)
    a.register()
    assert harness.state == "HELD" and not harness.alarms and a.last(m.Welcome) is not None


@pytest.mark.parametrize("newest", [m.PROTOCOL, 99], ids=["a version", "another version"])
def test_no_claim_is_a_way_around_the_proof(newest: int) -> None:
    """The holder is dead, and a process that never joined has its life lock: no token, however new, changes that."""
    harness, a = held()
    b = harness.waiter("b")
    stray = a.fork()
    harness.kill(a.main)
    c = harness.engine("c").register(protocol=newest, newest=newest, claims={ACTIVE: a.token + 5})
    assert not c.holds and not b.holds and "did not join" in harness.waiting_for
    harness.kill(c.main)
    harness.advance(WINDOW_S * 2)
    assert not b.holds
    harness.kill(stray)
    harness.advance(1)
    assert b.holds and b.token > a.token


# -- a program that is executed anew -------------------------------------------------------------------------------


def test_a_holder_that_executes_its_program_anew_doesnt_wait_for_itself() -> None:
    harness, a = held(children=0)
    harness.hangs_up(a.main)
    again = a.executes_anew().register().acquire()
    harness.advance(BOTH_BACK_S + 1)
    assert again.token > a.token and harness.state == "HELD"


def test_nor_where_what_it_said_before_is_read_after_what_the_new_program_says() -> None:
    """Found by the simulator: a server that was stopped reads its connections in any order."""
    harness, a = held(children=1)
    before, child = a.main, a.processes[1]
    harness.hangs_up(before)
    again = a.executes_anew().register()
    late = harness.connect(before)
    harness.receive(late, a.hello(), (harness.peer(before, before.pid),), life_held=True)
    del harness.conns[late]
    harness.feed(e.Closed(late))
    again.acquire()
    harness.kill(child)
    harness.advance(BOTH_BACK_S + 1)
    assert again.token > a.token and harness.state == "HELD"


def test_what_else_belongs_to_it_must_still_be_gone() -> None:
    harness, a = held(children=1)
    child = a.processes[1]
    harness.unkillable.add(child)
    harness.hangs_up(a.main)
    again = a.executes_anew().register().acquire()
    harness.advance(WINDOW_S * 2)
    assert not again.holds and f"process {child.pid}" in harness.waiting_for
    harness.kill(child)
    harness.advance(1)
    assert again.holds


# -- members that end ----------------------------------------------------------------------------------------------


def test_a_members_normal_end_is_written_down() -> None:
    harness, a = held(children=1)
    child = a.processes[1]
    harness.kill(child)
    harness.advance(1)
    assert [member.number for member in harness.members_on_disk] == [1]
    harness.restart()
    b = harness.waiter("b")
    a.register()
    assert harness.state == "HELD"
    harness.kill(a.main)
    harness.advance(1)
    assert b.holds, "no process is missed"


def test_a_client_that_keeps_a_dead_members_pidfd_keeps_it_until_its_end_is_on_disk() -> None:
    harness, a = held(children=1)
    b = harness.waiter("b")
    child = a.processes[1]
    harness.disk = Disk.SLOW
    harness.kill(child)
    harness.advance(1)
    assert 2 in b.copies[a.name][0].numbers
    harness.disk = Disk.WORKS
    while harness.writes:
        harness.write_lands()
    assert b.copies[a.name][0].numbers == [1]


def test_members_that_die_with_their_main_process_cost_no_write_in_the_handoff() -> None:
    harness, a = held(children=3)
    b = harness.waiter("b")
    before = harness.machine.disk.asked
    harness.kill_tree(a)
    harness.advance(1)
    assert b.holds and harness.machine.disk.asked == before + 1


def test_nor_does_it_if_the_server_was_away_meanwhile() -> None:
    """Found by the simulator: only the file tells of the old program then."""
    harness, a = held(children=0)
    harness.crash()
    for copies in harness.named.values():
        copies.discard(a.main)
    again = a.executes_anew()
    harness.start()
    again.register().acquire()
    harness.advance(WINDOW_S / 2)
    assert again.token > a.token and harness.state == "HELD"


def test_a_holder_in_another_pid_namespace_isnt_taken_for_another_process_on_older_kernels() -> None:
    """Found by the simulator: no file, no inodes, and the pidfd that a waiter had kept shows no number here."""
    harness, a = held(kernel=Kernel.SENT, children=0)
    b = harness.waiter("b")
    harness.crash().file = None
    harness.start()
    a.main.reaped = True  # so its pidfd shows no number
    b.register()
    b.hand_back(a)
    a.main.reaped = False
    a.register()
    assert not a.refused and a.welcomed_with == {ACTIVE: a.token}


# -- a connection that breaks while its waiter is asked ------------------------------------------------------------


def test_a_waiter_is_asked_again_over_its_new_connection() -> None:
    """Found by the simulator: it had been asked over the one that broke, and was never asked again."""
    harness, a = held()
    b = harness.waiter("b")
    b.wakes = None
    harness.dies(a.main)
    harness.hangs_up(a.main)
    assert len(b.heard(m.Prepare)) == 1
    b.wakes = True
    b.register()  # the broken connection's end is seen later
    b.says(m.Acquire(again=True))
    harness.pidfd_readable(a.main)
    assert b.holds

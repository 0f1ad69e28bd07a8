"""A holder that isn't proven gone within the window: one alarm, with who lives and why, until the proof is there."""

from tests.lockserver.harness import Harness, Process
from tests.lockserver.test_rules import settled

WINDOW_S = 10.0


def stuck() -> tuple[Harness, Process]:
    """The holder's main process is dead, and the worker that it leaves doesn't end."""
    harness = settled(window_s=WINDOW_S)
    a = harness.holder("a")
    harness.waiter("b")
    worker = a.join()
    harness.unkillable.add(worker)
    harness.kill(a.main)
    return harness, worker


def test_a_takeover_that_hangs_is_an_alarm_once_the_window_is_over_and_one_only() -> None:
    harness, worker = stuck()
    harness.advance(WINDOW_S - 0.01)
    assert harness.state == "FENCING" and not harness.alarms
    harness.advance(0.02)
    assert "a is not proven gone after 10 s, and no engine is granted" in harness.alarms
    assert f"process {worker.pid} of a is stopped" in harness.alarms, "what was seen of it"
    assert "can't be killed from here" in harness.alarms
    harness.advance(10 * WINDOW_S)
    assert sum(note.alarm for note in harness.notes) == 1, "said once"
    harness.kill(worker)
    harness.advance(1)
    assert harness.state == "HELD" and not harness.alarms, "it ends with the proof"


def test_where_proc_hangs_as_well_the_alarm_comes_without_a_look() -> None:
    harness, worker = stuck()
    harness.looks_answered = False
    harness.advance(WINDOW_S + 5)
    assert f"process {worker.pid} of a is alive" in harness.alarms


def test_a_connection_that_ended_is_one_and_ends_when_the_holder_is_back() -> None:
    harness = settled(window_s=WINDOW_S)
    a = harness.holder("a")
    harness.waiter("b")
    harness.hangs_up(a.main)
    harness.advance(WINDOW_S + 1)
    assert f"main process {a.main.pid} of a is stopped" in harness.alarms
    a.register()
    assert harness.state == "HELD" and not harness.alarms


def test_the_process_that_has_the_life_lock_is_named() -> None:
    harness = settled(window_s=WINDOW_S)
    a = harness.holder("a")
    harness.waiter("b")
    guard = a.fork()
    harness.kill(a.main)
    harness.advance(WINDOW_S + 1)
    assert f"held by process {guard.pid}" in harness.alarms


def test_after_a_restart_the_time_counts_from_when_the_holder_could_have_been_back() -> None:
    harness = settled(window_s=WINDOW_S)
    a = harness.holder("a")
    harness.waiter("b")
    harness.restart()
    harness.advance(WINDOW_S + 5)
    assert harness.state == "FENCING" and not harness.alarms
    harness.advance(WINDOW_S)
    assert str(a.main.pid) in harness.alarms


def test_a_permit_that_is_stuck_is_one_too() -> None:
    harness = settled(window_s=WINDOW_S)
    a = harness.engine("a").register().wants_permit()
    worker = a.join()
    harness.unkillable.add(worker)
    harness.kill(a.main)
    harness.advance(WINDOW_S + 1)
    assert "no engine gets the permit init" in harness.alarms


def test_a_waiter_that_does_not_answer_and_is_alone_is_one_too_until_it_does() -> None:
    harness = settled(window_s=WINDOW_S)
    a = harness.holder("a")
    b = harness.waiter("b")
    b.wakes = None
    harness.kill(a.main)
    harness.advance(WINDOW_S - 1)
    assert harness.state == "FENCING" and not harness.alarms
    harness.advance(5)
    assert "none was granted for 10 s: b: asked whether its engine can wake" in harness.alarms
    assert f"its main process {b.main.pid} is stopped" in harness.alarms
    harness.advance(10 * WINDOW_S)
    assert sum(note.alarm for note in harness.notes) == 1, "said once"
    b.wakes = True
    b.looks()
    assert b.holds and not harness.alarms


def test_another_waiter_that_answers_is_granted_and_there_is_no_alarm() -> None:
    harness = settled(window_s=WINDOW_S)
    a, b, c = harness.holder("a"), harness.waiter("b"), harness.waiter("c")
    b.wakes = None
    harness.kill(a.main)
    harness.advance(3 * WINDOW_S)
    assert c.holds and not harness.alarms

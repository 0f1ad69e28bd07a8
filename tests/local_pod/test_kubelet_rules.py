"""kubelet's rules as tables: order, restarts and back-off, probes and thresholds, readiness, how things are ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local_pod.play import Play, init, main, probe, sidecar
from tools.local_pod import events as e
from tools.local_pod.backoff import Backoff
from tools.local_pod.container import MAY_FOLLOW, IllegalPhase, Life, Phase
from tools.local_pod.machine import Settings
from tools.local_pod.probing import Probing
from tools.local_pod.spec import Container, Kind, Role

STARTUP, LIVENESS, READINESS = Kind.STARTUP, Kind.LIVENESS, Kind.READINESS
AT_ONCE = Settings(relist_s=0, jitter=0)


# -- order -------------------------------------------------------------------------------------------------------------


def test_init_containers_run_one_after_the_other_and_main_containers_together() -> None:
    play = Play([init("one", lives=[0.5]), init("two", lives=[0.5]), main("a"), main("b")], AT_ONCE).until(5)
    assert [play.starts(name) for name in ("one", "two", "a", "b")] == [[0], [0.5], [1.0], [1.0]]


def test_kubelet_sees_an_end_when_it_looks_the_next_time() -> None:
    play = Play([init("one", lives=[0.5]), init("two", lives=[0.7]), main("a")]).until(5)
    assert [play.starts(name) for name in ("one", "two", "a")] == [[0], [1.0], [2.0]]


def test_an_init_container_that_fails_holds_everything_up() -> None:
    play = Play([init("one", codes=[1]), main("a")], Settings(back_off_s=2, relist_s=0, jitter=0)).until(4)
    assert len(play.starts("one")) == 3 and play.starts("a") == []
    assert not play.machine.finished


def test_a_sidecar_holds_the_next_up_until_its_startup_probe_passes() -> None:
    slow = sidecar("s", startup=probe(STARTUP, period_s=1, failure_threshold=60), answers={STARTUP: lambda t: t >= 2.5})
    play = Play([slow, sidecar("t"), main("a")], AT_ONCE).until(6)
    assert [play.starts(name) for name in ("s", "t", "a")] == [[0], [3], [3]]


def test_a_sidecar_without_a_startup_probe_holds_no_container_up() -> None:
    play = Play([sidecar("s", starts_s=0.25), main("a")]).until(2)
    assert play.starts("a") == [0.25]


def test_what_was_started_once_is_not_gone_through_again() -> None:
    """A sidecar that dies is started by itself: the others aren't touched, and none waits for it."""
    first = sidecar("s", startup=probe(STARTUP, period_s=1, failure_threshold=60))
    play = Play([first, sidecar("t"), main("a")]).until(5).kill("s", 5.5).until(10)
    assert play.starts("s") == [0, 6]
    assert (len(play.starts("t")), len(play.starts("a"))) == (1, 1)


def test_a_sidecar_that_dies_before_the_next_is_there_is_started_again_and_the_order_goes_on() -> None:
    slow = sidecar("t", startup=probe(STARTUP, period_s=1, failure_threshold=60), answers={STARTUP: lambda t: t >= 6})
    play = Play([sidecar("s"), slow, main("a")]).until(2).kill("s", 2.5).until(12)
    assert play.starts("s") == [0, 3]
    assert play.starts("a") == [6]


# -- restarts and back-off ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lives", "starts"),
    [
        # at once, then 10, 20, 40 ... after the end, and 300 at most
        ([1.0] * 8, [0, 1, 12, 33, 74, 155, 316, 617, 918]),
        # an end more than ten minutes after the last start: as if it were the first
        ([1.0, 1.0, 700.0, 1.0, None], [0, 1, 12, 712, 723]),
        # within ten minutes: it doubles on, though it ran for long
        ([1.0, 1.0, 500.0, 1.0, None], [0, 1, 12, 532, 573]),
        # how long it ran makes no difference: the wait counts from its end
        ([1.0, 15.0, 1.0, None], [0, 1, 26, 47]),
    ],
)
def test_back_off(lives: list[float | None], starts: list[float]) -> None:
    play = Play([main("a", lives=lives)], AT_ONCE).until(1000)
    assert play.starts("a")[: len(starts)] == starts


def test_the_back_off_counts_from_the_end_and_not_from_when_kubelet_saw_it() -> None:
    """And it is started at a look of kubelet's, too."""
    assert Play([main("a", lives=[0.5, 0.5, None])]).until(60).starts("a") == [0, 1.0, 12.0]


@given(st.integers(0, 2**32))
def test_kubelet_waits_for_one_to_one_and_a_half_back_offs(seed: int) -> None:
    play = Play([main("a", lives=[1.0, 1.0, 1.0, None])], Settings(relist_s=0, seed=seed)).until(100)
    waits = [start - end for start, end in zip(play.starts("a")[2:], play.ends("a")[1:], strict=True)]
    assert all(least <= wait <= 1.5 * least for least, wait in zip((10, 20), waits, strict=True))
    again = Play([main("a", lives=[1.0, 1.0, 1.0, None])], Settings(relist_s=0, seed=seed)).until(100)
    assert again.starts("a") == play.starts("a"), "one seed is one course of things"


def test_each_container_has_its_own_back_off() -> None:
    play = Play([main("a", lives=[1.0, 1.0, None]), main("b", lives=[5.0, None])], AT_ONCE).until(30)
    assert (play.starts("a"), play.starts("b")) == ([0, 1, 12], [0, 5])


def test_a_shorter_back_off_can_be_had() -> None:
    play = Play([main("a", lives=[1.0])], Settings(back_off_s=1, back_off_most_s=2, relist_s=0, jitter=0)).until(12)
    assert play.starts("a")[:4] == [0, 1, 3, 6]


def test_what_cannot_be_started_backs_off_too() -> None:
    play = Play([main("a", starts=False)], AT_ONCE).until(40)
    assert play.starts("a") == [0, 0, 10, 30]


def test_a_main_container_that_ends_well_is_started_again_too() -> None:
    assert len(Play([main("a", lives=[1.0, 1.0], codes=[0])], AT_ONCE).until(8).starts("a")) == 2


@given(st.lists(st.floats(0.1, 900), min_size=1, max_size=12))
def test_a_back_off_is_never_longer_than_its_maximum_nor_shorter_than_its_first(lives: list[float]) -> None:
    play = Play([main("a", lives=[*lives, None])], AT_ONCE).until(1e5)
    starts, ends = play.starts("a"), play.ends("a")
    waits = [start - end for start, end in zip(starts[1:], ends, strict=True)]
    assert all(wait <= 300.01 for wait in waits)
    assert waits[0] == pytest.approx(0, abs=0.01)
    assert len(starts) == len(lives) + 1


def test_the_back_off_by_itself() -> None:
    """client-go's rules, without a container around them."""
    backoff = Backoff()
    assert backoff.until(None) == backoff.until(5.0) == float("-inf")
    backoff.started(None, 0)
    assert backoff.changed_at is None  # a first start opens nothing
    backoff.started(5.0, 5.0)
    assert (backoff.delay_s, backoff.until(6.0)) == (10, 16.0)
    backoff.started(6.0, 16.0)
    assert (backoff.delay_s, backoff.until(17.0)) == (20, 37.0)
    assert backoff.until(16.0 + 600) == 636.0
    assert backoff.until(16.0 + 601) == float("-inf")
    backoff.started(16.0 + 601, 617.0)
    assert backoff.delay_s == 10


# -- probes ------------------------------------------------------------------------------------------------------------


def test_a_probes_clock_ticks_from_the_pods_begin() -> None:
    """Not from the container's start: one that starts at 0.3 is asked at 1, 2 ..., and at 10, 20 ..."""
    a = main("a", starts_s=0.3, liveness=probe(LIVENESS, period_s=10), readiness=probe(READINESS, period_s=1))
    play = Play([a]).until(21)
    assert sorted(set(play.asked("a", READINESS)))[:3] == [1, 2, 3]
    assert play.asked("a", LIVENESS) == [10, 20]


def test_the_initial_delay_counts_from_the_containers_start() -> None:
    a = main("a", starts_s=0.5, readiness=probe(READINESS, period_s=1, initial_delay_s=3))
    assert Play([a]).until(6).asked("a", READINESS)[0] == 4


def test_nothing_else_is_asked_before_the_startup_probe_has_passed_and_it_not_after() -> None:
    a = main(
        "a",
        startup=probe(STARTUP, period_s=1, failure_threshold=60),
        liveness=probe(LIVENESS, period_s=1),
        readiness=probe(READINESS, period_s=5),
        answers={STARTUP: lambda t: t >= 3},
    )
    play = Play([a]).until(12)
    assert play.asked("a", STARTUP) == [1, 2, 3]
    assert play.asked("a", LIVENESS)[0] == 4
    assert play.asked("a", READINESS) == [3, 5, 10]  # at once when it counts as started, then by its own clock


@pytest.mark.parametrize(
    ("failures", "threshold", "ended"),
    [((5, 6), 3, None), ((5, 6, 7), 3, 7), ((5, 7, 8), 3, None), ((5,), 1, 5), ((5, 6, 8, 9, 10), 3, 10)],
)
def test_a_liveness_probe_fails_after_so_many_in_a_row(
    failures: tuple[int, ...], threshold: int, ended: int | None
) -> None:
    a = main(
        "a",
        liveness=probe(LIVENESS, period_s=1, failure_threshold=threshold),
        answers={LIVENESS: lambda t: round(t) not in failures},
    )
    play = Play([a], AT_ONCE).until(15)
    assert [at for at, _ in play.signals("a")][:1] == ([] if ended is None else [ended])


def test_a_readiness_probe_passes_after_so_many_in_a_row_and_can_fail_again() -> None:
    a = main(
        "a",
        readiness=probe(READINESS, period_s=1, success_threshold=2, failure_threshold=2),
        answers={READINESS: lambda t: round(t) not in (0, 2, 5, 6, 7)},
    )
    assert Play([a], AT_ONCE).until(12).flips() == [(4, True), (6, False), (9, True)]


def test_a_startup_probe_that_fails_ends_the_container_and_the_next_run_begins_anew() -> None:
    a = main("a", startup=probe(STARTUP, period_s=1, failure_threshold=3), answers={STARTUP: lambda t: False})
    play = Play([a], AT_ONCE).until(6.5)
    assert play.signals("a") == [(3, "SIGTERM"), (6, "SIGTERM")]
    assert play.starts("a")[:2] == [0, 3]
    assert play.asked("a", STARTUP) == [1, 2, 3, 4, 5, 6]


def test_a_probe_that_has_failed_is_not_asked_again_in_the_same_run() -> None:
    a = main(
        "a", term_s=None, liveness=probe(LIVENESS, period_s=1, failure_threshold=1, grace_s=10),
        answers={LIVENESS: lambda t: t < 3},
    )  # fmt: skip
    play = Play([a], AT_ONCE).until(12.5)
    assert [at for at in play.asked("a", LIVENESS) if at <= 12] == [1, 2, 3]
    assert play.signals("a") == [(3, "SIGTERM"), (13, "SIGKILL")][:1]


def test_a_slow_answer_delays_the_next_question_and_one_is_made_up_for() -> None:
    a = main("a", answer_s=2.5, readiness=probe(READINESS, period_s=1))
    assert Play([a], AT_ONCE).until(8).asked("a", READINESS) == [0, 2.5, 5.0, 7.5]


def test_a_run_of_failures_goes_on_in_the_containers_next_run() -> None:
    a = main(
        "a", lives=[2.5, None], liveness=probe(LIVENESS, period_s=1, failure_threshold=4),
        answers={LIVENESS: lambda t: False},
    )  # fmt: skip
    play = Play([a], AT_ONCE).until(20)
    assert play.starts("a") == [0, 2.5, 14]
    assert play.signals("a") == [(4, "SIGTERM"), (18, "SIGTERM")], "two before its crash and two after it, then four"


def test_every_status_that_kubelet_makes_asks_the_readiness_probes_that_dont_pass() -> None:
    a = main("a", readiness=probe(READINESS, period_s=10), answers={READINESS: lambda t: t >= 3})
    play = Play([a, main("b", lives=[4.5, None])]).until(19)
    assert play.asked("a", READINESS) == [1, 5, 10], "its start is seen, the end of b is seen, its own clock"
    assert play.flips() == [(5, True)]


def test_liveness_begins_as_passed_readiness_as_failed_startup_as_unknown() -> None:
    assert [Probing(probe(kind), 0).result for kind in (LIVENESS, READINESS, STARTUP)] == [True, False, None]


def test_readiness_alone_ends_nothing() -> None:
    a = main("a", readiness=probe(READINESS, period_s=1), answers={READINESS: lambda t: False})
    assert Play([a]).until(60).signals("a") == []


# -- readiness of the pod ----------------------------------------------------------------------------------------------


def test_a_pod_is_ready_when_all_sidecars_and_main_containers_are() -> None:
    a = main("a", readiness=probe(READINESS, period_s=1), answers={READINESS: lambda t: t >= 3})
    assert Play([init("i"), sidecar("s"), a, main("b")], AT_ONCE).until(9).flips() == [(4.0, True)]


def test_any_restart_makes_the_pod_not_ready_until_its_startup_probe_passes_again() -> None:
    """The first time a restart costs what kubelet and the startup take; the second one costs the back-off."""
    s = sidecar("s", startup=probe(STARTUP, period_s=1, failure_threshold=60), answers={STARTUP: lambda t: t >= 0.1})
    play = Play([s, main("a")]).until(5).kill("s", 5.5).until(20).kill("s", 20.5).until(60)
    assert play.flips() == [(1, True), (6, False), (7, True), (21, False), (32, True)]
    assert play.starts("s") == [0, 6, 31]
    assert play.starts("a") == [1]


def test_a_container_that_is_backing_off_is_named() -> None:
    play = Play([main("a", lives=[0.5, 0.5, None])]).until(5)
    assert play.machine.unready() == ["a: CrashLoopBackOff"]


def test_the_end_of_a_container_that_kubelet_has_not_seen_keeps_the_pod_ready() -> None:
    play = Play([main("a")]).until(1).kill("a", 5.2).until(5.9)
    assert play.machine.ready
    assert not play.until(6).machine.ready or play.flips()[-1] == (6, True)


# -- being ended -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "grace_s", "signals"),
    [
        ({}, 30, [(5, "SIGTERM")]),
        ({"term_s": None}, 30, [(5, "SIGTERM"), (35, "SIGKILL")]),
        ({"term_s": None}, 1, [(5, "SIGTERM"), (7, "SIGKILL")]),  # never less than two seconds
        ({"pre_stop": 5}, 30, [(10, "SIGTERM")]),
        ({"pre_stop": 5, "term_s": None}, 30, [(10, "SIGTERM"), (35, "SIGKILL")]),  # the hook is part of the grace
        ({"pre_stop": 5, "term_s": None, "hook_s": 5.9}, 30, [(10.9, "SIGTERM"), (35.9, "SIGKILL")]),  # whole seconds
        ({"pre_stop": 60, "term_s": None}, 30, [(35, "SIGTERM"), (37, "SIGKILL")]),  # it is cut off
    ],
)
def test_deletion(fields: dict[str, object], grace_s: int, signals: list[tuple[float, str]]) -> None:
    play = Play([main("a", **fields)], AT_ONCE, grace_s=grace_s).delete(5).until(100)
    assert play.signals("a") == signals
    assert play.machine.finished


def test_hooks_run_all_at_once_and_sidecars_end_last_in_reverse() -> None:
    made = [
        sidecar("s", term_s=1),
        sidecar("t", term_s=1, pre_stop=3),
        main("a", term_s=4, pre_stop=5),
        main("b", term_s=1),
    ]
    play = Play(made, AT_ONCE, grace_s=60).delete(10).until(100)
    assert [play.times(e.RunHook, name) for name in ("t", "a")] == [[10], [10]]
    assert [play.signals(name)[0][0] for name in ("b", "a", "t", "s")] == [10, 15, 19, 20]


def test_a_sidecar_whose_turn_never_comes_is_ended_when_the_grace_is_over() -> None:
    play = Play([sidecar("s"), main("a", term_s=None)], AT_ONCE, grace_s=10).delete(5).until(60)
    assert play.signals("a") == [(5, "SIGTERM"), (15, "SIGKILL")]
    assert play.signals("s")[0][0] == 15


def test_nothing_is_started_again_once_the_pod_is_deleted() -> None:
    made = [sidecar("s", lives=[8.0, None], term_s=5), main("a", lives=[7.0, None], term_s=5), main("b", term_s=5)]
    play = Play(made, AT_ONCE).delete(6).until(60)
    assert [len(play.starts(name)) for name in ("s", "a", "b")] == [1, 1, 1]


def test_deletion_while_a_container_backs_off_or_is_being_made() -> None:
    play = Play([main("a", lives=[0.5, 0.5]), main("b", starts_s=9)], AT_ONCE).delete(5).until(60)
    assert play.machine.finished
    assert play.signals("b") == [(9, "SIGTERM")]


def test_liveness_and_startup_are_not_asked_any_more_once_the_pod_is_deleted_readiness_is() -> None:
    a = main("a", term_s=5, liveness=probe(LIVENESS, period_s=1), readiness=probe(READINESS, period_s=1))
    play = Play([a], AT_ONCE).delete(3.5).until(30)
    assert play.asked("a", LIVENESS)[-1] == 3
    assert play.asked("a", READINESS)[-1] == 8


def test_a_liveness_probe_has_a_grace_of_its_own() -> None:
    a = main(
        "a", term_s=None, pre_stop=5, liveness=probe(LIVENESS, period_s=1, failure_threshold=1, grace_s=2),
        answers={LIVENESS: lambda t: t < 5},
    )  # fmt: skip
    play = Play([a], AT_ONCE, grace_s=60).until(12)
    # The preStop is cut off after the probe's two seconds, and two more are between the signals.
    assert play.signals("a")[:2] == [(7, "SIGTERM"), (9, "SIGKILL")]
    assert play.starts("a") == [0, 9]


def test_without_one_a_failed_liveness_probe_takes_the_pods_grace() -> None:
    a = main(
        "a", term_s=None, liveness=probe(LIVENESS, period_s=1, failure_threshold=1), answers={LIVENESS: lambda t: t < 5}
    )
    assert Play([a], AT_ONCE, grace_s=30).until(40).signals("a")[:2] == [(5, "SIGTERM"), (35, "SIGKILL")]


def test_a_container_that_kubelet_ended_itself_is_started_again_in_the_same_breath() -> None:
    """Its back-off goes by the end before: the first such restart is free and opens nothing, the second opens it."""
    a = main("a", liveness=probe(LIVENESS, period_s=1, failure_threshold=1), answers={LIVENESS: lambda t: t < 5})
    assert Play([a]).until(30).starts("a") == [0, 5, 10, 25]


def test_a_second_deletion_can_only_shorten_the_grace() -> None:
    play = Play([main("a", term_s=None)], AT_ONCE, grace_s=60).delete(5).delete(6, grace_s=1).until(60)
    assert play.signals("a") == [(5, "SIGTERM"), (7, "SIGKILL")]


def test_what_doesnt_end_after_sigkill_is_waited_for_and_not_looked_at_without_a_pause() -> None:
    play = Play([main("a", term_s=None)], AT_ONCE).delete(5, grace_s=1)
    play.dead.add(("a", 1))  # its end is never heard of: it is stuck in the kernel
    play.delete(10, grace_s=3).until(20)
    assert play.signals("a") == [(5, "SIGTERM"), (7, "SIGKILL")]
    assert play.machine.deadline > 20 and not play.machine.finished


def test_a_hook_that_ends_late_changes_nothing() -> None:
    play = Play([main("a", pre_stop=60, hook_s=60, term_s=None)], AT_ONCE, grace_s=5).delete(5).until(100)
    assert play.times(e.CancelHook, "a") == [10]
    assert play.signals("a") == [(10, "SIGTERM"), (12, "SIGKILL")]


# -- the tables themselves ---------------------------------------------------------------------------------------------


def test_every_phase_is_in_the_table_and_a_wrong_step_is_refused() -> None:
    assert set(MAY_FOLLOW) == set(Phase)
    life = Life(Container("a", Role.MAIN, ("x",)), Backoff())
    with pytest.raises(IllegalPhase, match="RUNNING can't follow WAITING"):
        life.on_started(0)


def test_what_comes_of_a_run_that_is_over_is_not_heard() -> None:
    play = (
        Play([main("a", liveness=probe(LIVENESS, period_s=1, failure_threshold=1))], AT_ONCE)
        .until(3)
        .kill("a", 3.5)
        .until(4)
    )
    play.at(4.2, e.Answered("a", 1, LIVENESS, False, "of the run before"))
    play.at(4.2, e.Ended("a", 1, 1))
    assert play.until(9).starts("a") == [0, 3.5]


NAMES = ("s", "t", "a", "b")


@given(
    st.lists(st.tuples(st.floats(0.1, 60), st.sampled_from(["kill", "delete"]), st.sampled_from(NAMES)), max_size=12),
    st.sampled_from([0.0, 1.0]),
)
def test_whatever_dies_whenever_the_invariants_hold_and_a_deleted_pod_ends(
    steps: list[tuple[float, str, str]], relist_s: float
) -> None:
    made = [
        sidecar("s", startup=probe(STARTUP, period_s=1, failure_threshold=5), answers={STARTUP: lambda t: t >= 1}),
        sidecar("t", pre_stop=2, term_s=None, liveness=probe(LIVENESS, period_s=3, failure_threshold=1, grace_s=1)),
        main("a", term_s=None, pre_stop=5, readiness=probe(READINESS, period_s=1)),
        main("b", term_s=3.0, answer_s=1.5, liveness=probe(LIVENESS, period_s=1)),
    ]
    play = Play(made, Settings(relist_s=relist_s, seed=len(steps)), grace_s=20)
    for at, what, name in sorted(steps):
        if what == "delete":
            play.delete(at)
        elif play.machine.begun or play.until(0).machine.begun:
            play.kill(name, at)
    play.delete(100).until(200)
    assert play.machine.finished
    assert not play.machine.ready
    assert all(life.phase is Phase.DONE for life in play.machine.lives.values())

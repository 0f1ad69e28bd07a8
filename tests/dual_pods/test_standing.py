"""A requester's rules."""

from dataclasses import replace

import pytest

from dual_pods.rules.standing import MOST_QUICK_S, PAUSE_S, QUICK_S, SLOW_S, Standing, Target

AT = Target("http://x/ready", "http://x/watch", "x", 8000, token=7)


def _bound(now: float = 0.0) -> Standing:
    found = Standing().bound(AT, now)
    assert found is not None
    return found


def test_it_is_ready_when_its_instance_has_answered_and_not_before() -> None:
    assert not Standing().ready
    standing = _bound(3.0)
    assert not standing.ready and standing.ask_at == 3.0
    standing = standing.answered(AT, "503", 3.0)
    assert not standing.ready and 3.0 < standing.ask_at < 3.0 + SLOW_S
    standing = standing.answered(AT, "", 4.0)
    assert standing.ready and standing.ask_at == 4.0 + SLOW_S


def test_it_is_unready_at_once_when_the_binding_ends_and_soon_when_the_watch_ends_or_the_instance_says_no() -> None:
    ready = _bound().answered(AT, "", 1.0)
    unbound = ready.unbound(Target(token=7))
    assert unbound is not None and not unbound.ready and unbound.target is None
    cut = ready.cut(AT, 2.0)
    assert cut.ready and cut.ask_at == 2.0, "a standby may be about to take over"
    assert not cut.answered(AT, "gone", 2.0 + PAUSE_S).ready
    again = ready.answered(AT, "gone", 2.0).answered(AT, "", 2.5)
    assert again.ready and again.answered(AT, "gone", 3.4).ready, "each pause counts by itself"
    assert again.answered(AT, "gone", 3.4).ask_at < 4.0
    assert ready.told(AT, 1.5).ready and ready.told(AT, 1.5).ask_at == 1.5


@pytest.mark.parametrize("answer", ["answered", "told", "cut"])
def test_what_an_instance_of_before_says_counts_for_nothing(answer: str) -> None:
    other = Target("http://y/ready")
    ready = _bound().answered(AT, "", 1.0)
    changed = ready.answered(other, "no", 1.5) if answer == "answered" else getattr(ready, answer)(other, 1.5)
    assert changed == ready


def test_an_older_controller_is_refused() -> None:
    ready = _bound().answered(AT, "", 1.0)
    assert ready.bound(Target("http://y/ready", token=6), 2.0) is None and ready.unbound(Target(token=6)) is None
    again = ready.bound(replace(AT, token=8), 2.0)
    assert again is not None and again.ready and again.token == 8, "the same binding changes nothing"


def test_a_person_without_a_token_is_heard_and_forgets_none() -> None:
    ready = _bound().answered(AT, "", 1.0)
    by_hand, unbound, later = (
        ready.bound(Target("http://y/ready"), 2.0),
        ready.unbound(Target()),
        ready.unbound(Target(token=9)),
    )
    assert by_hand is not None and by_hand.target == Target("http://y/ready") and by_hand.token == 7
    assert unbound is not None and unbound.token == 7 and later is not None and later.token == 9


def test_one_that_says_no_is_asked_ever_more_seldom_and_often_enough() -> None:
    standing, pauses = _bound(), []
    for _ in range(30):
        standing = standing.answered(AT, "503", 5.0)
        pauses.append(standing.ask_at - 5.0)
    assert pauses[:2] == pytest.approx([QUICK_S, QUICK_S * 1.5]) and pauses[-1] == pytest.approx(MOST_QUICK_S)


def test_a_port_that_is_another_s_stays_so_while_its_door_doesn_t_answer() -> None:
    """Its door was busy for once, and clients had another model's answers."""
    elsewhere = _bound().answered(AT, "404", 1.0, 404)
    assert elsewhere.elsewhere and elsewhere.answered(AT, "it doesn't answer", 2.0).elsewhere
    for status in (200, 503):
        assert not elsewhere.answered(AT, "", 2.0, status).elsewhere


def test_what_asks_its_instance_is_told_by_none_that_this_isn_t_awake() -> None:
    ready = _bound().answered(AT, "", 1.0)
    for host in ("", "x"):
        assert ready.unbound(Target(host=host, token=8, stays=True)) == replace(ready, token=8)
    assert ready.unbound(Target(token=6, stays=True)) is None
    elsewhere = ready.unbound(Target(host="y", token=8, stays=True))
    assert elsewhere is not None and elsewhere.target is None and not elsewhere.ready
    by_word = Standing().bound(Target(), 0.0)
    assert by_word is not None
    unready = by_word.unbound(Target(stays=True))
    assert unready is not None and not unready.ready


def test_fma_s_controller_is_believed() -> None:
    standing = Standing().bound(Target(), 0.0)
    assert standing is not None and standing.ready
    unready = standing.unbound(Target())
    assert unready is not None and not unready.ready


def test_once_its_pod_ends_it_is_unready_whatever_comes_and_its_binding_is_the_controller_s_to_end() -> None:
    ending = _bound().answered(AT, "", 1.0).ends()
    assert not ending.ready and ending.target == AT and "ends" in ending.why
    assert not any(said.ready for said in (ending.answered(AT, "", 2.0), ending.told(AT, 2.0), ending.cut(AT, 2.0)))
    for target in (AT, Target("http://y/ready", token=9), Target()):
        bound = ending.bound(target, 2.0)
        assert bound is not None and not bound.ready and bound.target == AT
    unbound = ending.unbound(Target(token=7))
    assert unbound is not None and unbound.target is None
    again = unbound.bound(AT, 3.0)
    assert again is not None and not again.ready and again.target is None
    said_first = _bound().answered(AT, "", 1.0).unbound(Target(token=7, ends=True))
    assert said_first is not None and said_first == unbound, "the controller may be quicker than kubelet"

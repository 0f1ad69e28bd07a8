"""When a client connects again: built alone."""

import pytest

from sidecar.machine.reconnect import FIRST_S, STEADY_S, Reconnect


def test_a_connection_that_lasted_is_made_again_at_once() -> None:
    again = Reconnect(1.0)
    again.welcomed(10.0)
    again.ended(10.0 + STEADY_S)
    assert again.at == 10.0 + STEADY_S


def test_one_that_did_not_last_is_waited_for_longer_and_longer_up_to_a_bound() -> None:
    again, waits, now = Reconnect(0.1), [], 0.0
    for _ in range(9):
        again.welcomed(now)
        again.ended(now)
        waits.append(again.at - now)
        now = again.at
    assert waits[:3] == pytest.approx([FIRST_S, 2 * FIRST_S, 4 * FIRST_S])
    assert waits[-1] == pytest.approx(0.1) and waits == sorted(waits)


def test_one_that_could_not_be_made_did_not_last() -> None:
    again = Reconnect(1.0)
    again.ended(100.0)
    assert again.at == 100.0 + FIRST_S
    again.welcomed(200.0)
    again.ended(200.0 + STEADY_S)
    again.ended(300.0)
    assert again.at == 300.0 + FIRST_S, "that it lasted once is no reason to hurry again, nor to wait long"


def test_no_client_knocks_before_it_is_wanted_again() -> None:
    again = Reconnect(1.0)
    again.later(10.0, 5.0)
    assert again.at == 15.0
    again.ended(11.0)
    assert again.at == 15.0
    again.welcomed(16.0)
    again.ended(16.0)
    assert again.at < 17.0, "once it was let in, that is over"

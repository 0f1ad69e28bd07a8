"""When a program that has ended is started again, and when another start would be no use."""

import pytest

from sidecar.restarts import EX_USAGE, PAUSES_S, RIGHT_AFTER_S, STEADY_S, Restarts


def ran(restarts: Restarts, for_s: float, code: int) -> float | None:
    restarts.started(100.0)
    return restarts.ended(code, 100.0 + for_s)


def test_it_is_started_again_at_once_and_then_after_longer_and_longer_pauses() -> None:
    restarts = Restarts(starts=1)
    assert [ran(restarts, 1.0, -9) for _ in range(7)] == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]


def test_having_run_for_a_while_makes_a_failure_the_first_again() -> None:
    restarts = Restarts(starts=1)
    for _ in range(3):
        ran(restarts, 1.0, 1)
    assert ran(restarts, STEADY_S, 1) == PAUSES_S[0]


@pytest.mark.parametrize(
    ("code", "earlier_starts", "for_s", "hopeless"),
    [
        (EX_USAGE, 5, 100.0, True),
        (1, 0, RIGHT_AFTER_S - 0.1, True),
        (1, 0, RIGHT_AFTER_S, False),
        (1, 1, 0.5, False),
        (-9, 0, 0.5, False),
        (0, 0, 0.5, False),
    ],
)
def test_a_program_that_was_called_wrongly_or_fails_at_its_first_start_is_not_started_again(
    code: int, earlier_starts: int, for_s: float, hopeless: bool
) -> None:
    assert (ran(Restarts(starts=earlier_starts), for_s, code) is None) is hopeless

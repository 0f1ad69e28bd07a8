"""When a program that has ended is started again, and when another start would be no use."""

import pytest

from sidecar.machine.restarts import PAUSES_S, SOON_S, STEADY_S, Restarts
from sidecar.terminal.exit_codes import EX_FAILS_ALIKE, EX_OTHER_WEIGHTS, EX_USAGE


def ran(restarts: Restarts, for_s: float, code: int) -> float | None:
    restarts.started(100.0)
    return restarts.ended(code, 100.0 + for_s)


def test_it_is_started_again_at_once_and_then_after_longer_and_longer_pauses() -> None:
    restarts = Restarts(starts=1)
    assert [ran(restarts, 1.0, -9) for _ in range(7)] == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]


def test_having_run_for_a_while_makes_a_failure_the_first_again() -> None:
    restarts = Restarts()
    for _ in range(3):
        ran(restarts, 1.0, -9)
    assert ran(restarts, STEADY_S, 1) == PAUSES_S[0]


@pytest.mark.parametrize(
    ("ends", "hopeless"),
    [
        ([(EX_USAGE, 100.0)], True),
        ([(EX_OTHER_WEIGHTS, 100.0)], True),
        ([(EX_FAILS_ALIKE, 100.0)], True),
        ([(1, 0.5)], False),
        ([(1, 0.5), (1, SOON_S - 0.1)], True),
        ([(1, SOON_S), (1, SOON_S)], False),
        ([(1, SOON_S), (1, SOON_S), (1, 0.5)], True),
        ([(-9, 0.5), (1, 0.5), (1, 0.5)], False),
        ([(0, 0.5), (1, 0.5), (1, 0.5)], False),
        ([(1, STEADY_S), (1, 0.5), (1, 0.5)], False),
        ([(-9, 0.5), (EX_USAGE, 0.5)], True),
    ],
)
def test_a_program_that_was_called_wrongly_or_only_ever_fails_soon_is_not_started_again(
    ends: list[tuple[int, float]], hopeless: bool
) -> None:
    """Once may have been an accident, and a busy machine makes a failure late."""
    restarts = Restarts()
    *before, last = [ran(restarts, for_s, code) for code, for_s in ends]
    assert None not in before and (last is None) is hopeless

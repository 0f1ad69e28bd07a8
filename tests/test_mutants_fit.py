"""Every mutant's text stands exactly once in the source: else `make mutants` tests nothing, and nobody sees it."""

import pytest

from tests.mutants.__main__ import everyone, mutated


@pytest.mark.parametrize("name", everyone())
def test_the_text_fits(name: str) -> None:
    assert mutated(everyone()[name])


def test_each_run_of_ci_has_a_tenth_of_them_and_ten_runs_have_all() -> None:
    from tests.mutants.__main__ import TENTHS, tenth

    parts = [tenth(list(everyone().values()), number) for number in range(TENTHS)]
    assert sorted(mutant.name for part in parts for mutant in part) == sorted(everyone())

from collections.abc import Iterator
from functools import cache

import pytest

from tests.local_pod import ordinary

why_not = cache(ordinary.why_not)


@pytest.fixture
def here() -> Iterator[ordinary.Place]:
    """Where an ordinary user runs a pod; skips, with the reason, where none can."""
    why = why_not()
    if why:
        pytest.skip(why)
    with ordinary.place() as found:
        yield found

"""What all tests share: Hypothesis without deadlines (two cores, many processes: time says nothing here) and without
luck (the same examples in every run; `make hunt` looks for new ones), and signals that do what they do at a terminal,
also when the tests run in the background (there Ctrl-C is ignored, and would be by every program that a test starts and
means to interrupt). What may take longest begins first: last, one worker would be at it alone.
"""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase, settings

settings.register_profile("failover", deadline=None, derandomize=True)
settings.register_profile("hunt", deadline=None, derandomize=False, print_blob=True, database=None)
settings.register_profile(  # a failure is enough: its smallest example isn't read
    "mutants", deadline=None, derandomize=True, max_examples=30, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("FAILOVER_HYPOTHESIS", "failover"))

signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take longest begins first, file by file: tests of one that share a pair count on their order."""
    longest = Counter[Path]()
    for item in items:
        longest[item.path] = max(longest[item.path], *(mark.args[0] for mark in item.iter_markers("timeout")), 0)
    items.sort(key=lambda item: -longest[item.path])

"""What may take longest begins first, and no test of a file before the one that it counts on."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.conftest import pytest_collection_modifyitems


@dataclass
class _Test:
    path: Path
    name: str
    most_s: int = 0

    def iter_markers(self, _: str) -> list[Any]:
        return [SimpleNamespace(args=[self.most_s])] if self.most_s else []


def test_files_are_ordered_by_their_longest_test_and_a_file_s_tests_stay_as_they_are() -> None:
    a, b, c = map(Path, "abc")
    tests = [_Test(a, "1"), _Test(b, "1", 60), _Test(b, "2"), _Test(c, "1"), _Test(c, "2", 300), _Test(c, "3", 60)]
    pytest_collection_modifyitems(cast(Any, tests))
    assert [(str(test.path), test.name) for test in tests] == [
        ("c", "1"), ("c", "2"), ("c", "3"), ("b", "1"), ("b", "2"), ("a", "1"),
    ]  # fmt: skip

"""What a pod's benchmark does when something goes wrong: that takes minutes, and isn't run here."""

import os
from pathlib import Path

import pytest

from bench import pod
from bench.stage import Broken

NO_PROCESS = 1 << 22
"""No process has this number or a higher one."""


def test_processes_and_threads_that_end_while_they_are_looked_at_count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pod._ran_ns(NO_PROCESS) == 0
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [str(NO_PROCESS), *real(path)])
    assert pod._ran_ns(os.getpid()) > 0


def test_manifests_that_the_linter_refuses_break_the_benchmark_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("kind: Pod\n")
    with pytest.raises(Broken, match=r"k8s\.lint ended with 1: .*apiVersion is missing"):
        pod._lint_s(tmp_path)

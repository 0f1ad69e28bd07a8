"""How what is missing is had."""

import subprocess
from pathlib import Path

import pytest

from sidecar.terminal import extras
from sidecar.terminal.names import VERSION
from tests.support.processes import ROOT


def test_the_way_is_from_the_checkout_or_from_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert extras.how_to_get("all") == f"pip install '{ROOT}[all]'"
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "sidecar" / "terminal" / "extras.py"))
    assert extras.how_to_get("k8s") == f"pip install 'gpu_failover-{VERSION}-py3-none-any.whl[k8s]'"


def test_nothing_asks_a_registry_for_this_software() -> None:
    """It has none of it: what is found there is a stranger's."""
    ours = ("*.py", "*.md", "Makefile", ":!tests/sidecar/test_extras.py", ":!sidecar/terminal/extras.py")
    words = ["git", "grep", "-nE", "pip install [^.]*gpu-failover", "--", *ours]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout == ""

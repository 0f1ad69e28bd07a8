"""That k8s/dra was rendered from the chart as it is now; seen without Helm, which CI hasn't (`make test-chart`)."""

import shutil
from pathlib import Path

import pytest

from k8s import render

HOW = "make .venv-chart/.made && .venv-chart/bin/python -m k8s.render"


def test_the_chart_and_what_is_rendered_of_it_were_changed_together() -> None:
    assert render.stale() == [], f"changed since k8s/dra was rendered; it is rendered again by: {HOW}"


def test_a_change_of_one_side_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CHART", "RENDERED"):
        copied = tmp_path / "k8s" / getattr(render, name).name
        shutil.copytree(getattr(render, name), copied)
        monkeypatch.setattr(render, name, copied)
    monkeypatch.setattr(render, "HERE", tmp_path / "k8s")
    assert render.stale() == []
    (render.CHART / "values.yaml").write_text("replicas: 2\n")
    (render.CHART / "templates" / "more.yaml").write_text("a: 1\n")
    (render.RENDERED / "one-gpu.yaml").write_text("a: 1\n")
    (render.RENDERED / "tp2.yaml").unlink()
    assert render.stale() == [
        "k8s/chart/templates/more.yaml", "k8s/chart/values.yaml", "k8s/dra/one-gpu.yaml", "k8s/dra/tp2.yaml"
    ]  # fmt: skip
    (render.RENDERED / render.DIGESTS).unlink()
    assert "k8s/chart/Chart.yaml" in render.stale()

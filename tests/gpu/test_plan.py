"""What the engine part of the GPU suite makes of a device and of its figures, where there is no GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.pair import PHASES, Takeover
from engine_shim.vllm_engine.budget import GIB, MIB
from gms.pack import SLAB_BYTES
from sidecar.terminal.logs import Log
from tests.gpu import engine, plan

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("gib", plan.SIZES_GIB)
def test_made_up_weights_are_of_the_size_that_was_asked_for(gib: int) -> None:
    assert plan.synthetic(gib).bytes / GIB == pytest.approx(gib, rel=0.05)


def test_the_small_model_is_about_that_of_the_peers_figures() -> None:
    assert 0.7 < plan.SMALL.bytes / 1e9 < 1.2


@pytest.mark.parametrize(("total", "fit"), [(141, [8, 32, 64]), (80, [8, 32, 64]), (48, [8, 32]), (24, [8]), (16, [])])
def test_sizes_are_chosen_by_the_device(total: int, fit: list[int]) -> None:
    found, left_out = plan.fitting("GPU-x", total * GIB)
    assert found == fit and sorted(left_out) == [gib for gib in plan.SIZES_GIB if gib not in fit]
    assert all("GPU-x has" in why for why in left_out.values())


def test_a_part_that_there_isnt_is_refused_by_name() -> None:
    assert plan.parts("wake,memory") == ["memory", "wake"]
    for text, said in (("wake,paire", "'paire' is no part; allowed: memory, pair, wake"), ("", "'' is no part")):
        with pytest.raises(plan.BadParts, match=said):
            plan.parts(text)


def takeover(scale: int) -> Takeover:
    return Takeover({name: scale * 1_000_000 * (number + 1) for number, name in enumerate(PHASES)}, 5, 10**9)


def test_takeovers_are_summed_up_by_their_medians() -> None:
    found = engine.of_takeovers([takeover(scale) for scale in (1, 2, 9)])
    assert found == {
        "kill_to_first_token_s": pytest.approx(2 * 0.036),
        "kill_to_lock_s": pytest.approx(2 * 0.003),
        "lock_to_awake_s": pytest.approx(2 * 0.012),
    }
    assert engine.of_takeovers([]) == {}


def test_the_first_wake_isnt_counted() -> None:
    wakes = [{"wake_s": spent, "remap": spent / 4, "kv": spent / 2} for spent in (9.0, 0.1, 0.3, 0.2)]
    found = engine.of_naps({"wakes": wakes, "slabs": [GIB, GIB]}, 60.0)
    assert (found["wake_s"], found["remap_s"], found["wake_worst_s"]) == (0.2, 0.05, 0.3)
    assert (found["slabs"], found["weights_bytes"]) == (2, 2 * GIB)


def test_a_workers_own_word_of_its_memory_is_found_in_its_engines_log(capsys: pytest.CaptureFixture[str]) -> None:
    """As vLLM prints what its processes write: behind their names."""
    Log("vllm-worker").info("memory", reserve=4 * GIB, kv_scratch=80 * MIB)
    line = f"(EngineCore pid=7) {capsys.readouterr().err}"
    assert engine.planned("something else\n" + line) == {
        "planned": {"reserve": 4 * GIB, "kv_scratch": 80 * MIB},
        "scratch_bytes": 80 * MIB,
    }
    assert engine.planned("nothing") == {}


def test_ours_stand_beside_theirs_with_their_source() -> None:
    sizes = [
        {"weights_bytes": gib * GIB, "slabs": gib, "wake_s": 0.02 + gib / 1e4, "remap_s": 0.01, "kv_s": 0.005}
        for gib in (8, 64)
    ]
    pair = {"kill_to_first_token_s": 0.2, "standby_bytes": 2 * GIB, "cold_start_s": 50.0}
    lines = plan.table({"pair": {"figures": pair}, "wake": {"figures": {"sizes": sizes}}})
    assert any("200.0 ms" in line and "0.4-0.5 s" in line and "Dynamo" in line for line in lines)
    assert any("2.00 GiB" in line and "2.7 GiB" in line for line in lines)
    assert any("wake with 64.0 GiB" in line and "26.4 ms" in line for line in lines)
    assert any("8.0 times the weights" in line and "1.27 times the time" in line for line in lines)
    assert plan.table({}) == []
    assert set(plan.PEERS) == set(plan.NAMES)


def test_without_torch_vllm_or_a_gpu_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.engine", "pair", "GPU-x", "60"], cwd=ROOT, capture_output=True, timeout=100
    )
    said = json.loads(done.stdout)["skipped"]
    assert any(what in said for what in ("torch isn't there", "vLLM isn't installed", "sees no GPU"))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch isn't there" in engine.why_not("GPU-x")


def test_the_checks_of_memory_need_nothing_but_what_they_ask_and_the_engines_parts_say_what_they_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.gpu import __main__ as main

    assert plan.SLAB_BYTES == SLAB_BYTES
    words = [sys.executable, "-S", "-c", "import tests.gpu.__main__, tests.gpu.memory"]  # -S: without what is installed
    subprocess.run(words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    monkeypatch.setattr(plan, "NEEDED", ("msgspec", "no_such_package"))
    assert main._engine(tmp_path, {"device": "GPU-x"}, "wake", "GPU-x", False, 500)
    report = json.loads((tmp_path / "engine.json").read_text())
    assert report["wake"]["skipped"].startswith("no_such_package isn't there")


def test_a_later_call_adds_to_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.gpu import __main__ as main

    answers: dict[str, Any] = {
        "pair": {"passed": True, "figures": {"cold_start_s": 40.0}},
        "wake": {"passed": False, "why": "it broke"},
    }
    monkeypatch.setattr(main, "_run", lambda command, timeout_s: answers[command[3]])
    monkeypatch.setattr(plan, "NEEDED", ())
    about: dict[str, Any] = {"device": "GPU-x"}
    assert main._engine(tmp_path, about, "pair", "GPU-x", False, 500)
    assert not main._engine(tmp_path, about, "wake", "GPU-x", False, 500)
    assert main._engine(tmp_path, about, "pair", "GPU-x", False, 20), "no time isn't a failure"
    report = json.loads((tmp_path / "engine.json").read_text())
    assert (report["pair"], report["wake"]) == (answers["pair"], answers["wake"])
    assert "40.0 s" in (tmp_path / "engine.txt").read_text()
    assert main._engine(tmp_path, {"device": "GPU-y"}, "pair", "GPU-y", True, 500)
    other = json.loads((tmp_path / "engine.json").read_text())
    assert "wake" not in other and "computes nothing" in other["pair"]["skipped"], "another GPU's figures are no part"

"""The benchmarks run, and say what they should. No figure is judged here: this machine may be busy with other tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHES
from bench.figures import Comparison, Part, Reading, p99, table

ALIKE = {"handoff-disk", "failover-worker", "failover-group"}
"""They run the same, on another disk or with another victim."""
ROOT = Path(__file__).resolve().parent.parent.parent


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BENCHES.keys() - ALIKE))
def test_each_benchmark_runs_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    figures, tmpfs, disk = tmp_path / "figures.json", tmp_path / "tmpfs", tmp_path / "disk"
    tmpfs.mkdir()
    disk.mkdir()
    done = bench("--quick", "--only", name, "--json", str(figures), f"--tmpfs-dir={tmpfs}", f"--disk-dir={disk}")
    assert done.returncode == 0, done.stderr
    results = json.loads(figures.read_text(encoding="utf-8"))["results"][name]
    assert results
    for result in results:
        assert result["what"] in done.stdout
        assert result.get("ratio_median", 1) > 0
    assert list(tmpfs.iterdir()) == list(disk.iterdir()) == []


def test_a_broken_benchmark_is_exit_code_1_and_a_sentence(tmp_path: Path) -> None:
    done = bench("--quick", "--only", "start", f"--tmpfs-dir={tmp_path}", f"--disk-dir={tmp_path / 'missing'}")
    assert done.returncode == 1
    assert "missing" in done.stderr and "Traceback" not in done.stderr


def test_a_file_that_cant_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    """After twenty minutes it was a traceback, and the figures were in no file."""
    done = bench("--quick", "--only", "start", f"--json={tmp_path / 'missing' / 'figures.json'}")
    assert done.returncode == 1
    assert "missing" in done.stderr and "Traceback" not in done.stderr and "measuring" not in done.stderr


def test_a_missed_goal_is_said() -> None:
    missed = Comparison("a", "b", goal_median=1.5, ours=[3000] * 10, floor=[1000] * 10)
    met = Comparison("a", "b", goal_median=1.5, goal_p99=2.0, ours=[1000] * 10, floor=[1000] * 10)
    tail = Comparison("a", "b", goal_median=1.5, goal_p99=2.0, ours=[1000] * 9 + [5000], floor=[1000] * 10)
    assert (missed.met, met.met, tail.met) == (False, True, False)
    assert (Reading("c", 41, "MB", 40).met, Reading("c", 40, "MB", 40).met, Reading("c", 1, "s").met) == (
        False,
        True,
        None,
    )
    assert "MISSED" in table([missed]) and "MISSED" not in table([met])


def test_a_goal_in_milliseconds_is_for_the_median_and_small_ratios_are_fractions() -> None:
    slow = Comparison("a", "b", goal_ms=30, ours=[31_000_000] * 3, floor=[1000_000_000])
    fast = Comparison(
        "a", "b", goal_ms=30, goal_median=1 / 40, ours=[10_000_000, 20_000_000, 99_000_000], floor=[10**9]
    )
    assert (slow.met, fast.met) == (False, True)
    assert fast.goal == "<= 30 ms, 1/40x" and "1/50 / 1/10" in table([fast])


def test_the_shares_of_all_phases_are_all_of_the_time() -> None:
    first, second = [100, 200, 300], [300, 200, 100]
    parts = [Part(name, phase, [400] * 3) for name, phase in (("first", first), ("second", second))]
    assert [part.share for part in parts] == [0.5, 0.5] and "50%" in table(parts)


def test_rounds_are_in_turns_and_the_first_are_thrown_away() -> None:
    said = iter(range(100))
    result = Comparison("a", "b").in_turns(2, 3, lambda: next(said), lambda: next(said))
    assert (result.floor, result.ours) == ([6, 8], [7, 9])


def test_p99_is_exceeded_by_one_in_a_hundred() -> None:
    assert p99(range(1, 1001)) == 990
    assert p99([7]) == 7

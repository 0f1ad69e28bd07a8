"""The GPU suite itself, where there is no GPU: it works on the emulated driver, notices what is wrong, and skips."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import emulated_driver

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gpu() -> Iterator[Mapping[str, str]]:
    for environment in emulated_driver.one_gpu(capacity=256 << 20):
        yield {**environment, "EMULATED_CUDA_CONTEXT_BYTES": str(8 << 20)}


ONLY_MAPPINGS = (
    "from tests.gpu import __main__ as suite; suite.CHECKS = {'mappings': None}; raise SystemExit(suite.main())"
)


def suite(out: Path, environment: Mapping[str, str], *program: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, *(program or ("-m", "tests.gpu")), "--out", str(out), "--size", "16MiB"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        timeout=110,
    )
    return done.returncode, json.loads((out / "gpu.json").read_text())


def test_on_the_emulated_driver_every_check_passes_and_the_report_says_emulated(
    gpu: Mapping[str, str], tmp_path: Path
) -> None:
    status, report = suite(tmp_path, gpu)
    assert {name: check["passed"] for name, check in report["checks"].items()} == dict.fromkeys(report["checks"], True)
    assert (status, report["emulated"], report["vmm_refcount"]["as_expected"]) == (0, True, True)


def test_a_wrong_driver_fails_the_suite(gpu: Mapping[str, str], tmp_path: Path) -> None:
    status, report = suite(tmp_path, {**gpu, "EMULATED_CUDA_OFFSETS": "no"}, "-c", ONLY_MAPPINGS)
    assert (status, report["vmm_refcount"]["as_expected"]) == (1, False)
    assert "CUDA_ERROR_NOT_SUPPORTED" in report["checks"]["mappings"]["figures"]["offset_of_imported_handle"]


def test_without_a_gpu_it_skips_itself(tmp_path: Path) -> None:
    status, report = suite(tmp_path, {"CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": ""})
    assert status == 0
    assert "driver" in report["skipped"]

"""A command whose output isn't read, or that can't be written, ends with an exit code and without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

COMMANDS = [["engine_shim.cli.failover", "status", "--json"], ["k8s.lint", "k8s/dra/one-gpu.yaml"]]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_output_that_is_not_taken_is_an_exit_code(command: list[str], tmp_path: Path) -> None:
    if command[0] == "engine_shim.cli.failover":
        command = [*command, "--run-dir", str(tmp_path)]
    words = [sys.executable, "-m", *command]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        left = subprocess.run(words, stdout=writes, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    finally:
        os.close(writes)
    assert (left.returncode, left.stderr) == (141, "")
    with open("/dev/full", "wb") as full:
        lost = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    assert lost.returncode == 74
    assert lost.stderr.endswith("can't write to the standard output: No space left on device\n"), lost.stderr
    assert lost.stderr.count("\n") == 1

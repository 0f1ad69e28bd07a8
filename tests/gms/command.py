"""`gmsctl`, and `gms` where it doesn't serve, in the test's own process. That they are programs, with exit codes, pipes
and signals: `test_gmsctl.py`, `test_supervisor.py`.
"""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from gms.cli import gmsctl as of_gmsctl
from tests.support.processes import run_here


def gmsctl(run_dir: Path, environment: Mapping[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    return ended(of_gmsctl.main, environment, "--run-dir", run_dir, *words)


def ended(
    main: Callable[[list[str]], int], environment: Mapping[str, str], *words: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([str(word) for word in words], *run_here(main, *words, environment=environment))

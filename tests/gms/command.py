"""`gmsctl`, and `gms` where it doesn't serve, in the test's own process: to start a program takes longer than most of
what they do. That they are programs, with exit codes, pipes and signals: `test_gmsctl.py`, `test_supervisor.py`.
"""

import contextlib
import io
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gms.cli import gmsctl as of_gmsctl


def gmsctl(run_dir: Path, environment: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    return ended(of_gmsctl.main, environment, "--run-dir", run_dir, *words)


def ended(
    main: Callable[[list[str]], int], environment: dict[str, str], *words: object
) -> subprocess.CompletedProcess[str]:
    """Its exit code, and what it said."""
    given = [str(word) for word in words]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for name, value in environment.items():
            patched.setenv(name, value)
        try:
            code = main(given)
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(given, code, out.getvalue(), err.getvalue())

"""`gmsctl` in the test's own process: to start a program takes longer than most of what it does. That it is one, with
exit codes, pipes and signals: `test_gmsctl.py`.
"""

import contextlib
import io
import subprocess
from pathlib import Path

import pytest

from gms.cli.gmsctl import main


def gmsctl(run_dir: Path, environment: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    """To its end: exit code and what it said."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for name, value in environment.items():
            patched.setenv(name, value)
        try:
            code = main(["--run-dir", str(run_dir), *map(str, words)])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess([str(word) for word in words], code, out.getvalue(), err.getvalue())

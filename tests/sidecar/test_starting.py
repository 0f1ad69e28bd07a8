"""Ctrl-C at a command that is still being loaded."""

import signal
import subprocess
import sys
import tomllib

import pytest

from tests.support.processes import ROOT

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
INTERRUPTED = """
import importlib, os, runpy, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == at:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
how, script, module, at = sys.argv[1:]
sys.argv = [script]
runpy.run_module(module, run_name="__main__") if how == "python -m" else importlib.import_module(module)
"""


@pytest.mark.parametrize("how", ["python -m", "as a script"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_ctrl_c_while_a_command_is_loaded_is_no_traceback(script: str, how: str) -> None:
    module = SCRIPTS[script].partition(":")[0].replace("gpu_failover_lint", "k8s.lint")
    name = script if how == "as a script" else "python"
    _just_ends(how, name, module, "sidecar.terminal.settings")  # all of them load it, and none of them first


def test_nor_while_the_demo_is() -> None:
    _just_ends("python -m", "python", "demo.__main__", "uvloop")


def _just_ends(*how: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, *how], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")

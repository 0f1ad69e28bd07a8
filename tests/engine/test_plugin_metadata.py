"""vLLM's plugin from a checkout in PYTHONPATH, with nothing installed: `engine_shim/vllm_engine/plugin_metadata.py`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

# In the main process, then in one that multiprocessing spawns, and in one that is started as a program.
PROGRAM = """
import multiprocessing, subprocess, sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

FOUND = '''
from importlib import metadata
[entry] = metadata.entry_points(group="vllm.general_plugins")
print(entry.name, entry.value, flush=True)
import engine_shim.vllm_engine
'''

def look():
    exec(FOUND)

if __name__ == "__main__":
    assert not metadata.entry_points(group="vllm.general_plugins"), "it is installed in this Python after all"
    from engine_shim import vllm_engine
    vllm_engine.prepare(SimpleNamespace(run_dir=Path(sys.argv[1]), engine_id="a"))
    look()
    child = multiprocessing.get_context("spawn").Process(target=look)
    child.start()
    child.join()
    assert child.exitcode == 0
    subprocess.run([sys.executable, "-S", "-c", FOUND], check=True, cwd="/")
"""


def test_a_checkout_in_pythonpath_is_enough_for_every_process_of_the_engine(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    for package in ("engine_shim", "gms", "lockserver", "sidecar"):
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VLLM"))}
    done = subprocess.run(
        [sys.executable, "-S", str(script), str(tmp_path / "run")],  # -S: without what is installed
        env={**environment, "PYTHONPATH": str(checkout)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["gpu_failover engine_shim.vllm_engine.plugin:register"] * 3


def test_where_the_plugin_is_installed_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_shim.vllm_engine import plugin_metadata

    info = tmp_path / "installed" / "somebodys-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{plugin_metadata.GROUP}]\n{plugin_metadata.PLUGIN} = a.b:c\n")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.setenv("PYTHONPATH", "/as/it/was")
    plugin_metadata.publish(tmp_path / "engine")
    assert os.environ["PYTHONPATH"] == "/as/it/was" and not (tmp_path / "engine").exists()

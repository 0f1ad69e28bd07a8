"""The commands of an installation; and what `local-pod` says where a package is missing."""

import importlib
import subprocess
import sys
import tomllib

import pytest

from sidecar.terminal.extras import how_to_get
from tests.support.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPTS: dict[str, str] = PROJECT["project"]["scripts"]
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
RENAMED = set(PROJECT["tool"]["setuptools"]["package-dir"])


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_command_starts_is_installed_with_it(name: str) -> None:
    module, _, function = SCRIPTS[name].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert module.rpartition(".")[0] in PACKAGES


@pytest.mark.parametrize("package", sorted({name.partition(".")[0] for name in PACKAGES} - RENAMED))
def test_a_package_is_installed_with_all_that_is_in_it(package: str) -> None:
    inner = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / package).rglob("__init__.py")}
    assert inner <= set(PACKAGES)


def test_without_yaml_it_says_which_package_to_install() -> None:
    program = "import sys; sys.modules['yaml'] = None\n"
    program += "from tools.local_pod.__main__ import main\nsys.exit(main(['run', 'x']))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"it needs the package yaml: {how_to_get('k8s')}" in done.stderr

"""Wheels, and environments that have one and nothing else but what is given to them."""

import importlib.util
import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

from sidecar.terminal.names import VERSION
from tests.support.processes import ROOT
from tools import release

CORE = ("msgspec", "httptools")
REFERENCE = ("numpy", "numpy.libs")
DOOR = ("uvloop", "prometheus_client")
OLDER = f"{VERSION}.dev0"
"""pip and people take it for older. Nothing was handed out yet, so the version before has no number of its own."""
_NAMES = Path("sidecar", "terminal", "names.py")


class Environment:
    """An empty one; what is to be in it is brought, and no registry is asked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        venv.create(home)
        self.site = next((home / "lib").glob("python*/site-packages"))

    def install(self, wheel: Path) -> None:
        """By the pip of the Python that runs this test: one of its own takes ten times as long to make."""
        words = ("pip", "--python", str(self.home / "bin" / "python"))
        more = ("install", "--quiet", "--no-deps", "--no-index", str(wheel))
        done = subprocess.run([sys.executable, "-m", *words, *more], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def bring(self, packages: Iterable[str]) -> None:
        """From the Python that runs this test, without the rest of it."""
        for package in packages:
            found = importlib.util.find_spec(package.removesuffix(".libs"))
            assert found is not None and found.origin is not None
            place = Path(found.origin).parents[1] / package
            if place.exists():
                os.symlink(place, self.site / package)


def before(into: Path) -> tuple[Path, str]:
    """The wheel of the version before this one, numbered `OLDER`, and what it was built of: the parent commit, or this
    tree where there is no history (a shallow clone).
    """
    source = into / "source"
    asked = ("git", "rev-parse", "--verify", "--quiet", "HEAD^")
    parent = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if parent.returncode == 0:
        source.mkdir(parents=True)
        packed = subprocess.run(["git", "archive", "HEAD^"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", source], input=packed, check=True)
        of = f"the parent commit, {parent.stdout[:12]}"
    else:
        release.copied(source)
        of = "this tree: there is no parent commit here"
    names = (source / _NAMES).read_text(encoding="utf-8")
    older, count = re.subn(r'^VERSION = ".*"$', f'VERSION = "{OLDER}"', names, flags=re.M)
    assert count == 1, names
    (source / _NAMES).write_text(older, encoding="utf-8")
    return release.built("wheel", source, into), of

"""`python -m tools.release [wheel]`: what is handed out, into dist/: wheel and source of gpu-failover and of local-pod,
a bill of materials (CycloneDX), and SHA256SUMS; with `wheel` the first alone. `make wheel` and `make release` call it.

It builds from a copy of the files that git knows, so that nothing of an earlier build gets in; and what comes out
depends on nothing but them: the wheel of the source distribution has to be, byte by byte, that of the checkout.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sidecar.terminal.names import VERSION
from tools import sbom

ROOT = Path(__file__).parent.parent
WHEEL = f"gpu_failover-{VERSION}-py3-none-any.whl"
_BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


class NotFit(Exception):
    """What would be handed out isn't as it has to be; the text says how."""


def copied(to: Path) -> Path:
    """The files of the checkout, those that git ignores left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def built(what: str, source: Path, into: Path) -> Path:
    """`what`: wheel or sdist. Times inside are those of the last commit."""
    when = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": when.stdout.strip()}
    command = [sys.executable, "-c", _BUILD, f"build_{what}", str(into)]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotFit(f"no {what} of {source}: {done.stderr}")
    return into / done.stdout.split()[-1]


def wheel(into: Path) -> Path:
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        return built("wheel", copied(Path(scratch)), into)


def release(into: Path) -> list[Path]:
    """All of it. Raises NotFit."""
    check_the_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = copied(Path(scratch, "source"))
        made = [built(what, source, into) for what in ("sdist", "wheel")]
        shutil.unpack_archive(made[0], scratch)
        again = built("wheel", Path(scratch, made[0].name.removesuffix(".tar.gz")), Path(scratch))
        if again.read_bytes() != made[1].read_bytes():
            raise NotFit(f"{made[1].name} of the source distribution is another one than that of the checkout")
        made += [built(what, source / "tools" / "local_pod", into) for what in ("sdist", "wheel")]
    made.append(into / f"gpu_failover-{VERSION}.cdx.json")
    made[-1].write_text(sbom.of(made[1], pins()), encoding="utf-8")
    sums = into / "SHA256SUMS"
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in made]
    sums.write_text("".join(lines), encoding="utf-8")
    return [*made, sums]


def check_the_notes(changelog: str) -> None:
    """Raises NotFit."""
    newest = re.search(r"^## (\S+)", changelog, re.M)
    if newest is None or newest[1] != VERSION:
        raise NotFit(f"CHANGELOG.md begins with {newest and newest[1]}, and this is {VERSION}")


def pins() -> dict[str, str]:
    """Package -> version, as the lock file has them."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return {sbom.spelled(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s\\]+)", text, re.M)}


def main() -> int:
    into = ROOT / "dist"
    try:
        made = [wheel(into)] if sys.argv[1:] == ["wheel"] else release(into)
    except NotFit as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print("".join(f"{file.relative_to(ROOT)}\n" for file in made), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

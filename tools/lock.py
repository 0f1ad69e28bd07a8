"""`python -m tools.lock`: writes beside each pin of the lock files the sums of the files that it may be installed from.

A pin is changed by hand; this asks the index that is set up here for the sums, through uv (a program of its own). They
are those of the wheels for Linux and CPython 3.11 to 3.14, and of the source. pip then takes nothing else. torch is no
pin: on a CPU it comes from wherever tools/venv.sh finds it, in a build of its own (2.13.0+cpu), which has no sum in a
registry; what torch itself asks for is a pin of requirements-vllm.lock, and so is vLLM.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tools.sbom import spelled

ROOT = Path(__file__).parent.parent
FILES = ("requirements.lock", "requirements-vllm.lock")
_FOR_US = re.compile(r"-(py3|py2\.py3|cp31[1-4]|cp3\d?-abi3|cp3\d+-abi3)-\S*(any|linux\S*_(x86_64|aarch64))\.whl$")


def pins(text: str) -> list[str]:
    """name==version of each package."""
    return re.findall(r"^[A-Za-z0-9_.-]+==[^\s\\]+", text, re.M)


def sums(wanted: list[str]) -> dict[str, list[str]]:
    """Package (as the index spells it) -> its files' sums."""
    asked = [
        "uv",
        "pip",
        "compile",
        "--universal",
        "--no-deps",
        "--python-version",
        "3.11",
        "--format",
        "pylock.toml",
        "-",
    ]
    said = subprocess.run(asked, input="\n".join(wanted), text=True, stdout=subprocess.PIPE, check=True).stdout
    return {each["name"]: sorted(set(_sums_of(each))) for each in tomllib.loads(said)["packages"]}


def _sums_of(package: dict[str, Any]) -> list[str]:
    files = [each for each in package.get("wheels", ()) if _FOR_US.search(each["url"]) and "musl" not in each["url"]]
    return [each["hashes"]["sha256"] for each in [*files, *([package["sdist"]] if "sdist" in package else ())]]


def main() -> int:
    for file in FILES:
        wanted = pins((ROOT / file).read_text(encoding="utf-8"))
        found = sums(wanted)
        lines = [" \\\n    --hash=sha256:".join([pin, *found[spelled(pin.partition("==")[0])]]) for pin in wanted]
        (ROOT / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{file}: {len(lines)} packages, {sum(map(len, found.values()))} sums")
    return 0


if __name__ == "__main__":
    sys.exit(main())

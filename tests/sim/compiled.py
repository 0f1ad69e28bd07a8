"""The simulator, with the rules and the simulated kernel compiled: twice as many schedules a second.

    python -m tests.sim.compiled --world gms --seeds 1000000:2000000       as python -m tests.sim

It copies the sources into `build/compiled`, compiles them there with mypyc (it comes with mypy; a C compiler is
needed; two minutes, or half a one for `--world pool`), and runs the simulator in the copy. A seed gives the same
schedule either way: what is newly compiled is tried with the first thirty of each world beside the sources.

What mypyc can't compile, and what the sources keep clear of so that it can do the rest:

* msgspec's structs: their classes lose their keywords (`frozen`, `kw_only`). Files of messages, events and records
  stay as they are, so no class in them may be the child of a compiled one.
* A name in a class's body that stands for a method of it (a table of handlers, `on_death = on_readable`): a table
  stands below its class.
* A field of type `object` in a NamedTuple, fields of a dataclass that `__init__` doesn't set, an attribute that a child
  declares with a narrower type, children of AssertionError: each crashes at the import, and without a word of why.
* `is` between tuples: they have no identity there.
"""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POOL = "pool" in sys.argv
"""Its world shares no rules with the others."""
BUILD = ROOT / "build" / "compiled" / ("pool" if POOL else "others")
PACKAGES = ("evidence", "lockserver", "gms", "vram", "pool")
COPIED = ("sidecar", *PACKAGES, "bench", "tests/__init__.py", "tests/pool", "tests/sim", "pyproject.toml")
COMPILED = (
    *(f"{name}/rules/*.py" for name in PACKAGES if (name == "pool") == POOL),
    "tests/pool/*.py" if POOL else "tests/sim/*.py",
)
ALSO = ("sidecar/machine/disk_writes.py", "sidecar/machine/plan.py", "sidecar/machine/reconnect.py")
NOT_THE_SIMULATOR = ("test_", "harness", "cases_", "linux_", "random_", "scripts", "sim_world", "compiled", "__")


def can_be_compiled(path: Path) -> bool:
    if path.is_relative_to(ROOT / "tests") and path.name.startswith(NOT_THE_SIMULATOR):
        return False
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    errors = any(isinstance(base, ast.Name) and base.id.endswith("Error") for node in classes for base in node.bases)
    return bool(classes) and not errors and not any(node.keywords for node in classes)


def sources() -> Iterator[str]:
    for pattern in COMPILED:
        yield from (str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(pattern)) if can_be_compiled(path))
    yield from ALSO


def compile_all() -> None:
    names = list(sources())
    read = b"".join((ROOT / name).read_bytes() for name in names)
    digest = hashlib.sha256(sys.version.encode() + read).hexdigest()
    made = BUILD / "made"
    if made.exists() and made.read_text() == digest:
        return
    shutil.rmtree(BUILD, ignore_errors=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, BUILD / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            (BUILD / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, BUILD / name)
    for name in names:  # what saves memory there, mypyc refuses
        path = BUILD / name
        path.write_text(path.read_text().replace(", slots=True", "").replace("(slots=True)", ""))
    print(f"compiling {len(names)} files in {BUILD}", file=sys.stderr)
    command = [sys.executable, "-m", "mypyc", "--explicit-package-bases", "--namespace-packages", *names]
    quickly = {"MYPYPATH": ".", "MYPYC_OPT_LEVEL": "1", "MYPYC_DEBUG_LEVEL": "0"}
    done = subprocess.run(command, cwd=BUILD, env=os.environ | quickly, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"mypyc: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    for world in ("pool",) if POOL else ("lock", "gms", "vram"):
        said = [_first(world, where) for where in (ROOT, BUILD)]
        if said[0] != said[1]:
            sys.exit(f"compiled, the simulator of {world} does another thing:\n{said[0]}\n{said[1]}")
    made.write_text(digest)


def _first(world: str, where: Path) -> str:
    """What the first schedules were made of."""
    command = [sys.executable, "-m", "tests.sim", "--world", world, "--seeds", "30", "--jobs", "1"]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=True)
    return " s: ".join(done.stdout.split(" s: ")[1:])


if __name__ == "__main__":
    compile_all()
    os.chdir(BUILD)
    os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])

"""`make mutants`: takes each rule out and sees whether somebody notices. Prints a table; exits 1 if a mutant lives.

    python -m tests.mutants                       all of them
    python -m tests.mutants --only pidfds,memory  some
    python -m tests.mutants --list

For rules of the machines it counts the simulator's schedules until the first violation. For rules of the shells it
runs the named tests on a changed copy of the source, and they must fail.
"""

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType

from tests.mutants.gms_rules import GMS
from tests.mutants.rules import MUTANTS, Mutant
from tests.mutants.shells import SHELLS

ROOT = Path(__file__).resolve().parents[2]


def mutated(mutant: Mutant) -> dict[str, str]:
    """File -> its text without the rule."""
    files: dict[str, str] = {}
    for path, text, instead in mutant.edits:
        source = files.get(path) or (ROOT / path).read_text()
        if source.count(text) != 1:
            raise SystemExit(
                f"mutant {mutant.name}: its text stands {source.count(text)} times in {path}, not once:\n{text}"
            )
        files[path] = source.replace(text, instead)
    return files


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, files: dict[str, str]) -> None:
        self._sources = {path.removesuffix(".py").replace("/", "."): (path, source) for path, source in files.items()}

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._sources:
            return None
        file, source = self._sources[fullname]
        return importlib.util.spec_from_loader(fullname, _Loader(fullname, str(ROOT / file), source))


def _hunt(mutant: Mutant, first: int) -> int:
    """In a process of its own: prints what was found, as JSON."""
    sys.meta_path.insert(0, _Finder(mutated(mutant)))
    from tests.sim.__main__ import WORLDS
    from tests.sim.world import Violation

    world = WORLDS[mutant.world]
    for seed in range(first, first + mutant.seeds):
        try:
            world(seed).run()
        except Violation as violation:
            print(json.dumps({"after": seed - first + 1, "what": str(violation)}))
            return 0
        except Exception as error:  # a program that breaks without the rule has noticed, too
            print(json.dumps({"after": seed - first + 1, "what": f"seed {seed}: {type(error).__name__}: {error}"}))
            return 0
    print(json.dumps({"after": None, "what": ""}))
    return 0


def _simulate(mutant: Mutant, first: int) -> tuple[str, str]:
    command = [sys.executable, "-m", "tests.mutants", "--hunt", mutant.name, "--first", str(first)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"mutant {mutant.name}: {ended.stderr.strip()}")
    found = json.loads(ended.stdout)
    return (str(found["after"]) if found["after"] else "", found["what"].partition(": ")[2])


def _test(mutant: Mutant) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        for package in ("lockserver", "gms", "sidecar", "tests"):
            shutil.copytree(
                ROOT / package, Path(scratch) / package, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis")
            )
        shutil.copy(ROOT / "pyproject.toml", scratch)
        for path, source in mutated(mutant).items():
            (Path(scratch) / path).write_text(source)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        environment = {**os.environ, "PYTHONPATH": scratch}
        ended = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if ended.returncode not in (0, 1):
        raise SystemExit(
            f"mutant {mutant.name}: pytest could not run its tests:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        )
    return ("test" if ended.returncode == 1 else "", failed[0].partition("::")[2] if failed else "")


def _row(mutant: Mutant, first: int) -> tuple[Mutant, str, str]:
    found, what = _test(mutant) if mutant.tests else _simulate(mutant, first)
    return mutant, found, what


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="NAME,...")
    parser.add_argument("--list", action="store_true", help="only name them")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed of the simulator")
    parser.add_argument("--hunt", help=argparse.SUPPRESS)
    options = parser.parse_args()
    everyone = {mutant.name: mutant for mutant in (*MUTANTS, *GMS, *SHELLS)}
    if options.hunt:
        return _hunt(everyone[options.hunt], options.first)
    unknown = [name for name in options.only.split(",") if name and name not in everyone]
    if unknown:
        parser.error(f"no such mutant: {', '.join(unknown)}; --list names them")
    chosen = [everyone[name] for name in options.only.split(",") if name] or list(everyone.values())
    if options.list:
        print("\n".join(f"{mutant.name:26} {mutant.without}" for mutant in chosen))
        return 0
    began = time.monotonic()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        rows = list(pool.map(lambda mutant: _row(mutant, options.first), chosen))
    alive = [mutant.name for mutant, found, _ in rows if not found]
    if options.json:
        print(
            json.dumps(
                [
                    {"mutant": mutant.name, "without": mutant.without, "found": found or None, "by": what}
                    for mutant, found, what in rows
                ]
            )
        )
    else:
        print(f"{'mutant':26} {'found after':>12}  noticed as")
        for mutant, found, what in rows:
            print(
                f"{mutant.name:26} {(found + ' seeds' if found.isdigit() else found) or 'NOT FOUND':>12}  {what[:110]}"
            )
        print(
            f"{len(rows)} mutants in {time.monotonic() - began:.0f} s, seeds from {options.first}; "
            f"{len(alive)} not found{': ' + ', '.join(alive) if alive else ''}"
        )
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())

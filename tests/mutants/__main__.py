"""`make mutants`: takes each rule out and sees whether a test notices. Prints a table; exits 1 if a mutant lives.

    python -m tests.mutants                              all of them
    python -m tests.mutants --part tenth                 a tenth of them, chosen by the commit
    python -m tests.mutants --part tenth-by-hand         of those by hand only (what CI runs)
    python -m tests.mutants --only 'pidfds,gms-*'        some that were written by hand,
    python -m tests.mutants --only 'lockserver/queue.py*'    and some that a program makes
    python -m tests.mutants --list
    python -m tests.mutants --only ... --accept          what no test notices goes to survivors.txt, not judged

Most are made by a program, which takes each guard, branch and statement out of the pure files (`made.py`) and tries
them with the directed tests and the simulator (`runner.py`). What no program finds is written by hand (`by_hand.py`):
for rules of the lock's and GMS's machines it counts the simulator's schedules until the first violation; if there is
none, and for all other rules, it runs the named tests on a changed copy of the source, and they must fail; and once
on an unchanged one, where they must pass: a test that fails anyway has noticed nothing.

All of it happens in a copy that is made at the beginning, so that the source may be edited meanwhile.
"""

import argparse
import fnmatch
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

from tests.mutants import survivors
from tests.mutants.by_hand import BY_HAND, Mutant
from tests.mutants.made import all_made
from tests.test_imports import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 10.0
"""How long a test waits for what comes no more without its rule. With every rule in place it has longer."""
TENTHS = 10
PARTS = ("all", "by-hand", "tenth", "tenth-by-hand")
BATCH = 25
"""Mutants that one process tries, one after the other."""


class BadMutant(Exception):
    """One that doesn't fit the source any more."""


def mutated(mutant: Mutant, root: Path = ROOT) -> dict[str, str]:
    """File -> its text without the rule. Raises BadMutant."""
    files: dict[str, str] = {}
    for path, text, instead in mutant.edits:
        source = files.get(path) or (root / path).read_text()
        if source.count(text) != 1:
            raise BadMutant(
                f"mutant {mutant.name}: its text stands {source.count(text)} times in {path}, not once:\n{text}"
            )
        files[path] = source.replace(text, instead)
    for path, source in files.items():
        if path.endswith(".py"):
            try:
                compile(source, path, "exec")
            except SyntaxError as error:
                raise BadMutant(f"mutant {mutant.name}: {path} is no Python without its text: {error}") from None
    return files


def copied(root: Path, to: Path) -> None:
    for package in filter(lambda package: (root / package).is_dir(), sorted(PACKAGES)):
        shutil.copytree(root / package, to / package, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
    shutil.copy(root / "pyproject.toml", to)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, files: dict[str, str]) -> None:
        self._sources = {path.removesuffix(".py").replace("/", "."): (path, source) for path, source in files.items()}

    def loaded(self) -> list[str]:
        return [name for name in self._sources if name in sys.modules]

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
    from tests.sim.schedule import Violation

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


def _simulate(mutant: Mutant, first: int, root: Path) -> tuple[str, str]:
    command = [sys.executable, "-m", "tests.mutants", "--hunt", mutant.name, "--first", str(first)]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"mutant {mutant.name}: {ended.stderr.strip()}")
    found = json.loads(ended.stdout)
    return (str(found["after"]) if found["after"] else "", found["what"].partition(": ")[2])


def _pytest(where: Path, *words: str, deadline_s: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_timeout", "-p", "no:cacheprovider", *words]
    # Without the plugins that none of these tests needs: loading them takes longer than most of the tests.
    environment = {**os.environ, "PYTHONPATH": str(where), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["FAILOVER_CHAOS_DEADLINE_S"] = f"{deadline_s:g}"
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)


def _test(mutant: Mutant, tests: tuple[str, ...], root: Path) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
        copied(root, Path(scratch))
        for path, source in mutated(mutant, root).items():
            (Path(scratch) / path).write_text(source)
        ended = _pytest(Path(scratch), "-x", *tests, deadline_s=DEADLINE_S)
    return _read(mutant, ended.returncode, ended.stdout + ended.stderr)


def _read(mutant: Mutant, code: int, said: str) -> tuple[str, str]:
    """What pytest has found."""
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if code not in (0, 1):
        raise SystemExit(f"mutant {mutant.name}: pytest could not run its tests:\n{said[-3000:]}")
    return ("test" if code == 1 else "", failed[0].partition("::")[2] if failed else "")


def _row(mutant: Mutant, first: int, root: Path) -> tuple[Mutant, str, str]:
    if mutant.tests:
        return mutant, *_test(mutant, mutant.tests, root)
    found, what = _simulate(mutant, first, root)
    if not found and mutant.or_tests:
        found, what = _test(mutant, mutant.or_tests, root)
    return mutant, found, what


def _in_process(names: list[str]) -> int:
    """In a process of its own: a fork for each of these mutants, with pytest loaded already. Prints JSON."""
    import hypothesis  # noqa: F401 (whatever the tests load and no mutant touches is loaded once)
    import pytest

    import lockserver.client
    import lockserver.observer  # noqa: F401

    known = everyone()
    rows: dict[str, tuple[int, str]] = {}
    for name in names:
        with tempfile.TemporaryFile("w+") as said:
            child = os.fork()
            if child == 0:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                finder = _Finder(mutated(known[name]))
                if loaded := finder.loaded():
                    raise SystemExit(f"mutant {name}: {loaded} are loaded already")
                sys.meta_path.insert(0, finder)
                code = pytest.main(
                    ["-x", "-q", "--tb=line", "-p", "pytest_timeout", "--timeout=60", *known[name].tests]
                )
                sys.stdout.flush()
                os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            rows[name] = (code, said.read())
    print(json.dumps(rows))
    return 0


def _batch(mutants: list[Mutant], root: Path) -> list[tuple[Mutant, str, str]]:
    command = [sys.executable, "-m", "tests.mutants", "--in-process", ",".join(mutant.name for mutant in mutants)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "FAILOVER_CHAOS_DEADLINE_S": f"{DEADLINE_S:g}"}
    ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"mutants in one process: {ended.stderr.strip()}")
    found = json.loads(ended.stdout)
    return [(mutant, *_read(mutant, *found[mutant.name])) for mutant in mutants]


def _control(chosen: list[Mutant], root: Path) -> str:
    """The tests of all of them, with every rule in place. What went wrong, or nothing."""
    tests = list(dict.fromkeys(test for mutant in chosen for test in mutant.tests + mutant.or_tests))
    files = {test for test in tests if "::" not in test}
    tests = [test for test in tests if test in files or test.partition("::")[0] not in files]
    ended = _pytest(root, *tests) if tests else None
    if ended is None or ended.returncode == 0:
        return ""
    said = ended.stdout[-3000:] + ended.stderr[-1000:]
    return f"with every rule in place tests fail, so that nothing they find means anything:\n{said}"


def _misfits(chosen: list[Mutant], root: Path) -> list[str]:
    found = []
    for mutant in chosen:
        try:
            mutated(mutant, root)
        except BadMutant as error:
            found.append(str(error))
    return found


def everyone() -> dict[str, Mutant]:
    found: dict[str, Mutant] = {}
    for mutant in BY_HAND:
        if mutant.name in found:
            raise SystemExit(f"two mutants are called {mutant.name}")
        found[mutant.name] = mutant
    return found


def by_the_commit() -> int:
    """Which tenth this commit's is; the first where there is no git."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return int(ended.stdout.strip() or "0", 16) % TENTHS if ended.returncode == 0 else 0


def tenth(by_hand: list[str], by_program: list[str], number: int) -> list[str]:
    """Every tenth of those by hand, so that each part has some of each kind; of the others those of a few files, since
    the tests of each package have to be looked at first.
    """
    first, last = (len(by_program) * at // TENTHS for at in (number, number + 1))
    return by_hand[number::TENTHS] + by_program[first:last]


def _tried_by_the_program(names: list[str], root: Path) -> list[tuple[str, str]]:
    """Name -> what has noticed it, or nothing."""
    with tempfile.TemporaryDirectory(prefix="mutants-task-") as scratch:
        task, to = Path(scratch) / "task.json", Path(scratch) / "found"
        task.write_text(json.dumps({"names": names, "to": str(to)}))
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment |= {"MUTANTS_TASK": str(task), "FAILOVER_HYPOTHESIS": "mutants"}
        environment["FAILOVER_CHAOS_DEADLINE_S"] = f"{DEADLINE_S:g}"
        command = [sys.executable, "-m", "tests.mutants.runner"]
        ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode not in (0, 5):
            raise SystemExit(f"made mutants: {ended.stdout[-3000:]}{ended.stderr[-3000:]}")
        return [(name, found) for name, found in map(json.loads, to.read_text().splitlines())]


def _made(names: list[str], root: Path, *, accept: bool) -> int:
    """Tries them, prints what came of it; how many are noticed by no test, and not known either."""
    began = time.monotonic()
    results = dict(_tried_by_the_program(names, root)) if names else {}
    text = survivors.FILE.read_text()
    if accept:
        text = survivors.accepted(text, results, [mutant.name for mutant in all_made()])
        survivors.FILE.write_text(text)
    alive = [name for name, found in results.items() if not found]
    new = [name for name in alive if name not in survivors.known(text)]
    wrong = [name for name in new if survivors.file_of(name) in survivors.whole(text)]
    print("\n".join(survivors.table(results.items(), survivors.known(text))))
    for name in new:
        print(f"{name}: no test notices" + ("" if name in wrong else " (in a file that was never tried as a whole)"))
    print(
        f"{len(results)} made mutants in {time.monotonic() - began:.0f} s; "
        f"{len(alive)} not noticed, {len(new)} of them new"
    )
    return len(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="NAME,...")
    parser.add_argument("--part", choices=PARTS, default="all", help="a tenth is chosen by the commit")
    parser.add_argument("--list", action="store_true", help="only name them")
    parser.add_argument("--accept", action="store_true", help="write what no test notices to survivors.txt")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed of the simulator")
    parser.add_argument("--hunt", help=argparse.SUPPRESS)
    parser.add_argument("--in-process", help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = everyone()
    if options.in_process:
        return _in_process(options.in_process.split(","))
    if options.hunt:
        return _hunt(known[options.hunt], options.first)
    everything = [*known, *(mutant.name for mutant in all_made())]
    patterns = [word for word in options.only.split(",") if word] or ["*"]
    if unknown := [word for word in patterns if not fnmatch.filter(everything, word)]:
        parser.error(f"no such mutant: {', '.join(unknown)}; --list names them")
    names = [name for name in everything if any(fnmatch.fnmatchcase(name, word) for word in patterns)]
    if options.part == "by-hand":
        names = [name for name in names if name in known]
    elif options.part == "tenth-by-hand":
        names = [name for name in names if name in known][by_the_commit() :: TENTHS]
    elif options.part == "tenth":
        number = by_the_commit()
        names = tenth([name for name in names if name in known], [name for name in names if name not in known], number)
        print(f"part {number + 1} of {TENTHS}: {len(names)} mutants")
    if options.list:
        print("\n".join(f"{name:40} {known[name].without}" if name in known else name for name in names))
        return 0
    chosen = [known[name] for name in names if name in known]
    with tempfile.TemporaryDirectory(prefix="mutants-") as copy:
        root = Path(copy)
        copied(ROOT, root)
        if misfits := _misfits(chosen, root):
            print("\n".join(misfits), file=sys.stderr)
            return 1
        wrong = _by_hand(chosen, root, options.first)
        wrong += _made([name for name in names if name not in known], root, accept=options.accept)
    return 1 if wrong else 0


def _by_hand(chosen: list[Mutant], root: Path, first: int) -> int:
    """Tries them, prints what came of it; how many went wrong."""
    began = time.monotonic()
    quick = [mutant for mutant in chosen if mutant.in_process]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        control = pool.submit(_control, chosen, root)
        slow = [pool.submit(_row, mutant, first, root) for mutant in chosen if not mutant.in_process]
        batches = [pool.submit(_batch, quick[at : at + BATCH], root) for at in range(0, len(quick), BATCH)]
        rows = [row.result() for row in slow] + [row for batch in batches for row in batch.result()]
        wrong = control.result()
    alive = [mutant.name for mutant, found, _ in rows if not found]
    print(f"{'mutant':26} {'found after':>12}  noticed as")
    for mutant, found, what in rows:
        print(f"{mutant.name:26} {(found + ' seeds' if found.isdigit() else found) or 'NOT FOUND':>12}  {what[:110]}")
    print(
        f"{len(rows)} mutants by hand in {time.monotonic() - began:.0f} s, seeds from {first}; "
        f"{len(alive)} not found{': ' + ', '.join(alive) if alive else ''}"
    )
    if wrong:
        print(wrong, file=sys.stderr)
    return len(alive) + bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

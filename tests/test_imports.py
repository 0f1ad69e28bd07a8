"""Imports go down only, and the machines are pure. Read from the source with `ast`: nothing is imported for this.

Nothing passes because a name was mistyped: packages and modules are taken from the disk, and their folder decides. What
lies in `rules/` is pure, `shell/` and `cli/` may touch the world, and the modules at the top are the ones that other
packages import.
"""

import ast
import sys
from collections.abc import Callable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("imports")  # each worker would read all files for itself

ROOT = Path(__file__).resolve().parent.parent

GROUND_FLOOR = "sidecar"
UPPER_FLOORS = {
    "dual_pods",
    "evidence",
    "fleet",
    "gateway",
    "engine_shim",
    "gms",
    "lockserver",
    "pool",
    "reference_engine",
    "vram",
}
# Beside the modules at the top of a package: its folders that others may import from.
PUBLIC = {
    "evidence",  # which processes are gone: a part of the machine of whichever server decides by it
    "fleet",  # beside the house: the door is a client like any other, and nothing else stands on it
    "gms.memory",  # an engine's KV cache is memory of its own
    "engine_shim.kv",  # what is true in the memory of a KV cache that outlives it
}
OURS = UPPER_FLOORS | {GROUND_FLOOR}
# Whose public clients a package may import. The ground floor is for all.
MAY_USE: dict[str, set[str]] = {
    GROUND_FLOOR: set(),
    "dual_pods": {"pool"},
    "evidence": set(),
    "lockserver": {"evidence"},
    "gms": {"vram"},
    "fleet": set(),
    "pool": {"gms", "lockserver", "vram"},
    "vram": {"evidence"},
    "gateway": {"fleet", "lockserver", "pool"},
    "engine_shim": {"lockserver", "gms", "pool", "vram"},
    "reference_engine": {"engine_shim", "gms"},
}
# Beside the house. They may import any module of these packages, and no part of the house imports them.
OUTBUILDINGS: dict[str, set[str]] = {
    "k8s": {GROUND_FLOOR, "engine_shim"},
    "tools": {GROUND_FLOOR, "gms", "k8s", "lockserver"},
    "demo": {GROUND_FLOOR, "lockserver", "gms", "engine_shim", "evidence", "tests"},
    "bench": {GROUND_FLOOR, "fleet", "lockserver", "gms", "vram", "tools", "tests"},
    "tests": {*OURS, "k8s", "tools", "bench", "demo"},
}
PACKAGES = OURS | set(OUTBUILDINGS)

# Pure, and of use to other packages, so beside the rooms.
PURE_AT_THE_TOP = {"engine_shim.kv", "gms.layout", "gms.pack", "lockserver.advice", "pool.entries"}
# Pure, and no rule lives there: what is said, what things are called, what a turn has in common.
WITHOUT_RULES = {
    "dual_pods.rules.events",
    "dual_pods.rules.facts",
    "dual_pods.rules.names",
    "evidence.rules.events",
    "evidence.rules.messages",
    "evidence.rules.record",
    "fleet.rules.statements",
    "gms.pack",
    "gms.rules.context",
    "gms.rules.errors",
    "gms.rules.events",
    "gms.rules.messages",
    "gms.rules.safetensors_file",
    "lockserver.rules.context",
    "lockserver.rules.events",
    "lockserver.rules.messages",
    "lockserver.rules.plan",
    "sidecar.machine.plan",
    "pool.entries",
    "pool.rules.messages",
    "vram.rules.events",
    "vram.rules.messages",
    "vram.rules.status",
}
# A pure module knows no socket, clock, thread, file, environment or chance, by whatever door.
IMPURE = {
    "asyncio",
    "ctypes",
    "fcntl",
    "importlib",
    "io",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "resource",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
IMPURE_CALLS = {"__import__", "eval", "exec", "input", "open", "print"}
FRAMES = "sidecar.wire.frames"
PURE_OF_FRAMES = {"Message", "MAX_DESCRIPTORS"}  # what messages are declared with, and how much goes with one
# Nothing else of the ground floor is pure.
PURE_GROUND = {
    FRAMES,
    "sidecar.machine.context",
    "sidecar.machine.disk_writes",
    "sidecar.machine.plan",
    "sidecar.terminal.exit_codes",
    "sidecar.terminal.formatting",
    "sidecar.terminal.names",
    "sidecar.machine.reconnect",
    "sidecar.machine.restarts",
    "sidecar.terminal.table",
    "sidecar.wire.versions",
}
CORE = {"sidecar", "evidence", "lockserver", "vram"}
RULES = "rules"
ROOMS = {RULES, "shell", "cli"}
FLOORS = {"kernel", "wire", "machine", "http", "terminal"}
"""The ground floor's own rooms."""
CORE_MAY_NEED = {"msgspec"}  # anything else is an extra, and imported where it is needed
NOT_FOR_THE_CORE: dict[str, set[str]] = {
    "sidecar.http.http_client": {"httptools"},
    "sidecar.http.http_requests": {"httptools"},
    "sidecar.http.http_server": set(),
}
"""On the ground floor because every package stands on it. No program of the core loads it with its start:
`http_port.py` does so when the first client comes."""


@cache
def statements(source: str, *, top_level_only: bool) -> list[ast.Import | ast.ImportFrom]:
    """What imports something, wherever it is; or what does so when the module is imported, so that what is in functions
    doesn't count, nor what only a type checker sees."""
    queue: list[ast.AST] = [ast.parse(source)]
    for node in queue:  # which grows meanwhile
        if top_level_only and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if not (top_level_only and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            queue += getattr(node, "body", [])
        for further in ("orelse", "handlers", "finalbody", "cases"):
            queue += getattr(node, further, [])
    return [node for node in queue if isinstance(node, (ast.Import, ast.ImportFrom))]


def imports(source: str, module: str, *, top_level_only: bool = False) -> set[str]:
    """Every module that this source imports, by full name. `from package import x` counts as package.x."""
    found: set[str] = set()
    for node in statements(source, top_level_only=top_level_only):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            base = _absolute(node, module)
            inside = base in OURS or base.partition(".")[2] in ROOMS | FLOORS
            found |= {f"{base}.{alias.name}" for alias in node.names} if inside else {base}
    return found


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if node.level == 0:
        return node.module or ""
    parents = module.split(".")[: -node.level]
    return ".".join([*parents, node.module] if node.module else parents)


def within(name: str, packages: set[str]) -> bool:
    """The module is one of these or inside one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def upward(source: str, module: str) -> set[str]:
    """The imports that break the direction."""
    home = module.split(".")[0]
    if home in OUTBUILDINGS:
        allowed = {home} | OUTBUILDINGS[home]
    else:
        allowed = {home, GROUND_FLOOR} | {client for client in public() if within(client, MAY_USE[home])}
    return {name for name in imports(source, module) if within(name, PACKAGES) and not within(name, allowed)}


def public() -> set[str]:
    """What one package may import of another below it."""
    at_the_top = {name for name in HOUSE if name.count(".") == 1 and not name.endswith(("__init__", "__main__"))}
    return PUBLIC | at_the_top


def is_pure(module: str) -> bool:
    return module.split(".")[1:2] == [RULES] or within(module, PURE_AT_THE_TOP)


def impurities(source: str, module: str) -> set[str]:
    """What a pure module may not have: the world, the ground floor, or anything of the house that isn't pure itself."""
    package = module.split(".")[0]
    listed = OURS if package == GROUND_FLOOR else OURS - {package}
    names = imports(source, module)
    wrong = {name for name in names if within(name, IMPURE)}
    for name in names:
        if within(name, listed):
            wrong |= {name} if not within(name, PURE_GROUND) and not is_pure(name) else set()
        elif within(name, {package}) and name != package and package != GROUND_FLOOR and not is_pure(name):
            wrong.add(name)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == FRAMES:
            wrong |= {f"{FRAMES}.{alias.name}" for alias in node.names if alias.name not in PURE_OF_FRAMES}
        elif isinstance(node, ast.Import):
            wrong |= {alias.name for alias in node.names if alias.name == FRAMES}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            wrong.add(f"{node.func.id}()")
    return wrong


def circles(sources: dict[str, str]) -> list[list[str]]:
    """Modules that import each other, in whatever way: in functions, and for a type checker only, too."""
    reached = {name: _within_package(source, name, sources) for name, source in sources.items()}
    grown = True
    while grown:
        grown = False
        for found in reached.values():
            more = {further for name in found for further in reached[name]} - found
            grown = grown or bool(more)
            found |= more
    rings = {tuple(sorted(n for n in found if name in reached[n])) for name, found in reached.items() if name in found}
    return [list(ring) for ring in sorted(rings)]


def _within_package(source: str, module: str, sources: dict[str, str]) -> set[str]:
    """The modules among the sources that this one imports. A package's own name stands for its `__init__`."""
    found: set[str] = set()
    for node in statements(source, top_level_only=False):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            base = _absolute(node, module)
            found |= {
                f"{base}.{alias.name}" if _known(f"{base}.{alias.name}", sources) else base for alias in node.names
            }
    return {_known(name, sources) for name in found} - {""}


def _known(name: str, sources: dict[str, str]) -> str:
    return name if name in sources else f"{name}.__init__" if f"{name}.__init__" in sources else ""


def modules(package: str) -> dict[str, str]:
    """Every module of a package that is there, and its source."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


MODULES = {package: modules(package) for package in sorted(PACKAGES)}
HOUSE = {name: source for package in sorted(OURS) for name, source in MODULES[package].items()}
PURE = {name: source for name, source in HOUSE.items() if is_pure(name)} | {
    name: HOUSE[name] for name in sorted(PURE_GROUND - {FRAMES})
}


def found_in(sources: dict[str, str], look: Callable[[str, str], set[str]]) -> dict[str, set[str]]:
    """Module -> what is wrong with it."""
    return {name: wrong for name, source in sources.items() if (wrong := look(source, name))}


def rules() -> dict[str, str]:
    """Path -> source of every file in which a rule may be: what the program that makes mutants takes rules out of."""
    return {
        f"{name.replace('.', '/')}.py": source
        for name, source in PURE.items()
        if not name.endswith(".__init__") and name not in WITHOUT_RULES
    }


def test_every_package_of_the_repository_is_known_here() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/*.py") if not path.parent.name.startswith(".")}
    assert packages <= PACKAGES, "say in this file which floor a new package is on"
    assert packages >= {GROUND_FLOOR, "lockserver", "tests"}


def test_no_packages_of_the_house_may_use_each_other() -> None:
    assert set(MAY_USE) == OURS
    TopologicalSorter(MAY_USE).prepare()  # raises on a circle


@pytest.mark.parametrize("package", MODULES)
def test_imports_go_down_only(package: str) -> None:
    """To the ground floor, and to what MAY_USE or OUTBUILDINGS says."""
    assert found_in(MODULES[package], upward) == {}


def test_each_package_is_used_by_those_that_may_use_it() -> None:
    used = {
        (package, name.split(".")[0])
        for package, sources in MODULES.items()
        for module, source in sources.items()
        for name in imports(source, module)
        if within(name, PACKAGES - {package})
    }
    may = {(package, other) for package, others in (MAY_USE | OUTBUILDINGS).items() for other in others}
    assert may <= used, "take out of MAY_USE or OUTBUILDINGS what isn't used"


def test_what_is_listed_here_is_there_and_each_package_has_its_rooms() -> None:
    listed = WITHOUT_RULES | PURE_AT_THE_TOP | PURE_GROUND | PUBLIC
    assert {name for name in listed if not any(within(there, {name}) for there in HOUSE)} == set()
    rooms = {(name.split(".")[0], name.split(".")[1]) for name in HOUSE if name.count(".") > 1}
    assert {room for package, room in rooms if package == GROUND_FLOOR} == FLOORS
    assert all((package, RULES) in rooms for package in UPPER_FLOORS - {"reference_engine"})


@pytest.mark.parametrize("package", sorted(OURS))
def test_no_modules_of_a_package_import_each_other(package: str) -> None:
    assert circles(MODULES[package]) == []


def test_a_circle_is_seen_however_it_is_made() -> None:
    sources = {
        "p.__init__": "",
        "p.a": "from p import b",
        "p.b": "def f():\n    import p.c",
        "p.c": "if TYPE_CHECKING:\n    from .a import x",
        "p.d": "from p.a import x",
        "p.q.__init__": "from p.q.inner import x",
        "p.q.inner": "from p.q import y",
    }
    assert circles(sources) == [["p.a", "p.b", "p.c"], ["p.q.__init__", "p.q.inner"]]


def test_whatever_is_no_shell_is_pure() -> None:
    assert found_in(PURE, impurities) == {}


def test_the_room_decides() -> None:
    assert is_pure("lockserver.rules.queue") and is_pure("lockserver.rules.deeper.queue") and is_pure("gms.layout")
    rooms = ("lockserver.shell.server", "lockserver.cli.hold", "lockserver.queue", "sidecar.rules_of_something")
    assert not any(is_pure(name) for name in rooms)
    assert impurities("from lockserver.shell import x", "lockserver.rules.queue") == {"lockserver.shell.x"}
    assert impurities("from lockserver.observer import x", "lockserver.rules.queue") == {"lockserver.observer"}
    assert impurities("from lockserver.rules.lock import Lock", "lockserver.rules.queue") == set()


def test_the_core_loads_nothing_that_isnt_installed_with_it() -> None:
    def wrong(source: str, module: str) -> set[str]:
        names = imports(source, module, top_level_only=True)
        may = CORE_MAY_NEED | NOT_FOR_THE_CORE.get(module, set()) | OURS | set(sys.stdlib_module_names)
        no_part = set() if module in NOT_FOR_THE_CORE else names & set(NOT_FOR_THE_CORE)
        return {name for name in names if name.split(".")[0] not in may} | no_part

    assert {package: found_in(MODULES[package], wrong) for package in CORE} == {package: {} for package in CORE}


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("sidecar.wire.frames", "import lockserver.rules.messages", {"lockserver.rules.messages"}),
        ("sidecar.wire.frames", "from lockserver import client", {"lockserver.client"}),
        ("sidecar.wire.frames", "def f():\n    from gms.client import x", {"gms.client"}),
        ("sidecar.wire.frames", "import tests.sim", {"tests.sim"}),
        ("gateway.rules.admission", "import lockserver", {"lockserver"}),
        ("gateway.rules.admission", "from lockserver.rules import machine", {"lockserver.rules.machine"}),
        ("gateway.rules.admission", "from lockserver.rules.machine import Machine", {"lockserver.rules.machine"}),
        ("lockserver.rules.queue", "from engine_shim.kv import table", {"engine_shim.kv"}),
        ("k8s.lint.check", "from gms.client import x\nfrom sidecar import settings", {"gms.client"}),
        ("tools.local_pod.run", "import tests.sim", {"tests.sim"}),
        (
            "gateway.rules.admission",
            "from lockserver.client import Lock\nfrom sidecar.terminal import logs\nimport sidecarx",
            set(),
        ),
        ("gateway.inner.door", "from .. import core\nfrom . import x\nfrom lockserver.observer import Observer", set()),
        ("reference_engine.rank", "from engine_shim.kv.table import Table\nfrom gms.memory.host import x", set()),
        ("bench.pair", "from gms.shell.rundir import x\nfrom tests.engine import shims", set()),
    ],
)
def test_a_wrong_direction_is_seen(module: str, line: str, wrong: set[str]) -> None:
    assert upward(line, module) == wrong


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("import os.path", {"os.path"}),
        ("from time import monotonic", {"time"}),
        ("def f():\n    import random", {"random"}),
        ("from sidecar.kernel import peers", {"sidecar.kernel.peers"}),
        ("from sidecar.wire.frames import Channel, Message", {"sidecar.wire.frames.Channel"}),
        (
            "from sidecar.terminal.terminal import say\nfrom sidecar.terminal.formatting import ago",
            {"sidecar.terminal.terminal"},
        ),
        ("import sidecar.wire.frames", {"sidecar.wire.frames"}),
        ("from ..shell import server", {"lockserver.shell.server"}),
        ("from lockserver.shell.rundir import LIFE", {"lockserver.shell.rundir"}),
        ("f = open('x')", {"open()"}),
        (
            "import math\nfrom sidecar.wire.frames import Message\nfrom lockserver.rules.messages import Hello",
            set(),
        ),
        ("from datetime import UTC, datetime\nimport oscillator, timeit_not", set()),
    ],
)
def test_an_impurity_is_seen(line: str, wrong: set[str]) -> None:
    assert impurities(line, "lockserver.rules.machine") == wrong


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("from sidecar.kernel import peers", {"sidecar.kernel.peers"}),
        ("import math\nfrom sidecar.terminal.exit_codes import EX_LOST\nfrom sidecar.terminal import table", set()),
    ],
)
def test_an_impurity_of_the_ground_floor_is_seen(line: str, wrong: set[str]) -> None:
    assert impurities(line, "sidecar.machine.reconnect") == wrong


def test_no_docstring_begins_in_the_middle_of_a_sentence() -> None:
    assert [name for name, source in HOUSE.items() if '"""Of ' in source] == []


def test_what_runs_on_import_is_told_from_what_doesnt() -> None:
    source = """
import a
try:
    import b
except ImportError:
    import c
if TYPE_CHECKING:
    import never
class X:
    import d
    def f(self):
        import later
with x:
    import e
"""
    assert imports(source, "sidecar.x", top_level_only=True) == {"a", "b", "c", "d", "e"}


def test_a_test_takes_a_thing_from_where_it_lives() -> None:
    """`import X as X` makes a second place for it."""

    def again(source: str, _: str) -> set[str]:
        froms = [node for node in statements(source, top_level_only=False) if isinstance(node, ast.ImportFrom)]
        return {alias.name for node in froms for alias in node.names if alias.asname == alias.name}

    assert found_in(MODULES["tests"], again) == {}

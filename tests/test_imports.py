"""Imports go down only, and the machines are pure. Read from the source with `ast`: nothing is imported for this.

Nothing passes because a name was mistyped: packages and modules are taken from the disk. In a package with rooms the
folder decides: what lies in `rules/` is pure, `shell/`, `client/` and `cli/` may touch the world, and the modules at
the top are the ones that other packages import. In a package without rooms the lists below decide, and whatever isn't
listed as something else has to keep the strictest rule.
"""

import ast
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

GROUND_FLOOR = "sidecar"
UPPER_FLOORS = {"evidence", "gateway", "engine_shim", "gms", "lockserver", "reference_engine"}
PUBLIC_CLIENTS = {
    "evidence",  # which processes are gone: a part of the machine of whoever decides by it
    "lockserver.client",
    "lockserver.observer",
    "gms.client",
    "gms.observer",
    "gms.cleanup",  # for whoever has ended everything
    "lockserver.cleanup",
    "gms.layout",  # what a writer of weights commits,
    "gms.pack",  # and where it puts them
    "gms.memory",  # an engine's KV cache is memory of its own
    "gms.torch",  # its model's tensors are GMS's
    "gms.torch_views",
    "engine_shim.engine",  # what an engine must be able to do, and what it is told when it is made
    "engine_shim.kept_cache",  # memory and table of a KV cache that outlives it,
    "engine_shim.kv",  # and what is true in them
    "engine_shim.membership",  # what each of its processes does first
    "engine_shim.weights_wait",  # what it waits for before it starts
    "engine_shim.kv_room",  # and whether its KV cache can ever fit
}
OURS = UPPER_FLOORS | {GROUND_FLOOR}
# Whose public clients a package may import. The ground floor is for everybody.
MAY_USE: dict[str, set[str]] = {
    GROUND_FLOOR: set(),
    "evidence": set(),
    "lockserver": {"evidence"},
    "gms": set(),
    "gateway": {"lockserver"},
    "engine_shim": {"lockserver", "gms"},
    "reference_engine": {"engine_shim", "gms"},
}
# Beside the house. They may import any module of these packages, and no part of the house imports them.
OUTBUILDINGS: dict[str, set[str]] = {
    "k8s": {GROUND_FLOOR, "engine_shim"},
    "tools": {GROUND_FLOOR, "gms", "k8s"},
    "demo": {GROUND_FLOOR, "lockserver", "gms", "engine_shim"},
    "bench": {GROUND_FLOOR, "lockserver", "gms", "tools", "tests"},
    "tests": {*OURS, "k8s", "tools", "bench"},
}
PACKAGES = OURS | set(OUTBUILDINGS)

# The shells, by package: the modules that may touch the world. Every other module there is pure.
SHELLS = {
    "engine_shim": {
        "__main__",
        "address",
        "command_settings",
        "engine",
        "failover",
        "given_up",
        "kept_cache",
        "known_engines",
        "kv_room",
        "cleanup",
        "life_locks",
        "main_process",
        "membership",
        "metrics",
        "own_files",
        "pair_commands",
        "pair_look",
        "pair_parts",
        "pair_process",
        "pair_status",
        "passing",
        "paths",
        "probe_pages",
        "scratch",
        "serving_watch",
        "shim",
        "shim_status",
        "shm_cleanup",
        "up",
        "vllm_engine",
        "weights_wait",
    },
    "evidence": {"lifefiles", "shell"},
    "lockserver": {
        "checking",
        "__main__",
        "client",
        "doctor",
        "guard",
        "held_command",
        "hold",
        "cleanup",
        "lockctl",
        "memory",
        "metrics",
        "observer",
        "reader_thread",
        "rundir",
        "server",
        "session",
    },
    "gateway": {
        "__main__",
        "keys",
        "metrics",
        "pair",
        "server",
        "upstream",
        "watch",
    },
    "gms": {
        "__main__",
        "background",
        "client",
        "client_shell",
        "device_io",
        "device_names",
        "device_process",
        "gmsctl",
        "layout_slabs",
        "cleanup",
        "mapping",
        "memory",
        "metrics",
        "observer",
        "pool_client",
        "region_shell",
        "tables",
        "reader",
        "rundir",
        "server",
        "supervisor",
        "torch",
        "torch_views",
        "transfer",
        "transfer_commands",
        "writer",
    },
}
# The rules: these modules exist and are no shells.
MACHINES = {
    "gateway": {
        "admission",
        "answers",
        "clients_part",
        "comparing",
        "continuing",
        "deaths",
        "delivery",
        "due",
        "errors",
        "events",
        "grants",
        "kinds",
        "legs",
        "machine",
        "phases",
        "recovery",
        "request",
        "sse",
        "undisturbed",
        "visitors",
    },
    "engine_shim": {
        "lifecycle",
        "counterparts",
        "events",
        "messages",
        "probes",
        "counters",
        "takes",
        "hopeless_parts",
        "init_failures",
        "kv.table",
        "kv.publishing",
        "kv.adoption",
    },
    "evidence": {
        "evidence",
        "incarnation",
        "incarnations",
        "joining",
        "looks",
        "pidfd_copies",
        "proof",
        "strangers",
    },
    "lockserver": {
        "machine",
        "lock",
        "hearsay",
        "proof",
        "queue",
        "overdue",
        "permit",
        "exclusion",
        "free_memory",
        "recovery",
        "switchover",
        "succession",
        "admission",
        "callers",
        "invariants",
        "status",
        "record",
        "client_machine",
        "client_events",
    },
    "gms": {
        "machine",
        "region",
        "region_client",
        "shared",
        "exclusive",
        "claims",
        "making",
        "hand_back",
        "generations",
        "weights",
        "holders",
        "sessions",
        "recovery",
        "admission",
        "drops",
        "state_file",
        "versions",
        "invariants",
        "status",
        "record",
        "layout",
        "client_machine",
        "client_events",
        "pools",
        "silence",
        "pool_client_machine",
    },
}
# Pure as the machines are, and no rule lives there: what is said, what things are called, how something reads.
WITHOUT_RULES = {
    "engine_shim": {"part_environment"},
    "evidence": {"events", "messages", "record"},
    "lockserver": {"context", "events", "lockctl_help", "messages", "plan", "status_text"},
    "gms": {
        "context",
        "errors",
        "events",
        "gmsctl_help",
        "messages",
        "pack",
        "safetensors_file",
        "settings",
        "status_text",
    },
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
FRAMES = "sidecar.frames"
PURE_OF_FRAMES = {"Message", "MAX_DESCRIPTORS"}  # what messages are declared with, and how much goes with one
# Nothing else of the ground floor is pure.
PURE_GROUND = {
    FRAMES,
    "sidecar.context",
    "sidecar.disk_writes",
    "sidecar.exit_codes",
    "sidecar.formatting",
    "sidecar.names",
    "sidecar.reconnect",
    "sidecar.restarts",
    "sidecar.table",
    "sidecar.versions",
}
# Of the floor between it and the ground: whoever decides by evidence has its rules in his own.
PURE_BELOW = {f"evidence.{name}" for name in MACHINES["evidence"] | WITHOUT_RULES["evidence"]}
CORE = {"sidecar", "evidence", "lockserver"}
RULES = "rules"
ROOMS = {RULES, "shell", "client", "cli"}
CORE_MAY_NEED = {"msgspec"}  # anything else is an extra, and imported where it is needed
NOT_FOR_THE_CORE: dict[str, set[str]] = {"sidecar.http_requests": {"httptools"}, "sidecar.http_server": set()}
"""On the ground floor because every package stands on it. No program of the core loads it with its start:
`http_port.py` does so when the first client comes."""


@cache
def parsed(source: str) -> ast.Module:
    """Once for each source: most tests here ask about all of them."""
    return ast.parse(source)


def imports(source: str, module: str, *, top_level_only: bool = False) -> set[str]:
    """Every module that this source imports, by full name. `from package import x` counts as package.x."""
    tree = parsed(source)
    found: set[str] = set()
    for node in _outside_functions(tree) if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module)
            found |= {f"{base}.{alias.name}" for alias in node.names} if base in OURS else {base}
    return found


def _outside_functions(tree: ast.Module) -> list[ast.stmt]:
    """What runs on import: not what is in functions, nor what only a type checker sees."""
    found: list[ast.stmt] = []
    queue: list[ast.stmt] = list(tree.body)
    while queue:
        node = queue.pop()
        found.append(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            queue += node.orelse
            continue
        queue += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        if isinstance(node, ast.Try):
            queue += [statement for handler in node.handlers for statement in handler.body]
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
    at_the_top = {name for name in HOUSE if name.count(".") == 1 and has_rooms(name.split(".")[0])}
    return PUBLIC_CLIENTS | at_the_top - {name for name in at_the_top if name.endswith((".__init__", ".__main__"))}


def has_rooms(package: str) -> bool:
    return (ROOT / package / RULES).is_dir()


def is_pure(module: str) -> bool:
    """By its room; where a package has none, by the lists."""
    package, *within_package = module.split(".")
    if RULES in within_package[:1]:
        return True
    if not within_package or has_rooms(package) or within_package[0] in ROOMS:
        return False
    return package in SHELLS and within_package[0] not in SHELLS[package]


def impurities(source: str, module: str) -> set[str]:
    """What a pure module may not have: the world, the ground floor, or anything of the house that isn't pure itself."""
    package = module.split(".")[0]
    listed = OURS if package == GROUND_FLOOR else OURS - {package}
    names = imports(source, module)
    wrong = {name for name in names if within(name, IMPURE)}
    for name in names:
        if within(name, listed):
            wrong |= {name} if not within(name, PURE_GROUND | PURE_BELOW) and not is_pure(name) else set()
        elif within(name, {package}) and name != package and package != GROUND_FLOOR and not is_pure(name):
            wrong.add(name)
    for node in ast.walk(parsed(source)):
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
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
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


HOUSE = {name: source for package in sorted(OURS) for name, source in modules(package).items()}
BESIDE = {name: source for package in sorted(OUTBUILDINGS) for name, source in modules(package).items()}
PURE = {name: source for name, source in HOUSE.items() if is_pure(name)} | {
    name: HOUSE[name] for name in sorted(PURE_GROUND - {FRAMES})
}


def rules() -> dict[str, str]:
    """Path -> source of every file in which a rule may be: what the program that makes mutants takes rules out of."""
    spoken = {f"{package}.{name}" for package, names in WITHOUT_RULES.items() for name in names}
    return {
        f"{name.replace('.', '/')}.py": source
        for name, source in PURE.items()
        if not name.endswith(".__init__") and not within(name, spoken)
    }


def test_every_package_of_the_repository_is_known_here() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/*.py") if not path.parent.name.startswith(".")}
    assert packages <= PACKAGES, "say in this file which floor a new package is on"
    assert packages >= {GROUND_FLOOR, "lockserver", "tests"}


def test_no_packages_of_the_house_may_use_each_other() -> None:
    assert set(MAY_USE) == OURS
    TopologicalSorter(MAY_USE).prepare()  # raises on a circle


@pytest.mark.parametrize("module", HOUSE)
def test_imports_go_down_only(module: str) -> None:
    wrong = upward(HOUSE[module], module)
    assert not wrong, f"{module} may import the ground floor and the clients that MAY_USE says, and not {sorted(wrong)}"


@pytest.mark.parametrize("package", OUTBUILDINGS)
def test_what_stands_beside_the_house_imports_what_it_says_here(package: str) -> None:
    wrong = {name: upward(source, name) for name, source in BESIDE.items() if within(name, {package})}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_each_package_is_used_by_whoever_may_use_it() -> None:
    used = {
        (module.split(".")[0], name.split(".")[0])
        for module, source in (HOUSE | BESIDE).items()
        for name in imports(source, module)
        if within(name, PACKAGES - {module.split(".")[0]})
    }
    may = {(package, other) for package, others in (MAY_USE | OUTBUILDINGS).items() for other in others}
    assert may <= used, "take out of MAY_USE or OUTBUILDINGS what nobody uses"


def lists_of(module: str) -> list[str]:
    """In which lists of its package this module, or a package that it is in, stands."""
    package, _, name = module.partition(".")
    lists = {"SHELLS": SHELLS, "MACHINES": MACHINES, "WITHOUT_RULES": WITHOUT_RULES}
    return [title for title, listed in lists.items() if within(name, listed.get(package, set()))]


@pytest.mark.parametrize("package", SHELLS)
def test_each_module_is_in_one_list(package: str) -> None:
    there = [name for name in modules(package) if not name.endswith(".__init__") and not has_rooms(package)]
    wrong = {name: lists for name in there if len(lists := lists_of(name)) != 1}
    assert wrong == {}, "add it to SHELLS, MACHINES or WITHOUT_RULES in this file"


@pytest.mark.parametrize("package", SHELLS)
def test_each_list_names_modules_that_are_there(package: str) -> None:
    lists = (SHELLS, MACHINES, WITHOUT_RULES)
    listed = {name for each in lists for name in each.get(package, set()) if not has_rooms(package)}
    assert {name for name in listed if not any(within(there, {f"{package}.{name}"}) for there in HOUSE)} == set()


def test_a_module_in_no_list_or_in_two_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lists_of("lockserver.new") == lists_of("lockserver.machines") == []
    assert lists_of("gms.memory.new") == lists_of("engine_shim.vllm_engine.new") == ["SHELLS"]
    monkeypatch.setitem(SHELLS, "lockserver", {"machine"})
    assert lists_of("lockserver.machine") == ["SHELLS", "MACHINES"]


@pytest.mark.parametrize("package", sorted({name.split(".")[0] for name in HOUSE}))
def test_no_modules_of_a_package_import_each_other(package: str) -> None:
    assert circles(modules(package)) == []


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


@pytest.mark.parametrize("module", PURE)
def test_whatever_is_no_shell_is_pure(module: str) -> None:
    wrong = impurities(PURE[module], module)
    assert not wrong, (
        f"{module} is in rules/, or not listed in SHELLS here: it is pure and may not have {sorted(wrong)}"
    )


def test_the_room_decides_where_there_are_rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lockserver" / "rules").mkdir(parents=True)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert is_pure("lockserver.rules.queue") and is_pure("lockserver.rules.deeper.queue")
    rooms = ("lockserver.shell.server", "lockserver.client.machine", "lockserver.cli.hold", "lockserver.queue")
    assert not any(is_pure(name) for name in rooms)
    assert is_pure("gms.machine"), "which has no rooms: the lists decide"
    assert impurities("from lockserver.shell import x", "lockserver.rules.queue") == {"lockserver.shell"}
    assert impurities("from lockserver.observer import x", "lockserver.rules.queue") == {"lockserver.observer"}
    assert impurities("from lockserver.rules.lock import Lock", "lockserver.rules.queue") == set()


@pytest.mark.parametrize(
    "machine",
    [f"{package}.{name}" for package in MACHINES if not has_rooms(package) for name in sorted(MACHINES[package])],
)
def test_the_machines_are_no_shells(machine: str) -> None:
    assert machine in PURE


@pytest.mark.parametrize("module", [name for name in HOUSE if name.split(".")[0] in CORE])
def test_the_core_loads_nothing_that_isnt_installed_with_it(module: str) -> None:
    needed = {name.split(".")[0] for name in imports(HOUSE[module], module, top_level_only=True)}
    may = CORE_MAY_NEED | NOT_FOR_THE_CORE.get(module, set())
    assert needed - OURS - may - set(sys.stdlib_module_names) == set()


@pytest.mark.parametrize("module", NOT_FOR_THE_CORE)
def test_what_the_core_may_not_load_is_loaded_with_none_of_its_programs(module: str) -> None:
    core = {name for name in HOUSE if name.split(".")[0] in CORE} - set(NOT_FOR_THE_CORE)
    assert [name for name in core if module in imports(HOUSE[name], name, top_level_only=True)] == []


@pytest.mark.parametrize(
    ("module", "line", "wrong"),
    [
        ("sidecar.frames", "import lockserver.messages", {"lockserver.messages"}),
        ("sidecar.frames", "from lockserver import client", {"lockserver.client"}),
        ("sidecar.frames", "def f():\n    from gms.client import x", {"gms.client"}),
        ("sidecar.frames", "import tests.sim", {"tests.sim"}),
        ("gateway.admission", "import lockserver", {"lockserver"}),
        ("gateway.admission", "from lockserver import machine, client", {"lockserver.machine"}),
        ("gateway.admission", "from lockserver.machine import Machine", {"lockserver.machine"}),
        ("gateway.admission", "import lockserver.client_machine", {"lockserver.client_machine"}),
        ("gms.server", "from engine_shim import client", {"engine_shim.client"}),
        ("lockserver.machine", "from gms.client import GmsClient", {"gms.client"}),
        ("lockserver.queue", "from engine_shim.kv import table", {"engine_shim.kv"}),
        ("gms.machine", "import lockserver.client", {"lockserver.client"}),
        ("gateway.admission", "from gms.memory import Memory", {"gms.memory"}),
        ("reference_engine.engine", "from lockserver.client import join", {"lockserver.client"}),
        ("engine_shim.shim", "from lockserver import machine", {"lockserver.machine"}),
        ("k8s.lint.check", "from gms.client import x\nfrom sidecar import settings", {"gms.client"}),
        ("tools.local_pod.run", "import tests.sim", {"tests.sim"}),
        ("gateway.admission", "from lockserver.client import Lock\nfrom sidecar import logs\nimport sidecarx", set()),
        ("gateway.inner.door", "from .. import core\nfrom . import x\nfrom lockserver.observer import Observer", set()),
        ("reference_engine.rank", "from engine_shim.kv.table import Table\nfrom gms.memory.host import x", set()),
        ("bench.pair", "from gms.rundir import x\nfrom tests.engine import shims", set()),
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
        ("from sidecar import peers", {"sidecar.peers"}),
        ("from sidecar.frames import Channel, Message", {"sidecar.frames.Channel"}),
        ("from sidecar.terminal import say\nfrom sidecar.formatting import ago", {"sidecar.terminal"}),
        ("import sidecar.frames", {"sidecar.frames"}),
        ("from . import server", {"lockserver.server"}),
        ("from lockserver.memory import Reader", {"lockserver.memory"}),
        ("f = open('x')", {"open()"}),
        (
            "import enum, math, msgspec\nfrom sidecar.frames import Message\nfrom lockserver.messages import Hello",
            set(),
        ),
        ("from datetime import UTC, datetime\nimport oscillator, timeit_not", set()),
    ],
)
def test_an_impurity_is_seen(line: str, wrong: set[str]) -> None:
    assert impurities(line, "lockserver.machine") == wrong


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("import time", {"time"}),
        ("from sidecar import peers", {"sidecar.peers"}),
        ("from sidecar.frames import Channel", {"sidecar.frames.Channel"}),
        ("import math\nfrom sidecar.exit_codes import EX_LOST\nfrom sidecar import table", set()),
    ],
)
def test_an_impurity_of_the_ground_floor_is_seen(line: str, wrong: set[str]) -> None:
    assert impurities(line, "sidecar.reconnect") == wrong


@pytest.mark.parametrize("package", sorted({name.split(".")[0] for name in HOUSE}))
def test_no_docstring_begins_in_the_middle_of_a_sentence(package: str) -> None:
    assert [name for name, source in modules(package).items() if '"""Of ' in source] == []


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
    twice = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                again = [alias.name for alias in node.names if alias.asname == alias.name]
                twice += [f"{path.relative_to(ROOT)}:{node.lineno}: {name}" for name in again]
    assert not twice

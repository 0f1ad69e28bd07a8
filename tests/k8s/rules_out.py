"""Takes the rules of the linter and of local-pod out, one by one, and shows which no test misses.

    python -m tests.k8s.rules_out                        all of it: most of an hour
    python -m tests.k8s.rules_out k8s.lint.own_rules     one module

A change is one of: a call that reports or checks is left out; a condition is always or never true; a comparison, `and`,
`not` or a number is another. For each, the tests that come by the changed function run until one fails. What survives
is printed with its line: a missing test, or a change that makes no difference.

Functions get another code object for that time, so nothing is imported again. Tests that need a fixture aren't run.
"""

import ast
import copy
import functools
import importlib
import json
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MODULES = {
    "tests/k8s": ("cel", "claim_rules", "container_rules", "documents", "formats", "node", "objects", "own_places",
                  "own_probes", "own_rules", "pod_rules", "pods", "probe_rules", "programs", "security_rules",
                  "service_rules", "set_rules", "structure", "volume_rules", "workload_rules", "check"),
    "tests/local_pod": ("backoff", "container", "machine", "manifest", "merging", "probing"),
}  # fmt: skip
_PACKAGE = {"tests/k8s": "k8s.lint", "tests/local_pod": "tools.local_pod"}
_COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
             ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}  # fmt: skip


@dataclass(frozen=True)
class Change:
    line: int
    what: str
    tree: ast.Module


def changes(source: str) -> Iterator[Change]:
    tree = ast.parse(source)
    nodes = [node for function in _functions(tree) for node in ast.walk(function)]
    for number, node in enumerate(dict.fromkeys(nodes)):
        for what, change in _ways(node):
            changed = copy.deepcopy(tree)
            same = [each for function in _functions(changed) for each in ast.walk(function)]
            change(list(dict.fromkeys(same))[number])
            yield Change(getattr(node, "lineno", 0), f"{what}: {ast.unparse(node).splitlines()[0][:90]}", changed)


def _functions(tree: ast.AST) -> list[ast.AST]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _ways(node: Any) -> Iterator[tuple[str, Callable[[Any], None]]]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "left out", lambda n: setattr(n, "value", ast.copy_location(ast.Constant(None), n.value))
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        for value in (False,) if isinstance(node, ast.While) else (True, False):
            yield (
                f"always {value}",
                lambda n, value=value: setattr(n, "test", ast.copy_location(ast.Constant(value), n.test)),
            )
    elif isinstance(node, ast.comprehension) and node.ifs:
        yield "without its condition", lambda n: setattr(n, "ifs", [])
    elif isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            yield "compared otherwise", lambda n, i=index, o=operator: n.ops.__setitem__(i, _COMPARED[type(o)]())
    elif isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield "and for or", lambda n, other=other: setattr(n, "op", other())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield (
            "without its not",
            lambda n: (
                setattr(n, "op", ast.UAdd())
                or setattr(n, "operand", ast.Call(ast.Name("bool", ast.Load()), [n.operand], []))
            ),
        )
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "one more", lambda n: setattr(n, "value", n.value + 1)


@dataclass(frozen=True)
class Test:
    name: str
    run: Callable[[], None]

    def fails(self) -> bool:
        try:
            self.run()
        except (Exception, pytest.fail.Exception):  # a broken rule may do anything
            return True
        return False


class _Collected:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        self.items = list(items)


def tests(directory: str) -> list[Test]:
    """Those that need nothing but their parameters."""
    collected = _Collected()
    pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", directory], plugins=[collected])
    found = []
    for item in collected.items:
        if item.path.name == "test_chart.py":
            continue  # Helm is slow, and no rule
        given = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        if set(item.fixturenames) <= set(given):
            found.append(Test(item.nodeid, lambda item=item, given=given: item.obj(**given)))
    return found


Lines = frozenset[tuple[str, int]]


def comes_by(these: list[Test], package: str) -> dict[Test, Lines]:
    """Test -> the lines that it runs."""
    where = str(Path(package.replace(".", "/")).absolute())
    found: dict[Test, Lines] = {}
    for test in these:
        seen: set[tuple[str, int]] = set()

        def look(frame: Any, event: str, argument: Any, seen: set[tuple[str, int]] = seen) -> Any:
            if not frame.f_code.co_filename.startswith(where):
                return None
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            return look

        sys.settrace(look)
        failed = test.fails()
        sys.settrace(None)
        if failed:
            sys.exit(f"{test.name} fails as it is")
        found[test] = frozenset(seen)
    return found


def remember() -> None:
    """What the linter reads, and what the schemas say to it, is the same for all changes of the other modules."""
    from k8s.lint import check, structure
    from k8s.lint.node import Document

    read, look = functools.cache(check.read), structure.check
    said: dict[tuple[str, str], tuple[bool, list[Any]]] = {}

    def read_again(text: str, file: str) -> list[Any]:
        return [Document(each.file, each.value, each.lines) for each in read(text, file)]

    def look_again(document: Any, version: str) -> bool:
        key = json.dumps(document.value, default=str), f"{document.file} {version} {document.lines.get(())}"
        if key not in said:
            known = look(document, version)
            said[key] = known, list(document.findings)
        known, findings = said[key]
        document.findings[:] = findings
        return known

    check.read, structure.check = read_again, look_again


def functions_of(module: types.ModuleType) -> dict[str, types.FunctionType]:
    """Qualified name -> function, methods and properties included."""
    found: dict[str, types.FunctionType] = {}

    def add(value: Any) -> None:
        for each in (
            value,
            getattr(value, "fget", None),
            getattr(value, "func", None),
            getattr(value, "__wrapped__", None),
        ):
            if isinstance(each, types.FunctionType) and each.__code__.co_filename == module.__file__:
                found[each.__qualname__] = each

    for value in list(vars(module).values()):
        add(value)
        if isinstance(value, type) and value.__module__ == module.__name__:
            for inner in vars(value).values():
                add(inner)
    return found


def codes_of(code: types.CodeType) -> dict[str, types.CodeType]:
    found = {}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found[inner.co_qualname] = inner
            found |= {name: each for name, each in codes_of(inner).items() if "<locals>" not in name}
    return found


def run(name: str, by: dict[Test, Lines]) -> tuple[int, int]:
    module = importlib.import_module(name)
    path = str(module.__file__)
    functions = functions_of(module)
    common = Counter(line for lines in by.values() for line in lines)
    total = survivors = 0
    for change in changes(Path(path).read_text(encoding="utf-8")):
        codes = codes_of(compile(ast.fix_missing_locations(change.tree), path, "exec"))
        changed = {
            name: code for name, code in codes.items() if name in functions and _differ(functions[name].__code__, code)
        }
        if not changed:
            continue
        total += 1
        old = {name: functions[name].__code__ for name in changed}
        touched = {(path, line) for code in old.values() for line in _lines(code)}
        # First who comes by lines of these functions that few others come by: that is what they are for.
        which = sorted(
            (test for test in by if by[test] & touched),
            key=lambda test: min(common[line] for line in by[test] & touched),
        )
        which = [test for test in which if any(line == change.line for file, line in by[test] if file == path)] or which
        for function, code in changed.items():
            functions[function].__code__ = code
        try:
            found = any(test.fails() for test in which)
        finally:
            for function, code in old.items():
                functions[function].__code__ = code
        if not found:
            survivors += 1
            none = "" if which else "   (no test comes by)"
            print(f"{Path(path).relative_to(Path.cwd())}:{change.line}: {change.what}{none}", flush=True)
    return total, survivors


def _lines(code: types.CodeType) -> set[int]:
    found = {line for _, _, line in code.co_lines() if line is not None}
    return found.union(*(_lines(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def _differ(one: types.CodeType, other: types.CodeType) -> bool:
    return one.co_code != other.co_code or one.co_consts != other.co_consts or one.co_names != other.co_names


def main() -> int:
    wanted = sys.argv[1:]
    total = alive = 0
    for directory, names in MODULES.items():
        every = [f"{_PACKAGE[directory]}.{name}" for name in names]
        chosen = [name for name in every if not wanted or name in wanted]
        if not chosen:
            continue
        by = comes_by(tests(directory), _PACKAGE[directory])
        if not {"k8s.lint.documents", "k8s.lint.structure", "k8s.lint.node"} & set(chosen):
            remember()
        for name in chosen:
            changed, survivors = run(name, by)
            total, alive = total + changed, alive + survivors
            print(f"{name}: {changed} changes, {survivors} that no test misses", flush=True)
    print(f"{total} changes, {alive} that no test misses")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())

"""Mutants that a program makes: each takes one rule out of a pure file, found in the syntax tree.

A guard's condition becomes true and false, as does a question's answer and what is kept of one; an operand of it, a
bound among several, a statement or a branch is left out, and a flag that is passed is turned round. Nothing quotes
the source, and nothing depends on a line's number: a mutant is named by its file, its function, what was done, and
the text of what it was done to, so that its name outlives what is changed around it.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

from tests.test_imports import rules

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Made:
    path: str
    function: str
    """The outermost one: what is inside it is a part of its code."""
    done: str
    text: str
    node: int
    """Which one in the order of `ast.walk`, and which of its statements or operands."""
    place: int
    line: int
    noticed_by: int
    """The line that a test has to run before it can notice anything."""

    @property
    def name(self) -> str:
        """Without the folder within the package, so that a file may move from one to another."""
        parts = self.path.split("/")
        return f"{parts[0]}/{parts[-1]} {self.function}: {self.done}: {self.text}"

    def code(self, source: str) -> CodeType:
        """The function's code without the rule."""
        tree = ast.parse(source)
        _take_out(list(ast.walk(tree))[self.node], self.done, self.place)
        return _code_of(compile(ast.fix_missing_locations(tree), self.path, "exec"), self.function)


def made(path: str, source: str) -> list[Made]:
    """All that can be taken out of this file; of those with one name the first."""
    tree = ast.parse(source)
    numbers = {node: number for number, node in enumerate(ast.walk(tree))}
    found: dict[str, Made] = {}
    for name, function in _functions(tree, ""):
        for node, done, place, at, noticed_by in _points(function):
            text = " ".join(ast.unparse(at).split())
            mutant = Made(path, name, done, text, numbers[node], place, at.lineno, noticed_by)
            found.setdefault(mutant.name, mutant)
    return list(found.values())


def all_made() -> list[Made]:
    return [mutant for path, source in rules().items() for mutant in made(path, source)]


def _functions(node: ast.AST, within: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield within + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{within}{child.name}.")


Point = tuple[ast.AST, str, int, ast.expr | ast.stmt, int]
"""The node to change, what is done, which of its parts, what is taken out, and the line that shows it."""


def _points(function: Function) -> Iterator[Point]:
    question = isinstance(function.returns, ast.Name) and function.returns.id == "bool"
    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            inside = node.body[0].lineno if isinstance(node, ast.If | ast.While) else node.lineno
            yield node, "never", 0, node.test, inside
            if not isinstance(node, ast.While):
                yield node, "always", 0, node.test, node.test.lineno
        elif isinstance(node, ast.BoolOp):
            for place, value in enumerate(node.values):
                yield node, "left out", place, value, node.lineno
        elif isinstance(node, ast.comprehension):
            for place, test in enumerate(node.ifs):
                yield node, "filter", place, test, test.lineno
        elif isinstance(node, ast.Return) and question and node.value is not None:
            constant = isinstance(node.value, ast.Constant)
            for done in ("turned round",) if constant else ("always", "never"):
                yield node, done, 0, node.value, node.lineno
        elif isinstance(node, ast.Assign) and _is_a_question(node.value):
            yield node, "always", 0, node.value, node.lineno
            yield node, "never", 0, node.value, node.lineno
        elif isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant) and node.arg is not None:
            if isinstance(node.value.value, bool):
                yield node, f"{node.arg} turned round", 0, node.value, node.value.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            for place, bound in enumerate(node.args if len(node.args) > 1 else []):
                yield node, f"left out of {node.func.id}", place, bound, node.lineno
        elif isinstance(node, ast.match_case):
            yield node, "no case", 0, node.body[0], node.body[0].lineno
        body = getattr(node, "body", None)
        for place, statement in enumerate(body if isinstance(body, list) else []):
            if _does_something(statement) and not (isinstance(node, ast.If | ast.match_case) and len(node.body) == 1):
                yield node, "not done", place, statement, statement.lineno
        for place, statement in enumerate(node.orelse if isinstance(node, ast.If) else []):
            if _does_something(statement):
                yield node, "not done otherwise", place, statement, statement.lineno


def _is_a_question(value: ast.expr) -> bool:
    return isinstance(value, ast.Compare) or (isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not))


def _does_something(statement: ast.stmt) -> bool:
    """To the world outside of its function."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign | ast.Delete):
        targets = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target]
    return any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)


def _take_out(node: ast.AST, done: str, place: int) -> None:
    if isinstance(node, ast.If | ast.IfExp | ast.While) and done in ("never", "always"):
        node.test = _forced(node.test, done == "always")
    elif isinstance(node, ast.BoolOp):
        node.values[place] = _forced(node.values[place], isinstance(node.op, ast.And))
    elif isinstance(node, ast.comprehension):
        node.ifs[place] = _forced(node.ifs[place], True)
    elif isinstance(node, ast.Return | ast.Assign | ast.keyword) and node.value is not None:
        turned_round = ast.UnaryOp(ast.Not(), node.value)
        node.value = turned_round if done.endswith("turned round") else _forced(node.value, done == "always")
    elif isinstance(node, ast.Call):
        # One bound that is the same as another: what is left has the form that it had.
        node.args[place] = node.args[1 if place == 0 else 0]
    elif isinstance(node, ast.match_case):
        node.body = [_never(node.body)]
    else:
        body = getattr(node, "orelse" if done == "not done otherwise" else "body")
        body[place] = _never([body[place]])


def _forced(test: ast.expr, value: bool) -> ast.expr:
    """It is still worked out, so that what it binds is bound."""
    pair = ast.Tuple([test, ast.Constant(value)], ast.Load())
    return ast.Subscript(pair, ast.Constant(1), ast.Load())


def _never(body: list[ast.stmt]) -> ast.stmt:
    """It stays in the function, so that its names stay what they are."""
    return ast.If(ast.Constant(False), body, [])


def _code_of(code: CodeType, function: str) -> CodeType:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_qualname == function:
                return const
            if function.startswith(const.co_qualname + "."):
                return _code_of(const, function)
    raise LookupError(f"no function {function} in {code.co_filename}")

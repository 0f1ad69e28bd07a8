"""Questions ask, and one place acts: nothing that is named like a question, and no plan, changes anything.

Read from the source. A question is a property, or a method whose name says so. It may fill what it has made itself, and
the plan that it is given.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_imports import HOUSE, PURE, WITHOUT_RULES

QUESTION = re.compile(
    r"_?(is|has|why|may|can|wants|knows|fits|never_fits|helps|holds|held|late|settles|settled|stale|prepared|promising|head"
    r"|state|plan|look|looks|due|again|gone|nobody_holds|who|which|what|full|holding|unheard|back_by|broken|agreed"
    r"|memory_proves|memory_helps|passes|devices|first|line|room|under_way_with|status_of|unmet|unprepared)(_\w+)?"
)
NOT_SO = {"held_by", "looked_at", "look_up"}
"""Past tense: what has happened to it."""
ACTS = {"add", "alarm", "append", "ask", "calm", "clear", "extend", "note", "pop", "put_back", "remove", "send"}
ACTS |= {"setdefault", "shout", "update", "wake"}
EVIDENCE, LOCK = (
    {name for name in PURE if name.startswith(f"{package}.rules.") and name not in WITHOUT_RULES}
    for package in ("evidence", "lockserver")
)


def is_question(function: ast.FunctionDef) -> bool:
    if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in function.decorator_list):
        return True
    return QUESTION.fullmatch(function.name) is not None and function.name not in NOT_SO


def root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def changes(function: ast.FunctionDef) -> Iterator[str]:
    given = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} - {"plan"}
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        if isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for each in targets:
            for target in each.elts if isinstance(each, ast.Tuple) else [each]:
                if isinstance(target, ast.Attribute | ast.Subscript) and root(target) in given:
                    yield ast.unparse(node)
        acts = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ACTS
        if isinstance(node, ast.Call) and acts and root(node.func) in given:
            yield ast.unparse(node)


def questions(source: str) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and is_question(node):
            yield node


@pytest.mark.parametrize("module", sorted(EVIDENCE | LOCK))
def test_a_question_changes_nothing(module: str) -> None:
    wrong = {question.name: found for question in questions(HOUSE[module]) if (found := list(changes(question)))}
    assert wrong == {}


def test_enough_is_looked_at() -> None:
    asked = {question.name for module in EVIDENCE | LOCK for question in questions(HOUSE[module])}
    assert {"prepared", "head", "has", "memory_proves", "plan", "plan_next", "_look", "is_gone", "state"} <= asked
    assert len(asked) > 90


@pytest.mark.parametrize(
    "body",
    ["self.x = 1", "self.x.y += 1", "del self.x[1]", "self.a, b = 1, 2", "self.context.send(1)", "who.members.pop(2)"],
)
def test_a_question_that_acts_is_seen(body: str) -> None:
    (function,) = questions(f"def has_it(self, who):\n    {body}")
    assert list(changes(function))
    (function,) = questions(
        "def plan_it(self, plan):\n    found = []\n    found.append(1)\n    plan.again = 2\n    plan.do(3)"
    )
    assert not list(changes(function))

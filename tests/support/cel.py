"""The part of CEL that our admission policies are written in: fields, optional fields (`.?a['b'].orValue(x)`), strings,
`==`, `!=`, `&&`, `||`, `!`, `in`, `has()`, lists and ternaries. Anything else is refused, and not guessed.
"""

import re
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'[^'\\]*')|(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)|(?P<op>==|!=|&&|\|\||\.\?|[.!()\[\],?:]))"
)
_WORDS = {"true": True, "false": False, "null": None}


class CannotEvaluate(Exception):
    pass


class _Nothing:
    """An optional that is empty."""


_NOTHING = _Nothing()


class _Optional:
    def __init__(self, value: Any) -> None:
        self.value = value


def value(expression: str, known: dict[str, Any]) -> Any:
    parser = _Parser(expression, known)
    found = parser.ternary()
    if parser.tokens:
        raise CannotEvaluate(f"{expression!r}: nothing is known of {parser.tokens[0]!r}")
    return found


class _Parser:
    """Evaluates while it reads. Both sides of `&&` and `||` are evaluated, as an error on one side may be swallowed."""

    def __init__(self, expression: str, known: dict[str, Any]) -> None:
        self.known = known
        self.tokens: list[str] = []
        place, expression = 0, expression.rstrip()
        while place < len(expression):
            match = _TOKEN.match(expression, place)
            if match is None:
                raise CannotEvaluate(f"{expression!r}: can't be read from {expression[place:]!r} on")
            self.tokens.append(match[match.lastgroup or 0])
            place = match.end()

    def _takes(self, *wanted: str) -> str | None:
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in wanted else None

    def _needs(self, wanted: str) -> None:
        if not self._takes(wanted):
            raise CannotEvaluate(f"{wanted!r} is missing before {self.tokens[:1]}")

    def ternary(self) -> Any:
        found = self._either()
        if self._takes("?"):
            first = self.ternary()
            self._needs(":")
            second = self.ternary()
            return first if found else second
        return found

    def _either(self) -> Any:
        found = self._both()
        while self._takes("||"):
            other = self._both()
            found = found or other
        return found

    def _both(self) -> Any:
        found = self._compared()
        while self._takes("&&"):
            other = self._compared()
            found = found and other
        return found

    def _compared(self) -> Any:
        found = self._unary()
        operator = self._takes("==", "!=", "in")
        if operator is None:
            return found
        other = self._unary()
        return found in other if operator == "in" else (found == other) == (operator == "==")

    def _unary(self) -> Any:
        return not self._unary() if self._takes("!") else self._with_fields(self._first())

    def _first(self) -> Any:
        token = self.tokens.pop(0)
        if token == "(":
            found = self.ternary()
            self._needs(")")
            return found
        if token == "[":
            return self._several("]")
        if token == "has":
            self._needs("(")
            found = self._with_fields(_Optional(self.known[self.tokens.pop(0)]))
            self._needs(")")
            return found.value is not _NOTHING
        if token[0] == "'":
            return token[1:-1]
        if token.isdigit():
            return int(token)
        if token in _WORDS:
            return _WORDS[token]
        if token not in self.known:
            raise CannotEvaluate(f"there is no {token}")
        return self.known[token]

    def _several(self, end: str) -> list[Any]:
        found = []
        while not self._takes(end):
            found.append(self.ternary())
            self._takes(",")
        return found

    def _with_fields(self, found: Any) -> Any:
        while operator := self._takes(".", ".?", "["):
            if operator == "[":
                name: Any = self.ternary()
                self._needs("]")
            else:
                name = self.tokens.pop(0)
            if operator == "." and self._takes("("):
                found = self._called(found, name, self._several(")"))
                continue
            if operator == ".?" and not isinstance(found, _Optional):
                found = _Optional(found)
            if isinstance(found, _Optional):
                there = isinstance(found.value, dict) and found.value.get(name) is not None
                found = _Optional(found.value[name] if there else _NOTHING)
            else:
                found = found[name]
        return found

    def _called(self, found: Any, name: str, arguments: list[Any]) -> Any:
        if name == "orValue" and isinstance(found, _Optional):
            return arguments[0] if found.value is _NOTHING else found.value
        if name in ("startsWith", "endsWith"):
            return bool(getattr(found, name.lower())(arguments[0]))
        raise CannotEvaluate(f"the function {name} isn't known here")

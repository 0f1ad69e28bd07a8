"""Whether an expression of CEL can be parsed. Not whether it means anything: that only a cluster knows.

A hand-written parser of the grammar in https://github.com/google/cel-spec/blob/master/doc/langdef.md, because no
package with a CEL parser is worth its weight for one field. What this file may not do: evaluate.
"""

import re

_TOKEN = re.compile(
    r"""\s+|//[^\n]*
    |(?P<text>[rR]?[bB]?[rR]?(?:'{3}(?s:.*?)'{3}|"{3}(?s:.*?)"{3}|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
    |(?P<number>0x[0-9a-fA-F]+[uU]?|(?:[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)|[0-9]+[uU]?)
    |(?P<name>[_a-zA-Z][_a-zA-Z0-9]*)
    |(?P<mark>&&|\|\||<=|>=|==|!=|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE,
)
_RELATIONS = ("<", "<=", ">", ">=", "==", "!=", "in")
_RESERVED = {
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
}  # fmt: skip
_DEEPEST = 60


class _Wrong(Exception):
    pass


def problem(expression: str) -> str:
    """ "" if it can be parsed, else a sentence."""
    try:
        _Parser(expression).whole()
    except _Wrong as error:
        return f"this is no CEL: {error}"
    return ""


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise _Wrong(f"{text[at]!r} at character {at + 1} can't be read")
            if match.lastgroup:
                self.tokens.append((match.lastgroup, match.group(), at + 1))
            at = match.end()
        self.tokens.append(("end", "", len(text) + 1))
        self.at = 0
        self.depth = 0

    def whole(self) -> None:
        self.expression()
        if self.tokens[self.at][0] != "end":
            self.unexpected()

    def expression(self) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _Wrong("it is nested too deeply")
        self.either()
        if self.take("?"):
            self.either()
            self.need(":")
            self.expression()
        self.depth -= 1

    def either(self) -> None:
        self.both()
        while self.take("||"):
            self.both()

    def both(self) -> None:
        self.relation()
        while self.take("&&"):
            self.relation()

    def relation(self) -> None:
        self.sum()
        while self.take(*_RELATIONS):
            self.sum()

    def sum(self) -> None:
        self.unary()
        while self.take("+", "-", "*", "/", "%"):
            self.unary()

    def unary(self) -> None:
        while self.take("!", "-"):
            pass
        self.primary()
        while True:
            if self.take("."):
                self.take("?")
                self.name()
                if self.take("("):
                    self.list(")")
            elif self.take("["):
                self.take("?")
                self.expression()
                self.need("]")
            elif self.tokens[self.at - 1][0] == "name" and self.take("{"):
                self.entries(named=True)
            else:
                return

    def primary(self) -> None:
        kind, word, _ = self.tokens[self.at]
        if kind in ("text", "number"):
            self.at += 1
        elif kind == "name" or word == ".":
            self.take(".")
            self.name()
            if self.take("("):
                self.list(")")
        elif self.take("("):
            self.expression()
            self.need(")")
        elif self.take("["):
            self.list("]")
        elif self.take("{"):
            self.entries(named=False)
        else:
            self.unexpected()

    def list(self, end: str) -> None:
        while not self.take(end):
            self.take("?")
            self.expression()
            if not self.take(","):
                self.need(end)
                return

    def entries(self, *, named: bool) -> None:
        while not self.take("}"):
            self.take("?")
            if named:
                self.name()
            else:
                self.expression()
            self.need(":")
            self.expression()
            if not self.take(","):
                self.need("}")
                return

    def name(self) -> None:
        kind, word, _ = self.tokens[self.at]
        if kind != "name" or word in _RESERVED or word == "in":
            self.unexpected()
        self.at += 1

    def take(self, *words: str) -> bool:
        kind, word, _ = self.tokens[self.at]
        if word in words and kind in ("mark", "name"):
            self.at += 1
            return True
        return False

    def need(self, word: str) -> None:
        if not self.take(word):
            self.unexpected(f"; {word!r} is missing")

    def unexpected(self, hint: str = "") -> None:
        kind, word, place = self.tokens[self.at]
        what = "it ends" if kind == "end" else f"{word!r} stands"
        raise _Wrong(f"{what} at character {place}, where something else should be{hint}")

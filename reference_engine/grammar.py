"""What an answer may look like: a choice, a JSON document of a schema, a tool call, thoughts before the answer.

A grammar is an expression over bytes. The rest of an expression behind a byte is an expression again (Brzozowski's
derivative), so what has been said so far needs no parser: it is in what is left. A token may follow when each of its
bytes may. Pure.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from reference_engine import tokenizer

STRING_MAX, DIGITS_MAX, ITEMS_MAX, DEPTH_MAX = 12, 4, 3, 6
"""Nothing is without end here: an answer is to be finished."""

Grammar = tuple[Any, ...]
NEVER: Grammar = ("never",)
EMPTY: Grammar = ("empty",)


class Unknown(ValueError):
    """A schema that isn't known here, and what of it."""


# -- expressions ---------------------------------------------------------------------------------------------------


def one_of(found: bytes) -> Grammar:
    return ("bytes", frozenset(found))


def either(*some: Grammar) -> Grammar:
    flat: dict[Grammar, None] = {}
    for one in some:
        for part in one[1] if one[0] == "either" else (one,):
            if part is not NEVER:
                flat[part] = None
    if not flat:
        return NEVER
    return next(iter(flat)) if len(flat) == 1 else ("either", tuple(flat))


def then(*some: Grammar) -> Grammar:
    found: Grammar = EMPTY
    for one in reversed(some):
        if one is NEVER or found is NEVER:
            return NEVER
        if one is not EMPTY:
            found = one if found is EMPTY else ("then", one, found)
    return found


def repeated(one: Grammar, least: int, most: int) -> Grammar:
    return EMPTY if most == 0 else ("repeated", one, least, most)


def literal(text: str | bytes) -> Grammar:
    found = text.encode() if isinstance(text, str) else text
    return then(*(one_of(bytes([byte])) for byte in found))


@lru_cache(maxsize=100_000)
def may_end(it: Grammar) -> bool:
    kind = it[0]
    if kind == "either":
        return any(map(may_end, it[1]))
    if kind == "then":
        return may_end(it[1]) and may_end(it[2])
    if kind == "repeated":
        return it[2] == 0 or may_end(it[1])
    return bool(kind == "empty")


@lru_cache(maxsize=100_000)
def behind(it: Grammar, byte: int) -> Grammar:
    """What may follow that byte; NEVER when it may not be."""
    kind = it[0]
    if kind == "bytes":
        return EMPTY if byte in it[1] else NEVER
    if kind == "either":
        return either(*(behind(one, byte) for one in it[1]))
    if kind == "then":
        found = then(behind(it[1], byte), it[2])
        return either(found, behind(it[2], byte)) if may_end(it[1]) else found
    if kind == "repeated":
        return then(behind(it[1], byte), repeated(it[1], max(0, it[2] - 1), it[3] - 1))
    return NEVER


def after(it: Grammar, token: int) -> Grammar:
    for byte in tokenizer.token_bytes(token):
        it = behind(it, byte)
    return it


@lru_cache(maxsize=10_000)
def allowed(it: Grammar) -> frozenset[int]:
    """The tokens that may come next; the model's end when the answer may end here."""
    found = {
        token for token in range(tokenizer.VOCABULARY) if tokenizer.token_bytes(token) and after(it, token) != NEVER
    }
    return frozenset(found | ({tokenizer.END} if may_end(it) else set()))


# -- what is asked for ---------------------------------------------------------------------------------------------

_WIDE = either(
    then(one_of(b"\xc3"), one_of(bytes(range(0xA0, 0xB8)))),
    then(literal(b"\xe2\x82"), one_of(bytes(range(0xA0, 0xB0)))),
    then(literal(b"\xf0\x9f\x98"), one_of(bytes(range(0x80, 0x90)))),
    then(literal(b"\xf0\x9f\x8c"), one_of(bytes(range(0xB0, 0xC0)))),
    then(literal(b"\xe6\x97"), one_of(bytes(range(0xA0, 0xB0)))),
)
_PLAIN = one_of(bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\<>{}'))
_CHARACTER = either(_PLAIN, _WIDE)
_STRING = then(literal('"'), repeated(_CHARACTER, 1, STRING_MAX), literal('"'))
_INTEGER = either(literal("0"), then(one_of(b"123456789"), repeated(one_of(b"0123456789"), 0, DIGITS_MAX - 1)))
_NUMBER = then(_INTEGER, either(EMPTY, then(literal("."), repeated(one_of(b"0123456789"), 1, 2))))
_ANY_OBJECT = then(
    literal("{"), _STRING, literal(":"), either(_STRING, _INTEGER, literal("true"), literal("null")), literal("}")
)
_TEXT = either(_CHARACTER, one_of(b"\n"))


def choice(texts: Sequence[str]) -> Grammar:
    return either(*map(literal, texts))


def json_of(schema: Mapping[str, Any] | None, depth: int = 0) -> Grammar:
    """A JSON document of this schema, without a space that isn't needed. Raises Unknown."""
    if schema is None:
        return _ANY_OBJECT
    if depth > DEPTH_MAX:
        raise Unknown(f"a schema may be nested {DEPTH_MAX} times here")
    if "enum" in schema:
        import json

        return choice([json.dumps(value, ensure_ascii=False) for value in schema["enum"]])
    kind = schema.get("type")
    simple = {"string": _STRING, "integer": _INTEGER, "number": _NUMBER, "null": literal("null")}
    if kind in simple:
        return simple[kind]
    if kind == "boolean":
        return either(literal("true"), literal("false"))
    if kind == "array":
        item = json_of(schema.get("items") or {"type": "integer"}, depth + 1)
        more = repeated(then(literal(","), item), 0, ITEMS_MAX - 1)
        return then(literal("["), item, more, literal("]"))
    if kind == "object":
        return _object(schema, depth)
    raise Unknown(f"a schema of type {kind!r} isn't known here")


def _object(schema: Mapping[str, Any], depth: int) -> Grammar:
    properties = schema.get("properties") or {}
    if not properties:
        return _ANY_OBJECT
    parts: list[Grammar] = []
    for place, (name, of) in enumerate(properties.items()):
        parts += [literal(f'{"," if place else ""}"{name}":'), json_of(of, depth + 1)]
    return then(literal("{"), *parts, literal("}"))


def tool_call(tools: Mapping[str, Mapping[str, Any] | None], *, text: int) -> Grammar:
    """At most so many characters of text, then a call of one of these (name -> the schema of its arguments)."""
    calls = (
        then(literal(f'{TOOL[0]}{{"name":"{name}","arguments":'), json_of(schema), literal("}" + TOOL[1]))
        for name, schema in tools.items()
    )
    return then(repeated(_TEXT, min(text, 4), text), either(*calls))


def thoughts(rest: Grammar) -> Grammar:
    return then(literal(THINK[0]), repeated(_TEXT, 6, 40), literal(THINK[1]), rest)


def any_text(most: int) -> Grammar:
    return repeated(_TEXT, 0, most)


THINK = ("<think>", "</think>")
TOOL = ("<tool_call>", "</tool_call>")

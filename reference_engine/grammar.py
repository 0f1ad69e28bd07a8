"""What an answer may look like: one of several texts, a JSON object, a tool call, thoughts before the answer.

A grammar is some *paths*, each a sequence of slots, each slot several texts of which one is said. What is left of a
grammar behind a byte is a grammar again, so what has been said so far needs no parser. A token may follow when each of
its bytes may. Strings are words of a short list: they are tokens enough to break between, and within. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from reference_engine import tokenizer

Slot = tuple[bytes, ...]
Path = tuple[Slot, ...]
Grammar = frozenset[Path]

ANYTHING: Slot = ()
"""As a path's last slot: from here on there is no rule."""
THINK = ("<think>", "</think>")
TOOL = ("<tool_call>", "</tool_call>")


class Unknown(ValueError):
    """A schema that isn't known here, and what of it."""


def _slot(texts: Iterable[str]) -> Slot:
    return tuple(text.encode() for text in texts)


def _begun(path: Path) -> Iterator[Path]:
    """Without a slot in front of which nothing may be left to say."""
    if path and b"" in path[0]:
        yield from _begun(path[1:])
        path = (tuple(filter(None, path[0])), *path[1:])
        if not path[0]:
            return
    yield path


def _behind(it: Grammar, byte: int) -> Grammar:
    """What may follow that byte; nothing when it may not be."""
    found: set[Path] = set()
    for path in it:
        if path == (ANYTHING,):
            found.add(path)
        elif path and (rest := tuple(text[1:] for text in path[0] if text[0] == byte)):
            found.update(_begun((rest, *path[1:])))
    return frozenset(found)


def after(it: Grammar, token: int) -> Grammar:
    for byte in tokenizer.token_bytes(token):
        it = _behind(it, byte)
    return it


@lru_cache(maxsize=10_000)
def allowed(it: Grammar) -> frozenset[int] | None:
    """The tokens that may come next, the model's end when the answer may end here; None for all."""
    if (ANYTHING,) in it:
        return None
    found = {token for token in range(tokenizer.VOCABULARY) if tokenizer.token_bytes(token) and after(it, token)}
    return frozenset(found | ({tokenizer.END} if () in it else set()))


# -- what is asked for ---------------------------------------------------------------------------------------------

_WORDS = ("a", "be", "do", "fog", "gale", "kelp", "lamp", "sea", "été", "5 €", "日", "\U0001f604", "\U0001f337")
_TEXT = _slot(f"{word} " for word in _WORDS)
_STRING = _slot(f'"{word}"' for word in _WORDS)
_INTEGER = _slot(map(str, range(100)))
_SIMPLE = {"string": _STRING, "integer": _INTEGER, "boolean": (b"true", b"false"), "null": (b"null",)}
_ANY_OBJECT: Path = ((b"{",), _STRING, (b":",), (*_STRING, *_INTEGER, b"true", b"null"), (b"}",))
ANY_OBJECT: Grammar = frozenset({_ANY_OBJECT})


def choice(texts: Sequence[str]) -> Grammar:
    return frozenset(_begun((_slot(texts),)))


def _object(schema: Mapping[str, Any] | None) -> Path:
    """A JSON object of this schema, without a space that isn't needed. Raises Unknown."""
    slots: list[Slot] = []
    for name, of in ((schema or {}).get("properties") or {}).items():
        kind = of.get("type") if isinstance(of, dict) else of
        if not isinstance(kind, str) or kind not in _SIMPLE:
            raise Unknown(f"{name}: a schema of type {kind!r} isn't known here; allowed: {', '.join(_SIMPLE)}")
        slots += [_slot([f'{"," if slots else "{"}"{name}":']), _SIMPLE[kind]]
    return (*slots, (b"}",)) if slots else _ANY_OBJECT


def tool_call(tools: Mapping[str, Mapping[str, Any] | None], *, text: bool) -> Grammar:
    """Words before it where text is allowed, then a call of one of these (name -> the schema of its arguments)."""
    before: Path = (_TEXT, (*_TEXT, b"")) if text else ()
    return frozenset(
        (*before, _slot([f'{TOOL[0]}{{"name":"{name}","arguments":']), *_object(schema), _slot(["}" + TOOL[1]]))
        for name, schema in tools.items()
    )


def thoughts(rest: Grammar | None) -> Grammar:
    before: Path = (_slot(THINK[:1]), _TEXT, _TEXT, (*_TEXT, b""), _slot(THINK[1:]))
    return frozenset((*before, *path) for path in rest or {(ANYTHING,)})

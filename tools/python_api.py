"""`python -m tools.python_api`: docs/using/python.md, from the docstrings of the clients of the lock and of GMS."""

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from gms import client as gms
from gms.shell.weights_shell import WeightsShell
from lockserver import client as lock
from lockserver.observer import Observer, watch_forever

PAGE = Path(__file__).parent.parent / "docs" / "using" / "python.md"
_HEAD = """\
# The Python API

An engine of your own, or any program that needs a device for itself, can be a client of the lock and of GMS. An engine
that runs under `engine-shim` needs neither: the shim and the engine's interface do it
([engines of your own](../inside/engine.md#an-engine-of-your-own)). Neither needs an extra; `numpy` is
needed for `view` alone.

This page is made from docstrings: `python -m tools.python_api`.
"""
_LOCK = (
    (lock.LockClient, lock.LockClient.__init__),
    (
        lock.LockClient.start,
        lock.LockClient.permit,
        lock.LockClient.acquire,
        lock.LockClient.serving,
        lock.LockClient.ready,
        lock.LockClient.vouch_for,
        lock.LockClient.environment,
    ),
)
_GMS = (
    (gms.GmsClient, WeightsShell.__init__),
    (
        gms.GmsClient.write,
        gms.GmsClient.replace,
        gms.GmsClient.read,
        gms.GmsClient.write_or_read,
        gms.GmsClient.pool,
        gms.GmsClient.wait_for_background,
        gms.GmsClient.close,
    ),
)
_READER = (gms.Reader.view, gms.Reader.memory, gms.Reader.address, gms.Reader.sleep, gms.Reader.wake, gms.Reader.close)
_WRITER = (gms.Writer.create, gms.Writer.memory, gms.Writer.commit, gms.Writer.abort)


def _called(function: Any, name: str) -> str:
    """Without types, but for what it returns."""
    taken = []
    for each in inspect.signature(function).parameters.values():
        default = "" if each.default is each.empty else f"={each.default!r}"
        if default and callable(each.default):
            default = "=..." if each.default.__name__ == "<lambda>" else f"={each.default.__name__}"
        if each.kind is each.KEYWORD_ONLY and "*" not in taken:
            taken.append("*")
        taken += [f"{each.name}{default}"] if each.name != "self" else []
    gives = inspect.formatannotation(inspect.signature(function).return_annotation)
    gives = re.sub(r"\b(\w+\.)+|'", "", gives)
    return f"{name}({', '.join(taken)})" + ("" if gives in ("None", "_empty") else f" -> {gives}")


def _said(text: str | None) -> str:
    """Blocks of code in it are fenced, and what it points to in the source is left out."""
    text = re.sub(r"\s\((?:docs/[a-z/]*gms\.md,\s\"Roles\"|`region_key\.py`)\)", "", inspect.cleandoc(text or ""))
    parts = []
    for code, block in groupby(text.splitlines(), lambda line: line.startswith("    ") or (not line and None)):
        lines = "\n".join(block)
        parts.append(f"```python\n{inspect.cleandoc(lines)}\n```" if code else _wrapped(lines))
    return "\n".join(parts)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) if text else text


def _of(made: tuple[type, Any], methods: tuple[Any, ...]) -> Iterator[str]:
    of, init = made
    yield f"### `{of.__name__}`\n\n```python\n{_wrapped(_called(init, of.__name__))}\n```\n\n{_said(init.__doc__)}\n"
    yield from _methods(methods)


def _methods(methods: tuple[Any, ...]) -> Iterator[str]:
    for each in methods:
        yield _wrapped(f"**`{_called(each, each.__name__)}`**  " + " ".join(_said(each.__doc__).split())) + "\n"


def _errors(module: object, base: type) -> str:
    of = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, base)]
    return "\n".join(_wrapped(f"- `{each.__name__}`: {_said(each.__doc__)}") for each in of) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield f"## The lock: `lockserver.client`\n\n{_introduction(lock)}\n"
    yield from _of(*_LOCK)
    yield "### `join`\n"
    yield from _methods((lock.join,))
    token, proven = (f"`{name}`: {_field(name)}" for name in ("token", "proven"))
    yield f"### `Grant`\n\n{_wrapped(f'{token} {proven}')}\n"
    yield f"### Errors of the lock\n\n{_errors(lock, lock.LockError)}"
    yield f"### To look and watch: `lockserver.observer`\n\n`Observer`: {_said(Observer.__doc__)}\n"
    yield from _methods((watch_forever,))
    yield f"## The weights: `gms.client`\n\n{_introduction(gms)}\n"
    yield from _of(*_GMS)
    yield "### `Writer`\n"
    yield from _methods(_WRITER)
    yield "### `Reader`\n"
    yield from _methods(_READER)
    yield f"### Errors of GMS\n\n{_errors(gms, gms.GmsError)}"


def _introduction(module: ModuleType) -> str:
    """Without its last paragraph, which is about the source. Its first line is about the module."""
    first, _, rest = (module.__doc__ or "").rpartition("\n\n")[0].partition("\n\n")
    code = re.sub(r" +#", "  #", textwrap.dedent(rest))  # as `ruff format` has it
    return f"{first}\n\n```python\n{code}\n```"


def _field(name: str) -> str:
    found = re.search(rf"    {name}: .*?\n    \"\"\"(.*?)\"\"\"", inspect.getsource(lock.Grant), re.S)
    assert found is not None
    return " ".join(found[1].split())


def page() -> str:
    text = "\n".join(_lines())
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())

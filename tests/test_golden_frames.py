"""A program of today understands what one of the same version once said, and says it in the same bytes: `golden/` has a
frame of every message, with every field set. A message that is new, or has more fields than then, gets one more line:

    python -m tests.test_golden_frames

writes those that are missing, and touches no line that is there.
"""

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

import engine_shim.rules.messages
import gms.rules.messages
import lockserver.rules.messages
import pool.launching
import pool.rules.messages
import vram.rules.messages

GOLDEN = Path(__file__).parent / "golden"
SPOKEN: dict[str, tuple[int, list[Any]]] = {
    "lock": (
        lockserver.rules.messages.PROTOCOL,
        [lockserver.rules.messages.ClientMessage, lockserver.rules.messages.ServerMessage],
    ),
    "gms": (gms.rules.messages.PROTOCOL, [gms.rules.messages.ClientMessage, gms.rules.messages.ServerMessage]),
    "shim": (
        engine_shim.rules.messages.PROTOCOL,
        [engine_shim.rules.messages.ToShim, engine_shim.rules.messages.FromShim],
    ),
    "launcher": (pool.launching.PROTOCOL, [pool.launching.FromPool, pool.launching.FromLauncher]),
    "pool": (pool.rules.messages.PROTOCOL, [pool.rules.messages.FromAny, pool.rules.messages.FromPool]),
    "vram": (vram.rules.messages.PROTOCOL, [vram.rules.messages.ClientMessage, vram.rules.messages.ServerMessage]),
}
TEXTS = ("engine-a", "active", "0123456789abcdef", "engine-a.0123456789abcdef", "ab" * 32, "/health", "https://a")
_numbers = itertools.count(1)


def golden(name: str) -> Path:
    return GOLDEN / f"{name}_{SPOKEN[name][0]}.txt"


def kinds(name: str) -> dict[str, Any]:
    """Every message of the protocol, by its name on the wire."""
    found: dict[str, Any] = {}
    for union in SPOKEN[name][1]:
        shown = inspect.type_info(union)
        for each in shown.types if isinstance(shown, inspect.UnionType) else (shown,):
            assert isinstance(each, inspect.StructType)
            found[str(each.tag)] = each.cls
    return found


def lines(name: str) -> list[tuple[str, bytes]]:
    return [(kind, bytes.fromhex(frame)) for kind, frame in map(str.split, golden(name).read_text().splitlines())]


@pytest.mark.parametrize("name", SPOKEN)
def test_what_was_said_in_this_version_is_understood_and_said_in_the_same_bytes(name: str) -> None:
    for kind, frame in lines(name):
        message = msgspec.msgpack.decode(frame, type=kinds(name)[kind])
        assert msgspec.msgpack.encode(message) == frame, f"{kind} is said in another way, and needs a new version"


@pytest.mark.parametrize("name", SPOKEN)
def test_every_message_and_every_field_has_its_frame(name: str) -> None:
    assert not missing(name), "python -m tests.test_golden_frames writes them"


def missing(name: str) -> list[str]:
    """Lines for what no frame has yet."""
    had: dict[str, set[str]] = {}
    for kind, frame in lines(name) if golden(name).exists() else []:
        had.setdefault(kind, set()).update(msgspec.msgpack.decode(frame))
    new = []
    for kind, cls in sorted(kinds(name).items()):
        example = sample(inspect.type_info(cls))
        frame = msgspec.msgpack.encode(example)
        if not set(msgspec.msgpack.decode(frame)) <= had.get(kind, set()):
            new.append(f"{kind} {frame.hex()}")
    return new


def sample(shown: Any) -> Any:
    """A value of this type, and no default."""
    match shown:
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: field.default is not True and sample(field.type) for field in fields})
        case inspect.IntType(ge=ge, gt=gt, le=le, lt=lt):
            least = ge if ge is not None else gt + 1 if gt is not None else 1
            most = le if le is not None else lt - 1 if lt is not None else 1 << 32
            return least + 1 + next(_numbers) % min(most - least, 100)
        case inspect.FloatType():
            return next(_numbers) + 0.5
        case inspect.StrType(pattern=pattern):
            return next(text for text in TEXTS if pattern is None or re.match(pattern, text))
        case inspect.BoolType():
            return True
        case inspect.BytesType():
            return b"a document"
        case inspect.LiteralType(values=values):
            return values[-1]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [sample(item)]
        case inspect.TupleType(item_types=items):
            return tuple(sample(item) for item in items)
        case inspect.DictType(key_type=key, value_type=value):
            return {sample(key): sample(value)}
        case inspect.UnionType(types=types):
            return sample(next(each for each in types if not isinstance(each, inspect.NoneType)))
        case inspect.EnumType(cls=cls):
            return list(cls)[-1]
        case inspect.Metadata(type=described):
            return sample(described)
        case inspect.AnyType():
            return "anything"
    raise TypeError(f"give an example of {shown} here")


def main() -> int:
    for name in SPOKEN:
        new = missing(name)
        with golden(name).open("a") as file:
            file.writelines(f"{line}\n" for line in new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

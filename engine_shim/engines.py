"""Which engines there are. Each is loaded when it is asked for, and not before: the shim has no torch and no numpy.

reference           a small language model in numpy (`reference/`)
vllm                vLLM itself (`vllm_engine/`)
MODULE:FACTORY      one of your own: FACTORY(setting) gives an `engine.Engine`
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_shim.engine import Engine, Listen
from sidecar.settings import BadValue, Parser, host_port, seconds

ROLES = ("primary", "shadow")
KNOWN = {"reference": "reference_engine:make", "vllm": "engine_shim.vllm_engine:make"}
DEVICES = {"reference": "REFERENCE_DEVICES", "vllm": "FAILOVER_VLLM_DEVICES"}
"""The variable by which each is told its devices, where its arguments don't say so."""


class CantRun(Exception):
    """What a person has to put right before this engine can be started; starting it again changes nothing."""


@dataclass(frozen=True)
class Setting:
    """What an engine gets to know when it is made. Making one touches no device."""

    run_dir: Path
    engine_id: str
    role: str
    """`primary`: loads the weights if nobody has. `shadow`: only ever reads them."""
    arguments: tuple[str, ...]
    """What stood behind `--`."""
    phase: Callable[[str, float], None] = lambda name, seconds: None
    """For parts of its steps: `setting.phase("remap", 0.003)`, `setting.phase("kv", 0.02)`."""


def make(kind: str, setting: Setting) -> Engine:
    """Raises CantRun. SystemExit, too, where the engine's own parser of arguments says so."""
    module, _, factory = KNOWN.get(kind, kind).partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), factory, None)
        if not callable(found):
            what = "has no" if found is None else "can't be called for its"
            raise CantRun(f"the engine {kind} can't be loaded: {module} {what} {factory}")
        engine: Engine = found(setting)
    except ImportError as error:
        hint = f"; pip install 'gpu-failover[{kind}]'" if kind in KNOWN else ""
        raise CantRun(f"the engine {kind} can't be loaded: {error}{hint}") from error
    return engine


def kind(text: str) -> str:
    """A value of --engine."""
    if text not in KNOWN and not all(text.partition(":")):
        raise BadValue(f"{text!r} is no engine; allowed: reference, vllm, or MODULE:FACTORY for one of your own")
    return text


def directory(text: str) -> Path:
    """A value of --run-dir."""
    if not text:
        raise BadValue("it is empty; allowed: a directory such as /run/failover")
    return Path(text)


def times(parser: Parser) -> None:
    """The bounds of an engine's life: settings that `engine-shim` has, and `failover up` for both of its engines."""
    for flag, default, what in (
        ("--waking-timeout-s", 60, "how long a wake may take"),
        ("--init-timeout-s", 7200, "how long Init may take"),
        ("--stall-s", 60, "how long an engine may be silent, or have work queued and finish no step"),
        ("--drain-s", 20, "how long an engine that is told to end may finish what it has"),
    ):
        parser.setting(flag, default=default, parse=seconds, metavar="S", help=what)


def parsed(parser: Parser, argv: Sequence[str] | None) -> Any:
    """Its settings. A flag that it doesn't know is the engine's, as a rule, and in the wrong place."""
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        hint = "" if "--" in unknown or not hasattr(options, "arguments") else "; the engine's own go behind --"
        parser.error(f"unknown here: {' '.join(unknown)}{hint}")
    return options


def listen(text: str) -> Listen:
    """A value of --listen."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/"):
            raise BadValue(
                f"{text!r} is no address; a Unix socket needs an absolute path such as unix:/run/engine.sock"
            )
        return Listen(path=path)
    try:
        host, port = host_port(text)
    except BadValue:
        raise BadValue(f"{text!r} is no address; allowed: unix:PATH, or HOST:PORT such as 127.0.0.1:8000") from None
    return Listen(host=host, port=port)

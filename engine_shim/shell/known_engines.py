"""Which engines exist. Each is loaded when it is asked for and not before: the shim has no torch and no numpy.

reference           a small language model in numpy (`reference_engine/`)
vllm                vLLM itself (`vllm_engine/`)
command             any program with an OpenAI endpoint (`command_engine.py`)
MODULE:FACTORY      an engine of your own: FACTORY(setting) returns an `engine.Engine`. MODULE is looked for in the
                    working directory, too
"""

import contextlib
import importlib
import os
import sys
from typing import Any

from engine_shim.engine import CannotRun, Engine, Setting
from sidecar.terminal.extras import how_to_get
from sidecar.terminal.settings import BadValue

ROLES = ("primary", "shadow")
COMMAND = "command"
KNOWN = {
    "reference": "reference_engine:make",
    "vllm": "engine_shim.vllm_engine:make",
    COMMAND: "engine_shim.command_engine:CommandEngine",
}
DEVICES = {"reference": "REFERENCE_DEVICES", "vllm": "FAILOVER_VLLM_DEVICES"}
"""The variable by which each is told its devices where its arguments don't name them."""


def make(kind: str, setting: Setting) -> Engine:
    """Raises CannotRun, and SystemExit where the engine's own parser refuses its arguments."""
    module, _, factory = KNOWN.get(kind, kind).partition(":")
    if kind not in KNOWN:
        with contextlib.suppress(OSError):  # it was removed
            sys.path.append(os.getcwd())  # behind all else: PYTHONSAFEPATH keeps it from the front
    try:
        found: Any = getattr(importlib.import_module(module), factory, None)
        if not callable(found):
            what = "has no" if found is None else "can't be called for its"
            raise CannotRun(f"the engine {kind} can't be loaded: {module} {what} {factory}")
        engine: Engine = found(setting)
    except ImportError as error:
        hint = f"; {how_to_get(kind)}" if kind == "reference" else ""
        raise CannotRun(f"the engine {kind} can't be loaded: {error}{hint}") from error
    return engine


def kind(text: str) -> str:
    """Parses the value of --engine."""
    if text not in KNOWN and not all(text.partition(":")):
        raise BadValue(
            f"{text!r} is no engine; allowed: reference, vllm, command, or MODULE:FACTORY for one of your own"
        )
    return text

"""The engines that the scenarios run with. A scenario knows an engine by its command line and by its endpoint alone."""

import importlib.util
from dataclasses import dataclass
from typing import Any

from engine_shim.shell.known_engines import KNOWN


@dataclass(frozen=True)
class Kind:
    name: str
    engine: str
    """Value of --engine."""
    arguments: tuple[str, ...]
    path: str
    """What is asked for at the endpoint to see that it serves."""
    gms: tuple[str, ...] = ()
    """Arguments of the GMS that it needs; none where it needs none."""
    lock: tuple[str, ...] = ()
    """Arguments of its lock server."""
    prompt: dict[str, Any] | None = None
    """What has the same answer from every engine."""
    asked: str = "/v1/completions"


PROMPT = {"model": "reference", "prompt": "the fox", "max_tokens": 24, "temperature": 0, "return_token_ids": True}
TOY = Kind("toy", "tests.engine.toy:Toy", ("--workers", "2", "--shared-memory"), "/")
REFERENCE = Kind(
    "reference",
    "reference",
    ("--workers", "1"),
    "/v1/models",
    ("--devices", "host:0", "--capacity", "28MiB"),  # weights and one KV cache: two awake engines don't fit
    ("--memory", "host"),
    PROMPT,
)


def there() -> list[Kind]:
    module = KNOWN["reference"].partition(":")[0]
    found = importlib.util.find_spec(module)
    return [TOY, REFERENCE] if found is not None and found.origin is not None else [TOY]

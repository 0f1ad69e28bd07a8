"""How much memory a model needs, before that is known. Pure.

In this order: what was seen (`Status.remembered`: the lease of that name was once resized to it); what a person has
said; the size of its weights on disk, with what comes on top by their format; its name ("8b", "70b-awq").
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

ON_TOP = {".gguf": 1.1, ".safetensors": 1.3}
"""What a model takes beside its weights, by how these are stored."""
_PARAMETERS = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)(?:x(\d+(?:\.\d+)?))?b(?![a-z0-9])")
_BITS = (
    # Words of a name, and bits a parameter. The first that fits counts.
    (re.compile(r"q2|iq2|2bit|2-bit"), 3),
    (re.compile(r"q3|iq3|3bit|3-bit"), 4),
    (re.compile(r"q4|iq4|4bit|4-bit|int4|w4a16|awq|gptq|nf4|fp4|mxfp4"), 5),
    (re.compile(r"q5|q6|5bit|6bit"), 6.5),
    (re.compile(r"q8|8bit|8-bit|int8|w8a8|fp8"), 8.5),
    (re.compile(r"fp32|f32"), 32),
)
_USUAL_BITS = 16
BY_NAME = 1.2
"""On top of the weights, where only a name is known."""


class Estimate(NamedTuple):
    bytes: int
    why: str
    """Where it comes from, for people."""


def estimate(name: str, *, seen: int = 0, given: int = 0, weights: Mapping[str, int] | None = None) -> Estimate | None:
    """`weights`: the files of its weights, name -> size. None: nothing tells."""
    if seen:
        return Estimate(seen, "seen when it ran")
    if given:
        return Estimate(given, "given")
    if weights and (found := _by_weights(weights)):
        return found
    return _by_name(name)


def _by_weights(weights: Mapping[str, int]) -> Estimate | None:
    """The first format counts where one directory has several: they are the same model."""
    for ending, factor in ON_TOP.items():
        size = sum(count for file, count in weights.items() if file.lower().endswith(ending))
        if size:
            return Estimate(int(size * factor), f"its weights ({ending}) x {factor}")
    return None


def _by_name(name: str) -> Estimate | None:
    words = name.lower().replace("_", "-")
    found = _PARAMETERS.findall(words)
    if not found:
        return None
    billions = max(float(count) * float(times or 1) for count, times in found)
    bits = next((bits for pattern, bits in _BITS if pattern.search(words)), _USUAL_BITS)
    return Estimate(
        int(billions * 1e9 * bits / 8 * BY_NAME), f"its name: {billions:g} billion parameters of {bits:g} bits"
    )

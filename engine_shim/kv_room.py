"""Whether a KV cache can ever be on its device, beside the weights. Pure.

One that can't is a mistake of a person: an engine that waited for so much memory would wait for ever.
"""

from engine_shim.engine import CannotRun
from sidecar.terminal.formatting import size


class NeverFits(CannotRun):
    """The text has the figures."""


def check(device: str, capacity: int, weights: int, cache: int, flag: str) -> None:
    """All in bytes; `flag` says how large the cache is. Raises NeverFits."""
    if weights + cache > capacity:
        raise NeverFits(
            f"{device} has {size(capacity)}, and the weights take {size(weights)} of it: a KV cache of "
            f"{size(cache)} ({flag}) can never fit beside them. Make the cache smaller, or the device larger "
            "(--capacity of gms or failover up)"
        )


def check_request(cache: int, needed: int, tokens: int, way_out: str) -> None:
    """`needed`: what the longest request, of so many tokens, takes. Raises NeverFits."""
    if cache < needed:
        raise NeverFits(
            f"a KV cache of {size(cache)} can't hold one request of {tokens} tokens (--max-model-len), which takes "
            f"{size(needed)}: {way_out}, or --max-model-len smaller"
        )

"""How much of a GPU is for what, reckoned from totals and never from what happens to be free, which changes with the
other engine:

    share          what the pair may have of the device: --gpu-memory-utilization of all of it
    - weights      once for both: they belong to GMS
    - 2 reserves   what each engine has for itself, awake or asleep: context, kernels, graphs, activations, buffers
    = cache        one KV cache, for the engine that is awake

Each engine measures its reserve when it starts, from figures of its own process: what torch had at its height while the
model ran at its largest, with allowances for what torch doesn't see and for what comes only later. What it then really
takes must fit into the reserve (`keep_to`), or the engine doesn't start. Both engines of a pair have the same
arguments, so they have the same reserve.

What this file may not do: ask a device anything.
"""

from dataclasses import dataclass

from engine_shim.engine import CannotRun

MIB = 1 << 20
GIB = 1 << 30
RESERVE_VARIABLE = "FAILOVER_VLLM_RESERVE"
OUTSIDE = 1 * GIB
"""An allowance for what torch doesn't count: the context, the code of kernels, NCCL, the workspaces of libraries."""
GRAPHS = 1 * GIB
"""An allowance for CUDA graphs. vLLM captures them after the size of the cache is settled, and torch counts them
then."""
STEP = 256 * MIB
"""Reserves are multiples of this, so that small differences between two starts make no difference between two
caches."""
ENGINES = 2


class DoesNotFit(CannotRun):
    """The device has less than what was asked for. The text has the figures and says what to change."""


@dataclass(frozen=True)
class Device:
    name: str
    total: int
    share: float
    """The part of the total that the pair may have."""


def reserve(height: int, graphs: bool, given: int = 0) -> int:
    """The reserve of one engine. `height` is the most that torch had while it profiled. `given` replaces the result."""
    if given:
        return given
    return _up(height + OUTSIDE + (GRAPHS if graphs else 0), STEP)


def cache_bytes(device: Device, weights: int, reserve: int, given: int | None) -> int:
    """The size of the KV cache. A size that is given only has to fit on the device, whatever the share is; vLLM does
    the same. Raises DoesNotFit.
    """
    taken = weights + ENGINES * reserve
    if given:
        if taken + given > device.total:
            raise DoesNotFit(
                f"{device.name} has {_said(device.total)}, and a KV cache of {_said(given)} "
                f"(--kv-cache-memory-bytes) is too much beside {_parts(weights, reserve)}: at most "
                f"{_said(max(0, device.total - taken))} are left for it"
            )
        return given
    left = int(device.total * device.share) - taken
    if left <= 0:
        raise DoesNotFit(
            f"{device.name} has {_said(device.total)}, of which the pair may have {device.share:g} "
            f"(--gpu-memory-utilization): {_parts(weights, reserve)} leave nothing of it for a KV cache. A lower "
            "--max-num-batched-tokens or --max-num-seqs makes the reserve smaller, more GPUs "
            "(--tensor-parallel-size) the weights"
        )
    return left


def keep_to(reserve: int, height: int, device: str) -> None:
    """`height` is the most that torch has had when everything is warm and captured. Raises DoesNotFit."""
    took = height + OUTSIDE
    if took > reserve:
        raise DoesNotFit(
            f"this engine takes {_said(took)} of {device} beside weights and KV cache, and was to have "
            f"{_said(reserve)}: start both engines with {RESERVE_VARIABLE}={-(-_up(took, STEP) // MIB)}MiB in their "
            "environment"
        )


def _parts(weights: int, reserve: int) -> str:
    return f"{_said(weights)} of weights and {_said(reserve)} for each of {ENGINES} engines"


def _said(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def _up(size: int, step: int) -> int:
    return -(-size // step) * step

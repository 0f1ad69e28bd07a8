"""What of a GPU is whose, reckoned from totals: never from what happens to be free, which moves with the other engine.

    share          what the pair may have of the device: --gpu-memory-utilization of all of it
    - weights      once, for both: they are GMS's
    - 2 reserves   an engine's own, awake or asleep: context, kernels, graphs, activations, buffers
    = cache        one KV cache, whoever's turn it is

A reserve is measured, by each engine when it starts, with figures that are its process's alone: what torch has had at
its height while the model ran at its largest, with allowances for what torch doesn't see and for what is only had
later. What it then really takes must fit into it (`keep_to`), or the engine doesn't start. Both engines of a pair have
the same arguments, so the same reserve.

What this file may not do: ask a device anything.
"""

from dataclasses import dataclass

from engine_shim.engines import CantRun

MIB = 1 << 20
GIB = 1 << 30
RESERVE_VARIABLE = "FAILOVER_VLLM_RESERVE"
OUTSIDE = 1 * GIB
"""An allowance for what torch doesn't count: the context, kernels' code, NCCL, libraries' workspaces."""
GRAPHS = 1 * GIB
"""An allowance for CUDA graphs. vLLM captures them after the cache's size is settled; torch counts them then."""
STEP = 256 * MIB
"""Reserves are multiples of it, so that small differences between two starts make none between two caches."""
ENGINES = 2


class DoesNotFit(CantRun):
    """What a person has asked for is more than the device has; the text has the figures and what to change."""


@dataclass(frozen=True)
class Device:
    name: str
    total: int
    share: float
    """Of the total, what the pair may have."""


def reserve(height: int, graphs: bool, given: int = 0) -> int:
    """Of one engine. `height`: what torch had at most while it profiled. `given` stands instead of all reckoning."""
    if given:
        return given
    return _up(height + OUTSIDE + (GRAPHS if graphs else 0), STEP)


def cache_bytes(device: Device, weights: int, reserve: int, given: int | None) -> int:
    """How large the KV cache is. One that is given only has to fit, beside the share or not: vLLM has it so, too.
    Raises DoesNotFit.
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
    """`height`: what torch has had at most, when all is warm and captured. Raises DoesNotFit."""
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

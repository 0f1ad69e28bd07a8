"""What makes a worker of vLLM's one of a pair, the same on every kind of device: the weights of its rank belong to GMS,
and asleep it has neither them nor a KV cache.

`sleep` and `wake_up` are vLLM's own calls, which reach every worker by collective RPC; so do the calls whose names
begin with `failover_`. The worker classes themselves are in `worker.py` for the CPU and `cuda_worker.py` for GPUs.

What this file may not do: decide when, or import a worker class of vLLM's.
"""

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

from engine_shim.engine import CannotRun
from engine_shim.kept_cache import KeptCache, shape_of
from engine_shim.vllm_engine import engine_directory, plugin, versions
from engine_shim.vllm_engine.kv_pool import PIECES, KvPool
from engine_shim.vllm_engine.kv_tensors import Allocating, Parked
from engine_shim.vllm_engine.loader import weights_of
from engine_shim.vllm_engine.weights import Weights
from engine_shim.vllm_engine.worker_settings import WorkerSettings

MOST_RANGES = 250
"""A pool has no more (docs/inside/gms.md). A cache of more allocations is the engine's own."""
CLAIM_S = 10.0
"""How long the end of the predecessor is waited for. The lock has seen it already."""
P = ParamSpec("P")
T = TypeVar("T")


class NotOfATree(Exception):
    """The lock server doesn't know this process, so it would not wait for its end."""


class UnknownCache(CannotRun):
    """vLLM did not allocate its KV cache where it was asked to."""


def step(method: Callable[P, T]) -> Callable[P, T]:
    """Wraps a step of a worker's start. Of its failure vLLM only says that some process failed, so what failed is
    reported to the shim from here.
    """

    @functools.wraps(method)
    def taken(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            plugin.say_failure(error)
            if isinstance(error, CannotRun) and plugin.has_joined():
                print(f"engine: {error}", file=sys.stderr, flush=True)
                os._exit(error.exit_code)  # vLLM would say twice where in its code that was
            raise

    return taken


class PairWorker:
    """To be mixed into a worker class of vLLM's, in front of it."""

    vllm_config: Any
    model_runner: Any
    distributed_init_method: str
    _pieces = PIECES

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not plugin.has_joined():
            raise NotOfATree(
                f"the general plugin {plugin.__name__} did not run in this process: install gpu-failover into the "
                "Python that runs vLLM, and if VLLM_PLUGINS is set, name gpu_failover in it"
            )
        super().__init__(*args, **kwargs)
        self._pool: KvPool | None = None
        self._asleep = False
        self._kept_cache: KeptCache | None = None
        self._parked: tuple[str, Parked] | None = None
        """What blocks of its cache hold while it sleeps, and which weights that was computed with."""
        self._unparked = False
        self._times: dict[str, float] = {}

    @step
    def init_device(self) -> None:
        engine_directory.remember(self.distributed_init_method)
        super().init_device()  # type: ignore[misc]

    @step
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)  # type: ignore[misc]

    @property
    def _settings(self) -> WorkerSettings:
        return WorkerSettings.of(self.vllm_config.load_config.model_loader_extra_config)

    @property
    def _weights(self) -> Weights:
        return weights_of(self.model_runner.get_model())

    @step
    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)  # type: ignore[misc]
        outside = [at for at in versions.cache_addresses(self.model_runner) if not self._kv.holds(at)]
        if outside or (kv_cache_config.kv_cache_tensors and not self._kv.size):
            raise UnknownCache(
                f"this version of vLLM ({versions.VERSION}) allocated a KV cache that can't be given back when the "
                "engine sleeps; versions.py has to learn how"
            )
        if self._settings.keeps and 0 < len(self._kv.sizes) <= MOST_RANGES:
            rank = self.vllm_config.parallel_config.rank
            said = {**versions.described(self.vllm_config, self.vllm_config.model_config), **_geometry(kv_cache_config)}
            self._kept_cache = KeptCache(self._weights.client, "kv", shape_of(said, self._kv.sizes), rank)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[Any]:
        return Allocating(self._kv) if tag == "kv_cache" else nullcontext()

    @property
    def _kv(self) -> KvPool:
        if self._pool is None:
            self._pool = KvPool(self._weights.memory, self._pieces)
        return self._pool

    def sleep(self, level: int = 1) -> None:
        self.failover_leave()
        self._weights.sleep()
        self._asleep = True

    def wake_up(self, tags: list[str] | None = None) -> None:
        began = time.monotonic()
        self._weights.wake()
        mapped = time.monotonic()
        mapping = None if self._kept_cache is None else self._kept_cache.mapping
        self._kv.wake(() if mapping is None else mapping.handles)
        parked, self._parked = self._parked, None
        self._unparked = parked is not None and parked[0] == self._weights.name
        if parked is not None and self._unparked:
            parked[1].put_back()
        self._asleep = False
        self._times = {"remap": mapped - began, "kv": time.monotonic() - mapped}

    def failover_claim(self, token: int, proven: bool) -> tuple[str, str, int, str] | None:
        """Before `wake_up`: the memory that the predecessor left. Which it is, why it is empty, who had it last, and
        which weights its contents were computed with. None: this rank's cache is its own.
        """
        if self._kept_cache is None:
            return None
        claimed = self._kept_cache.claim(token, proven, CLAIM_S)
        return None if claimed is None else (*dataclasses.astuple(claimed), self._weights.name)

    def failover_park(self, blocks: list[int]) -> int:
        """Before `sleep`, when no step is under way: what these hold goes to host memory until the next wake. For how
        many of them, the last ones, there was time.
        """
        parked = Parked(versions.cache_blocks(self.model_runner), blocks)
        self._parked = self._weights.name, parked
        return parked.count

    def failover_unparked(self) -> bool:
        """They hold it again."""
        return self._unparked

    def failover_leave(self) -> None:
        """At a clean end, when no step is under way and none will be: a successor goes on with this memory."""
        self._kv.sleep()
        if self._kept_cache is not None:
            self._kept_cache.release()

    def failover_well(self) -> bool:
        return self._weights.well

    def failover_needs(self) -> tuple[str, int]:
        """The rank's device, and how many bytes of it must be free for a wake."""
        there = self._kept_cache is not None and self._kept_cache.there
        return self._weights.device, self._weights.memory.granularity if there else self._kv.size

    def failover_times(self) -> dict[str, float]:
        """How long the parts of the last wake took."""
        return self._times

    def failover_places(self) -> dict[str, Any]:
        """Addresses and sizes, for a test that addresses stay and pages are shared."""
        reader = self._weights.reader
        weights = [(reader.address(slab), size) for slab, size in enumerate(reader.sizes)]
        parameter = next(self.model_runner.get_model().parameters())
        return {
            "pid": os.getpid(),
            "asleep": self._asleep,
            "weights": weights,
            "kv": self._kv.addresses,
            "parameter": parameter.data_ptr(),
            "cache": versions.cache_addresses(self.model_runner),
            "free": self._weights.memory.free(),
        }


def _geometry(kv_cache_config: Any) -> dict[str, str]:
    """What a block is."""
    return {
        "blocks": str(kv_cache_config.num_blocks),
        "groups": repr([group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]),
    }

"""vLLM's scheduler, with a KV cache that outlives the engine. It runs in EngineCore's process.

Overridden of vLLM's: schedule, update_from_output, reset_prefix_cache. Each calls vLLM's own, and changes neither what
it is given nor, but for one call, what it returns. What happens to blocks is in `kv_index.py`.

* `schedule` plans a step. The keys that blocks get meanwhile belong to that step.
* `update_from_output` is called when that step has finished on every rank. With async scheduling tokens become known
  here, and blocks get keys here, without those that are still under way: these are finished, too.
* `reset_prefix_cache` is called by the main process after the wake and at a clean end, and by a client that wants the
  cache to be forgotten. At the wake it answers with how much room there is in what was adopted, if all of it was: a
  list, which is as true as the `True` that vLLM gives.
"""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from engine_shim.kv.parking import most_blocks
from engine_shim.kv.publishing import Step
from engine_shim.vllm_engine import versions
from engine_shim.vllm_engine.kv_index import KvIndex
from engine_shim.vllm_engine.worker_settings import WorkerSettings
from sidecar.kernel import host_usage
from sidecar.terminal.logs import Log


class _Keeping:
    """To be mixed into a scheduler class of vLLM's, in front of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config: Any = self.vllm_config  # type: ignore[attr-defined]
        settings = WorkerSettings.of(config.load_config.model_loader_extra_config)
        self._index: KvIndex | None = None
        self._planned: dict[int, tuple[Any, Step]] = {}
        """The plans of steps under way, by their identities, and what each fills. A plan stays here so that no other
        one gets its identity."""
        why_not = versions.why_blocks_cannot_be_kept(self)
        if why_not:
            Log("kv-index").warning("kv_not_kept", why=why_not)
            return
        facts = {
            **versions.described(config, config.model_config),
            **versions.block_facts(self),
            **{f"contents of {what}": digest for what, digest in settings.contents.items()},
        }
        facts.pop("rank")
        self._index = KvIndex(versions.block_pool(self), facts, settings)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._index is None:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        self._index.step = step = Step()
        plan = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if step.filled:
            self._planned[id(plan)] = (plan, step)
        return plan

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if self._index is None:
            return super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        self._index.step = known = Step()
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        _, planned = self._planned.pop(id(scheduler_output), (None, None))
        self._index.finished(planned, known)
        return outputs

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        if self._index is not None and self._index.leaves():
            return True
        done = super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]
        kept = done and self._index is not None and self._index.begin()
        return versions.room(self) if kept else done


class _Parking:
    """The same, beside other models: the engine itself keeps what its cache holds while it sleeps in place. vLLM, which
    forgets it then, is told that it has.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parked = False
        self._why_not = versions.why_blocks_cannot_be_kept(self)
        if self._why_not:
            Log("kv-index").warning("kv_not_kept", why=self._why_not)

    def reset_prefix_cache(self, running: int = False, word: Any = False) -> Any:
        """With a word of ours `running` is how many blocks are kept at most; 0: as many as have room."""
        if word == versions.PARK:
            if self._why_not:
                return [0]
            config: Any = self.vllm_config  # type: ignore[attr-defined]
            most = WorkerSettings.of(config.load_config.model_loader_extra_config).parks
            self._parked = True
            blocks = versions.block_pool(self).num_gpu_blocks
            left = host_usage.memory_left("MemAvailable")
            most = running or most_blocks(most, left, versions.cache_size(self), blocks)
            return versions.keep_blocks(self, most)
        if word == versions.UNPARK:
            return versions.room(self)
        if self._parked:  # vLLM's own, in its `sleep`: any other is a wish to forget
            self._parked = False
            return True
        return super().reset_prefix_cache(running, word)  # type: ignore[misc]


class ParkingAsyncScheduler(_Parking, AsyncScheduler):
    pass


class ParkingScheduler(_Parking, Scheduler):
    pass


class KeepingAsyncScheduler(_Keeping, AsyncScheduler):
    pass


class KeepingScheduler(_Keeping, Scheduler):
    pass


def make(**kwargs: Any) -> Any:
    """Called by vLLM instead of a class: which one it would have taken itself is settled only by then."""
    config = kwargs["vllm_config"]
    parks = WorkerSettings.of(config.load_config.model_loader_extra_config).parks
    of_async, of_plain = (
        (ParkingAsyncScheduler, ParkingScheduler) if parks else (KeepingAsyncScheduler, KeepingScheduler)
    )
    return (of_async if config.scheduler_config.async_scheduling else of_plain)(**kwargs)

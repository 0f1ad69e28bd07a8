"""vLLM itself as an engine, unpatched. Everything hangs on vLLM's official extension points:

    a general plugin       runs first in every process: it joins, and is set to die with its parent       plugin.py
    a load format `gms`    weights are written to GMS once, and every engine maps them                    loader.py
    a worker class         asleep it has no weights and no KV cache; awake both, at their old addresses   pair_worker.py

Reading order: `options.py` (what `vllm serve` takes, and what can't be in a pair), `worker_settings.py` (what workers
are told), `plugin.py` (and `plugin_metadata.py`: how vLLM finds it), `weights.py` and `loader.py`, `kv_pool.py` and
`kv_tensors.py`, `pair_worker.py`, then `worker.py` for the CPU, or `budget.py` and `cuda_worker.py` for GPUs,
`endpoint.py` (HTTP, up to the address), `engine.py` (the contract). What differs between versions of vLLM is in
`versions.py` and nowhere else.

The package isn't called vllm: a process with this directory in its path would find it in vLLM's place.
"""

import gc
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_shim.engine import Engine, Setting

NOT_HERE = (
    f"vLLM isn't installed in this Python ({sys.executable}): install gpu-failover into the one that has it, and start "
    "this with that one (its bin/failover, or -m engine_shim)"
)


def make(setting: "Setting") -> "Engine":
    """Called by `known_engines.py`. Loads vLLM, which takes seconds, and touches no device."""
    if importlib.util.find_spec("vllm") is None:
        from engine_shim.engine import CannotRun

        raise CannotRun(NOT_HERE)
    prepare(setting)
    from engine_shim.vllm_engine.engine import VllmEngine

    return VllmEngine(setting)


def prepare(setting: "Setting") -> None:
    """Sets the environment of this process and of those that it starts, before vLLM is loaded."""
    from engine_shim.vllm_engine import engine_directory, plugin_metadata

    here = engine_directory.begin(setting.run_dir, setting.engine_id)
    gc.disable()  # until it has started; the end of `main_process.py` says why
    plugin_metadata.publish(here)
    # Forked workers don't run the plugin again, and don't end with their parent.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    allowed = os.environ.get("VLLM_PLUGINS")
    name = plugin_metadata.PLUGIN
    if allowed is not None and name not in allowed.split(","):
        os.environ["VLLM_PLUGINS"] = f"{allowed},{name}" if allowed else name

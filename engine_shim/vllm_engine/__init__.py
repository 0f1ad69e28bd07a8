"""vLLM itself as an engine, unpatched: everything is hung into its official extension points.

    a general plugin       runs in every process of its tree first: joins, dies with its parent      plugin.py
    a load format `gms`    weights are written to GMS once and mapped by everybody                    loader.py
    a worker class         asleep: no weights mapped, no KV cache; awake: both, at their addresses    napping.py

Reading order: `options.py` (what `vllm serve` takes, and what can't be in a pair), `home.py` (what workers are told),
`plugin.py` (and `announced.py`: how vLLM finds it), `weights.py` and `loader.py`, `pool.py` and `kv.py`, `napping.py`,
then `worker.py` for the CPU, or `budget.py` and `cuda_worker.py` for GPUs; `endpoint.py` (HTTP, up to the address),
`engine.py` (the contract). What differs between versions of vLLM is in `versions.py` and nowhere else.

The package isn't called vllm: in a process that has this directory in its path, that name would be taken.
"""

import gc
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_shim.engine import Engine
    from engine_shim.engines import Setting


def make(setting: "Setting") -> "Engine":
    """For the shim (`engines.py`). Loads vLLM, which takes seconds, and touches no device."""
    if importlib.util.find_spec("vllm") is None:
        from engine_shim.engines import CantRun

        raise CantRun(
            f"vLLM isn't installed in this Python ({sys.executable}): install gpu-failover into the one that has it, "
            "and start engine-shim with that"
        )
    prepare(setting)
    from engine_shim.vllm_engine.engine import VllmEngine

    return VllmEngine(setting)


def prepare(setting: "Setting") -> None:
    """The environment of this process and of those that it starts, before vLLM is loaded."""
    from engine_shim.vllm_engine import announced, scratch

    scratch.begin(setting.run_dir, setting.engine_id)
    gc.disable()  # until it has started: see the end of `run.py`
    announced.announce(scratch.directory(setting.run_dir, setting.engine_id))
    # Forked workers run no plugin again, and don't end with their parent.
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    allowed = os.environ.get("VLLM_PLUGINS")
    name = announced.PLUGIN
    if allowed is not None and name not in allowed.split(","):
        os.environ["VLLM_PLUGINS"] = f"{allowed},{name}" if allowed else name

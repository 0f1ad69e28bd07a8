"""The vLLM engine's arguments: what `vllm serve` takes, and what can't be in a pair.

What this file may not do: start anything. A wrong argument ends the program with a sentence (argparse's own), or is a
CantRun.
"""

import json
import os
from argparse import Namespace
from typing import Any

from engine_shim.engines import CantRun, Setting
from engine_shim.vllm_engine import versions
from engine_shim.vllm_engine.home import Home
from engine_shim.vllm_engine.plugin import LOAD_FORMAT

WORKER = "engine_shim.vllm_engine.worker.HostWorker"
DEVICES_VARIABLE = "FAILOVER_VLLM_DEVICES"
_HARDLY_ANY = 0.01
"""Of the machine's memory: vLLM wants so much of it to be free, for a cache that isn't there (`worker.py`)."""

# What there must be one of: (attribute, flag, why).
_ONE = (
    ("data_parallel_size", "--data-parallel-size", "every data-parallel engine is to be a pair of its own"),
    ("api_server_count", "--api-server-count", "the endpoint is the engine's main process"),
    ("nnodes", "--nnodes", "an engine is on one node"),
)
_NONE = (
    ("headless", "--headless", "the endpoint is the engine's main process"),
    ("grpc", "--grpc", "the endpoint speaks HTTP"),
    ("speculative_config", "--speculative-config", "a draft model's weights aren't in GMS yet"),
    ("enable_sleep_mode", "--enable-sleep-mode", "this engine has its own way to sleep"),
    ("uds", "--uds", "say --listen unix:PATH to engine-shim"),
    ("kv_transfer_config", "--kv-transfer-config", "a KV cache that others write to can't be given back"),
    ("cpu_offload_gb", "--cpu-offload-gb", "weights are in GMS, whole"),
)


def parse(setting: Setting) -> tuple[Namespace, Home]:
    """vLLM's own arguments with ours put in, and what they mean for us."""
    args = versions.arguments(setting.arguments)
    for name, flag, why in _ONE:
        if getattr(args, name, None) not in (None, 0, 1):
            raise CantRun(f"{flag} {getattr(args, name)} can't be in a pair: {why}")
    for name, flag, why in _NONE:
        if getattr(args, name, None):
            raise CantRun(f"{flag} can't be in a pair: {why}")
    if args.worker_cls != "auto":
        raise CantRun("--worker-cls is what makes vLLM one of a pair, and can't be another")
    if not versions.on_cpu():
        raise CantRun("this version of gpu-failover runs vLLM on the CPU only; vLLM here is for another platform")
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size
    home = Home(
        run_dir=str(setting.run_dir),
        engine_id=setting.engine_id,
        writes=setting.role == "primary",
        devices=_devices(ranks),
        load_format=str(args.load_format),
        load_extra=_extra(args.model_loader_extra_config),
    )
    if args.kv_cache_memory_bytes is None:
        args.gpu_memory_utilization = _HARDLY_ANY
    args.load_format = LOAD_FORMAT
    args.model_loader_extra_config = home.settings()
    args.worker_cls = WORKER
    return args, home


def _devices(ranks: int) -> tuple[str, ...]:
    """Rank by rank. By default host:0, host:1 ..."""
    given = os.environ.get(DEVICES_VARIABLE)
    names = tuple(name.strip() for name in given.split(",")) if given else tuple(f"host:{n}" for n in range(ranks))
    if len(names) != ranks:
        raise CantRun(f"{DEVICES_VARIABLE} names {len(names)} devices, and there are {ranks} ranks: one for each")
    wrong = [name for name in names if not name.startswith("host:") or name == "host:"]
    if wrong:
        raise CantRun(f"{DEVICES_VARIABLE}: {wrong[0]!r} is no device of the CPU; allowed: host:NAME, ...")
    return names


def _extra(given: Any) -> dict[str, Any]:
    return dict(json.loads(given)) if isinstance(given, str) else dict(given or {})


def check(vllm_config: Any) -> None:
    """What only vLLM's own configuration shows, with the model's in it. Raises CantRun."""
    quantization = vllm_config.model_config.quantization
    if quantization is not None:
        raise CantRun(
            f"quantization {quantization}: on the CPU vLLM repacks quantised weights into a form that can't be shared; "
            "take the model unquantised"
        )

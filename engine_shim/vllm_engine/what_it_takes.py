"""What decides which requests a vLLM engine takes, as readable values by flag (`engine.SaysWhatItTakes`).

Two engines of a pair that differ here would answer a request differently, or one of them would refuse it. What only
decides how fast, or what is logged, isn't here. Nothing secret is: of API keys only how many there are.

What this file may not do: know how arguments are parsed (`options.py`).
"""

import hashlib
import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PLAIN = (
    "tokenizer", "tokenizer_mode", "runner", "convert", "hf_overrides", "override_generation_config",
    "generation_config", "chat_template_content_format", "default_chat_template_kwargs", "trust_request_chat_template",
    "enable_auto_tool_choice", "tool_call_parser", "exclude_tools_when_tool_choice_none", "reasoning_parser",
    "response_role", "return_tokens_as_token_ids", "enable_prompt_embeds", "enable_lora", "max_lora_rank", "max_loras",
    "limit_mm_per_prompt", "mm_processor_kwargs", "max_logprobs", "logprobs_mode", "structured_outputs_config",
    "logits_processors", "seed", "root_path", "h11_max_incomplete_event_size", "enable_tokenizer_info_endpoint",
    "allowed_origins", "middleware",
)  # fmt: skip
"""Arguments of vLLM's that are said as they are. What a version doesn't know isn't said."""


def said(args: Namespace, config: Any, contents: Mapping[str, str]) -> dict[str, str]:
    """`config` is vLLM's own configuration, once its EngineCore has filled it in. `contents`: digests of files, by what
    they are; what is on the hub is known by its commit.
    """
    model, cache = config.model_config, config.cache_config
    adapters = {what: digest for what, digest in contents.items() if what.startswith("LoRA ")}
    found = {
        "--max-model-len": str(model.max_model_len),
        "--served-model-name": ", ".join(args.served_model_name or [args.model]),
        "--lora-modules": ", ".join(f"{what} {digest}" for what, digest in sorted(adapters.items())),
        "commit": str(getattr(model.hf_config, "_commit_hash", None)),
        **{what: digest for what, digest in contents.items() if what not in adapters},
        "--chat-template": _template(args.chat_template),
        "--api-key": f"{len(args.api_key or [])} of them",
        "sampling defaults": json.dumps(_sampling(model), sort_keys=True, default=str),
        "KV cache": f"{cache.num_gpu_blocks} blocks of {cache.block_size}, {cache.cache_dtype}",
    }
    for name in _PLAIN:
        if hasattr(args, name):
            found[f"--{name.replace('_', '-')}"] = _plain(getattr(args, name))
    return found


def _template(given: Any) -> str:
    """A file's contents decide, and not its name."""
    if given is None:
        return "the tokenizer's own"
    path = Path(str(given))
    try:
        text = path.read_text()
    except (OSError, ValueError):
        text = str(given)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _sampling(model: Any) -> Any:
    found = getattr(model, "get_diff_sampling_param", None)
    return found() if found is not None else None


def _plain(value: Any) -> str:
    """The same for the same value in every process."""
    try:
        return json.dumps(value, sort_keys=True, default=_fields)
    except (TypeError, ValueError):
        return type(value).__name__


def _fields(value: Any) -> Any:
    fields = getattr(value, "__dict__", None)
    return str(value) if fields is None else {key: held for key, held in fields.items() if not key.startswith("_")}

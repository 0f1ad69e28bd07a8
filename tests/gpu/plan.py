"""What the engine part of the GPU suite measures: models of which sizes, what fits on the device that is there, and how
the figures are laid beside other people's.

What this file may not do: touch a device. Its tests run anywhere (`test_plan.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_shim.vllm_engine import budget
from engine_shim.vllm_engine.budget import GIB, MIB, Device, DoesNotFit

PARTS = ("memory", "pair", "wake")
SIZES_GIB = (8, 32, 64)
SLAB_BYTES = 1 * GIB
"""That of `gms.pack`, which needs msgspec; the checks of memory do without."""
KV_BYTES = 4 * GIB
"""The same beside all weights, so that only the weights differ."""
RESERVE = 4 * GIB
"""What an engine takes beside them, guessed before it was measured."""
VOCABULARY = 320
"""That of the tokenizer (`tests/vllm/tiny_model.py`)."""
NEEDED = ("msgspec", "torch", "vllm")
"""By the engine's parts."""
LEAST_S = 90
"""A part that has less time than this isn't begun."""
_ITEM = 2  # bfloat16


class BadParts(Exception):
    """A part that there isn't."""


@dataclass(frozen=True)
class Model:
    """A Llama of these dimensions, with weights that were never trained."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    layers: int
    head_dim: int = 128

    @property
    def layer_bytes(self) -> int:
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return (attention + 3 * self.hidden * self.inner + 2 * self.hidden) * _ITEM

    @property
    def bytes(self) -> int:
        return self.layers * self.layer_bytes + (2 * VOCABULARY + 1) * self.hidden * _ITEM

    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }


SMALL = Model(hidden=1024, inner=3072, heads=16, kv_heads=8, layers=28)
"""The dimensions of Qwen3-0.6B, which the peers' figures are of, without its large vocabulary."""


def synthetic(gib: int) -> Model:
    """About so many GiB of weights, in layers like those of a 70B model."""
    one = Model(hidden=8192, inner=28672, heads=64, kv_heads=8, layers=1)
    return Model(one.hidden, one.inner, one.heads, one.kv_heads, max(1, round(gib * GIB / one.layer_bytes)))


def parts(text: str) -> list[str]:
    """A value of --parts. Raises BadParts."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in names if name not in PARTS]
    if wrong or not names:
        raise BadParts(f"{(wrong or [text])[0]!r} is no part; allowed: {', '.join(PARTS)}, separated by commas")
    return [name for name in PARTS if name in names]


def fitting(device: str, total: int, sizes: Sequence[int] = SIZES_GIB) -> tuple[list[int], dict[int, str]]:
    """The sizes that one engine can have there, beside a second one's reserve; and why not the others."""
    fit, left_out = [], {}
    for gib in sizes:
        weights = synthetic(gib).bytes
        # While they are published, one slab of the source and its copy are there together.
        try:
            budget.cache_bytes(Device(device, total, 1.0), weights + SLAB_BYTES, RESERVE, KV_BYTES)
        except DoesNotFit as error:
            left_out[gib] = str(error)
        else:
            fit.append(gib)
    return fit, left_out


# -- beside other people's figures -----------------------------------------------------------------------------------

SHADOW = "NVIDIA Dynamo, shadow engine, Qwen3-0.6B, vLLM 0.26, B200"
PEERS = {
    "lock_to_awake_s": (SHADOW, "0.27 s"),
    "kill_to_first_token_s": (SHADOW, "0.4-0.5 s to a routed request"),
    "kill_to_lock_s": (SHADOW, "0.1-0.2 s"),
    "cold_start_s": (SHADOW, "100 s"),
    "standby_again_s": (SHADOW, "49 s, re-armed warm"),
    "standby_bytes": ("NVIDIA Dynamo, an extra engine process", "2.7 GiB"),
    "scratch_bytes": ("NVIDIA Dynamo, scratch KV", "0.5 GiB"),
    "wake_s": ("vLLM's own sleep mode, level 1, Qwen3-0.6B, A100", "0.26 s"),
}
"""As published by them, on their machines."""
NAMES = {
    "kill_to_lock_s": "kill -> lock",
    "lock_to_awake_s": "lock -> awake",
    "kill_to_first_token_s": "kill -> first token",
    "cold_start_s": "cold start of an engine",
    "standby_again_s": "killed engine is the standby again",
    "standby_bytes": "memory of a standby",
    "scratch_bytes": "scratch KV while it starts",
    "wake_s": "wake of one engine",
}


def table(report: Mapping[str, Any]) -> list[str]:
    """Ours and theirs, a line each; then the wakes by size."""
    found: dict[str, Any] = dict(report.get("pair", {}).get("figures", {}))
    wakes: list[Mapping[str, Any]] = report.get("wake", {}).get("figures", {}).get("sizes", [])
    if wakes:
        found["wake_s"] = wakes[0]["wake_s"]
    lines = []
    for key, name in NAMES.items():
        if key in found:
            who, theirs = PEERS[key]
            lines.append(f"{name:<36} {said(key, found[key]):>12}   {theirs} ({who})")
    for one in wakes:
        parts_ms = f"remap {one['remap_s'] * 1e3:.1f} ms, KV {one['kv_s'] * 1e3:.1f} ms, {one['slabs']} slabs"
        name = f"wake with {one['weights_bytes'] / GIB:.1f} GiB of weights"
        lines.append(f"{name:<36} {said('wake_s', one['wake_s']):>12}   {parts_ms}")
    if len(wakes) > 1:
        name = f"{growth(wakes):.1f} times the weights"
        lines.append(f"{name:<36} {flatness(wakes):>6.2f} times the time for a wake")
    return lines


def said(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return f"{value / GIB:.2f} GiB" if value >= GIB else f"{value / MIB:.0f} MiB"
    return f"{value:.1f} s" if value >= 10 else f"{value * 1e3:.1f} ms"


def flatness(wakes: Sequence[Mapping[str, Any]]) -> float:
    """1: a wake doesn't know how large the weights are."""
    return float(wakes[-1]["wake_s"] / wakes[0]["wake_s"])


def growth(wakes: Sequence[Mapping[str, Any]]) -> float:
    return float(wakes[-1]["weights_bytes"] / wakes[0]["weights_bytes"])

"""A tiny model for vLLM, made here from a seed: two layers of Llama and a byte-level tokenizer. No download.

    python -m tests.vllm.tiny_model DIRECTORY

Its answers mean nothing, but every token of them depends on every token before. Needs torch, safetensors and
tokenizers, which vLLM brings.
"""

import json
import sys
from pathlib import Path
from typing import Any

HIDDEN, LAYERS, INNER, HEADS, KV_HEADS = 64, 2, 128, 4, 2
HEAD_DIM = 32  # the smallest that vLLM's attention on the CPU takes
VOCABULARY, POSITIONS = 320, 1024
RANK = 8  # of an adapter
SPECIAL = ("<pad>", "<s>", "</s>")
TEXT = "one engine sleeps while the other one is awake"
"""Its words are tokens."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def make(directory: Path, seed: int = 0) -> Path:
    """Another seed makes another model."""
    directory.mkdir(parents=True, exist_ok=True)
    _tokenizer(directory)
    _weights(directory, seed)
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        **ids,
    }
    _write(directory / "config.json", config)
    _write(directory / "generation_config.json", ids)
    return directory


def tokenizer_of(text: str, special: tuple[str, ...] = SPECIAL) -> Any:
    """Its tokens are special ones, bytes, and what is frequent in this text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text] * 4, trainer)
    return tokenizer


def _tokenizer(directory: Path) -> None:
    tokenizer = tokenizer_of(TEXT)
    tokenizer.save(str(directory / "tokenizer.json"))
    pad, first, last = SPECIAL
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": first,
        "eos_token": last,
        "pad_token": pad,
        "model_max_length": POSITIONS,
        "chat_template": TEMPLATE,
    }
    _write(directory / "tokenizer_config.json", settings)


def _weights(directory: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    chance = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, generator=chance) * shape[-1] ** -0.5

    weights = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=chance),
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": drawn(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        own = {
            "input_layernorm": torch.ones(HIDDEN),
            "post_attention_layernorm": torch.ones(HIDDEN),
            "self_attn.q_proj": drawn(HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": drawn(KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": drawn(KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": drawn(HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": drawn(INNER, HIDDEN),
            "mlp.up_proj": drawn(INNER, HIDDEN),
            "mlp.down_proj": drawn(HIDDEN, INNER),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": weight for name, weight in own.items()}
    save_file(weights, str(directory / "model.safetensors"), metadata={"format": "pt"})


def make_adapter(directory: Path, seed: int) -> Path:
    """A LoRA adapter for that model. Another seed makes another one."""
    import torch
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    chance = torch.Generator().manual_seed(seed)
    sizes = {"q_proj": HEADS * HEAD_DIM, "v_proj": KV_HEADS * HEAD_DIM}
    weights = {}
    for layer in range(LAYERS):
        for name, out in sizes.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=chance)
            weights[f"{place}.lora_B.weight"] = torch.randn(out, RANK, generator=chance)
    save_file(weights, str(directory / "adapter_model.safetensors"), metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(sizes), "bias": "none"}
    _write(directory / "adapter_config.json", config)
    return directory


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))

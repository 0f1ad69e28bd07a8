"""llama.cpp's own server, in this process: python -m tests.many.llama_server MODEL.gguf PORT

The package xllamacpp brings it, as a library: no package brings the program `llama-server`.
"""

import signal
import sys
from pathlib import Path


def make_model(path: Path, seed: int = 1, layers: int = 2, width: int = 64) -> Path:
    """A tiny one of random weights. Its tokens are bytes."""
    import numpy
    from gguf import GGUFWriter, TokenType

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    heads, inner = 4, 2 * width
    it = GGUFWriter(path, "llama")
    it.add_vocab_size(len(tokens))
    it.add_context_length(4096)
    it.add_embedding_length(width)
    it.add_block_count(layers)
    it.add_feed_forward_length(inner)
    it.add_head_count(heads)
    it.add_head_count_kv(heads)
    it.add_rope_dimension_count(width // heads)
    it.add_layer_norm_rms_eps(1e-5)
    it.add_tokenizer_model("llama")
    it.add_token_list(tokens)
    it.add_token_scores([0.0] * len(tokens))
    it.add_token_types(types)
    it.add_unk_token_id(0)
    it.add_bos_token_id(1)
    it.add_eos_token_id(2)
    drawn = numpy.random.default_rng(seed)

    def weight(name: str, *shape: int) -> None:
        it.add_tensor(f"{name}.weight", drawn.normal(0.0, 0.3, shape).astype(numpy.float32))

    def norm(name: str) -> None:
        it.add_tensor(f"{name}.weight", numpy.ones(width, numpy.float32))

    weight("token_embd", len(tokens), width)
    weight("output", len(tokens), width)
    norm("output_norm")
    for block in (f"blk.{layer}" for layer in range(layers)):
        norm(f"{block}.attn_norm")
        norm(f"{block}.ffn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weight(f"{block}.{name}", width, width)
        weight(f"{block}.ffn_gate", inner, width)
        weight(f"{block}.ffn_up", inner, width)
        weight(f"{block}.ffn_down", width, inner)
    it.write_header_to_file()
    it.write_kv_data_to_file()
    it.write_tensors_to_file()
    it.close()
    return path


def main() -> None:
    import xllamacpp

    it = xllamacpp.CommonParams()
    it.model.path, it.hostnames, it.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
    it.n_ctx, it.n_parallel, it.cpuparams.n_threads = 4096, 2, 1
    server = xllamacpp.Server(it)
    print(f"llama.cpp {xllamacpp.BUILD_INFO} at {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # before its threads begin
    main()

"""The loader's way on a GPU, in a process of its own: python -m tests.vllm.processed MODEL RUN_DIR told|untold

vLLM's real model is loaded, post-processed, published and adopted as `loader.py` does it on a GPU, with GMS's host
device in the GPU's place; post-processing is told that this isn't the CPU, whose own form can't be shared. Prints what
came of it as JSON.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from engine_shim.vllm_engine import loader, versions
from engine_shim.vllm_engine.weights import Weights
from engine_shim.vllm_engine.worker_settings import WorkerSettings
from gms import torch as modules


@contextmanager
def _not_the_cpu() -> Iterator[None]:
    from vllm.platforms import current_platform

    kind = type(current_platform)
    kind.is_cpu = lambda self: False
    try:
        yield
    finally:
        del kind.is_cpu


def _one_rank(config: Any, directory: Path) -> None:
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

    init_distributed_environment(1, 0, f"file://{directory}/ranks", 0, "gloo")
    ensure_model_parallel_initialized(1, 1)


def main(model_dir: str, run_dir: str, mode: str) -> None:
    from vllm.config import set_current_vllm_config

    words = ["--model", model_dir, "--dtype", "float32", "--enforce-eager", "--max-model-len", "64"]
    args: Namespace = versions.arguments([*words, "--kv-cache-memory-bytes", "16M"])
    config = versions.configured(args)
    if mode == "untold":
        versions.processed_elsewhere = lambda: None
    post_process = versions.post_process

    def processed(model: Any, model_config: Any, device: Any) -> None:
        with _not_the_cpu():
            post_process(model, model_config, device)

    versions.post_process = processed
    checkpoint = versions.loader(config.load_config, "auto", {})
    cpu = torch.device("cpu")

    def load() -> torch.nn.Module:
        model = versions.build(versions.apart(config), config.model_config, "", cpu)
        checkpoint.load_weights(model, config.model_config)
        versions.post_process(model, config.model_config, cpu)
        return model

    with set_current_vllm_config(config):
        _one_rank(config, Path(run_dir))
        expected = {found.name: found.tensor.clone() for found in modules.find(load())}
        weights = Weights(WorkerSettings(run_dir, "a", True, ("host:0",), weights_timeout_s=60), 0)
        weights.get(versions.described(config, config.model_config), load, loader._WRITTEN)
        model = versions.build(config, config.model_config, "", torch.device("meta"))
        loader._adopt_processed(model, weights, config.model_config, cpu)
    found = {each.name: each.tensor for each in modules.find(model)}
    reader = weights.reader
    spans = [(reader.address(slab), size) for slab, size in enumerate(reader.sizes)]

    def shared(tensor: torch.Tensor) -> bool:
        return any(at <= tensor.data_ptr() < at + size for at, size in spans)

    scales = [name for name in found if name.rpartition(".")[2] in ("_k_scale", "_v_scale")]
    report = {
        "version": versions.VERSION,
        "names": sorted(found) == sorted(expected),
        "different": [name for name in expected if not torch.equal(found[name], expected[name])],
        "not_shared": [name for name, parameter in model.named_parameters() if not shared(parameter)],
        "scales": len(scales),
        "shared_scales": [name for name in scales if shared(found[name])],
    }
    for name in scales:
        found[name].fill_(2.0)  # a write to shared memory would be the end
    weights.client.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])

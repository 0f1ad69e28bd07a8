"""The load format `gms`: a model whose weights are GMS's.

Who may write, and finds none, loads the checkpoint the usual way into a model that serves for nothing else, and
publishes that. Everybody, the writer included, then builds the model on the meta device, where it takes no memory, and
adopts what was published.

Why twice: on the CPU, vLLM's post-processing repacks weights into a form of its own and throws `layer.weight` away.
Done on the meta device, it chooses the plain way instead (torch's own matmul on `layer.weight`), for both engines of a
pair alike; so what is published is the weights as loaded. Quantised models have no such plain way on the CPU, and are
refused (`options.py`). (On CUDA it will be the other way round: post-process, then publish, then adopt as published.)

What this file may not do: know what a worker does with the model.
"""

from typing import Any

import torch
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from engine_shim.vllm_engine import versions
from engine_shim.vllm_engine.home import home_of
from engine_shim.vllm_engine.weights import Weights
from gms import torch as modules

KEPT = "failover_weights"
"""The attribute of the model where its `Weights` are."""


class CannotShare(Exception):
    """A model whose weights can't be in GMS; the text says why."""


class GmsLoader(BaseModelLoader):
    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self._home = home_of(load_config.model_loader_extra_config)
        self._checkpoint = versions.loader(load_config, self._home.load_format, self._home.load_extra)

    def download_model(self, model_config: Any) -> None:
        self._checkpoint.download_model(model_config)

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        raise CannotShare("weights in GMS are shared, and can't be loaded anew under a model; start the engine anew")

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> torch.nn.Module:
        weights = Weights(self._home, vllm_config.parallel_config.rank)
        reader = weights.get(
            versions.described(vllm_config, model_config),
            lambda: self._load(vllm_config, model_config, prefix),
        )
        model = versions.build(vllm_config, model_config, prefix, torch.device("meta"))
        versions.post_process(model, model_config, torch.device("cpu"))
        modules.adopt(model, reader)
        setattr(model, KEPT, weights)
        return model.eval()

    def _load(self, vllm_config: Any, model_config: Any, prefix: str) -> torch.nn.Module:
        apart = versions.apart(vllm_config)
        model = versions.build(apart, model_config, prefix, torch.device("cpu"))
        self._checkpoint.load_weights(model, model_config)
        return model


def weights_of(model: torch.nn.Module) -> Weights:
    found = getattr(model, KEPT, None)
    if not isinstance(found, Weights):
        raise CannotShare(f"{type(model).__name__} was not loaded with --load-format gms")
    return found

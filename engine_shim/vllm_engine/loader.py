"""The load format `gms`: a model whose weights belong to GMS.

An engine that may write, and finds no weights, loads the checkpoint in the usual way into a model that serves no other
purpose, and publishes it. Every engine, the writer included, then builds the model on the meta device, where it takes
no memory, and adopts what was published. Between the two stands vLLM's post-processing, which brings weights into the
form that its kernels want. Where it happens differs:

* On the CPU it repacks weights into a form of its own and throws `layer.weight` away. Done on the meta device, it takes
  the plain way instead (torch's own matmul on `layer.weight`), in both engines of a pair. So the weights are published
  as they were loaded. Quantised models have no such plain way on the CPU and are refused (`options.py`).
* On a GPU the weights are published as processed, and an engine that adopts them takes that form. vLLM then makes what
  isn't a tensor (the choice of kernels, scales as plain numbers) once more, for weights that it is told are processed.
  An older vLLM that can't be told does it on the meta device, before. NOT YET RUN ON A GPU.

What this file may not do: know what a worker does with the model.
"""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from engine_shim.engine import CannotRun
from engine_shim.vllm_engine import contents, versions
from engine_shim.vllm_engine.weights import Weights
from engine_shim.vllm_engine.worker_settings import WorkerSettings
from gms import torch as modules
from gms.torch_views import torch_device

KEPT = "failover_weights"
"""The attribute of the model that holds its `Weights`."""
_WRITTEN = ("*._q_scale", "*._k_scale", "*._v_scale", "*._prob_scale")
"""The tensors that vLLM itself writes to after loading: attention's scales."""
_HOST = torch.device("cpu")
"""With this target, vLLM's post-processing moves nothing to a device."""


class CannotShare(CannotRun):
    """The weights of this model can't be in GMS; the text says why."""


class GmsLoader(BaseModelLoader):
    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self._settings = WorkerSettings.of(load_config.model_loader_extra_config)
        self._checkpoint = versions.loader(load_config, self._settings.load_format, self._settings.load_extra)

    def download_model(self, model_config: Any) -> None:
        self._checkpoint.download_model(model_config)

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        raise CannotShare("weights in GMS are shared, and can't be loaded anew under a model; start the engine anew")

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> torch.nn.Module:
        weights = Weights(self._settings, vllm_config.parallel_config.rank)
        device = torch_device(weights.device)
        weights.get(
            versions.described(vllm_config, model_config),
            lambda: self._load(vllm_config, model_config, prefix, device),
            _WRITTEN,
            contents.weights_stamp(str(model_config.model)),
        )
        model = versions.build(vllm_config, model_config, prefix, torch.device("meta"))
        if device.type == "cpu":
            versions.post_process(model, model_config, _HOST)
            modules.adopt(model, weights.reader)
        else:
            _adopt_processed(model, weights, model_config, device)
        setattr(model, KEPT, weights)
        return model.eval()

    def _load(self, vllm_config: Any, model_config: Any, prefix: str, device: torch.device) -> torch.nn.Module:
        apart = versions.apart(vllm_config)
        model = versions.build(apart, model_config, prefix, device)
        self._checkpoint.load_weights(model, model_config)
        if device.type != "cpu":
            versions.post_process(model, model_config, device)
        return model


def weights_of(model: torch.nn.Module) -> Weights:
    found = getattr(model, KEPT, None)
    if not isinstance(found, Weights):
        raise CannotShare(f"{type(model).__name__} was not loaded with --load-format gms")
    return found


def _adopt_processed(model: torch.nn.Module, weights: Weights, model_config: Any, device: torch.device) -> None:
    told = versions.processed_elsewhere()
    if told is None:
        _process_without_values(model, model_config)
    modules.adopt(model, weights.reader, as_published=True)
    to_host(model, weights.on_host)
    if told is not None:
        with told:
            versions.post_process(model, model_config, device)
    without = list(without_values(model))
    if without:
        raise CannotShare(
            f"{type(model).__name__} keeps tensors where vLLM's own modules don't ({', '.join(without[:5])}), and they "
            "would have no values: this model can't be one of a pair yet"
        )


def _process_without_values(model: torch.nn.Module, model_config: Any) -> None:
    try:
        versions.post_process(model, model_config, _HOST)
    except (NotImplementedError, RuntimeError) as error:
        raise CannotShare(
            f"vLLM {versions.VERSION} can't prepare {type(model).__name__} without its weights ({error}): take the "
            "model unquantised, or a newer vLLM (0.32 can)"
        ) from error


def to_host(model: torch.nn.Module, names: list[str]) -> None:
    """Moves the tensors that kernels want in the host's memory back there."""
    wanted = set(names)
    for found in list(modules.find(model)):
        if found.name not in wanted or found.tensor.device == _HOST:
            continue
        if found.kind == "parameter":
            raise CannotShare(f"{found.name} is in the host's memory (offloaded?), and weights are in GMS, whole")
        shelf = found.owner._buffers if found.kind == "buffer" else found.owner.__dict__
        shelf[found.key] = found.tensor.to(_HOST)


def without_values(model: torch.nn.Module) -> Iterator[str]:
    """Tensors that are still on the meta device: in modules, and in objects that hang on them (kernels, backends)."""
    for path, module in model.named_modules():
        for key, value in {**module._parameters, **module._buffers, **vars(module)}.items():
            if isinstance(value, torch.Tensor):
                if value.is_meta and value.numel():
                    yield f"{path}.{key}"
            elif not isinstance(value, torch.nn.Module) and hasattr(value, "__dict__"):
                for inner, held in vars(value).items():
                    if isinstance(held, torch.Tensor) and held.is_meta and held.numel():
                        yield f"{path}.{key}.{inner}"

"""The worker for GPUs, as far as it goes without one: vLLM's own class below it, and what it is given by torch made up.

What only a GPU shows is in `tests/gpu`.
"""

import inspect
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch isn't installed in this Python")
pytest.importorskip("vllm", reason="vLLM isn't installed in this Python")

from engine_shim.engine import CannotRun, Setting  # noqa: E402
from engine_shim.vllm_engine.budget import GIB, MIB, DoesNotFit  # noqa: E402
from engine_shim.vllm_engine.kv_pool import KvPool  # noqa: E402
from engine_shim.vllm_engine.worker_settings import WorkerSettings  # noqa: E402
from gms.memory.host import HostMemory  # noqa: E402
from gms.memory.host_device import create_device  # noqa: E402

GPU = "GPU-00000000-0000-0000-0000-000000000001"
TOTAL, WEIGHTS = 80 * GIB, 16 * GIB


class Gpu:
    """What torch says of a GPU. `height` moves as a program's use would."""

    def __init__(self) -> None:
        self.height, self.reserved = 0, 0
        self.calls: list[str] = []

    def put_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
            monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: self.calls.append(name))
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda *_: self.height)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: self.reserved)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    made.put_into(monkeypatch)
    return made


@pytest.fixture
def worker(gpu: Gpu, tmp_path: Path) -> Any:
    """One that has loaded its model, made without a device."""
    from engine_shim.vllm_engine.cuda_worker import CudaWorker
    from engine_shim.vllm_engine.loader import KEPT
    from engine_shim.vllm_engine.weights import Weights

    tmp_path.chmod(0o700)
    create_device("0", 64 * MIB, tmp_path)
    weights = Weights.__new__(Weights)
    weights.device = GPU
    weights.memory = HostMemory("0", tmp_path)
    weights.memory.capacity = lambda: TOTAL  # type: ignore[method-assign]
    weights._reader = SimpleNamespace(sizes=(WEIGHTS,), sleep=lambda: None)  # type: ignore[assignment]
    model = torch.nn.Module()
    setattr(model, KEPT, weights)

    def profiled(**_: object) -> None:
        gpu.height = 1900 * MIB

    home = WorkerSettings(str(tmp_path), "a", True, (GPU,), share=0.9)
    worker = CudaWorker.__new__(CudaWorker)
    worker.cache_config = SimpleNamespace(kv_cache_memory_bytes=None)
    worker.model_config = SimpleNamespace(
        multimodal_config=None, enforce_eager=False, enable_return_routed_experts=False
    )
    worker.parallel_config = SimpleNamespace(rank=0, data_parallel_size=1)
    worker.vllm_config = SimpleNamespace(
        cache_config=worker.cache_config,
        model_config=worker.model_config,
        parallel_config=worker.parallel_config,
        load_config=SimpleNamespace(model_loader_extra_config=home.to_extra()),
        compilation_config=SimpleNamespace(),
    )
    # Less is free than the other engine leaves; nothing may come of it.
    worker.init_snapshot = SimpleNamespace(free_memory=1 * GIB)
    worker.model_runner = SimpleNamespace(profile_run=profiled, get_model=lambda: model)
    worker.device = torch.device("cpu")
    worker._pool = None
    yield worker
    weights.memory.close()


def test_it_overrides_what_this_vllm_has() -> None:
    from vllm.v1.worker.gpu_worker import Worker

    from engine_shim.vllm_engine.cuda_worker import CudaWorker

    names = ["init_device", "determine_available_memory", "initialize_from_config", "compile_or_warm_up_model"]
    for name in [*names, "sleep", "wake_up", "_maybe_get_memory_pool_context"]:
        ours = [p.name for p in inspect.signature(getattr(CudaWorker, name)).parameters.values()]
        theirs = [p.name for p in inspect.signature(getattr(Worker, name)).parameters.values()]
        assert ours == theirs, name


def test_the_caches_size_comes_from_totals_and_vllm_profiles_without_measuring(worker: Any, gpu: Gpu) -> None:
    """1900 MiB at its height, 1 GiB outside torch, 1 GiB for graphs, rounded up: 4 GiB for each engine."""
    assert worker.determine_available_memory() == int(TOTAL * 0.9) - WEIGHTS - 2 * 4 * GIB
    assert worker.cache_config.kv_cache_memory_bytes is None, "vLLM's configuration is as it was"
    assert gpu.calls == ["synchronize", "empty_cache", "reset_peak_memory_stats"], "what loading took isn't counted"


def test_a_given_size_is_taken_if_it_fits(worker: Any) -> None:
    worker.cache_config.kv_cache_memory_bytes = 56 * GIB
    assert worker.determine_available_memory() == 56 * GIB
    worker.cache_config.kv_cache_memory_bytes = 56 * GIB + 1
    with pytest.raises(DoesNotFit, match=r"at most 56\.00 GiB"):
        worker.determine_available_memory()


def test_an_engine_that_took_more_than_its_reserve_does_not_start(
    worker: Any, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.worker.gpu_worker import Worker

    monkeypatch.setattr(Worker, "compile_or_warm_up_model", lambda self: "times")
    worker.determine_available_memory()
    gpu.reserved = 1000 * MIB
    assert worker.compile_or_warm_up_model() == "times"
    worker._kv.allocate(8 * MIB)
    assert worker.failover_needs() == (GPU, 8 * MIB + 900 * MIB), "the cache, and what it gave back of its own"
    assert worker.failover_memory()["kv_scratch"] == 2 * MIB
    gpu.height = 4 * GIB
    with pytest.raises(DoesNotFit, match="FAILOVER_VLLM_RESERVE=5120MiB"):
        worker.compile_or_warm_up_model()


def test_vllms_own_allocation_of_the_cache_is_the_pools(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker import gpu_worker

    def initialize(kv_cache_config: Any, kv_cache_allocation_context: Any = None) -> None:
        with kv_cache_allocation_context or nullcontext():  # 0.26: all of the call is in the context
            size = kv_cache_config.kv_cache_tensors[0]
            worker.model_runner.kv_caches = [torch.zeros(size, dtype=torch.int8, device="cpu").view(4, -1)]

    monkeypatch.setattr(gpu_worker, "ensure_kv_transfer_initialized", lambda address: None)
    monkeypatch.setattr(gpu_worker.current_platform, "is_xpu", lambda: False)
    monkeypatch.setattr("engine_shim.vllm_engine.kv_tensors.torch_device", lambda _: torch.device("cpu"))
    worker.model_runner.initialize_kv_cache = initialize
    config = SimpleNamespace(
        num_blocks=4,
        kv_cache_tensors=[200 * MIB],
        kv_cache_layout=None,
        hash_block_size=16,
        cache_hit_alignment_tokens=16,
        needs_kv_cache_zeroing=False,
    )
    worker.initialize_from_config(config)
    assert isinstance(worker._kv, KvPool) and worker._kv.size == 200 * MIB
    assert worker._kv.addresses == [worker.model_runner.kv_caches[0].data_ptr()]
    assert worker._kv.scratch == 2 * MIB, "of a device that has 64 MiB"


def test_before_anything_is_unmapped_the_gpu_is_waited_for_and_then_torch_gives_back(worker: Any, gpu: Gpu) -> None:
    worker._kv.allocate(8 * MIB)
    free = worker._kv.memory.free()
    worker.sleep()
    assert gpu.calls == ["synchronize", "empty_cache"] and worker._asleep
    assert worker._kv.memory.free() == free + 2 * MIB


def test_a_rank_on_another_gpu_than_its_weights_is_refused(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker import gpu_worker

    from engine_shim.vllm_engine import cuda_worker, engine_directory
    from engine_shim.vllm_engine.cuda_worker import OtherDevice

    monkeypatch.setattr(gpu_worker.Worker, "init_device", lambda self: None)
    monkeypatch.setattr(engine_directory, "remember", lambda *_: None)
    monkeypatch.setattr(cuda_worker, "torch_device", lambda _: torch.device("cuda", 1))
    worker.distributed_init_method = ""
    worker.device = torch.device("cuda", 0)
    with pytest.raises(OtherDevice, match=r"rank 0 runs on cuda:0.*is cuda:1.*CUDA_VISIBLE_DEVICES"):
        worker.init_device()


# -- arguments -----------------------------------------------------------------------------------------------------


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    from engine_shim.vllm_engine import options, versions

    monkeypatch.setattr(versions, "on_cpu", lambda: False)
    monkeypatch.setattr(versions, "on_cuda", lambda: True)
    monkeypatch.setenv(options.DEVICES_VARIABLE, GPU)
    return options


def parsed(options: Any, *words: str) -> Any:
    return options.parse(Setting(Path("/run/failover"), "a", "primary", ("/m", *words)))


def test_on_a_gpu_the_share_is_kept_for_the_budget_and_vllm_asks_for_hardly_any(
    on_cuda: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, home = parsed(on_cuda, "--gpu-memory-utilization", "0.8", "--kv-cache-memory-bytes", "4G")
    assert (home.share, home.reserve, home.devices) == (0.8, 0, (GPU,))
    assert args.gpu_memory_utilization < 0.1 and args.worker_cls.endswith("cuda_worker.CudaWorker")
    monkeypatch.setenv("FAILOVER_VLLM_RESERVE", "3GiB")
    assert parsed(on_cuda)[1].reserve == 3 * GIB


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FAILOVER_VLLM_RESERVE", "lots", "FAILOVER_VLLM_RESERVE: 'lots' is no size"),
        ("FAILOVER_VLLM_DEVICES", "host:0", "'host:0' is no GPU's UUID"),
        ("FAILOVER_VLLM_DEVICES", f"{GPU},GPU-2", "names 2 devices, and there are 1 ranks"),
    ],
)
def test_what_is_wrong_in_the_environment_is_said(
    on_cuda: Any, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(CannotRun, match=said):
        parsed(on_cuda)


def test_without_a_driver_the_missing_devices_are_a_sentence(on_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(on_cuda.DEVICES_VARIABLE)
    with pytest.raises(CannotRun, match="driver"):
        parsed(on_cuda)


# -- models --------------------------------------------------------------------------------------------------------


def test_tensors_of_the_host_go_back_there_and_ones_without_values_are_found() -> None:
    from engine_shim.vllm_engine.loader import CannotShare, to_host, without_values

    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        model[0].register_buffer("scale", torch.ones(1))
        model[0].impl = SimpleNamespace(slopes=torch.ones(3), none=torch.ones(0))
    assert sorted(without_values(model)) == ["0.bias", "0.impl.slopes", "0.scale", "0.weight"]
    with pytest.raises(CannotShare, match=r"0\.weight is in the host's memory"):
        to_host(model, ["0.weight"])
    model.to_empty(device="cpu")
    model[0].impl.slopes = torch.ones(3)
    to_host(model, ["0.weight", "0.scale"])
    assert not list(without_values(model))


def test_a_vllm_that_can_be_told_makes_nothing_of_processed_weights() -> None:
    from vllm.model_executor import utils

    from engine_shim.vllm_engine import versions

    told = versions.processed_elsewhere()
    assert (told is None) is not hasattr(utils, "weights_already_processed")
    if told is not None:
        with told:
            assert utils.is_weights_pre_processed()
        assert not utils.is_weights_pre_processed()

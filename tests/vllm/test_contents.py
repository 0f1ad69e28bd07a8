"""Two engines are compared by what is in their files, and not by names: what an adapter has computed is not taken for
what another one of the same name would have.
"""

import json
import os
import shutil
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from engine_shim.vllm_engine import kv_index
from tests.engine.shims import House, Shim
from tests.support.waiting import until
from tests.vllm import tiny_model
from tests.vllm.pair import kind

if TYPE_CHECKING:
    from engine_shim.vllm_engine.engine import VllmEngine

LORA = ("--enable-lora", "--max-lora-rank", str(tiny_model.RANK), "--block-size", "32", "--lora-modules")
PROMPT = "what they have in common is long enough for a few blocks, so that all of them build on each other: " * 2


def asked(model: Path, **more: Any) -> Namespace:
    adapters = [SimpleNamespace(name=name, path=str(path)) for name, path in more.pop("adapters", {}).items()]
    return Namespace(**{"model": str(model), "tokenizer": None, "lora_modules": adapters, **more})


def copied(model: Path, to: Path) -> Path:
    return Path(shutil.copytree(model, to))


def change_template(model: Path, adapter: Path) -> None:
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": "{{ messages }}"}))


def change_processor(model: Path, adapter: Path) -> None:
    (model / "preprocessor_config.json").write_text('{"image_mean": [0.5]}')


def change_code(model: Path, adapter: Path) -> None:
    (model / "modeling_own.py").write_text("A = 1")


def change_adapter(model: Path, adapter: Path) -> None:
    tiny_model.make_adapter(adapter, seed=2)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (change_template, "model files"),
        (change_processor, "model files"),
        (change_code, "model files"),
        (change_adapter, "LoRA tuned"),
    ],
)
def test_another_content_under_the_same_name_is_another(
    model: Path, tmp_path: Path, change: Callable[[Path, Path], None], name: str
) -> None:
    from engine_shim.vllm_engine import contents

    own, adapter = copied(model, tmp_path / "m"), tiny_model.make_adapter(tmp_path / "l", seed=1)
    args = asked(own, adapters={"tuned": adapter})
    before = contents.read(args)
    assert contents.stamps(args) == before.stamps
    assert before.digests == contents.read(asked(copied(own, tmp_path / "n"), adapters={"tuned": adapter})).digests
    change(own, adapter)
    assert contents.stamps(args) != before.stamps
    assert (contents.adapter_stamps(args) != before.adapter_stamps) == name.startswith("LoRA")
    after = contents.read(args).digests
    assert {what for what in after if after[what] != before.digests[what]} == {name}


def test_weights_are_not_read_and_what_isnt_there_is_empty(model: Path, tmp_path: Path) -> None:
    from engine_shim.vllm_engine import contents

    own = copied(model, tmp_path / "m")
    before = contents.read(asked(own)).digests
    (own / "model.safetensors").write_bytes(b"")
    (own / "README.md").write_text("x")
    assert contents.read(asked(own)).digests == before
    assert contents.read(asked(Path("owner/model"), tokenizer="owner/other")).digests == {
        "model files": "",
        "tokenizer files": "",
    }


def test_adapters_that_may_change_while_it_serves_are_a_reason_to_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine_shim.vllm_engine.options import why_adapters_may_change

    def why(*names: str, **more: Any) -> str:
        found = dict.fromkeys(names, tmp_path)
        return why_adapters_may_change(
            asked(tmp_path, **{"adapters": found, "enable_lora": True, "max_loras": 1, "max_cpu_loras": None, **more})
        )

    assert why("a") == ""
    assert "give --max-cpu-loras 2" in why("a", "b")
    assert why("a", "b", max_cpu_loras=2) == "" and why("a", "b", max_loras=2) == ""
    assert "is in no directory here" in why(adapters={"a": "owner/adapter"})
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    assert "may be replaced" in why() and why(enable_lora=False) == ""


class Core:
    """Stands for vLLM's client of an EngineCore whose one rank has found its part of the cache."""

    engine_core: "Core"

    def __init__(self) -> None:
        self.engine_core = self

    async def collective_rpc(self, what: str, args: tuple[object, ...] = ()) -> list[tuple[str, str, int, str]]:
        return [("pool", "", 3, "weights")]

    async def wake_up(self) -> None:
        pass

    async def call_utility_async(self, *_: object) -> list[int]:
        return [1, 2]


def engine_of(model: Path, adapter: Path, tmp_path: Path) -> "VllmEngine":
    from engine_shim.engine import Setting
    from engine_shim.vllm_engine.engine import VllmEngine

    os.environ["HF_HUB_OFFLINE"] = "1"
    kv_index.order_file(tmp_path / "run", "b").parent.mkdir(parents=True)
    words = (str(model), *LORA, f"tuned={adapter}")
    return VllmEngine(Setting(tmp_path / "run", "b", "shadow", words, kv="keep"))


@pytest.mark.parametrize("changes", [False, True])
def test_an_adapter_that_changes_before_the_wake_makes_the_cache_unbelieved(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    """Between the standby's start and its wake: what its predecessor computed may be of what is there now."""
    adapter = tiny_model.make_adapter(tmp_path / "adapter", seed=1)
    engine = engine_of(model, adapter, tmp_path)
    monkeypatch.setattr(engine, "_client", Core())
    if changes:
        tiny_model.make_adapter(adapter, seed=2)
    engine.granted(4, True)
    engine.wake()
    order = engine._order
    assert order is not None and order.pools == ("pool",)
    assert order.why_empty == (("other_digest",) if changes else ("",))
    assert msgspec.json.decode(kv_index.order_file(tmp_path / "run", "b").read_bytes(), type=kv_index.Order) == order


def test_files_that_change_while_vllm_starts_are_no_start(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine_shim.vllm_engine import contents, options, versions

    adapter = tiny_model.make_adapter(tmp_path / "adapter", seed=1)
    engine = engine_of(model, adapter, tmp_path)

    async def needs() -> None:
        pass

    async def application(*_: object) -> tuple[None, bool]:
        tiny_model.make_adapter(adapter, seed=2)
        return None, False

    monkeypatch.setattr(engine, "_ask_needs", needs)
    monkeypatch.setattr(options, "check", lambda config: None)
    monkeypatch.setattr(versions, "configured", lambda args: None)
    monkeypatch.setattr(versions, "start", lambda *_: Core())
    monkeypatch.setattr(versions, "application", application)
    with pytest.raises(contents.FilesChanged):
        engine.start()


def test_rope_overrides_are_among_what_has_to_be_the_same(model: Path) -> None:
    from engine_shim.engine import Setting
    from engine_shim.vllm_engine import options, versions

    def facts(*more: str) -> dict[str, str]:
        os.environ["HF_HUB_OFFLINE"] = "1"
        args, _ = options.parse(Setting(Path("/run/failover"), "a", "primary", (str(model), *more)))
        config = versions.configured(args)
        return versions.described(config, config.model_config)

    plain = facts()
    scaled = facts(
        "--hf-overrides", '{"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}'
    )
    assert {name for name in plain if plain[name] != scaled[name]} == {"config"}


@pytest.mark.chaos
@pytest.mark.xdist_group("tp2")
def test_what_an_adapter_has_computed_isnt_adopted_for_another_of_its_name(
    house: House, model: Path, tmp_path: Path
) -> None:
    """The file changes between the starts of the two."""
    adapter = tiny_model.make_adapter(tmp_path / "adapter", seed=1)
    plain = kind(model, 1)
    chosen = replace(plain, arguments=(*plain.arguments, *LORA, f"tuned={adapter}"), lock=("--memory", "host"))
    house.start_lock(*chosen.lock)
    house.start_gms(chosen)
    a = house.shim(chosen, "a", "--kv", "keep")
    house.until_announced(a)
    first = answer(house)
    tiny_model.make_adapter(adapter, seed=2)
    b = house.shim(chosen, "b", "--kv", "keep")
    found = b.until("Standby", ready=True, redundant=False)["differences"]
    assert [line.partition(":")[0] for line in found] == ["--lora-modules"]
    url = house.endpoint()
    a.main().kill()
    until(lambda: house.endpoint() not in ("", url), "the other one serves")
    assert wakes(b) == ['failover_engine_kv_wakes_total{why="replaced"} 1.0']
    second = answer(house)
    assert second != first, "the adapters are too much alike to show anything"
    assert answer(house, cache_salt="nothing is cached for it") == second


def answer(house: House, **more: str) -> list[int]:
    body = {"model": "tuned", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    said = json.loads(house.ask("/v1/completions", {**body, "return_token_ids": True, **more}))
    return list(said["choices"][0]["token_ids"])


def wakes(shim: Shim) -> list[str]:
    page = shim.get("/metrics")[1]
    return [line for line in page.splitlines() if line.startswith("failover_engine_kv_wakes_total")]

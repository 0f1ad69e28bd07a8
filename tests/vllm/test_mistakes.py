"""What a person says wrongly to a vLLM engine ends with 64 and a sentence, and isn't tried for ever. Real vLLM."""

import json
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.shims import House, Shim
from tests.support.waiting import until
from tests.vllm.pair import kind

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("mistakes")]


def engine(house: House, model: Path, *more: str, shim: tuple[str, ...] = (), engine_id: str = "a") -> Shim:
    chosen = kind(model, 1)
    if house.lock is None:
        house.start_lock()
        house.start_gms(chosen)
    return house.shim(replace(chosen, arguments=(*chosen.arguments, *more)), engine_id, *shim)


def changed(model: Path, directory: Path, **fields: Any) -> Path:
    """The same model with another configuration."""
    directory.mkdir()
    for path in model.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    config = json.loads((model / "config.json").read_text()) | fields
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--model", "/no/such/model"), "vLLM refuses this configuration: "),
        (("--quantization", "fp8"), "vLLM refuses this configuration: torch.float32 is not supported"),
        (("--kv-cache-memory-bytes", "1G"), "can never fit beside them"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_mistake_ends_it_at_once_with_vllms_own_sentence(
    house: House, model: Path, more: tuple[str, ...], expected: str
) -> None:
    a = engine(house, model, *more)
    assert a.code() == 64
    assert expected in a.said().splitlines()[-1], a.said()[-3000:]
    assert a.said().count(" start ") == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"architectures": ["NobodysForCausalLM"], "model_type": "llama"}, "NobodysForCausalLM"),
        (
            {
                "architectures": ["MixtralForCausalLM"],
                "model_type": "mixtral",
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
            },
            "this model is a mixture of experts",
        ),
    ],
    ids=["architecture", "experts"],
)
def test_a_model_that_cant_be_one_of_a_pair_is_refused(
    house: House, model: Path, tmp_path: Path, fields: dict[str, Any], expected: str
) -> None:
    a = engine(house, changed(model, tmp_path / "model", **fields))
    assert a.code() == 64
    assert expected in a.said().splitlines()[-1], a.said()[-3000:]


def test_a_hub_that_cant_be_reached_is_no_mistake(house: House, model: Path, tmp_path: Path) -> None:
    """One of many models was tried again in an hour, where the network was away for a moment."""
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    house.environment |= nowhere
    a = engine(house, model, "--model", "nobody/nothing")
    until(lambda: a.said().count(" start ") > 1, "it is tried again")
    assert "failed in init: OSError" in a.said() and "refuses" not in a.said(), a.said()[-3000:]


def test_a_cache_too_small_for_one_request_is_refused(house: House, model: Path) -> None:
    """In a sentence with the size that would do. vLLM's own gives other advice, in the middle of tracebacks."""
    a = engine(house, model, "--kv-cache-memory-bytes", "65536")
    assert a.code() == 64
    last = a.said().splitlines()[-1]
    assert "a KV cache of 64 KiB can't hold one request of 512 tokens (--max-model-len)" in last, a.said()[-3000:]
    assert "Traceback" not in a.said() and a.said().count(" start ") == 1, a.said()[-3000:]
    enough = last.partition("--kv-cache-memory-bytes ")[2].split()[0]
    house.until_announced(engine(house, model, "--kv-cache-memory-bytes", enough))


def test_a_mistyped_flag_is_a_sentence_and_nothing_else_of_vllms_usage(house: House, model: Path) -> None:
    a = engine(house, model, "--max-modle-len", "512")
    assert a.code() == 64
    assert "is --max-model-len meant?" in a.said().splitlines()[-1], a.said()
    assert "usage:" not in a.said() and len(a.said().splitlines()) < 30, a.said()


def test_a_port_that_is_taken_during_the_wake_is_a_sentence_and_a_socket_that_is_removed_is_bound_again(
    house: House, model: Path
) -> None:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", 0))  # so that no connection of another process has it meanwhile
    a = engine(house, model)
    house.until_announced(a)
    path = Path(house.endpoint().removeprefix("unix:"))
    path.unlink()
    until(path.exists, "it is bound again")
    house.until_announced(a)
    assert '"tiny"' in house.ask("/v1/models") and a.state()["deaths"] == 0
    takes = a.state()["takes"]
    assert (takes["--max-model-len"], takes["--served-model-name"]) == ("512", "tiny")
    other = ("--max-model-len", "256", "--served-model-name", "small")
    b = engine(house, model, *other, shim=("--listen", f"127.0.0.1:{taken.getsockname()[1]}"), engine_id="b")
    found = b.until("Standby", ready=True, redundant=False)["differences"]
    assert {line.partition(":")[0] for line in found} == {"--max-model-len", "--served-model-name"}
    b.main().signal(signal.SIGSTOP)
    a.main().kill()
    with taken:
        taken.listen()
        b.main().signal(signal.SIGCONT)
        until(lambda: "failed in waking: CannotServe" in b.said(), "it says so")
    assert "Traceback" not in b.said()

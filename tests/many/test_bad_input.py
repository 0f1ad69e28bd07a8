"""What can't be right in models.yaml, as a person meets it: `failover models check` and `failover models up` say a
sentence each, and nothing is started.
"""

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from engine_shim.cli.models import FIELDS
from engine_shim.cli.pair_look import UpFacts
from engine_shim.cli.tree import TreeLock
from pool.entries import ModelShown, State
from pool.observer import Listing
from pool.rules.machine import WRONG
from sidecar.terminal.exit_codes import EX_USAGE
from tests import emulated_driver
from tests.engine.shims import House, Program
from tests.many.host import Host

GPU = "GPU-656d756c-6174-6564-0000-000000000000"
MODEL: dict[str, Any] = {"engine": "reference", "memory": "96MiB"}
FILE: dict[str, Any] = {"devices": ["host:many"], "capacity": "160MiB"}


def said(house: House, text: str, *words: str) -> tuple[int, str]:
    path = house.directory / "models.yaml"
    path.write_text(text)
    program = Program(
        house, words[0], "engine_shim.cli.failover", "models", *words, str(path), "--run-dir", str(house.run_dir)
    )
    house.add(program)
    return program.code(), program.said()


@pytest.mark.parametrize("verb", ["check", "up"])
def test_what_can_never_be_is_refused_by_check_and_at_the_start(house: House, verb: str) -> None:
    models = {
        "large": {**MODEL, "memory": "200MiB"},
        "a": MODEL,
        "b": {**MODEL, "aliases": ["a"]},
        "c": {"engine": "command", "command": ["nosuchprogram", "{port}"]},
    }
    sentences = (
        "large: memory: it takes 200 MiB of host:many, which has 160 MiB for models: it can never be awake",
        "a is a name of a and of b: a request for it could mean either",
        "c: command: nosuchprogram is no program that can be found",
        "default: no model is called d",
    )
    code, words = said(house, json.dumps({**FILE, "default": "d", "models": models}), verb)
    assert code == (1 if verb == "check" else EX_USAGE) and all(sentence in words for sentence in sentences), words
    assert len(words.splitlines()) == len(sentences) and not house.run_dir.exists(), words


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="it is installed here")
def test_check_says_which_models_need_a_vllm_that_isnt_installed_here(house: House) -> None:
    models = {"a": MODEL, "b": {"arguments": ["some/model"], "memory": "96MiB"}}
    code, words = said(house, json.dumps({**FILE, "models": models}), "check")
    assert code == 0 and "2 models, nothing is wrong" in words and "models.yaml: b: vLLM isn't installed" in words


@pytest.mark.chaos
def test_a_model_whose_directory_cant_be_made_fails_with_a_sentence_and_the_others_go_on(house: House) -> None:
    host = Host(house, {"a": MODEL}, capacity="160MiB").ready()
    in_the_way = house.run_dir / "lock" / "b"
    in_the_way.touch()
    host.models["b"] = MODEL
    host.write()
    os.kill(host.up.pid, signal.SIGHUP)
    host.until(lambda: host.failed("b"), "b can't be started")
    assert host.shown_of("b").why.endswith(f"its directory {in_the_way} can't be used: File exists")
    host.answered(host.run([host.stream("a")]))
    in_the_way.unlink()
    host.do("wake", "b")
    host.until_states(b=State.AWAKE)


@pytest.mark.chaos
def test_one_whose_arguments_its_engine_refuses_rests_with_a_sentence_until_they_are_others(house: House) -> None:
    host = Host(house, {"a": {**MODEL, "arguments": ["--no-such-flag"]}})
    host.until(lambda: host.failed("a"), "it can't be started")
    why = host.shown_of("a").why
    assert why.startswith("exit code 64: ") and "--no-such-flag" in why, why
    assert why.endswith(f"{WRONG} a"), why
    host.until(lambda: host.get("/v1/models")[0] == 200, "the door knows its models")
    status, said = host.get("/v1/completions", {"model": "a", "prompt": "Once"})
    assert status == 503 and "--no-such-flag" in said["error"]["message"], said
    host.models["a"] = MODEL
    host.write()
    os.kill(host.up.pid, signal.SIGHUP)
    host.answered(host.ready().run([host.stream("a")]))


@pytest.mark.parametrize("verb", ["check", "up"])
def test_an_entry_that_stands_twice_is_refused_with_its_lines(house: House, verb: str) -> None:
    code, words = said(house, "models:\n  a: {engine: reference}\n  a: {engine: reference}\n", verb)
    assert code != 0 and "line 3: a stands twice, first in line 2" in words and len(words.splitlines()) == 1


@pytest.mark.parametrize("verb", ["check", "up"])
def test_a_port_that_is_taken_is_said_with_who_has_it(house: House, verb: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text = json.dumps({**FILE, "listen": f"127.0.0.1:{port}", "models": {"a": MODEL}})
        code, words = said(house, text, verb)
    assert code != 0 and f"127.0.0.1:{port}: Address already in use by process {os.getpid()} (" in words
    assert words.endswith("; give another HOST:PORT\n")
    assert len(words.splitlines()) == 1 and not (Path(house.run_dir) / "lock").exists(), words


@pytest.mark.parametrize("verb", ["check", "up"])
def test_a_port_of_metrics_that_is_taken_is_said_before_anything_runs(house: House, verb: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        text = json.dumps({**FILE, "listen": "127.0.0.1:0", "metrics": address, "models": {"a": MODEL}})
        code, words = said(house, text, verb)
    assert code != 0 and f"metrics: the pool can't listen on {address}: Address already in use by process" in words
    assert len(words.splitlines()) == 1, words


def test_the_help_names_what_json_has() -> None:
    """So that no one has to start a host to write a line for jq."""
    for field in (*set(Listing.__struct_fields__) - {"fds"}, *ModelShown.__struct_fields__):
        assert re.search(rf"\b{field}\b", FIELDS), field


def test_an_address_that_isnt_this_machines_is_nobodys_port(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"192.0.2.1:{other.getsockname()[1]}"
        code, words = said(house, json.dumps({**FILE, "listen": address, "models": {"a": MODEL}}), "check")
    assert code == 1 and f"{address}: Cannot assign requested address; give another HOST:PORT" in words, words


def test_a_capacity_that_is_no_size_is_said_with_all_the_rest(house: House) -> None:
    text = json.dumps({**FILE, "capacity": "lots", "default": "b", "models": {"a": MODEL}})
    code, words = said(house, text, "check")
    assert code == 1 and "capacity: 'lots' is no size; allowed: " in words
    assert "default: no model is called b" in words and len(words.splitlines()) == 2, words


def test_a_second_start_is_told_of_the_first_and_not_that_its_port_is_taken(house: House) -> None:
    """Its own port is what the first one has: another one is no way out."""
    with socket.create_server(("127.0.0.1", 0)) as door, contextlib.closing(TreeLock(house.run_dir)):
        UpFacts(models=True).write(house.run_dir)
        address = f"127.0.0.1:{door.getsockname()[1]}"
        code, words = said(house, json.dumps({**FILE, "listen": address, "models": {"a": MODEL}}), "up")
    first = f"failover models up runs already in {house.run_dir} (process {os.getpid()}); failover models shows it"
    assert code == 1 and first in words and len(words.splitlines()) == 1, words


@pytest.mark.skipif(bool(emulated_driver.why_not()), reason=emulated_driver.why_not() or "it can be had")
@pytest.mark.parametrize("verb", ["check", "up"])
def test_on_gpus_too_what_can_never_fit_is_refused_before_anything_runs(house: House, verb: str) -> None:
    (house.directory / "gpu").mkdir()
    house.environment.update(emulated_driver.environment(house.directory / "gpu", capacity=64 << 20))
    models = {"large": {**MODEL, "arguments": ["--kv-bytes", "96MiB"]}}
    code, words = said(house, json.dumps({"devices": [GPU], "models": models}), verb)
    sentence = f"it takes 96 MiB of {GPU}, which has 64 MiB for models: it can never be awake"
    assert code != 0 and sentence in words and len(words.splitlines()) == 1, words

"""What can't be right in models.yaml, as a person meets it: `failover models check` and `failover models up` say a
sentence each, and nothing is started.
"""

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from pool.entries import State
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


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (
            {"large": {**MODEL, "memory": "200MiB"}},
            "large: memory: it takes 200 MiB of host:many, which has 160 MiB for models: it can never be awake",
        ),
        (
            {"a": MODEL, "b": {**MODEL, "aliases": ["a"]}},
            "a is a name of a and of b: a request for it could mean either",
        ),
        (
            {"a": {"engine": "command", "command": ["nosuchprogram", "{port}"]}},
            "a: command: nosuchprogram is no program that can be found",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["check", "up"])
def test_what_can_never_be_is_refused_by_check_and_at_the_start(
    house: House, verb: str, models: dict[str, Any], sentence: str
) -> None:
    code, words = said(house, json.dumps({**FILE, "models": models}), verb)
    assert code == (1 if verb == "check" else EX_USAGE) and sentence in words
    assert len(words.splitlines()) == 1 and not house.run_dir.exists(), words


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


@pytest.mark.skipif(bool(emulated_driver.why_not()), reason=emulated_driver.why_not() or "it can be had")
@pytest.mark.parametrize("verb", ["check", "up"])
def test_on_gpus_too_what_can_never_fit_is_refused_before_anything_runs(house: House, verb: str) -> None:
    (house.directory / "gpu").mkdir()
    house.environment.update(emulated_driver.environment(house.directory / "gpu", capacity=64 << 20))
    models = {"large": {**MODEL, "arguments": ["--kv-bytes", "96MiB"]}}
    code, words = said(house, json.dumps({"devices": [GPU], "models": models}), verb)
    sentence = f"it takes 96 MiB of {GPU}, which has 64 MiB for models: it can never be awake"
    assert code != 0 and sentence in words and len(words.splitlines()) == 1, words

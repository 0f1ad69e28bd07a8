"""The engine on a device: weights from a real GMS, a KV cache that has to be free, workers that can be killed."""

import json
import os
import signal
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_shim.engine import CannotRun, Setting, WorkerFailed
from gms.client import NotInTime
from gms.memory import OutOfMemory
from gms.memory.host import HostMemory
from reference_engine.engine import ReferenceEngine
from reference_engine.kv import block_bytes
from reference_engine.kv_prefix import blocks_for
from reference_engine.options import KV_BYTES, PRESETS, parse
from sidecar.terminal.exit_codes import EX_USAGE
from tests.gms.container import MIB, Container, containers, dead
from tests.reference_engine.serving import Client, ask, serving, unix
from tests.support.ports import free_port
from tests.support.waiting import until

NUMBERS = ("--layers", "2", "--width", "64", "--hidden", "96", "--max-model-len", "512")
GREEDY: dict[str, Any] = {"prompt": "Who is there?", "max_tokens": 12, "temperature": 0}
KV = ("--kv-bytes", "12MiB")


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    for container in containers():
        monkeypatch.setenv("FAILOVER_HOST_DEVICES", str(container.host_devices))
        yield container


@pytest.fixture
def engines(container: Container) -> Iterator[Callable[..., ReferenceEngine]]:
    made: list[ReferenceEngine] = []

    def make(role: str = "primary", *arguments: str) -> ReferenceEngine:
        words = (*NUMBERS, *KV, *arguments)
        made.append(ReferenceEngine(words, Setting(container.run_dir, f"engine-{len(made)}", role, words)))
        return made[-1]

    yield make
    for engine in made:
        engine.stop()


def free() -> int:
    memory = HostMemory("0")
    try:
        return memory.free()
    finally:
        memory.close()


def answer(engine: ReferenceEngine, path: Path) -> object:
    engine.serve(unix(path))
    status, body = ask(engine, "/v1/completions", {**GREEDY, "return_token_ids": True})
    assert status == 200
    return body["choices"]


def test_two_engines_share_one_copy_and_answer_alike(
    container: Container, engines: Callable[..., ReferenceEngine], tmp_path: Path
) -> None:
    container.serves()
    primary, shadow = engines("primary"), engines("shadow")
    for engine in (primary, shadow):
        engine.await_others()
        engine.start()
        assert engine.needs() == {"host:0": 12 * MIB}
        assert engine.well()
    weights = container.status().bytes
    assert weights < 8 * MIB
    assert free() == container.status().capacity - weights
    for engine in (primary, shadow):
        engine.sleep()
    container.shows(state="COMMITTED")
    primary.wake()
    path = tmp_path / "a.sock"
    assert not path.exists(), "it is awake, and doesn't serve yet"
    first = answer(primary, path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert free() == container.status().capacity - weights - 12 * MIB
    primary.stop()
    assert not path.exists()
    until(lambda: free() == container.status().capacity - weights, "its cache is given back")
    shadow.wake()
    assert answer(shadow, tmp_path / "b.sock") == first


def test_two_awake_engines_do_not_fit(container: Container, engines: Callable[..., ReferenceEngine]) -> None:
    container.serves(capacity=20 * MIB)
    awake, asleep = engines(), engines()
    for engine in (awake, asleep):
        engine.start()
        engine.sleep()
    awake.wake()
    with pytest.raises(OutOfMemory):
        asleep.wake()
    assert awake.well()


def test_a_slept_engine_holds_no_memory_but_the_weights_that_all_share(
    container: Container, engines: Callable[..., ReferenceEngine]
) -> None:
    container.serves()
    engine, phases = engines(), list[str]()
    assert engine._setting is not None
    engine._setting = replace(engine._setting, phase=lambda name, seconds: phases.append(name))
    engine.start()
    engine.sleep()
    before = free()
    for _ in range(3):
        engine.wake()
        assert free() == before - 12 * MIB
        engine.sleep()
        assert free() == before
    assert phases == ["remap", "kv"] * 3, "the parts of a wake are said"


def test_a_shadow_waits_for_a_writer_and_never_writes(
    container: Container, engines: Callable[..., ReferenceEngine]
) -> None:
    container.serves()
    shadow = engines("shadow", "--weights-timeout-s", "0.2")
    with pytest.raises(NotInTime):
        shadow.await_others()
    with pytest.raises(NotInTime):
        shadow.start()
    assert container.status().generation == 0


def test_a_shadow_that_waits_goes_on_when_a_primary_has_written(
    container: Container, engines: Callable[..., ReferenceEngine]
) -> None:
    container.serves()
    shadow = engines("shadow")
    waiting = threading.Thread(target=shadow.await_others)
    waiting.start()
    assert waiting.is_alive()
    engines("primary").start()
    waiting.join(20)
    assert not waiting.is_alive()
    shadow.start()


def test_weights_of_another_model_are_refused(container: Container, engines: Callable[..., ReferenceEngine]) -> None:
    container.serves()
    engines().start()
    with pytest.raises(CannotRun, match=r'"seed": 5.*failover down'):
        engines("shadow", "--seed", "5").start()


def test_a_model_that_names_anothers_weights_is_told_to_give_its_own_another_name(container: Container) -> None:
    container.serves()
    host = container.run_dir
    for name, *words in (("chat",), ("other", "--seed", "5")):
        arguments = (*NUMBERS, *KV, *words)
        setting = Setting(host / "lock" / name, "a", "primary", arguments, host_dir=host, weights="base")
        engine = ReferenceEngine(arguments, setting)
        try:
            if name == "chat":
                engine.start()
                continue
            with pytest.raises(CannotRun, match=r"share the weights base .*weights: NAME.*gmsctl drop base") as told:
                engine.start()
            assert "failover down" not in str(told.value)
        finally:
            engine.stop()


def test_a_server_that_died_while_the_engine_slept_costs_nothing(
    container: Container, engines: Callable[..., ReferenceEngine], tmp_path: Path
) -> None:
    program = container.serves()
    engine = engines()
    engine.start()
    engine.sleep()
    generation = container.shows(state="COMMITTED").generation
    program.close()
    container.serves()
    container.shows(state="COMMITTED", generation=generation)
    assert engine.well()
    engine.wake()
    assert answer(engine, tmp_path / "a.sock")


def test_an_engine_whose_weights_were_replaced_says_that_it_cannot_wake(
    container: Container, engines: Callable[..., ReferenceEngine]
) -> None:
    container.serves()
    sleeper = engines()
    sleeper.start()
    sleeper.sleep()
    assert sleeper.well()
    container.writer()
    until(lambda: not sleeper.well(), "it heard of it")


# -- workers -------------------------------------------------------------------------------------------------------


def workers(engine: ReferenceEngine) -> list[int]:
    assert engine._crew is not None
    return [worker.process.pid for worker in engine._crew._workers]


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["host:0", "host:0,host:1"])
def test_workers_have_their_share_of_the_cache_and_the_answer_is_the_same(
    container: Container, engines: Callable[..., ReferenceEngine], tmp_path: Path, devices: str
) -> None:
    container.serves(devices=devices)
    alone, many = engines(), engines("primary", "--workers", "2", "--devices", devices)
    for engine in (alone, many):
        engine.start()
        engine.sleep()
    assert sum(many.needs().values()) >= 12 * MIB
    assert set(many.needs()) == set(devices.split(","))
    assert many.well()
    before = free()
    many.wake()
    assert free() == before - many.needs()["host:0"]
    theirs = answer(many, tmp_path / "many.sock")
    many.stop()
    until(lambda: free() == before, "their caches are given back")
    alone.wake()
    assert answer(alone, tmp_path / "alone.sock") == theirs


def test_a_worker_that_is_killed_breaks_the_engine_and_the_answer_breaks_off() -> None:
    with serving("--standalone", *NUMBERS, "--workers", "1", "--tokens-per-s", "50") as engine:
        with Client(engine.address) as client:
            client.request("/v1/completions", {**GREEDY, "max_tokens": 400, "stream": True, "ignore_eos": True})
            assert client.head()[0] == 200
            next(client.events())
            os.kill(workers(engine)[0], signal.SIGKILL)
            assert "[DONE]" not in list(client.events())
        assert "worker 1" in engine.health().detail
        assert not engine.well()


@pytest.mark.slow
def test_a_worker_that_is_killed_asleep_is_noticed_and_a_wake_fails() -> None:
    engine = ReferenceEngine(("--standalone", *NUMBERS, "--workers", "2"))
    engine.start()
    try:
        engine.sleep()
        assert engine.well()
        os.kill(workers(engine)[1], signal.SIGKILL)
        until(lambda: not engine.well(), "it is missed")
        until(lambda: "worker 2" in engine.health().detail, "it is named")
        with pytest.raises(WorkerFailed):
            engine.wake()
    finally:
        engine.stop()


@pytest.mark.slow
def test_a_worker_that_does_not_answer_means_that_the_engine_cannot_wake() -> None:
    engine = ReferenceEngine(("--standalone", *NUMBERS, "--workers", "1"))
    engine.start()
    try:
        engine.sleep()
        os.kill(workers(engine)[0], signal.SIGSTOP)
        assert not engine.well()
    finally:
        engine.stop()


@pytest.mark.slow
def test_a_worker_dies_with_its_main_process(container: Container) -> None:
    listen = f"unix:{container.run_dir}/engine.sock"
    container.run_dir.mkdir()
    program = container.run(
        sys.executable, "-m", "reference_engine", "--standalone", "--workers", "1", "--listen", listen, *NUMBERS
    )
    program.out.with_words("serving")
    (worker,) = children(program.pid)
    program.process.kill()
    until(lambda: dead(worker), "the worker is dead")


def test_without_a_device_it_has_its_own_memory_and_needs_no_others(tmp_path: Path) -> None:
    words = (*NUMBERS, "--devices", "")
    engine = ReferenceEngine(words, Setting(tmp_path, "a", "shadow", words))
    engine.await_others()
    engine.start()
    try:
        engine.sleep()
        assert (engine.needs(), engine.well()) == ({}, True)
        engine.wake()
        assert answer(engine, tmp_path / "a.sock")
    finally:
        engine.stop()


# -- the program ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_without_kv_bytes_a_request_of_any_preset_fits(preset: str) -> None:
    options = parse(("--preset", preset), {})
    assert options.kv_bytes >= blocks_for(options.shape.max_len) * block_bytes(options.shape, options.shape.heads)
    assert options.kv_bytes == KV_BYTES or preset != "tiny"


def test_a_kv_cache_that_is_too_small_is_refused_with_what_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(("--preset", "medium", "--kv-bytes", "16MiB"), {})
    said = capsys.readouterr().err
    assert "give --kv-bytes 144MiB, or --max-model-len 224\n" in said
    for way in (("--kv-bytes", "144MiB"), ("--kv-bytes", "16MiB", "--max-model-len", "224")):
        parse(("--preset", "medium", *way), {})


@pytest.mark.parametrize(
    "words",
    [
        ("--heads", "5"),
        ("--workers", "4"),
        ("--kv-bytes", "1KiB"),
        ("--devices", "GPU-1234"),
        ("--preset", "huge"),
        ("--tokens-per-s", "-1"),
        ("--seed", "x"),
        ("surplus",),
    ],
)
def test_arguments_that_are_no_good_are_refused_in_a_sentence(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        ReferenceEngine(words)
    assert ended.value.code == EX_USAGE
    said = capsys.readouterr().err
    assert said.count("\n") == 2
    assert "Traceback" not in said


# -- under a shim --------------------------------------------------------------------------------------------------


def state(port: int) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return {"state": "not there yet", "processes": 0, "deaths": 0}


@pytest.mark.chaos
def test_under_a_shim_workers_are_of_the_tree_and_the_death_of_one_begins_it_anew(container: Container) -> None:
    container.run(sys.executable, "-m", "lockserver", "--run-dir", str(container.run_dir), "--memory", "host")
    container.serves()
    port = free_port()
    who = ("--engine", "reference", "--engine-id", "a", "--role", "primary", "--run-dir", str(container.run_dir))
    shim = container.run(
        *(sys.executable, "-m", "engine_shim", *who, "--probe", f"127.0.0.1:{port}"),
        *("--", *NUMBERS, *KV, "--workers", "2"),
    )
    until(lambda: state(port)["state"] == "Active", "it serves")
    before = state(port)
    assert before["processes"] == 3
    main = children(shim.pid)[0]
    os.kill(children(main)[-1], signal.SIGKILL)
    until(lambda: state(port)["deaths"] == 1 and state(port)["state"] == "Active", "it serves again")
    assert state(port)["token"] > before["token"]
    body = json.dumps(GREEDY).encode()
    with Client(state(port)["url"]) as client:
        assert client.ask("/v1/completions", body)[0] == 200
    until(lambda: dead(main), "the first tree is gone")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

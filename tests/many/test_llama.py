"""llama.cpp for real behind `command:`, beside a model that sleeps in place, on a host where one of them fits."""

import itertools
import json
import sys
from functools import partial
from pathlib import Path

import pytest

from pool.entries import State
from sidecar.kernel import process_tree
from tests.engine.shims import House
from tests.gateway.door import Stream
from tests.many.host import Host
from tests.many.llama_server import make_model
from tests.support.processes import Process

pytest.importorskip("xllamacpp", reason="llama.cpp isn't installed in this Python: make test-llama")
TOKENS = 400
PROMPTS = ("the other one is awake", "one engine sleeps while the other one is awake, " * 6)


@pytest.fixture
def host(house: House, tmp_path: Path) -> Host:
    model = make_model(tmp_path / "tiny.gguf")
    command = [sys.executable, "-m", "tests.many.llama_server", str(model), "{port}"]
    models = {"llama": {"engine": "command", "command": command, "arguments": []}, "one": {}}
    return Host(house, models, capacity="128MiB", drain_s=0.05, swap_share=0.5)


def text(stream: Stream) -> str:
    assert (stream.status, stream.whole, stream.error) == (200, True, ""), (stream.error, stream.raw[-600:])
    said = [json.loads(event.removeprefix(b"data: ")) for event in stream.events if not event.endswith(b"[DONE]")]
    return "".join(choice["text"] for one in said for choice in one["choices"])


def servers(host: Host) -> list[Process]:
    lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in process_tree.descendants(host.up.pid)}
    return [
        Process(pid) for pid, line in lines.items() if b"tests.many.llama_server\0" in line and b"{port}" not in line
    ]


def test_it_takes_turns_with_another_model_and_no_answer_is_cut_or_another(host: Host) -> None:
    host.ready()
    asked = {
        (name, prompt): host.stream(name, prompt, TOKENS, cache_prompt=False, ignore_eos=True)
        for name, prompt in itertools.product(host.models, PROMPTS)
    }
    alone = {which: text(host.run([stream])[0]) for which, stream in asked.items()}
    assert len(set(alone.values())) == len(asked)
    begun = sum(one.swaps for one in host.shown())
    for _ in range(3):
        again = {which: Stream(stream.body) for which, stream in asked.items()}
        host.run(again.values())
        assert {which: text(stream) for which, stream in again.items()} == alone
    assert sum(one.swaps for one in host.shown()) > begun and not sum(one.failures for one in host.shown())


def test_its_end_is_proven_before_another_has_its_memory_and_killed_it_is_back(host: Host) -> None:
    host.ready()
    text(host.run([host.stream("llama", "x", 8)])[0])
    first = servers(host)
    assert first
    text(host.run([host.stream("one", "x", 8)])[0])
    assert all(process.dead for process in first) and not servers(host), "it was stopped, and is gone"
    text(host.run([host.stream("llama", "x", 8)])[0])
    (server,) = servers(host)[-1:]
    server.kill()
    host.until(partial(lambda: host.states().get("llama") in (State.ASLEEP, State.AWAKE)), "llama is well again")
    text(host.run([host.stream("llama", "x", 8)])[0])

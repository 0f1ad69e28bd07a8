"""The whole of it with nothing played but the cluster: controller, requesters, `failover models up` with reference
engines on one node of two accelerators, and clients that ask through a requester's port.
"""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.shell.view import WATCHERS_MOST
from gms.observer import Observer as Gms
from lockserver.observer import Observer as Lock
from lockserver.rules.messages import HolderState
from sidecar.kernel import peers, process_tree
from tests.dual_pods.cluster import Cluster, ask, cluster
from tests.dual_pods.rehearse import Rehearsal
from tests.support import tmpfs
from tests.support.processes import ROOT
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


@pytest.fixture
def it() -> Iterator[Cluster]:
    with tmpfs.directory("dual") as directory, cluster(directory, {"n1": ["host:d0", "host:d1"]}) as made:
        made.real_pools = True
        made.controller()
        yield made


def _create(
    it: Cluster, name: str, serves: str, seed: int, *more: str, standby: bool = False, memory: str = "96MiB"
) -> None:
    words = ["--seed", str(seed), *more]
    model = f"{{engine: reference, arguments: {words}, memory: {memory}, standby: {str(standby).lower()}}}"
    it.request(name, serves, model=model)


def _request(it: Cluster, name: str, serves: str, seed: int, *more: str, **its: Any) -> None:
    _create(it, name, serves, seed, *more, **its)
    it.until_ready(name)


def _text(it: Cluster, requester: str, model: str) -> str:
    url = f"http://{it.pod(requester)['status']['podIP']}:8000/v1/completions"
    said = ask(url, {"model": model, "prompt": "The first thing", "max_tokens": 8, "temperature": 0})
    assert "choices" in said, said
    return str(said["choices"][0]["text"])


def _gone(it: Cluster, name: str) -> None:
    it.delete(name)
    until(lambda: not it.pod(name), f"{name} has gone")


def test_a_requester_is_created_answers_goes_and_the_next_one_wakes_what_it_left(it: Cluster) -> None:
    """A further one has an instance of its own; and one that sleeps isn't asked."""
    _request(it, "a", "qwen", 1)
    before = _text(it, "a", "qwen")
    _gone(it, "a")
    until(lambda: it.states() == ["asleep"], "its instance sleeps")
    _request(it, "b", "qwen", 1)
    assert _text(it, "b", "qwen") == before
    it.until_event("b", "Waking")
    _request(it, "c", "qwen", 1)
    assert it.states() == ["awake", "awake"]
    _gone(it, "b")
    until(lambda: it.states() == ["asleep", "awake"], "the instance of the one that went sleeps")
    for _ in range(5):
        assert _text(it, "c", "qwen") == before
    assert it.states() == ["asleep", "awake"]


def test_two_models_take_turns_on_one_accelerator_that_has_no_room_for_both(it: Cluster) -> None:
    it.gpus["n1"] = ["host:d0"]
    texts = dict[str, str]()
    for round_ in range(2):
        for seed, model in enumerate(("qwen", "llama")):
            name = f"{model}-{round_}"
            _request(it, name, model, seed, memory="200MiB")
            assert texts.setdefault(model, _text(it, name, model)) == _text(it, name, model)
            awake = [shown["name"] for shown in it.pool()["models"] if shown["state"] == "awake"]
            assert awake == [it.instance_of(name)]
            _gone(it, name)
    until(lambda: it.states() == ["asleep", "asleep"], "both sleep")
    it.until_event("llama-1", "Waking")
    assert texts["qwen"] != texts["llama"]


def test_an_instance_that_takes_more_requests_at_a_time_has_the_weights_of_the_one_that_sleeps(it: Cluster) -> None:
    """And a kill -9 of the pool wakes none that sleeps beside the one that is awake."""
    it.gpus["n1"] = ["host:d0"]

    def written() -> tuple[dict[str, int], int]:
        with Gms(it.directory / "run-n1", "host:d0") as gms:
            status = gms.status()
        regions = {one.key: one.generation for one in status.regions if one.policy == "shared" and one.bytes}
        return regions, status.events["writing"]

    _request(it, "a", "qwen", 1, "--max-batch", "2")
    before, first = _text(it, "a", "qwen"), written()
    sleeps = it.directory / "run-n1" / "lock" / it.instance_of("a")
    assert len(first[0]) == first[1] == 1
    _gone(it, "a")
    until(lambda: it.states() == ["asleep"], "its instance sleeps")
    _request(it, "b", "qwen", 1, "--max-batch", "8")
    assert _text(it, "b", "qwen") == before and written() == first
    assert it.states() == ["asleep", "awake"] and {one["weights_name"] for one in it.pool()["models"]} == {*first[0]}
    pool = it.directory / "run-n1" / "pool.sock"
    token, killed = _token(sleeps), _pid_of(pool)
    os.kill(killed, signal.SIGKILL)
    until(lambda: _pid_of(pool) not in (0, killed), "another pool has begun")
    _gone(it, "b")
    until(lambda: it.states() == ["asleep", "asleep"], "it has done what it was asked")
    assert _token(sleeps) == token


def test_with_a_standby_a_kill_9_of_the_bound_engine_is_a_pause(it: Cluster) -> None:
    _request(it, "a", "qwen", 1, standby=True)
    before = _text(it, "a", "qwen")
    lock = it.directory / "run-n1" / "lock" / it.instance_of("a")
    for _ in range(2):
        killed = until(partial(_whole, lock), "one engine serves, and the other one waits")
        os.kill(killed.pid, signal.SIGKILL)
        assert _text(it, "a", "qwen") == before
        assert until(partial(_whole, lock), "so it is again").engine_id != killed.engine_id
    log = (it.directory / "a.log").read_text()
    assert it.is_ready("a") and log.count(" unready ") == 1, f"it was unready before its first answer alone:\n{log}"


def test_a_requester_is_ready_only_where_its_ports_lead_to_its_instance(it: Cluster) -> None:
    """A pool's door that begins anew has other ones for its models, and only a controller tells which."""
    _request(it, "a", "qwen", 1)
    before = _text(it, "a", "qwen")
    it.kill_controllers()
    [pod] = it.servers()
    [door] = _parts_of(it, pod, b"\0-m\0gateway\0")
    os.kill(door, signal.SIGKILL)
    until(lambda: not it.is_ready("a"), "kubelet hears that it isn't Ready")
    until(lambda: _is_awake(it), "the next door leads to its instance, and it doesn't")
    assert not it.is_ready("a")
    it.controller()
    it.until_ready("a")
    assert _text(it, "a", "qwen") == before


def test_however_many_watch_a_pool_the_next_controller_hears_it(it: Cluster) -> None:
    """As many as a door lets anybody: with these, those of 32 requesters whose instances are awake."""
    _request(it, "a", "qwen", 1)
    it.kill_controllers()
    ip = it.servers()[0]["status"]["podIP"]
    with contextlib.ExitStack() as watching:
        for _ in range(WATCHERS_MOST - 1):
            until(lambda: _watches(ip, watching), "there is room for another one")
        it.controller()
        _create(it, "b", "qwen", 1)
        it.until_event("b", "Launching")


def _watches(ip: str, watching: contextlib.ExitStack) -> bool:
    connection = watching.enter_context(contextlib.closing(http.client.HTTPConnection(ip, 8000, timeout=10)))
    connection.request("GET", "/failover/models?watch=1")
    return connection.getresponse().status == 200


def _is_awake(it: Cluster) -> bool:
    with contextlib.suppress(OSError):
        return it.states() == ["awake"]
    return False


def _parts_of(it: Cluster, pod: dict[str, Any], words: bytes) -> list[int]:
    """The processes of a server pod whose command has these."""
    every = process_tree.descendants(it.running[pod["metadata"]["uid"]].process.pid)
    return [pid for pid in every if words in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _pid_of(path: Path) -> int:
    """Of the process that listens there."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as it, contextlib.suppress(OSError):
        it.connect(f"{path}")
        return peers.credentials(it).pid
    return 0


def _token(lock: Path) -> int:
    with Lock(lock) as observer:
        return next(observer.watch()).token


def test_what_is_typed_in_a_rehearsal_happens(it: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    words = Rehearsal(it, "127.0.0.1:0").words
    words["request"]("a")
    it.until_ready("a")
    lock = it.directory / "run-n1" / "lock" / it.instance_of("a")
    before = _token(lock)
    words["kill"]("a")
    until(lambda: _token(lock) > before, "its engine serves anew")
    words["says"]("a")
    assert "instance" in capsys.readouterr().out
    words["kill"]("controller")
    words["delete"]("a")
    words["controller"]()
    until(lambda: it.states() == ["asleep"], "its instance sleeps")
    words["request"]("b")
    it.until_ready("b")
    words["kill"]("pool")
    until(lambda: not it.is_ready("b"), "what it ran has ended")
    it.until_ready("b")


def test_a_rehearsal_ends_with_its_input() -> None:
    command = [sys.executable, "-m", "tests.dual_pods.rehearse", "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, input="kill\nnonsense a\n", capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and "nonsense a: no such command" in done.stdout


def _whole(lock: Path) -> HolderState | None:
    """Which engine serves, while another one is there to take over."""
    with Lock(lock) as observer:
        status = next(observer.watch())
    return status.holder if status.waiters and status.holder is not None and status.holder.endpoint else None


def test_a_pool_that_hangs_behind_its_door_is_heard_before_its_accelerator_is_given_on(it: Cluster) -> None:
    """Its door answers, and shows what the pool said before: that nothing wakes there."""
    it.gpus["n1"] = ["host:d0"]
    for seed, name in enumerate(("qwen", "llama")):
        _request(it, name, name, seed, memory="90MiB")
        _gone(it, name)
        until(lambda: {*it.states()} == {"asleep"}, "its instance sleeps")
    [pod] = it.servers()
    [pool] = _parts_of(it, pod, b"\0-m\0pool\0")
    os.kill(pool, signal.SIGSTOP)
    try:
        _create(it, "qwen", "qwen", 0, memory="90MiB")
        log = it.directory / "controller-0.log"
        until(lambda: "/wake: no answer within" in log.read_text(), "its wake goes unanswered")
        it.delete("qwen", gracePeriodSeconds="0")
        _create(it, "llama", "llama", 1, memory="90MiB")
        until(lambda: "n1-dual hasn't said yet what it runs" in it.says("llama"), "the next one waits for the pool")
    finally:
        os.kill(pool, signal.SIGCONT)
    shown = [model["state"] for model in it.pool()["models"]]
    while not it.is_ready("llama"):
        assert shown.count("awake") + shown.count("waking") <= 1, shown
        shown = it.states()


def test_a_door_that_begins_anew_and_has_not_heard_its_pool_yet_is_no_word_that_nothing_runs(it: Cluster) -> None:
    """It shows no models for a moment. A pool that is empty, and asked for by none, would go, and all that sleeps."""
    _request(it, "a", "qwen", 1)
    before = _text(it, "a", "qwen")
    _gone(it, "a")
    until(lambda: it.states() == ["asleep"], "its instance sleeps")
    [pod] = it.servers()
    [pool], [door] = (_parts_of(it, pod, words) for words in (b"\0-m\0pool\0", b"\0-m\0gateway\0"))
    os.kill(pool, signal.SIGSTOP)
    try:
        os.kill(door, signal.SIGKILL)
        until(lambda: _shows(it) == ("away", []), "the next door knows of nothing")
        _create(it, "b", "qwen", 1)
        until(lambda: "n1-dual hasn't said yet what it runs" in it.says("b"), "the controller takes it for no word")
    finally:
        os.kill(pool, signal.SIGCONT)
    it.until_ready("b")
    assert _text(it, "b", "qwen") == before and it.servers()[0]["metadata"]["uid"] == pod["metadata"]["uid"]
    it.until_event("b", "Waking")


def _shows(it: Cluster) -> tuple[str, list[str]] | None:
    with contextlib.suppress(OSError):
        return it.pool()["pool"], it.states()
    return None

"""The engine `command`: any program with an endpoint, started by a wake and ended by a sleep, with all that it left."""

import http.client
import http.server
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from engine_shim import command_engine
from engine_shim.cli.models_parts import Options, engines
from engine_shim.command_engine import CommandEngine
from engine_shim.engine import Setting, WorkerFailed
from pool.entries import Entry
from pool.models_file import ModelsFile
from sidecar.kernel import peers, port_owner, process_tree
from tests.engine.kinds import Kind
from tests.engine.shims import House, Shim
from tests.support.processes import Process, run_to_end
from tests.support.waiting import until

SERVED = Kind("command", "command", (sys.executable, "-m", "tests.engine.served", "{port}"), "/")


def shim_of(house: House) -> Shim:
    house.start_lock("--memory", "none")
    shim = house.shim(SERVED, "a", "--health", "/healthz")
    house.until_announced(shim)
    return shim


def asked(house: House, body: bytes | None = None) -> str:
    host = house.endpoint().removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("POST" if body else "GET", "/", body)
    answer = connection.getresponse()
    assert answer.status == 200
    return answer.read().decode()


def below(shim: Shim) -> list[Process]:
    """What the command is, and has left behind."""
    main = shim.main()
    return [Process(pid) for pid in process_tree.descendants(main.pid)]


def test_a_wake_starts_it_and_a_sleep_ends_all_of_it(house: House) -> None:
    shim = shim_of(house)
    main = shim.main()
    for _ in range(2):
        pid, token = asked(house).split()
        status = house.status()
        assert status is not None and status.holder is not None
        assert token == str(status.holder.token) and int(pid) in [member.pid for member in status.holder.members]
        ran = below(shim)
        assert len(ran) == 3, "a guard, the command, and what it left"
        code, said = house.lockctl("sleep")
        assert code == 0, said
        assert all(process.dead for process in ran) and below(shim) == []
        shim.until("Standby", ready=True)
        code, said = house.lockctl("wake")
        house.until_announced(shim)
    assert not main.dead


def test_an_answer_that_is_under_way_is_finished_first(house: House) -> None:
    shim_of(house)
    answers: list[str] = []
    client = threading.Thread(target=lambda: answers.append(asked(house, b"a question")))
    client.start()
    host, _, port = house.endpoint().removeprefix("http://").rpartition(":")
    until(lambda: port_owner.clients(int(port)) and host, "it is asked")
    code, said = house.lockctl("sleep")
    assert code == 0, said
    client.join()
    assert answers == ["an answer"]


def test_one_that_was_put_to_sleep_ends_no_engine_however_late_that_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that minded it came to see its end after the next wake, and ended the engine."""

    def late(pidfd: int) -> bool:
        go_on.wait()
        return True

    def failing(why: str) -> None:
        failed.append(why)
        sys.exit()  # this thread, before it ends the process

    failed, go_on = list[str](), threading.Event()
    engine = CommandEngine(Setting(tmp_path, "a", "", SERVED.arguments, health="/healthz", failing=failing))
    with monkeypatch.context() as changed:
        changed.setattr(peers, "await_end", late)
        engine.wake()
    (minding,) = [thread for thread in threading.enumerate() if thread.name == "command"]
    engine.sleep()
    engine.wake()
    go_on.set()
    minding.join()
    engine.stop()
    assert not failed


def test_no_other_program_answers_for_it_that_has_taken_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads for a minute before it listens, and clients would have another program's answers for so long."""

    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    other = http.server.HTTPServer(("127.0.0.1", 0), Healthy)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    monkeypatch.setattr(command_engine, "_free_port", lambda: other.server_port)
    loads = (sys.executable, "-c", "import time; time.sleep(60)", "{port}")
    engine = CommandEngine(Setting(tmp_path, "a", "", loads, health="/healthz"))
    try:
        with pytest.raises(WorkerFailed, match=rf"^process {os.getpid()} .* listens on port {other.server_port}"):
            engine.wake()
    finally:
        engine.stop()
        other.shutdown()
        other.server_close()


def test_its_health_may_be_asked_for_while_it_is_put_to_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor that is looked at was closed meanwhile, and could have been another file's."""

    def meanwhile(pidfd: int) -> bool:
        monkeypatch.undo()
        engine.sleep()
        return peers.is_dead(pidfd)

    engine = CommandEngine(Setting(tmp_path, "a", "", SERVED.arguments, health="/healthz"))
    engine.wake()
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(peers, "is_dead", meanwhile)
    assert engine.health().detail == "its command has ended"
    until(lambda: len(os.listdir("/proc/self/fd")) < before, "it is closed once no thread has it")


def test_its_end_is_its_engines_and_that_is_proven_like_any(house: House) -> None:
    shim = shim_of(house)
    for which in ("command", "main process"):
        ran, first = below(shim), asked(house)
        (shim.main() if which == "main process" else Process(int(first.split()[0]))).kill()
        for process in ran:
            process.wait()
        token = int(first.split()[1])
        until(lambda token=token: serves_anew(house, token), f"another serves after the end of its {which}")  # type: ignore[misc]
        assert int(asked(house).split()[1]) > token
        assert which != "command" or "has ended by itself" in shim.state()["last_end"]


def serves_anew(house: House, before: int) -> bool:
    status = house.status()
    return status is not None and status.holder is not None and status.holder.token > before and bool(house.endpoint())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "which command? Put it behind --"),
        (("/nonexistent/llama-server", "--port", "{port}"), "there is no such command"),
        ((sys.executable, "-m", "http.server"), "write {port} where it is to stand"),
    ],
)
def test_a_mistake_is_a_sentence(house: House, words: tuple[str, ...], why: str) -> None:
    run_dir = str(house.run_dir)
    main = (
        "engine_shim.shell.main_process",
        "--engine",
        "command",
        "--engine-id",
        "a",
        "--run-dir",
        run_dir,
        "--check",
    )
    code, _, err = run_to_end(sys.executable, "-m", *main, "--", *words)
    assert code == 64 and why in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("entry", "environment", "sees"),
    [
        ({"devices": ["GPU-b"]}, {}, "GPU-b"),
        ({"devices": ["GPU-b"]}, {"CUDA_VISIBLE_DEVICES": "0,1"}, "GPU-b"),
        ({}, {}, "GPU-a,GPU-b"),
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}, None),
        ({"devices": ["GPU-b"], "environment": {"CUDA_VISIBLE_DEVICES": "7"}}, {}, "7"),
        ({"devices": ["host:0"]}, {}, None),
    ],
)
@pytest.mark.parametrize("command", [["llama-server", "{port}"], []])
def test_each_of_many_models_sees_the_gpus_that_it_leases(
    entry: dict[str, Any], environment: dict[str, str], sees: str | None, command: list[str]
) -> None:
    """An engine of the house, too: vLLM takes the first that it sees."""
    model = Entry(name="it", engine="command" if command else "vllm", command=command, **entry)
    options = Options(Path("run"), Path("file"), ModelsFile(), ("cuda",), ("127.0.0.1", 1), 1.0, environment)
    (child,) = engines(options, model, list(model.devices) or ["GPU-a", "GPU-b"])
    assert child.environment.get("CUDA_VISIBLE_DEVICES") == sees


def test_none_of_many_models_leases_elsewhere_than_its_pool_knows() -> None:
    model = Entry(name="it", engine="reference", environment={"REFERENCE_DEVICES": "host:a", "X": "y"})
    options = Options(Path("run"), Path("file"), ModelsFile(), ("host:a", "host:b"), ("127.0.0.1", 1), 1.0)
    (child,) = engines(options, model, ["host:b"])
    assert child.environment == {"REFERENCE_DEVICES": "host:b", "X": "y"}


@pytest.mark.parametrize(
    ("here", "its_own", "most_s"),
    [
        ({}, {}, "600"),
        ({"FAILOVER_ENGINES_WAKING_TIMEOUT_S": "900"}, {}, "900"),
        ({"FAILOVER_WAKING_TIMEOUT_S": "900"}, {}, None),
        ({}, {"FAILOVER_WAKING_TIMEOUT_S": "30"}, "30"),
    ],
)
def test_one_of_many_models_has_time_to_load_as_it_wakes(
    here: dict[str, str], its_own: dict[str, str], most_s: str | None
) -> None:
    """One that loads for more than a minute was killed at each wake, and never served."""
    options = Options(Path("run"), Path("file"), ModelsFile(), ("cuda",), ("127.0.0.1", 1), 1.0, here)
    command = Entry(name="it", engine="command", command=["llama-server", "{port}"], environment=its_own)
    (child,) = engines(options, command, ["GPU-a"])
    assert child.environment.get("FAILOVER_WAKING_TIMEOUT_S") == most_s
    (child,) = engines(options, Entry(name="it", engine="vllm"), ["GPU-a"])
    assert child.environment.get("FAILOVER_WAKING_TIMEOUT_S") in (None, here.get("FAILOVER_ENGINES_WAKING_TIMEOUT_S"))

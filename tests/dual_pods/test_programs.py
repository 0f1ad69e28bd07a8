"""The programs' doors: flags, files and environments that are wrong get a sentence, and an exit code that says it."""

import http.server
import inspect
import json
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dual_pods.cli import controller, dualctl, requester
from dual_pods.rules.facts import Instance
from dual_pods.shell import devices, pages
from sidecar.terminal.cannot_start import CannotStart
from tests.support.answering import Answering

Main = Callable[[list[str]], int]


@pytest.mark.parametrize(
    ("main", "words", "code", "says"),
    [
        (controller.main, [], 64, "--server-pod is needed"),
        (controller.main, ["--server-pod", "/none"], 64, "No such file"),
        (controller.main, ["--server-pod", "BAD"], 64, "holds no pod"),
        (controller.main, ["--server-pod", "ODD"], 64, "holds no pod"),
        (controller.main, ["--mode", "fast"], 64, "allowed: direct, sleep, swap"),
        (controller.main, ["--mode", "direct"], 64, "this is no pod of a cluster"),
        (controller.main, ["--mode", "direct", "--sleepers", "much"], 64, "is no size"),
        (controller.main, ["--mode", "direct", "--api-server", "http://host:99999"], 64, "is no URL"),
        (controller.main, ["--mode", "direct", "--prometheus", "prometheus:9090"], 64, "is no URL"),
        (requester.main, ["--relay-port", "99999"], 64, "is no port"),
        (requester.main, ["--relay-port-1=x"], 64, "is no port"),
        (requester.main, ["--admin-port", "8001", "--relay-port", "8000,8080"], 64, "port 8080 can't lead to"),
        (requester.main, ["--relay-prot", "8000"], 64, "did you mean --relay-port?"),
        (dualctl.main, [], 64, "required: status"),
        (dualctl.main, ["status", "--controller", "http://127.0.0.1:1"], 2, "no controller answers"),
        (dualctl.main, ["status", "--controller", "http://[x"], 64, "is no URL"),
        (dualctl.main, ["status"], 2, "there is no kubectl here"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    main: Main, words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    bad = tmp_path / "bad.yaml"
    bad.write_text("spec: {containers: [{image: x}]}")
    odd = tmp_path / "odd.yaml"
    odd.write_text("{metadata: {labels: [a]}, spec: {containers: [{name: x}]}}")
    files = {"BAD": str(bad), "ODD": str(odd)}
    try:
        found = main([files.get(word, word) for word in words])
    except SystemExit as ends:
        found = int(str(ends.code))
    assert (found, says in capsys.readouterr().err) == (code, True)


def test_a_controller_takes_all_the_descriptors_that_it_may_have() -> None:
    """A container may begin with 1,024, and it has a connection to each requester and each server pod."""
    limited = ["sh", "-c", 'ulimit -Sn 100; exec "$@"', "sh", sys.executable, "-m", "dual_pods.cli.controller"]
    flags = ["--mode", "direct", "--api-server", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*limited, *flags], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        try:
            assert any(b" started " in line for line in process.stderr)
            soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        finally:
            process.kill()
    assert soft == hard > 100


@pytest.fixture
def answers() -> Iterator[tuple[str, dict[str, Any]]]:
    said: dict[str, Any] = {}

    class Handler(Answering):
        def do_GET(self) -> None:
            self.answer(200, json.dumps(said))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", said
        server.shutdown()


def test_status_says_what_each_waits_for(
    answers: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, said = answers
    assert dualctl.main(["status", "--controller", url]) == 2
    assert "isn't understood" in capsys.readouterr().err
    asks = {"name": "a", "node": "", "phase": "starting", "says": "no node was found for it: 0/3", "accelerators": [],
            "instance": "", "server": "", "created": 0.0}  # fmt: skip
    sleeps = {"id": "i1", "state": "asleep", "why": "", "accelerators": ["GPU-0"], "requester": "", "last_used": 0.0,
              "bytes": {"GPU-0": 9 << 30}, "asleep_bytes": {"GPU-0": 1 << 30, "host": 40 << 30},
              "weights": {"GPU-0": 512 << 20}}  # fmt: skip
    servers: list[dict[str, Any]] = [
        {"name": "n1-dual", "node": "n1", "how": "running", "why": "", "instances": [sleeps]},
        {"name": "n2-dual", "node": "n2", "how": "starting", "why": "ErrImagePull", "instances": []},
    ]
    said |= {"leads": True, "token": 7, "requesters": [asks], "servers": servers}
    assert dualctl.main(["status", "--controller", url]) == 1
    shown = capsys.readouterr().out
    assert "no node was found for it: 0/3" in shown and "starting: ErrImagePull" in shown
    assert [line.split()[-3:] for line in shown.splitlines() if "i1" in line] == [["1.5", "GiB", "-"]]
    sleeps |= {"state": "off"}
    servers[0] |= {"how": "leaving", "why": "node n1 isn't there"}
    assert dualctl.main(["status", "--controller", url]) == 1
    [line] = [line for line in capsys.readouterr().out.splitlines() if "i1" in line]
    assert line.split()[-3:] == ["512", "MiB", "-"] and "off; its pod is leaving: node n1 isn't there" in line
    asks["says"] = "http://10.0.0.1/v1 says 500: no\n\x1b[2J\rb  n1  GPU-0  ready"
    assert dualctl.main(["status", "--controller", url]) == 1
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable() and "says 500: no  [2J b  n1" in shown, "no terminal obeys a pod"
    said |= {"leads": False}
    assert dualctl.main(["status", "--controller", url]) == 1
    assert "doesn't lead: the other replica does" in capsys.readouterr().out
    said |= {"blind": "the Lease can't be had\x1b[2J"}
    assert dualctl.main(["status", "--controller", url]) == 1
    assert "doesn't lead: the Lease can't be had [2J\n" in capsys.readouterr().out


def test_each_field_of_json_is_explained() -> None:
    """`servers` and `requesters` have those of `dual_pods/shell/pages.py`."""
    words = set(re.findall(r"\w+", dualctl.EXAMPLES))
    shown = set(re.findall(r'"(\w+)": ', inspect.getsource(pages.state)))
    assert {*shown, *(field.name for field in fields(Instance))} <= words


def test_kubernetes_is_asked_again_until_the_one_that_leads_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing: dict[str, Any] = {"token": 7, "requesters": [], "servers": []}
    said = [nothing | {"leads": leads} for leads in (False, False, True)]
    monkeypatch.setattr(dualctl, "_through_kubectl", lambda options: json.dumps(said.pop(0)).encode())
    assert dualctl.main(["status"]) == 0 and not said
    assert "doesn't lead" not in capsys.readouterr().out


def test_a_watch_goes_on_while_the_controller_is_exchanged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[dict[str, Any]] = [{"leads": True, "token": token, "requesters": [], "servers": []} for token in (1, 2)]

    def look(options: object) -> dict[str, Any]:
        if len(said) == 1 and not capsys.readouterr().err:
            raise dualctl.NoController("no controller answers")
        if not said:
            raise KeyboardInterrupt
        return said.pop(0)

    monkeypatch.setattr(dualctl, "_look", look)
    assert dualctl.main(["status", "--watch", "--json", "--every-s", "0.001"]) == 130 and not said


@pytest.mark.parametrize(
    ("said", "environment", "found"),
    [
        ("a,b", {"CUDA_VISIBLE_DEVICES": "c"}, ["a", "b"]),
        ("", {"CUDA_VISIBLE_DEVICES": "GPU-1, GPU-2", "NVIDIA_VISIBLE_DEVICES": "x"}, ["GPU-1", "GPU-2"]),
        ("", {"NVIDIA_VISIBLE_DEVICES": "GPU-3"}, ["GPU-3"]),
        ("", {"NVIDIA_VISIBLE_DEVICES": "void"}, None),  # DRA: what the driver shows
        ("", {"NVIDIA_VISIBLE_DEVICES": "all"}, None),
        ("", {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}, None),  # the plugin's `volume-mounts`
    ],
)
def test_accelerators_are_what_gave_them_says_else_what_the_driver_shows(
    said: str, environment: dict[str, str], found: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "memory_mib", lambda: {"GPU-9": 0})
    assert devices.names(said, environment) == (found or ["GPU-9"])


def test_the_memory_in_use_is_said_by_uuid_and_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """`CUDA_VISIBLE_DEVICES=1` names an accelerator by its number."""
    monkeypatch.setattr(devices, "memory_mib", lambda: {"GPU-9": 5, "GPU-7": 6})
    assert devices.memory_in_use() == {"GPU-9": 5, "GPU-7": 6, "0": 5, "1": 6}


def test_a_comment_in_the_file_of_keys_is_no_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the pools\n\n  one \ntwo\n")
    assert controller._first_key(file) == "one"
    file.write_text("# none yet\n")
    with pytest.raises(CannotStart, match="there is no key in it"):
        controller._first_key(file)


def test_without_a_driver_a_sentence_says_so() -> None:
    with pytest.raises(devices.NoDevices):
        devices.names("", {})

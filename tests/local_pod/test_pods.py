"""Real pods of small containers, as an ordinary user: what a container sees, and what kubelet does with it."""

import json
import os
import signal
import socket
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.local_pod.ordinary import PATIENCE_S, Place, Refused, running
from tests.local_pod.pair import sh
from tests.support.ports import free_port
from tests.support.processes import cmdline, run_here
from tests.support.waiting import until
from tools.local_pod.__main__ import main

pytestmark = pytest.mark.slow
QUICK = ("--relist-s", "0.1", "--startup-period-s", "0.1", "--back-off-s", "0.5", "--no-lint")
USER = 2000 if os.getuid() == 0 else os.getuid()
LOCKED = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SERVER = """
import http.server, os, sys, socket
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        code = 200 if os.path.exists('/run/pod' + self.path) else 503
        self.send_response(code); self.end_headers(); self.wfile.write(b'here')
    def log_message(self, *words): pass
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
print('serving', flush=True)
Server((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


def shell(name: str, script: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "x", "command": ["sh", "-c", script], "securityContext": LOCKED, **fields}


def server(name: str, port: int, host: str = "0.0.0.0", **fields: Any) -> dict[str, Any]:
    command = ["python3", "-c", SERVER, host, str(port)]
    mounts = [{"name": "run", "mountPath": "/run/pod"}]
    return {"name": name, "image": "x", "command": command, "securityContext": LOCKED, "volumeMounts": mounts, **fields}


def pod(here: Place, *containers: dict[str, Any], **spec: Any) -> str:
    """Writes the manifest; its path."""
    context = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    volumes = [{"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    whole = {
        "enableServiceLinks": False,
        "securityContext": context,
        "volumes": volumes,
        "containers": list(containers),
    }
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {**whole, **spec}}
    path = here.directory / "pod.yaml"
    path.write_text(yaml.safe_dump(document))
    path.chmod(0o644)
    return str(path)


def flips(here: Place) -> list[str]:
    return [event["event"] for event in here.events() if event["event"] in ("ready", "not_ready")]


FOREVER = "exec sleep 1000000"


# -- what a container sees ---------------------------------------------------------------------------------------------


def test_what_a_container_is_and_sees(here: Place) -> None:
    mounts = [{"name": "run", "mountPath": "/run/pod"}]
    conf = here.directory / "conf"
    conf.mkdir()
    (conf / "k").write_text("value")
    volumes = [
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "conf", "hostPath": {"path": str(conf)}},
    ]
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    one = shell("one", FOREVER, volumeMounts=mounts, env=env, workingDir="/usr")
    two = shell("two", FOREVER, volumeMounts=[mounts[0], {"name": "conf", "mountPath": "/conf", "readOnly": True}])
    path = pod(here, one, two, volumes=volumes)
    with running(here, path, *QUICK):
        assert (
            sh(here, "one", "id -u; id -g; pwd; hostname; echo $IP $HOSTNAME")
            == f"{USER}\n{USER}\n/usr\np\n10.88.0.2 p"
        )
        # No capability, now or ever; no new privileges.
        caps = sh(here, "one", "grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
        assert set(caps.split()[1::2]) == {"0" * 16, "1"}, caps
        # Its own processes, numbered from 1; the other container's aren't to be seen.
        assert sh(here, "one", "cat /proc/1/cmdline | tr '\\0' ' '").startswith("sleep 1000000")
        assert len(sh(here, "one", "ls /proc | grep -E '^[0-9]+$'").split()) < 8
        namespaces = [
            sh(here, name, "readlink /proc/1/ns/pid /proc/1/ns/mnt /proc/1/ns/ipc") for name in ("one", "two")
        ]
        assert not set(namespaces[0].split()) & set(namespaces[1].split())
        networks = {sh(here, name, "readlink /proc/1/ns/net") for name in ("one", "two")}
        assert len(networks) == 1 and networks != {os.readlink("/proc/self/ns/net")}
        # A root that can't be written, volumes that can, read-only ones that can't.
        assert (
            sh(
                here,
                "one",
                "for at in / /usr /etc /opt/gpu-failover /tmp; do touch $at/x 2>/dev/null && echo $at; done; true",
            )
            == ""
        )
        assert sh(here, "two", "cat /conf/k; touch /conf/x 2>/dev/null || echo no") == "valueno"
        # fsGroup: the mount is 2777 with its group, and shared.
        assert sh(here, "one", "stat -c '%a %g' /run/pod; echo hello > /run/pod/x") == f"2777 {USER}"
        assert sh(here, "two", "cat /run/pod/x") == "hello"
        # sizeLimit: full is full.
        full = "head -c 2000000 /dev/zero > /run/pod/big 2>/dev/null; stat -c %s /run/pod/big; rm /run/pod/big"
        assert int(sh(here, "one", full)) <= 1 << 20
        # /dev/shm is each one's own.
        assert sh(here, "one", "echo mine > /dev/shm/x; stat -c %a /dev/shm") == "1777"
        assert sh(here, "two", "ls /dev/shm") == ""
        # Ours is there, in a place of its own, whatever else is mounted.
        assert sh(here, "two", "command -v lockctl; python3 -c 'import sidecar, msgspec; print(sidecar.__file__)'") == (
            "/opt/gpu-failover/bin/lockctl\n"
            + sh(here, "two", "ls -d /opt/gpu-failover/lib/python3*/site-packages/sidecar")
            + "/__init__.py"
        )


def test_a_volume_hides_what_the_machine_has_there_and_can_lie_anywhere(here: Place) -> None:
    """A manifest's /tmp hides a checkout in /tmp; ours runs all the same. What can't be made is said."""
    data = here.directory / "data"
    data.mkdir()
    (data / "weights").write_text("here")
    volumes = [
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "model", "persistentVolumeClaim": {"claimName": "x"}},
    ]
    mounts: list[dict[str, Any]] = [{"name": "run", "mountPath": at} for at in ("/tmp", "/some/where/new", "/home/x")]
    mounts.append({"name": "model", "mountPath": "/model", "readOnly": True})
    path = pod(here, shell("a", FOREVER, volumeMounts=mounts), volumes=volumes)
    with running(here, path, *QUICK, "--volume", f"model={data}"):
        assert sh(here, "a", "touch /tmp/x; ls /some/where/new /home/x; lockctl --help | head -1").startswith(
            "/home/x:\nx"
        )
        assert sh(here, "a", "cat /model/weights; touch /model/x 2>/dev/null || echo no") == "hereno"
    mounts = [{"name": "run", "mountPath": "/usr/nope/x"}]
    with pytest.raises(Refused, match="nothing can be mounted at /usr/nope/x: it is in /usr"):
        here.say("run", pod(here, shell("a", FOREVER, volumeMounts=mounts)), *QUICK)


def test_a_root_that_may_be_written_is_new_in_each_run(here: Place) -> None:
    a = shell("a", "[ -e /mine ] && echo again; touch /mine; " + FOREVER, securityContext={})
    with running(here, pod(here, a), *QUICK):
        here.say("kill", "a")
        here.until_event("started", 2, container="a")
        assert sh(here, "a", "ls /mine") == "/mine"
    assert "again" not in here.log("a")


# -- what kubelet does -------------------------------------------------------------------------------------------------


def test_order_and_the_three_ways_to_ask(here: Place) -> None:
    inits = [
        shell(
            "first", "sleep 0.1; echo ready > /run/pod/first", volumeMounts=[{"name": "run", "mountPath": "/run/pod"}]
        ),
        server("web", 8001, restartPolicy="Always", startupProbe={"httpGet": {"port": 8001, "path": "/first"}}),
        server("door", 8002, restartPolicy="Always", startupProbe={"tcpSocket": {"port": 8002}}),
    ]
    exec_probe = {"exec": {"command": ["test", "-e", "/run/pod/go"]}, "periodSeconds": 1}
    main = shell("main", FOREVER, volumeMounts=[{"name": "run", "mountPath": "/run/pod"}], readinessProbe=exec_probe)
    with running(here, pod(here, main, initContainers=inits), *QUICK, ready=False):
        here.until_event("started", container="main")
        assert [each["container"] for each in here.events("started")] == ["first", "web", "door", "main"]
        assert here.status()["unready"] == ["main: its readiness probe doesn't pass"]
        with pytest.raises(Refused, match="main: its readiness probe doesn't pass") as refused:
            here.say("status")
        assert refused.value.code == 1
        with pytest.raises(Refused, match=r"not ready in 0.2 s: main: its readiness probe"):
            here.say("status", "--wait", "ready", "--timeout-s", "0.2")
        sh(here, "main", "touch /run/pod/go")
        here.wait("ready")
        sh(here, "main", "rm /run/pod/go")
        here.wait("not-ready")
    assert flips(here) == ["ready", "not_ready"]


def test_out_of_memory_takes_the_whole_container_at_once(here: Place) -> None:
    with running(here, pod(here, shell("a", "sleep 12345 & " + FOREVER)), *QUICK):
        here.until_event("started", container="a")
        told = json.loads(here.say("kill", "a", "--oom", "--json"))["processes"]
        assert len(told) == 2
        here.until_event("ended", container="a")
        here.wait("ready")
        assert here.container("a")["last"]["reason"] == "OOMKilled"


def test_a_stopped_container_is_ended_by_its_liveness_probe_within_that_probes_grace(here: Place) -> None:
    liveness = {"httpGet": {"port": 8000}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 2,
                "terminationGracePeriodSeconds": 1}  # fmt: skip
    a = server("a", 8000, livenessProbe=liveness)
    with running(here, pod(here, a, terminationGracePeriodSeconds=60), *QUICK):
        sh(here, "a", "touch /run/pod/")
        here.say("kill", "a", "--signal", "STOP")
        ended = here.until_event("ended", container="a")
        assert ended["why"].startswith("liveness probe failed: no answer in")
        begun = here.events("ending", container="a")[0]
        assert begun["grace_s"] == 1 and 2 <= ended["at_s"] - begun["at_s"] < 10
        here.until_event("started", 2, container="a")


def test_a_probe_that_takes_too_long_leaves_nothing_that_keeps_its_container_from_ending(here: Place) -> None:
    slow = {"exec": {"command": ["sleep", "1000"]}, "timeoutSeconds": 1, "periodSeconds": 1, "failureThreshold": 1000}
    with running(here, pod(here, shell("a", FOREVER, livenessProbe=slow)), *QUICK):
        until(lambda: here.container("a")["probes"]["liveness"]["why"] == "no answer in 1 s", "a probe was too slow")
        here.say("kill", "a")
        here.until_event("started", 2, container="a")


def test_deletion_hooks_at_once_and_sidecars_last(here: Place) -> None:
    trap = "trap 'echo term; exit 0' TERM; while :; do sleep 0.05; done"
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook > /run/pod/$HOSTNAME; sleep 1"]}}}
    mounts = [{"name": "run", "mountPath": "/run/pod"}]
    inits = [
        shell("one", trap, restartPolicy="Always"),
        shell("two", trap, restartPolicy="Always", volumeMounts=mounts),
    ]
    inits[1]["lifecycle"] = hook
    main = shell("main", trap, lifecycle=hook, volumeMounts=mounts)
    with running(here, pod(here, main, initContainers=inits), *QUICK) as process:
        here.say("down")
        assert process.wait(PATIENCE_S) == 0
    assert [event["container"] for event in here.events("ended")] == ["main", "two", "one"]
    assert all(event["code"] == 0 for event in here.events("ended"))
    began = here.events("ending")[0]["at_s"]
    assert here.events("ended", container="main")[0]["at_s"] - began >= 1
    # Both hooks ran at once: one second for the two of them.
    assert here.events("ended", container="two")[0]["at_s"] - here.events("ended", container="main")[0]["at_s"] < 0.9


def test_a_crash_loop_says_what_the_container_said_and_where_the_rest_is(here: Place) -> None:
    a = shell("a", "echo one; echo the model is not there >&2; exit 3")
    with running(here, pod(here, a), *QUICK, "--back-off-s", "600", ready=False) as process:
        here.until_event("back_off", container="a")
        log = here.pod / "logs" / "a.2.log"
        with pytest.raises(Refused, match=rf"what a wrote before it ended: {log}\n"):
            here.say("status")
        assert "the model is not there" in log.read_text()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=PATIENCE_S)[0]
    (first, *_) = [line for line in said.splitlines() if " ended " in line]
    assert "the model is not there" in first and f"see={here.pod}/logs/a.1.log" in first


def test_a_probe_of_what_only_the_pod_itself_reaches_fails(here: Place) -> None:
    ready = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    path = pod(here, server("a", 8000, "127.0.0.1", readinessProbe=ready))
    with running(here, path, *QUICK, ready=False):
        until(lambda: here.container("a")["probes"]["readiness"]["in_a_row"] >= 2, "it has failed twice")
        assert not here.status()["ready"] and "serving" in here.log("a")


# -- what a person says ------------------------------------------------------------------------------------------------


def test_a_caller_that_waits_before_the_pod_runs_waits_for_it(here: Place) -> None:
    with pytest.raises(Refused, match="no pod runs in") as refused:
        here.say("status", "--wait", "ready", "--timeout-s", "0.2")
    assert refused.value.code == 2
    waiting = subprocess.Popen(
        here.command("status", "--wait", "ready", "--timeout-s", str(PATIENCE_S)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip
    assert waiting.stderr is not None
    assert "it is waited for" in waiting.stderr.readline()
    with running(here, pod(here, shell("a", FOREVER)), *QUICK, ready=False):
        said, _ = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 0 and "Ready" in said


def test_one_pod_does_what_it_is_asked_and_never_minds(here: Place) -> None:
    script = "while :; do sleep 12345; echo child ended with $?; done"
    a = shell("a", script, env=[{"name": "X", "value": "of the manifest"}])
    path = pod(here, a)
    with running(here, path, *QUICK):
        # A command has the container's environment, its caller's input, and its exit code is the caller's.
        assert here.say("exec", "a", "--", "sh", "-c", "cat; echo $X", stdin="said\n") == "said\nof the manifest\n"
        assert here.say("exec", "--env", "X=more", "a", "--", "sh", "-c", "echo $X") == "more\n"
        with pytest.raises(Refused) as refused:
            here.say("exec", "a", "--", "sh", "-c", "exit 7")
        assert refused.value.code == 7
        with pytest.raises(Refused, match="there is no container b; there are: a"):
            here.say("exec", "b", "--", "true")
        # It ends with the caller that asked for it.
        asked = subprocess.Popen(here.command("exec", "a", "--", "sleep", "54321"), cwd="/")
        until(lambda: "sleep 54321" in commands(here), "the command runs")
        asked.kill()
        asked.wait()
        until(lambda: "sleep 54321" not in commands(here), "the command has ended")
        # Many ask at once, and all are answered.
        with ThreadPoolExecutor(8) as many:
            assert list(many.map(lambda n: sh(here, "a", f"echo {n}"), range(8))) == [str(n) for n in range(8)]
        # A second pod in this directory takes nothing from it.
        with pytest.raises(Refused, match=r"a pod runs in .* already: local-pod down, or another --dir"):
            here.say("run", path, *QUICK)
        # A process inside dies.
        with pytest.raises(Refused, match="no process in a has 'nope'"):
            here.say("kill", "a", "--inside", "nope")
        with pytest.raises(Refused, match=r"no pattern"):
            here.say("kill", "a", "--inside", "(")
        (told,) = json.loads(here.say("kill", "a", "--inside", "sleep 12345", "--json"))["processes"]
        assert told["command"] == "sleep 12345"
        until(lambda: "child ended with 137" in here.log("a"), "its parent says so")
        assert len(here.status()["flips"]) == 1 and here.container("a")["restarts"] == 0


def commands(here: Place) -> str:
    """The command line of each process in a, but for those of the question."""
    return sh(here, "a", "for each in /proc/[0-9]*; do tr '\\0' ' ' < $each/cmdline; echo; done")


def test_ports_of_the_pod_are_reached_from_outside(here: Place) -> None:
    port = free_port()
    ready = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    with running(here, pod(here, server("a", 8000, readinessProbe=ready)), *QUICK, "--forward", f"{port}:8000"):
        sh(here, "a", "echo > /run/pod/x")
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.sendall(b"GET /x HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: sock.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.0 200") and answer.endswith(b"here")


# -- ends and mistakes -------------------------------------------------------------------------------------------------


def left(marker: str) -> list[bytes]:
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [line for pid in pids if marker.encode() in (line := cmdline(pid))]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_of_a_pod_outlives_local_pod(here: Place, number: signal.Signals) -> None:
    marker = f"sleep {uuid.uuid4().int % 10**9}77777"
    line = marker.replace(" ", "\0")
    a = shell("a", f"setsid {marker} & {marker}", volumeMounts=[{"name": "run", "mountPath": "/run/pod"}])
    with running(here, pod(here, a, terminationGracePeriodSeconds=1), *QUICK) as process:
        here.until_event("started", container="a")
        until(lambda: len(left(line)) >= 2, "both run")
        process.send_signal(number)
        process.wait(PATIENCE_S)
        until(lambda: not left(line), "both are gone")
        assert str(here.pod) not in Path("/proc/self/mountinfo").read_text()
    with running(here, pod(here, shell("a", FOREVER)), *QUICK):  # and its directory is free again
        pass


def test_a_second_ctrl_c_waits_for_no_pod(here: Place) -> None:
    deaf = shell("a", "trap '' TERM; while :; do sleep 1; done")
    with running(here, pod(here, deaf, terminationGracePeriodSeconds=600), *QUICK) as process:
        process.send_signal(signal.SIGINT)
        here.until_event("deleting")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("status",), 2, "no pod runs in"),
        (("down",), 2, "no pod runs in"),
        (("run", "/nowhere.yaml"), 2, "/nowhere.yaml can't be read"),
        (("nope",), 64, "nope"),
        (("kill", "a", "--signal", "x"), 64, "'x' is no signal"),
        (("run", "x", "--forward", "99999"), 64, "'99999' is no port"),
        (("run", "x", "--volume", "y"), 64, "nothing of the form NAME=VALUE"),
        (("run", "x", "--back-off-s", "soon"), 64, "is no time in seconds"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, words: tuple[str, ...], code: int, says: str) -> None:
    ended, _, said = run_here(main, *words, environment={"LOCAL_POD_DIR": str(tmp_path)})
    assert ended == code and says in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "this is no YAML"),
        ("kind: Service\n", "there is no pod in it"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: A, image: x, command: [x]}]}\n",
         "no cluster would run this"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_wrong_is_not_run(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    ended, _, said = run_here(main, "run", path, *(() if "no cluster" in says else ("--no-lint",)))
    assert ended == 1 and says in said


def test_two_users_in_one_pod_need_root(here: Place) -> None:
    other = shell("b", FOREVER, securityContext={"runAsUser": USER + 1})
    with pytest.raises(Refused, match="without root only one ordinary user"):
        here.say("run", pod(here, shell("a", FOREVER), other), *QUICK)

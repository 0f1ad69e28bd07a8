"""The pair in a pod: what a pod costs beside its programs, and how long no client is sent to it.

k8s/dra/reference.yaml as it is shipped, run by local-pod as an ordinary user. There is no kubelet in it: restarts,
probes and readiness are kubelet's rules (`tools/local_pod/machine.py`), containers are namespaces without a runtime.

- *run -> Ready*, and *down*: local-pod from its own start on, in turns with the same programs as plain processes
  (`programs.py`). It looks five times a second where kubelet looks once, so that what counts is the work and not the
  waiting; beside it stands one pod with kubelet's own times. From `down` the preStop sleep is subtracted.
- *kill inside -> next answer*: SIGKILL to the main process in the active's container, then a request at the pod's port,
  over a connection that was made before. Until its first token; the text has to be the same as ever. The floor is the
  same request just before the kill. From the moment at which local-pod has sent the signal.
- *NotReady*: PID 1 of a container is killed, with kubelet's own times and without its back-off: each death counts as
  the first. The floor is that program's own start.
- *probes at rest*: the processor time of all processes of the pod, local-pod's included, less that of the same pod
  without a liveness or readiness probe.

What this file may not do: judge a pod (`tests/local_pod` does), or know what a probe asks.
"""

import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import programs
from bench.figures import Comparison, Reading, Result
from bench.stage import ROOT, Broken, directory
from tests.k8s.merging import with_overlay
from tests.local_pod import ordinary
from tests.local_pod.client import PORT, PROMPT
from tests.local_pod.pair import MAIN, POD, other, whole
from tools.local_pod import places, wire
from tools.local_pod.spec import Kind, Pod, Role, Sleep

START_TIMES = 1.5
PROBES_PERCENT = 1
LINT_S = 2
TOKENS = 8
LINT_ROUNDS = 5
SETTLE_S = 3
"""Until what was done last is over, before a rest is measured."""


def measure(parent: Path, rounds: int, kills: int, rest_s: float) -> Iterator[Result]:
    if why := ordinary.why_not():
        raise Broken(f"no pod can be run here: {why}")
    try:
        yield from _measure(parent, rounds, kills, rest_s)
    except (AssertionError, http.client.HTTPException, ordinary.Refused, wire.NoPod, wire.Refused) as error:
        raise Broken(f"the pod: {error}") from None


def _measure(parent: Path, rounds: int, kills: int, rest_s: float) -> Iterator[Result]:
    pod = programs.read(Path(POD[0]))
    up = Comparison("local-pod run -> Ready", "the programs' own starts", goal_median=START_TIMES)
    down = Comparison("down, idle, less the preStop sleep", "the programs' own ends")
    after = Comparison("kill inside -> next answer at the pod's port", "an answer when nothing happens")
    played = []
    for number in range(rounds):
        with directory(parent) as scratch:
            played.append(programs.play(pod, scratch))
        with _running(*POD) as pair:
            up.ours.append(pair.ready)
            whole(pair.here)
            if number == rounds - 1:
                _kills(pair, after, kills)
                whole(pair.here)
            down.ours.append(pair.down(pod))
    up.floor, down.floor = [one.ready for one in played], [one.end for one in played]
    yield from (up, down, after)
    yield Reading(f"    the slowest of {kills}", max(after.ours) / 1e6, "ms")
    with _running(POD[0], "--back-off-s", "0") as pair:
        yield Reading("run -> Ready with kubelet's own looks, once a second", pair.ready / 1e9, "s")
        whole(pair.here)
        asked = pair.share(rest_s)
        for container in pod.containers:
            if container.role is not Role.INIT:
                own = [one.starts[container.name] for one in played]
                gaps = [pair.not_ready(container.name) for _ in range(rounds)]
                yield Comparison(f"NotReady after {container.name}'s PID 1 died", "its own start", ours=gaps, floor=own)
    with _running(*POD, unasked=pod) as pair:
        whole(pair.here)
        rest = pair.share(rest_s)
    beside = f"the pod with them {asked:.2f} %, without {rest:.2f} %"
    yield Reading("all probes of a pod at rest", asked - rest, "% of a core", PROBES_PERCENT, beside)
    manifests = ROOT / "k8s" / "dra"
    files = len(list(manifests.glob("*.yaml")))
    yield Reading(f"lint of all {files} files", _lint_s(manifests), "s", LINT_S, f"the median of {LINT_ROUNDS}")


class _Pair:
    """A pod that runs."""

    def __init__(self, here: ordinary.Place, process: "subprocess.Popen[str]", began: int) -> None:
        self.here = here
        self.process = process
        self.say({"do": "wait", "for": "ready", "timeout_s": ordinary.PATIENCE_S})
        self.ready = time.monotonic_ns() - began

    def say(self, request: dict[str, Any]) -> Any:
        answer, _ = wire.ask(self.here.pod / places.CONTROL, request)
        return answer

    def down(self, pod: Pod) -> int:
        sleeps = [each.pre_stop.seconds for each in pod.containers if isinstance(each.pre_stop, Sleep)]
        began = time.monotonic_ns()
        self.say({"do": "down"})
        self.process.wait()
        return time.monotonic_ns() - began - max(sleeps, default=0) * 10**9

    def not_ready(self, name: str) -> int:
        """A death of a container's first process, until the pod is Ready again, and whole."""
        before = len(self.say({"do": "status"})["pod"]["flips"])
        self.say({"do": "signal", "container": name, "signal": "SIGKILL"})
        end = time.monotonic() + ordinary.PATIENCE_S
        while len(flips := self.say({"do": "status"})["pod"]["flips"]) < before + 2:
            if time.monotonic() > end:
                raise Broken(f"{name} died, and the pod is not Ready again: {flips[before:]}")
            time.sleep(0.05)
        whole(self.here)
        return int((flips[before + 1]["at_s"] - flips[before]["at_s"]) * 1e9)

    def share(self, rest_s: float) -> float:
        """How much of one processor it takes while nothing happens, in percent."""
        time.sleep(SETTLE_S)
        before, at = _processor_s(self.process.pid), time.monotonic()
        time.sleep(rest_s)
        return (_processor_s(self.process.pid) - before) / (time.monotonic() - at) * 100


@contextlib.contextmanager
def _running(*flags: str, unasked: Pod | None = None) -> Iterator[_Pair]:
    """unasked: the pod, whose probes are taken out, but for the startup probes, without which no sidecar passes."""
    with ordinary.place() as here:
        if unasked is not None:
            manifest = with_overlay(here.directory / "pod.yaml", Path(flags[0]), json.dumps(_without_probes(unasked)))
            flags = (str(manifest), *flags[1:], "--no-lint")
        began = time.monotonic_ns()
        with ordinary.running(here, *flags, ready=False) as process:
            yield _Pair(here, process, began)


def _without_probes(pod: Pod) -> dict[str, Any]:
    gone = {"livenessProbe": None, "readinessProbe": None}
    both: dict[str, list[dict[str, Any]]] = {"initContainers": [], "containers": []}
    for each in pod.containers:
        if {Kind.LIVENESS, Kind.READINESS} & set(each.probes):
            both["containers" if each.role is Role.MAIN else "initContainers"].append({"name": each.name, **gone})
    return {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": {"spec": both}}}


def _kills(pair: _Pair, result: Comparison, rounds: int) -> None:
    expected = _Asked(pair).text()
    for _ in range(rounds):
        holder = whole(pair.here)["holder"]
        began = time.monotonic_ns()
        beside, again = _Asked(pair), _Asked(pair, wait=True)
        same = beside.text()
        victim = {"container": f"engine-{holder['engine_id']}", "inside": MAIN}
        told = pair.say({"do": "signal", "signal": "SIGKILL", **victim})
        again.ask()
        if same != expected or again.text() != expected:
            raise Broken("an answer was not the same as ever: no figure is worth anything then")
        result.floor.append(beside.first - began)
        result.ours.append(again.first - int(told["at"] * 1e9))
        whole(pair.here, other(holder["engine_id"]), since=holder["token"])


class _Asked:
    """A request at the pod's port; the connection is made before."""

    def __init__(self, pair: _Pair, *, wait: bool = False) -> None:
        _, (descriptor,) = wire.ask(pair.here.pod / places.CONTROL, {"do": "dial", "port": PORT})
        self._connection = http.client.HTTPConnection("pod")
        self._connection.sock = socket.socket(fileno=descriptor)
        self._connection.sock.settimeout(ordinary.PATIENCE_S)
        self.first = 0
        """When its first token came."""
        if not wait:
            self.ask()

    def ask(self) -> None:
        body = {"prompt": PROMPT, "max_tokens": TOKENS, "min_tokens": TOKENS, "temperature": 0, "stream": True}
        self._connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})

    def text(self) -> str:
        reply, text = self._connection.getresponse(), ""
        for line in reply:
            if line.startswith(b"data: {"):
                self.first = self.first or time.monotonic_ns()
                text += json.loads(line[6:])["choices"][0]["text"]
        self._connection.close()
        if reply.status != 200 or not text:
            raise Broken(f"the pod answered {reply.status}, and {text!r}")
        return text


def _processor_s(of: int) -> float:
    """Processor time of all living processes below this one, to the nanosecond (`stat` has hundredths of a second)."""
    parents: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path("/proc", entry, "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
            parents[int(entry)] = int(words.split()[1])
    below, more = set[int](), {of}
    while more:
        below |= more
        more = {pid for pid, parent in parents.items() if parent in more}
    return sum(map(_ran_ns, below)) / 1e9


def _ran_ns(pid: int) -> int:
    """All threads of a process; those that end meanwhile aren't counted."""
    ran = 0
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                ran += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text(encoding="ascii").split()[0])
    return ran


def _lint_s(manifests: Path) -> float:
    took = []
    for _ in range(LINT_ROUNDS):
        began = time.monotonic()
        command = [sys.executable, "-m", "k8s.lint", str(manifests)]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            raise Broken(f"k8s.lint ended with {done.returncode}: {(done.stderr + done.stdout)[:2000]}")
        took.append(time.monotonic() - began)
    return statistics.median(took)

"""The programs of a pod's manifest as plain processes: what each start and each end takes by itself.

Commands, variables and probes are the manifest's; only places and ports are others, because these share the machine's
network. They start as in the pod, one sidecar after the other and then the engines at once, each until it says that it
is there; and end in reverse. What this file may not do: know of pods, containers' namespaces, or kubelet.
"""

import http.client
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bench.stage import DEADLINE_S, ROOT, Broken, free_port
from tools.local_pod import image, manifest
from tools.local_pod.spec import Container, Http, Kind, Pod, Role

_LOOK_EVERY_S = 0.005


def read(path: Path) -> Pod:
    return manifest.pod(list(yaml.safe_load_all(path.read_text(encoding="utf-8"))), manifest.Wishes())


@dataclass
class Played:
    """Nanoseconds."""

    starts: dict[str, int] = field(default_factory=dict)
    ready: int = 0
    """All starts one after the other, engines at once, until the door would be sent clients."""
    end: int = 0


class _Programs:
    def __init__(self, pod: Pod, scratch: Path) -> None:
        self.pod = pod
        self.scratch = scratch
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[int, int] = {}

    def port(self, declared: int) -> int:
        return self._ports.setdefault(declared, free_port())

    def spawn(self, container: Container) -> None:
        words = [
            re.sub(r"^:(\d+)$", lambda found: f"127.0.0.1:{self.port(int(found[1]))}", word)
            for word in container.command
        ]
        environment = {
            **container.environment,
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.scratch),
            "FAILOVER_RUN_DIR": str(self.scratch / "run"),
            "FAILOVER_HOST_DEVICES": str(self.scratch / "devices"),
        }
        log = self.scratch / f"{container.name}.log"
        with log.open("wb") as output:
            self.processes[container.name] = subprocess.Popen(
                words, env=environment, cwd=self.scratch, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def answers(self, container: Container, kinds: Sequence[Kind]) -> None:
        """Waits until the first of these probes that is asked over HTTP passes."""
        probes = [container.probes[kind] for kind in kinds if kind in container.probes]
        handler = next(probe.handler for probe in probes if isinstance(probe.handler, Http))
        process, end = self.processes[container.name], time.monotonic() + DEADLINE_S
        while not _well(self.port(handler.port), handler.path):
            if process.poll() is not None or time.monotonic() > end:
                said = (self.scratch / f"{container.name}.log").read_text(encoding="utf-8", errors="replace")
                raise Broken(f"{container.name} does not answer {handler.path}:\n{said[-2000:]}")
            time.sleep(_LOOK_EVERY_S)

    def end(self, containers: Sequence[Container]) -> None:
        for container in containers:
            self.processes[container.name].terminate()
        for container in containers:
            self.processes[container.name].wait(DEADLINE_S)

    def kill(self) -> None:
        for process in reversed(self.processes.values()):
            process.kill()
            process.wait()


def play(pod: Pod, scratch: Path) -> Played:
    """All of them, once, in a directory that is removed by the caller."""
    programs, played = _Programs(pod, scratch), Played()
    sidecars = [each for each in pod.containers if each.role is Role.SIDECAR]
    try:
        began = time.monotonic_ns()
        for name in image.OURS:  # what the init container does
            shutil.copytree(ROOT / name, scratch / "packages" / name, ignore=shutil.ignore_patterns("__pycache__"))
        for group in (*([each] for each in sidecars), pod.mains):
            at = time.monotonic_ns()
            for container in group:
                programs.spawn(container)
            for container in group:
                programs.answers(container, (Kind.STARTUP, Kind.LIVENESS))
                played.starts[container.name] = time.monotonic_ns() - at
        for container in pod.containers:
            if Kind.READINESS in container.probes:
                programs.answers(container, (Kind.READINESS,))
        played.ready = time.monotonic_ns() - began
        at = time.monotonic_ns()
        for group in (pod.mains, *([each] for each in reversed(sidecars))):
            programs.end(group)
        played.end = time.monotonic_ns() - at
    except subprocess.TimeoutExpired as error:
        raise Broken(f"it was told to end, and goes on: {error.cmd}") from None
    finally:
        programs.kill()
    return played


def _well(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        return 200 <= connection.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()

"""local-pod as an ordinary user, whichever user runs the tests.

Root becomes user 2000, in a mount namespace of its own where the interpreter is bound to a place that this user may
read: below /root only root may. Any other user stays as it is.
"""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import ROOT
from tests.support.waiting import DEADLINE_S, until
from tools.local_pod import namespaces, places

USER = 2000
PATIENCE_S = DEADLINE_S


def words(command: Sequence[str], python: Path) -> list[str]:
    """A command of ours, as that user."""
    packages = [str(ROOT), *(each for each in sys.path if Path(each).name in ("site-packages", "dist-packages"))]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(packages)}
    if os.getuid() != 0:
        inherited = {"HOME": os.environ.get("HOME", "/")}
        return ["env", "-i", *(f"{k}={v}" for k, v in (environment | inherited).items()), sys.executable, *command]
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        environment["LD_LIBRARY_PATH"] = str(python / "lib")
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    inner = shlex.join(
        ["exec", "setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups", "env", "-i",
         *(f"{key}={value}" for key, value in environment.items()), str(python / "bin" / name), *command]
    )  # fmt: skip
    script = f"mount --bind {shlex.quote(sys.base_prefix)} {shlex.quote(str(python))} && {inner}"
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]


def why_not() -> str:
    """ "" if a pod can be run as an ordinary user here, else what forbids it."""
    if os.getuid() != 0:
        return namespaces.forbidden()
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        python = Path(directory, "python")
        python.mkdir()
        code = "from tools.local_pod.namespaces import forbidden; print(forbidden(), end='')"
        done = subprocess.run(words(["-c", code], python), capture_output=True, text=True, cwd="/", check=False)
    return done.stdout or (done.stderr.strip().splitlines() or ["it ended with an error"])[-1] * (done.returncode != 0)


class Refused(Exception):
    """A command of local-pod's that ended with another code than 0."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"{code}: {said}")
        self.code, self.said = code, said


class Place:
    """A directory of that user's, and local-pod's commands there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = directory / "python"
        self.pod = directory / "pod"
        for each in (self.python, self.pod):
            each.mkdir()
        if os.getuid() == 0:
            os.chmod(directory, 0o755)
            os.chown(self.pod, USER, USER)

    def command(self, *given: str) -> list[str]:
        name, *rest = given
        return words(["-m", "tools.local_pod", name, "--dir", str(self.pod), *rest], self.python)

    def say(self, *given: str, stdin: str = "", timeout_s: float = PATIENCE_S) -> str:
        """Raises Refused."""
        done = subprocess.run(
            self.command(*given), input=stdin, capture_output=True, text=True, cwd="/", timeout=timeout_s, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode:
            raise Refused(done.returncode, done.stderr + done.stdout)
        return done.stdout

    def start(self, *given: str) -> "subprocess.Popen[str]":
        (self.pod / places.CONTROL).unlink(missing_ok=True)  # of one that was killed
        return subprocess.Popen(
            self.command("run", *given), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
        )

    # -- what the pod says -----------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.say("status", "--json"))
        except Refused as error:
            if error.code != 1:
                raise
            found = json.loads(error.said)
        return found

    def container(self, name: str) -> dict[str, Any]:
        return next(each for each in self.status()["containers"] if each["name"] == name)

    def wait(self, wanted: str = "ready", timeout_s: float = PATIENCE_S) -> None:
        """Raises Refused."""
        try:
            self.say("status", "--wait", wanted, "--timeout-s", str(timeout_s), timeout_s=timeout_s + 30)
        except Refused as error:
            if error.code != 1 or error.said.startswith("local-pod:"):
                raise

    def events(self, kind: str = "", **wanted: object) -> list[dict[str, Any]]:
        text = (self.pod / places.EVENTS).read_text(encoding="utf-8")
        every = [json.loads(line) for line in text.splitlines()]
        return [
            each
            for each in every
            if (not kind or each["event"] == kind) and all(each.get(key) == value for key, value in wanted.items())
        ]

    def until_event(self, kind: str, count: int = 1, **wanted: object) -> dict[str, Any]:
        """Waits until the pod's log has so many of these."""
        deadline = time.monotonic() + PATIENCE_S
        while len(found := self.events(kind, **wanted)) < count:
            assert time.monotonic() < deadline, (kind, wanted, self.events())
            time.sleep(0.02)
        return found[count - 1]

    def log(self, container: str) -> str:
        runs = (self.pod / places.LOGS).glob(f"{container}.*.log")
        return "".join(path.read_text() for path in sorted(runs, key=lambda path: int(path.name.split(".")[-2])))


@contextmanager
def place() -> Iterator[Place]:
    """Not pytest's directory: that is below one which only its owner may enter."""
    with tempfile.TemporaryDirectory(prefix="local-pod-") as directory:
        yield Place(Path(directory))


@contextmanager
def running(here: Place, *given: str, ready: bool = True) -> Iterator["subprocess.Popen[str]"]:
    """A pod, until the end of the block."""
    process = here.start(*given)
    try:
        until(lambda: (here.pod / places.CONTROL).exists() or process.poll() is not None, "it runs, or has ended")
        if process.poll() is not None:
            raise Refused(process.returncode, process.stdout.read() if process.stdout else "")
        if ready:
            here.wait("ready")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

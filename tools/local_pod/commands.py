"""What a person says from outside: run a pod, look at it, hurt it, end it.

`run` reads the manifest, makes the namespaces and waits; all others speak to the loop inside (`kubelet.py`) over its
control socket. What this file may not do: know kubelet's rules.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from k8s.lint.check import check
from k8s.lint.documents import Unreadable, read
from k8s.lint.node import Level
from tools.local_pod import image, manifest, merging, namespaces, places, status, wire
from tools.local_pod.kubelet import Order
from tools.local_pod.machine import Settings
from tools.local_pod.sandbox import CantMake, users
from tools.local_pod.spec import Pod

FAILED, CANT_RUN, USAGE, INTERRUPTED = 1, 2, 64, 130
_IPV4, _IPV6 = "10.88.0.2", "fd00:88::2"


class Mistake(Exception):
    """What a person can put right, and the exit code."""

    def __init__(self, text: str, code: int = USAGE) -> None:
        super().__init__(text)
        self.code = code


# -- run ---------------------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    pod = read_pod(options)
    root = os.geteuid() == 0
    why = namespaces.forbidden(root=root)
    if why:
        raise Mistake(why, CANT_RUN)
    try:
        who = users(pod, root=root)
    except CantMake as error:
        raise Mistake(str(error), CANT_RUN) from None
    settings = Settings(options.back_off_s, options.back_off_max_s, options.relist_s)
    directory: Path = options.dir.absolute()
    with _claimed(directory):
        (directory / places.POD).write_bytes(pickle.dumps(Order(pod, who, settings, options.json)))
        for what in pod.ignored:
            print(f"local-pod: {what}: in the manifest, and without meaning here", file=sys.stderr)
        return _inside(pod, root, directory, options)


def _inside(pod: Pod, root: bool, directory: Path, options: argparse.Namespace) -> int:
    who = users(pod, root=root)
    words = [
        image.find("setpriv") or "setpriv", "--pdeathsig", "KILL", "--", image.find("unshare") or "unshare",
        *namespaces.flags(who.uid, who.gid, root=root, network=not pod.host_network),
        "--", sys.executable, "-m", "tools.local_pod.kubelet", str(directory),
    ]  # fmt: skip
    here = Path(__file__).resolve().parent.parent.parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    loop = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    forwarders = [_forward(directory / places.CONTROL, each) for each in options.forward]
    asked = False

    def end(number: int, frame: object) -> None:
        nonlocal asked
        grace = 0 if asked else None
        asked = True
        with contextlib.suppress(wire.NoPod, wire.Refused):
            wire.ask(directory / places.CONTROL, {"do": "down", "grace_s": grace})
            return
        loop.kill()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    code = loop.wait()
    for forwarder in forwarders:
        forwarder.close()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _claimed(directory: Path) -> Iterator[None]:
    """One pod for each directory; what an earlier one left there goes."""
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(directory / places.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Mistake(f"{directory} can't be used: {error.strerror}; give another --dir", CANT_RUN) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Mistake(f"a pod runs in {directory} already: local-pod down, or another --dir", FAILED) from None
        for name in (places.LOGS, places.MOUNTS):
            shutil.rmtree(directory / name, ignore_errors=True)
            (directory / name).mkdir()
        for name in (places.EVENTS, places.CONTROL):
            (directory / name).unlink(missing_ok=True)
        yield
    finally:
        (directory / places.CONTROL).unlink(missing_ok=True)
        os.close(lock)


def read_pod(options: argparse.Namespace) -> Pod:
    """The pod that the files describe. Raises Mistake."""
    documents = _documents(options.file)
    for overlay in options.overlay:
        try:
            documents = merging.overlaid(documents, merging.patches_of(_documents(overlay), yaml.safe_load_all))
        except merging.CantMerge as error:
            raise Mistake(f"{overlay}: {error}", FAILED) from None
    if not options.no_lint:
        text = yaml.safe_dump_all(documents, sort_keys=False) if options.overlay else _text(options.file)
        errors = [found for found in check([(str(options.file), text)]) if found.level is Level.ERROR]
        if errors:
            said = "\n".join(str(found) for found in errors)
            raise Mistake(f"no cluster would run this:\n{said}\n(--no-lint runs it all the same)", FAILED)
    wishes = manifest.Wishes(
        object=options.object,
        volumes=dict(options.volume),
        uid=str(uuid.uuid4()),
        address=_IPV6 if options.ip == "6" else _IPV4,
        startup_period_s=options.startup_period_s,
    )
    try:
        return manifest.pod(documents, wishes)
    except manifest.BadManifest as error:
        raise Mistake(f"{options.file}: {error}", FAILED) from None


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Mistake(f"{path} can't be read: {error}", CANT_RUN) from None


def _documents(path: Path) -> list[Any]:
    try:
        return [each.value for each in read(_text(path), str(path)) if isinstance(each.value, dict)]
    except Unreadable as error:
        raise Mistake(f"{path}:{error.line}: {error}", FAILED) from None


# -- looking -----------------------------------------------------------------------------------------------------------


def show_status(options: argparse.Namespace) -> int:
    request: dict[str, Any] = {"do": "status"}
    if options.wait:
        request = {"do": "wait", "for": options.wait, "timeout_s": options.timeout_s}
    answer, _ = _ask(options, request)
    print(json.dumps(answer["pod"], indent=2) if options.json else status.as_text(answer["pod"]))
    return 0 if answer["pod"]["ready"] else FAILED


def logs(options: argparse.Namespace) -> int:
    directory: Path = options.dir.absolute()
    names = [options.container] if options.container else places.logged(directory)
    if not names or (options.container and not places.runs(directory, options.container)):
        there = ", ".join(places.logged(directory)) or "none"
        raise Mistake(
            f"there is no log of {options.container or 'anything'} in {directory}; there are: {there}", FAILED
        )
    readers = [_Tail(directory, name, options.previous, prefix=len(names) > 1) for name in names]
    while True:
        for reader in readers:
            reader.copy(sys.stdout)
        sys.stdout.flush()
        if not options.follow or not (directory / places.CONTROL).exists():
            return 0
        time.sleep(0.1)


class _Tail:
    """The log of one container, from run to run."""

    def __init__(self, directory: Path, name: str, previous: bool, *, prefix: bool) -> None:
        self.directory, self.name = directory, name
        self.prefix = f"{name} | " if prefix else ""
        runs = places.runs(directory, name)
        self.run = runs[-2] if previous and len(runs) > 1 else (runs[-1] if runs else 0)
        self.stays = previous
        self.file: IO[str] | None = None
        self.rest = ""

    def copy(self, output: IO[str]) -> None:
        while True:
            if self.file is None and self.run:
                self.file = places.log(self.directory, self.name, self.run).open(encoding="utf-8", errors="replace")
            if self.file is not None:
                *lines, self.rest = (self.rest + self.file.read()).split("\n")
                for line in lines:
                    print(self.prefix + line, file=output)
            later = [run for run in places.runs(self.directory, self.name) if run > self.run]
            if not later or self.stays:
                return
            self.run, self.file = later[0], None


# -- hurting -----------------------------------------------------------------------------------------------------------


def send_signal(options: argparse.Namespace) -> int:
    request = {"do": "signal", "container": options.container, "signal": options.signal, "inside": options.inside}
    if getattr(options, "every", False):
        request["every"] = True
    if getattr(options, "oom", False):
        request |= {"every": True, "oom": True}
    answer, _ = _ask(options, request)
    if options.json:
        print(json.dumps(answer))
    else:
        for each in answer["processes"]:
            print(f"{options.signal} to {each['command']} (process {each['pid']} in the pod)")
    return 0


def execute(options: argparse.Namespace) -> int:
    environment = dict(options.env)
    request = {"do": "exec", "container": options.container, "command": options.command, "environment": environment}
    answer, _ = _ask(options, request, [0, 1, 2])
    return int(answer["code"])


def forward(options: argparse.Namespace) -> int:
    _ask(options, {"do": "status"})
    listeners = [_forward(options.dir.absolute() / places.CONTROL, each) for each in options.ports]
    for listener, (_, _, inside) in zip(listeners, options.ports, strict=True):
        host, port = listener.getsockname()[:2]
        print(f"{host}:{port} -> {inside} of the pod", flush=True)
    threading.Event().wait()
    return 0


def _forward(control: Path, wanted: tuple[str, int, int]) -> socket.socket:
    """Listens here and relays each connection to the pod's own address."""
    host, port, inside = wanted
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise Mistake(f"nobody can listen on {host}:{port}: {error.strerror}", FAILED) from None

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_relay, args=(client, control, inside), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def _relay(client: socket.socket, control: Path, port: int) -> None:
    try:
        _, (descriptor,) = wire.ask(control, {"do": "dial", "port": port})
    except (wire.NoPod, wire.Refused, ValueError):
        client.close()
        return
    inside = socket.socket(fileno=descriptor)
    back = threading.Thread(target=_copy, args=(inside, client), daemon=True)
    back.start()
    _copy(client, inside)
    back.join()
    client.close()
    inside.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def down(options: argparse.Namespace) -> int:
    _ask(options, {"do": "down", "grace_s": options.grace_s})
    # It answers when it has ended, or not at all because it has ended.
    with contextlib.suppress(wire.NoPod, wire.Refused):
        wire.ask(options.dir.absolute() / places.CONTROL, {"do": "wait", "for": "finished"})
    lock = options.dir.absolute() / places.LOCK
    with contextlib.suppress(OSError):
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # whoever ran it has let go: nothing of it is left
        os.close(descriptor)
    return 0


def _ask(options: argparse.Namespace, request: dict[str, Any], descriptors: tuple[int, ...] | list[int] = ()) -> Any:
    try:
        return wire.ask(options.dir.absolute() / places.CONTROL, request, descriptors)
    except wire.NoPod as error:
        raise Mistake(str(error), CANT_RUN) from None
    except wire.Refused as error:
        raise Mistake(str(error), FAILED) from None

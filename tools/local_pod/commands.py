"""What a person says to a pod that runs: look at it, hurt it, enter it, end it. All of it goes over its control socket.

`local-pod run` is in `run.py`. What this file may not do: load anything heavy, because a person waits for it.
"""

import argparse
import contextlib
import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import IO, Any

from sidecar.exit_codes import EX_USAGE
from sidecar.terminal import say

from . import places, status_text, wire

FAILED, CANT_RUN = 1, 2
_LOOK_EVERY_S = 0.1


class Mistake(Exception):
    """What a person can put right, and the exit code."""

    def __init__(self, text: str, code: int = EX_USAGE) -> None:
        super().__init__(text)
        self.code = code


# -- looking -----------------------------------------------------------------------------------------------------------


def show_status(options: argparse.Namespace) -> int:
    request: dict[str, Any] = {"do": "status"}
    if options.wait:
        request = {"do": "wait", "for": options.wait, "timeout_s": _until_a_pod_runs(options)}
    answer, _ = ask(options, request)
    say(json.dumps(answer["pod"], indent=2) if options.json else status_text.as_text(answer["pod"]))
    return 0 if answer["pod"]["ready"] else FAILED


def _until_a_pod_runs(options: argparse.Namespace) -> float | None:
    """What is left of --timeout-s then. Raises Mistake."""
    began, said = time.monotonic(), False
    while True:
        left_s: float | None = options.timeout_s and max(0.0, round(options.timeout_s - (time.monotonic() - began), 2))
        try:
            wire.connect(options.dir.absolute() / places.CONTROL).close()
        except wire.NoneYet as error:
            if left_s == 0.0:
                raise Mistake(str(error), CANT_RUN) from None
            if not said:
                print(f"local-pod: {error}; it is waited for", file=sys.stderr)
            said = True
            time.sleep(_LOOK_EVERY_S)
        except wire.NoPod as error:
            raise Mistake(str(error), CANT_RUN) from None
        else:
            return left_s


def logs(options: argparse.Namespace) -> int:
    directory: Path = options.dir.absolute()
    there = places.logged(directory)
    names = [options.container] if options.container else there
    if not there:
        raise Mistake(f"there are no logs in {directory}: local-pod run FILE starts a pod, --dir names another", FAILED)
    if options.container and not places.runs(directory, options.container):
        raise Mistake(f"there is no log of {options.container} in {directory}; there are: {', '.join(there)}", FAILED)
    readers = [_Tail(directory, name, options.previous, prefix=len(names) > 1) for name in names]
    while True:
        for reader in readers:
            reader.copy()
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

    def copy(self) -> None:
        while True:
            if self.file is None and self.run:
                self.file = places.log(self.directory, self.name, self.run).open(encoding="utf-8", errors="replace")
            if self.file is not None:
                *lines, self.rest = (self.rest + self.file.read()).split("\n")
                if lines:
                    say("\n".join(self.prefix + line for line in lines))
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
    answer, _ = ask(options, request)
    if options.json:
        say(json.dumps(answer))
    else:
        for each in answer["processes"]:
            say(f"{options.signal} to {each['command']} (process {each['pid']} in the pod)")
    return 0


def execute(options: argparse.Namespace) -> int:
    environment = dict(options.env)
    request = {"do": "exec", "container": options.container, "command": options.command, "environment": environment}
    answer, _ = ask(options, request, [0, 1, 2])
    return int(answer["code"])


def down(options: argparse.Namespace) -> int:
    ask(options, {"do": "down", "grace_s": options.grace_s})
    # It answers when it has ended, or not at all because it has ended.
    with contextlib.suppress(wire.NoPod, wire.Refused):
        wire.ask(options.dir.absolute() / places.CONTROL, {"do": "wait", "for": "finished"})
    lock = options.dir.absolute() / places.LOCK
    with contextlib.suppress(OSError):
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # whoever ran it has let go: nothing of it is left
        os.close(descriptor)
    return 0


def ask(options: argparse.Namespace, request: dict[str, Any], descriptors: tuple[int, ...] | list[int] = ()) -> Any:
    try:
        return wire.ask(options.dir.absolute() / places.CONTROL, request, descriptors)
    except wire.NoPod as error:
        raise Mistake(str(error), CANT_RUN) from None
    except wire.Refused as error:
        raise Mistake(str(error), FAILED) from None

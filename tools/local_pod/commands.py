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
from typing import Any

from sidecar.terminal.exit_codes import EX_USAGE
from sidecar.terminal.terminal import say

from . import places, wire

FAILED, CANT_RUN = 1, 2
_LOOK_EVERY_S = 0.1


class Mistake(Exception):
    """What a person can put right, and the exit code."""

    def __init__(self, text: str, code: int = EX_USAGE) -> None:
        super().__init__(text)
        self.code = code


def show_status(options: argparse.Namespace) -> int:
    from .status import as_text

    request: dict[str, Any] = {"do": "status"}
    if options.wait:
        request = {"do": "wait", "for": options.wait, "timeout_s": _until_a_pod_runs(options)}
    answer, _ = ask(options, request)
    say(json.dumps(answer["pod"], indent=2) if options.json else as_text(answer["pod"]))
    return 0 if answer["pod"]["ready"] else FAILED


def _until_a_pod_runs(options: argparse.Namespace) -> float | None:
    """What is left of --timeout-s then. Raises Mistake."""
    began, said = time.monotonic(), False
    while True:
        left_s: float | None = options.timeout_s and max(0.0, round(options.timeout_s - (time.monotonic() - began), 2))
        try:
            wire.connect(options.dir.absolute() / places.CONTROL).close()
            return left_s
        except wire.NoPod as error:
            if left_s == 0.0 or not isinstance(error, wire.NoneYet):
                raise Mistake(str(error), CANT_RUN) from None
            if not said:
                print(f"local-pod: {error}; it is waited for", file=sys.stderr)
            said = True
            time.sleep(_LOOK_EVERY_S)


def send_signal(options: argparse.Namespace) -> int:
    request = {
        "do": "signal", "container": options.container, "signal": options.signal, "inside": options.inside,
        "every": options.every or options.oom, "oom": options.oom,
    }  # fmt: skip
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
    with contextlib.suppress(OSError):
        descriptor = os.open(options.dir.absolute() / places.LOCK, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # `local-pod run` has let go: nothing of it is left
        os.close(descriptor)
    return 0


def ask(options: argparse.Namespace, request: dict[str, Any], descriptors: tuple[int, ...] | list[int] = ()) -> Any:
    try:
        return wire.ask(options.dir.absolute() / places.CONTROL, request, descriptors)
    except wire.NoPod as error:
        raise Mistake(str(error), CANT_RUN) from None
    except wire.Refused as error:
        raise Mistake(str(error), FAILED) from None

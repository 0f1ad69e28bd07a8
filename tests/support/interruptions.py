"""What a signal handler raises: at a time, in a call that waits, or before any one instruction of ours."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from sidecar.machine.client_loop import ClientLoop


class Interrupted(Exception):
    """What the handler raises."""


@contextlib.contextmanager
def each_close_interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Within, what closes a descriptor is interrupted as soon as it has. Which they were."""
    closed, close = list[int](), os.close

    def interrupted(fd: int) -> None:
        closed.append(fd)
        close(fd)
        raise Interrupted

    with monkeypatch.context() as changed:
        changed.setattr(os, "close", interrupted)
        yield closed


@contextlib.contextmanager
def alarm_raises() -> Iterator[None]:
    """Within, a SIGALRM raises in whatever waits for a server, and nowhere else: what is interrupted in the middle of a
    few system calls is its program's business.
    """
    before = signal.signal(signal.SIGALRM, _raise)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _raise(_: int, frame: FrameType | None) -> None:
    while frame is not None:
        # Raised in a finalizer, the first one can't go on: pytest's hook shows it. Raised in that hook, the next one is
        # pytest's error, and no program's.
        if frame.f_code.co_name == "unraisable_hook":
            return
        if frame.f_code is ClientLoop.wait.__code__:
            raise Interrupted
        frame = frame.f_back


def interrupted_before(number: int, call: Callable[[], object], files: tuple[str, ...]) -> bool:
    """Calls it, and raises before the instruction of that number, counted in these files. False: it has fewer."""
    left = number

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False

"""Waiting for what happens in other processes: for conditions, never for luck, and always with a deadline."""

import os
import select
import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_S = float(os.environ.get("FAILOVER_CHAOS_DEADLINE_S", "120"))
"""Longer than anything takes on a busy machine: only a test that fails waits for so long."""
LOOK_EVERY_S = max(DEADLINE_S, 120) / 12_000
"""Whoever may wait for minutes looks less often: a hundred looks a second took a third of two processors."""
NEVER_S = 0.4
"""What must *not* happen is watched for so long. That can miss a fault on a slow machine and can't invent one."""

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """For what nothing announces: looks again every few milliseconds. Returns what was true."""
    end = time.monotonic() + deadline_s
    while not (value := look()):
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        select.select([], [], [], LOOK_EVERY_S)
    return value


def readable(fd: int, timeout_s: float = DEADLINE_S) -> bool:
    """A pidfd is readable when its process has ended; a socket or a pipe when something has come, or its end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(timeout_s, 0) * 1000))

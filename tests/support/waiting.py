"""Waiting for what happens in other processes: for conditions, never for luck, and always with a deadline."""

import os
import select
import time
from collections.abc import Callable
from typing import TypeVar

DEADLINE_S = float(os.environ.get("FAILOVER_CHAOS_DEADLINE_S", "120"))
"""Longer than anything takes on a busy machine: only a test that fails waits for so long."""
LOOK_FIRST_S, LOOK_LAST_S = 0.002, 0.05
"""What is soon so is soon seen; what takes long is looked at less often, so that looking takes no processor from it."""
NEVER_S = 0.4
"""What must *not* happen is watched for so long. That can miss a fault on a slow machine and can't invent one."""

T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """For what nothing announces: looks again and again. Returns what was true."""
    began = time.monotonic()
    while not (value := look()):
        waited = time.monotonic() - began
        assert waited < deadline_s, f"not within {deadline_s:g} s: {what}"
        select.select([], [], [], min(max(LOOK_FIRST_S, waited / 20), LOOK_LAST_S))
    return value


def readable(fd: int, timeout_s: float = DEADLINE_S) -> bool:
    """A pidfd is readable when its process has ended; a socket or a pipe when something has come, or its end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(timeout_s, 0) * 1000))

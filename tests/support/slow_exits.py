"""A process that was killed and hangs in its exit, as one in a driver's hands would."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.processes import Process
from tests.support.waiting import until

_WALL = 0x40000000


def _skip(why: str) -> None:
    import pytest  # the demo has no use for it

    pytest.skip(why)


@contextlib.contextmanager
def dies_slowly(process: Process, cant: Callable[[str], None] = _skip) -> Iterator[Callable[[], None]]:
    """From here on the process, once it is killed, hangs in its exit with everything that it has: memory, files,
    sockets. As one in a driver's hands would.

    By ptrace: a tracee stops at its exit. Call what is yielded to let it end.
    """
    seize, go_on, trace_exit = 0x4206, 7, 0x40
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    tasks = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
    for task in tasks:
        if libc.ptrace(seize, task, 0, trace_exit) != 0:
            cant(f"this machine lets no process trace another ({os.strerror(ctypes.get_errno())})")
    ended = False

    def let_go() -> None:
        nonlocal ended
        ended = True
        process.signal(signal.SIGKILL)
        for task in tasks:  # each stops at its exit, the leader too
            if os.WIFSTOPPED(os.waitpid(task, _WALL)[1]):
                libc.ptrace(go_on, task, 0, 0)
        for task in reversed(tasks):  # and ends, the leader last
            with contextlib.suppress(ChildProcessError):
                os.waitpid(task, _WALL)

    try:
        yield let_go
    finally:
        if not ended:
            let_go()


def hangs_in_exit(process: Process) -> None:
    """Waits until a process of `dies_slowly` that was killed has come as far as it gets."""
    until(lambda: process.thread_states() <= {"t", "Z"}, f"process {process.pid} hangs in its exit")

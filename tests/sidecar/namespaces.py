"""PID namespaces for tests; they need root."""

import ctypes
import os
from collections.abc import Callable

from tests.support.children import Child

_CLONE_NEWPID = 0x20000000


def in_new_pid_namespace(function: Callable[[Callable[[str], None]], None]) -> Child:
    """Runs the function as PID 1 of a new PID namespace. The Child itself is outside, lives as long and has its status;
    when it is killed, so is the namespace."""
    return Child(lambda say: _enter(lambda: function(say)))


def _enter(function: Callable[[], None]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    inner = os.fork()
    if inner == 0:
        libc.prctl(1, 9, 0, 0, 0)  # dies with the process outside
        function()
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)

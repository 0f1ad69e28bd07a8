"""Which failures waiting mends: weights that aren't there yet, memory, a permit, another of the engine's processes that
has ended (which says itself why). Another start may go well after them; any other failure would only be repeated.
"""

import errno
import socket

from engine_shim.engine import WorkerFailed
from gms.client import GmsError, OutOfMemory
from lockserver.client import LockError

_TRANSIENT = (LockError, GmsError, OutOfMemory, MemoryError, WorkerFailed)


def is_transient(error: BaseException) -> bool:
    """Libraries have many classes for "out of memory", and one sentence."""
    return isinstance(error, _TRANSIENT) or "out of memory" in str(error).lower()


def is_of_network(error: BaseException | None) -> bool:
    """The kernel says so of what it follows from. What a library says of itself doesn't count: huggingface_hub's error
    of its offline mode, say, which a person has chosen, is a ConnectionError.
    """
    while error is not None:
        of_kernel = type(error).__module__ in ("builtins", "socket")
        if of_kernel and isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
            return True
        if isinstance(error, OSError) and error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            return True
        error = error.__cause__ or error.__context__
    return False

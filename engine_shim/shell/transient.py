"""Which failures waiting mends: weights that aren't there yet, memory, a permit, another of the engine's processes that
has ended (which says itself why). Another start may go well after them; any other failure would only be repeated.
"""

from engine_shim.engine import WorkerFailed
from gms.client import GmsError, OutOfMemory
from lockserver.client import LockError

_TRANSIENT = (LockError, GmsError, OutOfMemory, MemoryError, WorkerFailed)


def is_transient(error: BaseException) -> bool:
    """Libraries have many classes for "out of memory", and one sentence."""
    return isinstance(error, _TRANSIENT) or "out of memory" in str(error).lower()

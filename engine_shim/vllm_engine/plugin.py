"""vLLM's general plugin: runs in every process of an engine's tree before that touches a device.

EngineCore and the workers join: they count with the lock server, die with their parent, and are known to the shim. The
main process has done that already (`run.py`). A short-lived program that vLLM starts to look at a model's class touches
no device, so it only dies with its parent; as a member its end would be the engine's.

Without the engine's environment this does nothing at all: it may be installed beside a vLLM of anybody's own. What
this file may not do: import vLLM before that is known.
"""

import functools
import multiprocessing
import os

from engine_shim import presence
from sidecar import process_setup

LOAD_FORMAT = "gms"
_PARENT = os.getppid()


def register() -> None:
    if presence.SHIM_VARIABLE not in os.environ:
        return
    if multiprocessing.parent_process() is not None:
        joined()
    elif not _is_main():
        process_setup.die_with_parent(_PARENT)
    from engine_shim.vllm_engine import heap, versions
    from engine_shim.vllm_engine.loader import GmsLoader

    versions.register_loader(LOAD_FORMAT, GmsLoader)
    if has_joined():
        heap.into_huge_pages()  # by now nearly all is loaded


@functools.cache
def joined() -> presence.Presence:
    """Kept by the cache for as long as the process lives."""
    return presence.enter()


def has_joined() -> bool:
    return bool(joined.cache_info().currsize)


def _is_main() -> bool:
    """The shim started it."""
    return os.environ.get(presence.SHIM_PID_VARIABLE) == str(_PARENT)

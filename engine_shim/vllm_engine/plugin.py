"""vLLM's general plugin. It runs in every process of an engine before that process touches a device.

EngineCore and the workers join here: the lock server counts them as members, they die with their parent, and the shim
knows them. The main process has done that already (`main_process.py`). vLLM also starts short-lived programs that look
at a model's class. They touch no device, so they only die with their parent; as members, their end would be the end of
the engine.

Without an engine-shim's environment this does nothing at all, so it may be installed beside any vLLM. What this
file may not do: import vLLM before it knows that.
"""

import functools
import multiprocessing
import os

from engine_shim import membership
from engine_shim.engine import CannotRun
from engine_shim.shell.transient import is_transient
from sidecar.kernel import process_setup
from sidecar.terminal.exit_codes import EX_USAGE

LOAD_FORMAT = "gms"
_PARENT = os.getppid()


def register() -> None:
    if membership.SHIM_VARIABLE not in os.environ:
        return
    if multiprocessing.parent_process() is not None:
        joined()
    elif not _is_main():
        process_setup.die_with_parent(_PARENT)
    from engine_shim.vllm_engine import huge_pages, versions
    from engine_shim.vllm_engine.loader import GmsLoader

    versions.register_loader(LOAD_FORMAT, GmsLoader)
    if has_joined():
        versions.on_core_failure(say_failure)
        huge_pages.move_memory()  # nearly everything is loaded by now


@functools.cache
def joined() -> membership.Member:
    """The cache keeps it for as long as the process lives."""
    return membership.enter()


def say_failure(error: BaseException) -> None:
    """Tells the shim why this process can't go on. The main process would only learn that some process failed."""
    if not has_joined():
        return
    from engine_shim.vllm_engine import versions

    if isinstance(error, CannotRun) or versions.never_fits(error):
        joined().shim.failing(str(error), exit_code=getattr(error, "exit_code", EX_USAGE))
    else:
        why = f"{type(error).__name__}: {error}"
        joined().shim.failing(why, transient=is_transient(error) or "WorkerProc initialization failed" in why)


def has_joined() -> bool:
    return bool(joined.cache_info().currsize)


def _is_main() -> bool:
    """Whether the shim started this process."""
    return os.environ.get(membership.SHIM_PID_VARIABLE) == str(_PARENT)

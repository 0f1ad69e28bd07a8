"""What a process sets about itself when it starts: to die with its parent, no core dump, descriptors enough.

What this file may not do: know what the process is for. Asking about other processes: `peers.py`.
"""

import contextlib
import ctypes
import os
import resource
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 1 << 20


def die_with_parent(parent_pid: int) -> None:
    """The kernel kills this process when its parent ends. If the parent has ended already, this doesn't return.

    parent_pid: what os.getpid() said in the parent before the fork.

    Two limits of the kernel's: it is the parent *thread* whose end counts, so start children from a thread that stays;
    and the setting is gone in a forked child and after exec of a set-uid program.
    """
    signal_when_parent_dies(signal.SIGKILL)
    # Only now: a parent that ended before the line above sends nothing.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(128 + signal.SIGKILL)  # PID 1 of a namespace survives a SIGKILL of its own


def signal_when_parent_dies(number: signal.Signals) -> None:
    """The kernel sends it when the parent (thread) ends; not if it has ended already."""
    prctl(_PR_SET_PDEATHSIG, number, "PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process, as PID 1 of a container has them anyway. They are
    to be collected.
    """
    prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def call_itself(name: str) -> None:
    """What ps shows (15 characters of it)."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(name[:15])


def forbid_core_dumps() -> None:
    """A dump holds the process's memory, and delays its death, for as long as it takes to write.

    The limit is 1 byte and not 0: with 0 the kernel still dumps into a pipe (`core_pattern` = `|program`, as most
    distributions have it), while 1 is its word for "not into a pipe either", and less than any file can have.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    limit = 1 if hard == resource.RLIM_INFINITY or hard >= 1 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def outlives_its_terminal() -> bool:
    """It was started so (nohup, say): SIGHUP, which a terminal that closes sends, doesn't end it. To be asked before
    this process handles that signal.
    """
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def raise_descriptor_limit() -> int:
    """Takes all the descriptors that this process is allowed without asking; returns how many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def give_large_memory_back() -> None:
    """What is larger than this goes back to the kernel as soon as it is freed. glibc would raise that bound to the size
    of what was freed, up to 32 MiB, and keep the holes: 80 MiB of requests took 139.
    """
    with contextlib.suppress(AttributeError):  # musl has no such bound
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def prctl(option: int, value: int, name: str) -> None:
    """Raises OSError."""
    call = ctypes.CDLL(None, use_errno=True).prctl
    call.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    if call(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")

"""Whether a process can have io_uring, and how a tree of processes is kept from it.

Why: what io_uring reads for a process arrives after the process's end. Measured (Linux 6.18): a process is killed with
O_DIRECT reads into shared memory under way on a slow disk, its pidfd is readable at once, and half a second later the
pages change that are its successor's by then. A pidfd is the end of writing only where there is no such I/O.

    forbid()             # before exec: this process, its threads, and whatever it starts, for good
    why_impossible()     # of this process: a sentence; empty where it may have it
    kernel_refuses()     # to all processes
    is_filtered(pid)     # what can be seen of another process: there is a filter, whatever it filters

What this file may not do: know what is written. The other ways of writing late: docs/inside/gms.md, "Late writes".
"""

import ctypes
import errno
import os
import platform
import struct

from sidecar.kernel import process_setup

DISABLED = "/proc/sys/kernel/io_uring_disabled"
_FIRST, _LAST = 425, 427
"""io_uring_setup, io_uring_enter, io_uring_register: the same on each of these, and in their 32-bit modes. (x32 adds a
bit, which is taken off.)"""
_SECCOMP = {"x86_64": 317, "aarch64": 277, "riscv64": 277, "ppc64le": 358, "s390x": 348}
_SET_MODE_FILTER = 1
_TSYNC, _SPEC_ALLOW = 1, 4
_X32_BIT = 0x40000000
_PR_SET_NO_NEW_PRIVS = 38
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_PROGRAM = b"".join(
    struct.pack("=HBBI", code, yes, no, value)
    for code, yes, no, value in (
        (0x20, 0, 0, 0),  # the call's number
        (0x54, 0, 0, 0xFFFFFFFF ^ _X32_BIT),
        (0x35, 0, 2, _FIRST),  # less: allow
        (0x25, 1, 0, _LAST),  # more: allow
        (0x06, 0, 0, _REFUSE),
        (0x06, 0, 0, _ALLOW),
    )
)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def forbid() -> None:
    """No thread of this process, and nothing that it starts, gets io_uring from now on. Raises OSError.

    The kernel wants a promise for that (no_new_privs): a set-uid program gains nothing here any more.
    """
    number = _SECCOMP.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"no filter is known for {platform.machine()}")
    process_setup.prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(_PROGRAM) // 8, _PROGRAM)
    # SPEC_ALLOW: the filter is no sandbox, and kernels before 5.16 would slow the engine down for it.
    flags = ctypes.c_ulong(_TSYNC | _SPEC_ALLOW)
    failed = libc.syscall(ctypes.c_long(number), ctypes.c_ulong(_SET_MODE_FILTER), flags, ctypes.byref(program))
    if failed > 0:
        raise OSError(errno.EBUSY, f"seccomp: thread {failed} has a filter of its own")
    if failed < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {os.strerror(code)}")


def why_impossible() -> str:
    """A sentence about this process and whatever it starts. Empty: it may have io_uring, or that can't be told. (The
    sysctl's value 1 says nothing: a process that had more rights before may have a ring.)
    """
    if why := kernel_refuses():
        return why
    if refused() in (errno.EPERM, errno.ENOSYS) and is_filtered(os.getpid()):
        return "a seccomp filter refuses io_uring"
    return ""


def kernel_refuses() -> str:
    """Says why no process of this machine has io_uring. Empty: some may."""
    try:
        with open(DISABLED, encoding="ascii") as sysctl:
            if sysctl.read().strip() == "2":
                return "kernel.io_uring_disabled is 2"
    except OSError:
        pass  # older than 6.6, or without io_uring
    if refused() == errno.ENOSYS and is_filtered(os.getpid()) is False:
        return "this kernel has no io_uring"
    return ""


def is_filtered(pid: int) -> bool | None:
    """Some seccomp filter is on it. None: that can't be seen."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            said = [line.split()[1] for line in status if line.startswith("Seccomp:")]
    except OSError:
        return None
    return said[0] == "2" if said else None


def refused() -> int:
    """What the kernel says to this process when it asks for a ring (of no size, in no memory: it can't get one)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(_FIRST), ctypes.c_ulong(0), ctypes.c_void_p(None))
    return ctypes.get_errno()

"""Runs a program under a real seccomp filter that refuses some system calls, as a container's profile does:

    python -m tests.support.seccomp pidfd_open=EPERM,pidfd_send_signal=ENOSYS PROGRAM ARGUMENT...

The filter is inherited by everything that the program starts. No privilege is needed (PR_SET_NO_NEW_PRIVS).
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence

_X86 = os.uname().machine == "x86_64"
NUMBERS = {
    "pidfd_send_signal": 424,
    "pidfd_open": 434,
    "sendmsg": 46 if _X86 else 211,
    "inotify_init1": 294 if _X86 else 26,
    "inotify_add_watch": 254 if _X86 else 27,
    "seccomp": 317 if _X86 else 277,
}
"""From 424 on the numbers are the same on every machine."""
_SET_SECCOMP, _MODE_FILTER, _SET_NO_NEW_PRIVS = 22, 2, 38
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x00050000, 0x7FFF0000


def through(**refused: str) -> list[str]:
    """What stands before a command that is to run so: `through(pidfd_open="EPERM")`."""
    said = ",".join(f"{call}={why}" for call, why in refused.items())
    return [sys.executable, "-m", "tests.support.seccomp", said]


def refuse(calls: Sequence[tuple[str, int]]) -> None:
    """From now on, in this process and what it starts. There is no way back."""
    program = [(_LOAD, 0, 0, 0)]  # the call's number
    for name, number in calls:
        program += [(_JUMP_IF_EQUAL, 0, 1, NUMBERS[name]), (_RETURN, 0, 0, _REFUSE | number)]
    program.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _MODE_FILTER, ctypes.byref(whole), 0, 0)):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the filter can't be installed")


if __name__ == "__main__":
    refuse([(call, getattr(errno, why)) for call, _, why in (one.partition("=") for one in sys.argv[1].split(","))])
    os.execvp(sys.argv[2], sys.argv[2:])

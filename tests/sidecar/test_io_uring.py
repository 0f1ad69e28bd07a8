"""No io_uring for a tree of processes. Each story runs in a process of its own: a filter is for good."""

import subprocess
import sys

import pytest

from sidecar.kernel import io_uring
from tests.support.processes import ROOT

pytestmark = pytest.mark.skipif(bool(io_uring.why_impossible()), reason="there is no io_uring here anyway")
SAY = "from sidecar.kernel import io_uring; print(io_uring.refused(), io_uring.why_impossible())"
EPERM, EFAULT = 1, 14


def said(program: str) -> str:
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_without_a_filter_it_is_there() -> None:
    assert said(SAY) == str(EFAULT)


def test_a_grandchild_has_none_either() -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SAY!r}], check=True)"
    program = f"from sidecar.kernel import io_uring; io_uring.forbid(); exec({child!r})"
    assert said(program) == f"{EPERM} a seccomp filter refuses io_uring"


def test_threads_that_are_there_already_have_none() -> None:
    program = """
import threading
from sidecar.kernel import io_uring
forbidden, refused = threading.Event(), []
thread = threading.Thread(target=lambda: (forbidden.wait(), refused.append(io_uring.refused())))
thread.start()
io_uring.forbid()
forbidden.set()
thread.join()
print(*refused)
"""
    assert said(program) == str(EPERM)


def test_all_three_calls_are_refused_whatever_they_are_called_by() -> None:
    program = """
import ctypes
from sidecar.kernel import io_uring
io_uring.forbid()
libc = ctypes.CDLL(None, use_errno=True)
for call in (425, 426, 427):
    for bit in (0, 0x40000000):  # that of x32
        print(libc.syscall(ctypes.c_long(call | bit), -1, None, 0, 0, None, 0), ctypes.get_errno())
"""
    assert said(program).splitlines() == [f"-1 {EPERM}"] * 6


def test_its_neighbours_are_allowed() -> None:
    program = """
import ctypes, os
from sidecar.kernel import io_uring
io_uring.forbid()
libc = ctypes.CDLL(None, use_errno=True)
for call in (424, 428):  # pidfd_send_signal, open_tree
    libc.syscall(ctypes.c_long(call), -1, 0, None, 0)
    print(os.strerror(ctypes.get_errno()))
"""
    assert "not permitted" not in said(program)

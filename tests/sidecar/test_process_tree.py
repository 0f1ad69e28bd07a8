"""Finding the processes of an engine: both ways of asking the kernel see the same."""

import os
import signal
import subprocess
import sys

import pytest

from sidecar.kernel import process_tree
from tests.support.waiting import until

PROGRAM = """
import subprocess, sys, threading
def start():
    subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
start()
thread = threading.Thread(target=start)
thread.start()
thread.join()
threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("lists", [True, False])
def test_every_descendant_is_found_whichever_thread_started_it_and_no_zombie(
    lists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lists and not os.path.exists("/proc/self/task/self/children") and not process_tree._HAS_LISTS:
        pytest.skip("this kernel has no lists of children")
    monkeypatch.setattr(process_tree, "_HAS_LISTS", lists)
    before = set(process_tree.descendants(os.getpid()))
    child = subprocess.Popen([sys.executable, "-c", PROGRAM])
    dead = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)

    def found() -> set[int]:
        return set(process_tree.descendants(os.getpid())) - before

    try:
        until(lambda: len(found()) == 3, "the child and its two")
        assert child.pid in found() and dead.pid not in found()
    finally:
        process_tree.kill(list(found()), 0)
        child.wait()
        dead.wait()
    until(lambda: not found(), "all of them are gone")


def test_the_processor_time_of_processes_grows_and_isnt_told_of_a_stopped_one() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until(lambda: (process_tree.used_s([child.pid]) or 0.0) > 0.2, "it uses the processor")
        child.send_signal(signal.SIGSTOP)
        until(lambda: process_tree.used_s([os.getpid(), child.pid]) is None, "it is stopped")
        assert process_tree.used_s([os.getpid()]) is not None
    finally:
        child.kill()
        child.wait()
    assert process_tree.used_s([child.pid]) == 0.0

"""What a process sets about itself, seen from outside: dies with its parent, leaves no core."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.kernel import process_setup
from tests.sidecar.namespaces import in_new_pid_namespace
from tests.support.children import Child, stay, wait_until_dead

Say = Callable[[str], None]


def test_a_child_dies_with_its_killed_parent() -> None:
    def parent(say: Say) -> None:
        pid = os.getpid()
        if os.fork() == 0:
            process_setup.die_with_parent(pid)
            say(str(os.getpid()))
            stay()
        stay()

    with Child(parent) as child:
        orphan = os.pidfd_open(int(child.line()))
        child.kill()
        wait_until_dead(orphan)
        os.close(orphan)


def test_a_child_whose_parent_died_before_it_was_armed_goes_no_further() -> None:
    def parent(say: Say) -> None:
        pid = os.getpid()
        if os.fork() == 0:
            while os.getppid() == pid:
                os.sched_yield()
            say("armed now")
            process_setup.die_with_parent(pid)
            say("still alive")
        os._exit(0)

    with Child(parent) as child:
        assert [child.line(), child.line()] == ["armed now", ""]


def test_a_living_parent_is_no_reason_to_die() -> None:
    def arm(say: Say) -> None:
        process_setup.die_with_parent(os.getppid())
        say("still alive")

    with Child(arm) as child:
        assert child.line() == "still alive"


@pytest.mark.root
def test_the_first_process_of_a_pid_namespace_dies_though_no_kill_of_its_own_ends_it() -> None:
    def orphaned(say: Say) -> None:
        process_setup.die_with_parent(1)  # getppid() says 0 there: that parent isn't to be seen
        say("still alive")

    with in_new_pid_namespace(orphaned) as child:
        assert child.line() == ""
        assert os.waitstatus_to_exitcode(child.wait()) == 128 + signal.SIGKILL


def dumped(tmp_path: Path, prepare: Callable[[], None]) -> bool:
    def crash(say: Say) -> None:
        os.chdir(tmp_path)
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        prepare()
        os.kill(os.getpid(), signal.SIGQUIT)  # dumps, and has no handler of pytest's

    with Child(crash) as child:
        status = child.wait()
        assert os.WTERMSIG(status) == signal.SIGQUIT
        return os.WCOREDUMP(status)


def test_a_crash_leaves_no_core_where_it_would_have_left_one(tmp_path: Path) -> None:
    if not dumped(tmp_path, lambda: None):
        pytest.skip("nothing leaves a core on this machine")
    assert not dumped(tmp_path, process_setup.forbid_core_dumps)


def test_the_core_limit_is_the_one_that_stops_a_dump_into_a_pipe_too() -> None:
    def forbid(say: Say) -> None:
        process_setup.forbid_core_dumps()
        say(str(resource.getrlimit(resource.RLIMIT_CORE)))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        process_setup.forbid_core_dumps()
        say(str(resource.getrlimit(resource.RLIMIT_CORE)))

    with Child(forbid) as child:
        assert [child.line(), child.line()] == ["(1, 1)", "(0, 0)"]


def test_the_descriptor_limit_becomes_the_hard_limit() -> None:
    def raise_it(say: Say) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        limit = process_setup.raise_descriptor_limit()
        say(str(resource.getrlimit(resource.RLIMIT_NOFILE) == (limit, limit) and limit > 64))

    with Child(raise_it) as child:
        assert child.line() == "True"

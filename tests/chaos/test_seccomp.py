"""Under a real seccomp filter that refuses what the server and GMS do with pidfds: who is there is still seen, nothing
ends with a traceback, and what can't be done is said."""

import os
import sys

import pytest

from gms.rules import messages as gm
from tests.chaos.house import House
from tests.gms.container import Container, hello
from tests.support.seccomp import through

pytestmark = pytest.mark.chaos

REFUSALS = pytest.mark.parametrize("refusal", ["EPERM", "ENOSYS"])


@REFUSALS
def test_engines_are_seen_by_the_kernels_word_where_pidfd_open_is_refused(house: House, refusal: str) -> None:
    server = house.server(through=through(pidfd_open=refusal))
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    assert server.status().evidence in ("peer pidfd", "end-of-file only")  # the second: older than Linux 6.5
    a.kill()
    assert b.granted()["dead"] == [True]


@REFUSALS
def test_a_leftover_that_the_server_may_not_kill_is_an_alarm_that_says_why(house: House, refusal: str) -> None:
    server = house.server("--window-s", "0.2", through=through(pidfd_send_signal=refusal))
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    leftover = a.child("exec").joins(a.tree).joined()
    b.wants(watching=[a, leftover])
    server.shows(lambda s: s.waiters)
    a.kill()
    alarmed = server.shows(lambda s: any(f"process {leftover.pid}" in alarm for alarm in s.alarms))
    assert "pidfd_send_signal is refused" in " ".join(alarmed.alarms), alarmed.alarms
    assert not b.heard("granted")
    leftover.kill()
    assert b.granted()["dead"] == [True, True]
    server.shows(lambda s: not s.alarms)


@REFUSALS
def test_gms_serves_and_sees_its_servers_end_where_pidfd_open_is_refused(container: Container, refusal: str) -> None:
    command = (*through(pidfd_open=refusal), sys.executable, "-m", "gms", "--run-dir", str(container.run_dir))
    gms = container.run(*command, "--devices", "host:0", "--capacity", "64MiB")
    gms.err.with_words(" ready ")
    assert container.caller(hello()).ask(gm.AskStatus(), gm.Status).state == "EMPTY"
    os.kill(container.server_pid(), 9)
    assert gms.ends() == 1
    assert "child_died" in gms.err.rest() and not any("Traceback" in line for line in gms.err.said)

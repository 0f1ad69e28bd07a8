"""A device's server that hangs: when it is killed, and when it isn't."""

import os
import signal
import socket
from pathlib import Path

import pytest

from gms.rules.silence import NOT_WELL_S, PATIENCE, Do, Silence
from gms.shell.device_process import _answer
from sidecar.machine import keeper
from tests.gms.container import Container, dead
from tests.gms.test_supervisor import TWO, page
from tests.support.ports import free_port
from tests.support.root import needs_root
from tests.support.waiting import until

FREEZER = Path("/sys/fs/cgroup/freezer")
BOUND_S = 20.0


def looks(silence: Silence, begin_s: int, seconds: int, cpu_s: float = 0.0) -> list[tuple[int, Do]]:
    """Once a second; `cpu_s` is what it uses in each. What was to be done, and when."""
    found = [(at, silence.look(at, cpu_s * at)) for at in range(begin_s, begin_s + seconds)]
    return [(at, do) for at, do in found if do is not Do.NOTHING]


def test_one_that_is_silent_and_uses_no_processor_is_killed_once_and_then_named() -> None:
    silence = Silence(BOUND_S, 0.0)
    silence.answered()
    assert looks(silence, 1, 100) == [(BOUND_S, Do.KILL), (BOUND_S + NOT_WELL_S, Do.NAME)]
    assert silence.hangs


def test_one_that_uses_the_processor_or_has_not_begun_has_longer() -> None:
    busy, new = Silence(BOUND_S, 0.0), Silence(BOUND_S, 0.0)
    busy.answered()
    assert looks(busy, 1, 121, cpu_s=0.1) == looks(new, 1, 121) == [(PATIENCE * BOUND_S, Do.KILL)]
    assert not busy.hangs and not new.hangs, "kubelet would end the other devices' servers, too"


def test_an_answer_begins_everything_anew() -> None:
    silence = Silence(BOUND_S, 0.0)
    silence.answered()
    assert looks(silence, 1, 19) == []
    silence.answered()
    assert not silence.hangs
    assert looks(silence, 20, 19) == []


def test_time_without_a_look_does_not_count() -> None:
    silence = Silence(BOUND_S, 0.0)
    silence.answered()
    assert silence.look(1000.0, 0.0) is Do.NOTHING and silence.silent_s == 2.0


def test_the_end_of_the_supervisors_line_comes_before_the_servers_own_end_and_is_no_mistake() -> None:
    asking, answering = socket.socketpair()
    with answering:
        asking.send(b"?")
        _answer(answering.fileno())
        assert asking.recv(64) == b"."
        asking.close()
        _answer(answering.fileno())


@pytest.mark.slow
def test_a_server_that_hangs_is_killed_and_gms_starts_again(container: Container) -> None:
    gms = container.serves("--silent-s", "5", "--restart", keeper.IN_PLACE, devices=TWO)
    old = container.server_pid("host:0"), container.server_pid("host:1")
    os.kill(old[0], signal.SIGSTOP)
    said = gms.err.with_words("silent ")
    assert "device=host:0" in said and f"pid={old[0]}" in said
    gms.err.with_words("child_died")
    for _ in TWO.split(","):
        gms.err.with_words(" ready ")
    assert {container.server_pid("host:0"), container.server_pid("host:1")}.isdisjoint(old)


def test_live_says_which_server_hangs_until_it_answers(container: Container) -> None:
    pytest.importorskip("prometheus_client")
    port = free_port()
    container.serves("--silent-s", "600", "--metrics", f"127.0.0.1:{port}", devices=TWO)
    pid = container.server_pid("host:1")
    assert page(port, "/live") == "alive\n"
    os.kill(pid, signal.SIGSTOP)
    until(lambda: "the server of host:1 has not answered" in page(port, "/live"), "it says so")
    os.kill(pid, signal.SIGCONT)
    until(lambda: page(port, "/live") == "alive\n", "all is well again")


@pytest.mark.slow
@needs_root
def test_a_server_that_cant_be_killed_is_named_and_the_others_serve_on(container: Container) -> None:
    """In a frozen cgroup, as in a system call that never returns, SIGKILL ends nothing."""
    if not (FREEZER / "cgroup.procs").exists():
        pytest.skip("no cgroup here freezes")
    gms = container.serves("--silent-s", "5", devices=TWO)
    pid, other = container.server_pid("host:0"), container.server_pid("host:1")
    group = FREEZER / f"gpu-failover-{pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        said = gms.err.with_words("cannot_be_killed")
        assert f"pid={pid}" in said and "device=host:0" in said
        assert container.server_pid("host:1") == other
    finally:
        (group / "freezer.state").write_text("THAWED")
        until(lambda: dead(pid), "it is thawed, and dies")
        until(lambda: not (group / "cgroup.procs").read_text(), "it has left")
        group.rmdir()
    assert gms.ends() == 1

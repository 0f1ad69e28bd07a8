"""Evidence carries a server that knows no lock: real sockets, real life locks, a real process that is killed."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evidence.rules import client_events as c
from evidence.rules import messages as m
from evidence.rules.events import Received
from evidence.rules.standing import Me
from sidecar.machine.context import Time
from tests.evidence.cloakroom import GuestMachine, Machine, Register, Server
from tests.evidence.parts import NAME, peer
from tests.support.processes import Process, Program
from tests.support.waiting import until


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Program]:
    program = Program(sys.executable, "-m", "tests.evidence.cloakroom", str(tmp_path), "guest")
    yield program
    program.close()


def test_a_tree_that_is_killed_is_proven_gone_with_its_child(tmp_path: Path, guest: Program) -> None:
    server = Server(tmp_path, "first")
    try:
        child = Process(int(guest.out.next()))
        (name,) = server.machine.bound
        assert len(server.machine.bound[name].members) == 2 and (tmp_path / "life" / name).exists()
        child.stop()
        guest.kill()
        child.wait()
        until(lambda: "gone tree=" in server.words.getvalue(), "the proof is complete")
        assert "no process holds the life lock" in server.words.getvalue() and not server.machine.bound
    finally:
        server.end()


def test_the_next_server_gets_the_tree_back_from_the_process_itself(tmp_path: Path, guest: Program) -> None:
    first = Server(tmp_path, "first")
    child = Process(int(guest.out.next()))
    first.end()
    second = Server(tmp_path, "second")
    try:
        back = until(lambda: next(iter(second.machine.bound.values()), None), "the guest is back")
        until(lambda: len([one for one in back.members.values() if one.process is not None]) == 2, "with its child")
        guest.kill()
        child.wait()
        until(lambda: "gone tree=" in second.words.getvalue(), "the proof is complete")
    finally:
        second.end()


def test_a_guest_that_is_refused_ends() -> None:
    machine = GuestMachine(Me("a", "0" * 8, 1, True))
    machine.handle(c.Connected((1, 1)), 0.0)
    assert machine.handle(c.Heard(m.Refused(why="no")), 0.0) == [c.No("no")] and machine.deadline == math.inf


def test_only_a_process_of_a_tree_shows_life_files_of_it() -> None:
    machine = Machine("cloakroom")
    why_not = machine.reception.why_not_show_lives
    assert "introduce yourself" in why_not(1, NAME)
    hello = Register(protocol=1, engine_id="a", incarnation="0" * 8, life=(1, 1), pid=1)
    machine.handle(Received(1, hello, (peer(1),), life_held=True, secret="s"), Time(0.0, 0.0))
    machine.handle(Received(2, m.Observe(protocol=1)), Time(0.0, 0.0))
    assert why_not(1, NAME) == "" and "no process" in why_not(1, "b.00000000") and "no process" in why_not(2, NAME)

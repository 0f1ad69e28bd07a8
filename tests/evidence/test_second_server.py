"""Evidence carries a server that knows no lock: real sockets, real life locks, a real process that is killed."""

import errno
import math
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from evidence.rules import client_events as c
from evidence.rules import events as e
from evidence.rules import messages as m
from evidence.rules.events import Received
from evidence.rules.standing import Me
from evidence.shell import lifefiles
from sidecar.kernel.lifelock import LifeProbe
from sidecar.machine.context import Time
from sidecar.terminal.exit_codes import EX_LOST
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


def test_a_process_to_which_something_was_granted_ends_when_it_can_hear_nothing_any_more(
    tmp_path: Path, guest: Program
) -> None:
    server = Server(tmp_path, "first")
    try:
        guest.out.next()
        guest.send(signal.SIGUSR1)
        assert guest.ends() == EX_LOST
    finally:
        server.end()


def test_what_cant_be_looked_at_is_said_once_however_often_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tenth of a second it would be, while a grant waits for it."""
    server = Server(tmp_path, "first")
    server.end()

    def refuses(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    def said() -> list[int]:
        for _ in range(2):
            server.probe_strangers(e.ProbeStrangers(()))
            server.probe_life(e.ProbeLife(NAME))
        lines = server.words.getvalue().splitlines()
        return [sum(f" life_file{plural}_unreadable " in line for line in lines) for plural in ("", "s")]

    life = tmp_path / "life" / NAME
    life.touch()
    with monkeypatch.context() as patched:
        patched.setattr(LifeProbe, "open", refuses)
        assert said() == [1, 0]
        patched.setattr(LifeProbe, "open", lambda *_: None)
        life.unlink()
        assert said() == [1, 0]
        life.touch()
        patched.setattr(LifeProbe, "open", refuses)
        assert said() == [2, 0], "another one under that name"
    with monkeypatch.context() as patched:
        patched.setattr(lifefiles, "names", refuses)
        assert said() == [2, 1]
    assert said() == [2, 1]
    monkeypatch.setattr(lifefiles, "names", refuses)
    assert said() == [2, 2], "and again after it was in order"
    server.stop_looking_at(NAME)


def test_only_a_process_of_a_tree_shows_life_files_of_it() -> None:
    machine = Machine("cloakroom")
    why_not = machine.reception.why_not_show_lives
    assert "introduce yourself" in why_not(1, NAME)
    hello = Register(protocol=1, engine_id="a", incarnation="0" * 8, life=(1, 1), pid=1)
    machine.handle(Received(1, hello, (peer(1),), life_held=True, secret="s"), Time(0.0, 0.0))
    machine.handle(Received(2, m.Observe(protocol=1)), Time(0.0, 0.0))
    assert why_not(1, NAME) == "" and "no process" in why_not(1, "b.00000000") and "no process" in why_not(2, NAME)

"""Evidence carries a server that knows no lock: real sockets, real life locks, a real process that is killed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.evidence.cloakroom import Server
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

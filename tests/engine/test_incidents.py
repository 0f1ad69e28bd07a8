"""What a person with a pager meets: each incident is told by `failover status`, or by an alert, by itself."""

import signal
import socket
from pathlib import Path

import pytest

from engine_shim.cli import pair_look
from engine_shim.cli.failover import main
from tests.engine.kinds import TOY
from tests.engine.shims import House, Program
from tests.support.waiting import until

chaos = pytest.mark.chaos


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class Pager:
    """`failover status` of a pair as a pod has it: no `failover up` tells where the door is."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.house = house
        self.capsys = capsys
        self.port = free_port()
        monkeypatch.setattr(pair_look, "DOOR", f"http://127.0.0.1:{self.port}")

    def door(self, run_dir: Path, *more: str) -> Program:
        listen = ("--listen", f"127.0.0.1:{self.port}")
        door = Program(self.house, "door", "gateway", "--run-dir", str(run_dir), *listen, *more)
        self.house.add(door)
        return door

    def status(self, *words: str) -> tuple[int, str]:
        code = main(["status", "--run-dir", str(self.house.run_dir), *words])
        return code, self.capsys.readouterr().out


@pytest.fixture
def pager(house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pager:
    return Pager(house, monkeypatch, capsys)


@chaos
def test_a_door_that_no_failover_up_tells_of_is_asked_and_one_that_is_away_is_an_alarm(
    house: House, pager: Pager
) -> None:
    house.pair(TOY)
    code, said = pager.status()
    assert code == 1 and "redundancy     yes: b would take over" in said
    assert (
        f"door           http://127.0.0.1:{pager.port}/v1  (doesn't answer: no program listens there; --door " in said
    )
    assert "alarm          the door doesn't answer: clients reach no engine through it" in said
    assert pager.status("--door", "none")[0] == 0, "the engines' own sockets are for clients, then"
    other = pager.door(house.directory)
    until(
        lambda: f"a door of other pairs listens there ({house.directory})" in pager.status()[1], "it isn't this one's"
    )
    assert pager.status()[0] == 1
    other.kill()
    until(lambda: other.dead, "it has ended")
    own = pager.door(house.run_dir)
    until(lambda: pager.status()[0] == 0, "clients reach an engine")
    assert f"door           http://127.0.0.1:{pager.port}/v1  (answers)\n" in pager.status()[1]
    own.signal(signal.SIGSTOP)
    code, said = pager.status()
    assert code == 1 and "(doesn't answer: says nothing for 2 s: is its process stopped" in said


@chaos
def test_what_cant_be_asked_is_said_and_the_exit_code_isnt_0(house: House, pager: Pager) -> None:
    _, b = house.pair(TOY)
    assert pager.status("--door", "none")[0] == 0
    b.signal(signal.SIGSTOP)
    code, said = pager.status("--door", "none")
    assert code == 2 and "redundancy     unknown: b's shim doesn't answer" in said

"""Programs are upgraded one after the other: two that share no version take nothing away from each other."""

import os
import subprocess
import sys

import pytest

from gms.rules import messages as m
from gms.shell.reader import Reader
from tests.gms.container import SLAB, Container
from tests.gms.live import House, plain_layout
from tests.support.processes import ROOT
from tests.support.waiting import until


def test_a_process_with_which_no_protocol_is_shared_is_told_so_and_an_alarm_names_it(container: Container) -> None:
    container.serves()
    writer = container.writer()
    for hello_of_another in (
        m.Hello(protocol=98, newest=99, engine_id="from-tomorrow", pid=1),
        m.Hello(protocol=0, engine_id="from-yesterday", pid=2),
    ):
        caller = container.caller(hello_of_another)
        problem, _ = caller.hear(m.Problem)
        assert problem.about == "protocol" and f"this server version {m.PROTOCOL}" in problem.why
        caller.ends()
    alarms = container.status().alarms
    assert any("from-tomorrow" in alarm and "this server has to be upgraded" in alarm for alarm in alarms)
    assert any("from-yesterday" in alarm and "its program has to be upgraded" in alarm for alarm in alarms)
    assert writer.ask(m.Ping(), m.Pong) and container.status().state == "RO"
    for newest in (0, m.PROTOCOL, 99):
        caller = container.caller(m.Hello(protocol=m.OLDEST, newest=newest, engine_id="x", pid=os.getpid()))
        assert caller.hear(m.Welcome)[0].protocol == m.PROTOCOL, "the welcome says what is spoken"


def test_a_reader_under_a_server_that_cant_talk_to_it_reads_on_and_is_back_when_it_can(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[str] = []
    client = house.client("reader", on_problem=problems.append)
    with client.write(10) as writer:
        slab = writer.create(SLAB)
        writer.memory(slab)[0] = 7
        reader: Reader = writer.commit(plain_layout(tuple(writer.sizes)))
    generation = reader.generation
    sleeper = house.client("sleeper", on_problem=problems.append).read(10)
    sleeper.sleep()
    house.kill()
    monkeypatch.setattr(m, "OLDEST", 98)  # of this process: the server has its own
    monkeypatch.setattr(m, "PROTOCOL", 99)
    house.start()
    until(lambda: client.problem, "it is told")
    assert "98 to 99" in client.problem and problems
    assert reader.lost == "" and reader.memory(0)[0] == 7
    monkeypatch.setattr(m, "OLDEST", 1)
    monkeypatch.setattr(m, "PROTOCOL", 1)
    until(lambda: house.status().state == "RO", "it is back")
    assert house.status().generation == generation and not client.problem
    sleeper.wake(10)
    assert sleeper.memory(0)[0] == 7


TOMORROW = """
import sys
from gms.rules import messages as m
m.OLDEST, m.PROTOCOL = 98, 99
from gms.cli import gmsctl
sys.exit(gmsctl.main(sys.argv[1:]))
"""


def test_gmsctl_of_another_version_says_so_with_a_code_of_its_own(container: Container) -> None:
    container.serves()
    for words in (("status",), ("get", "/dev/null")):
        arguments = ["--run-dir", str(container.run_dir), *words]
        done = subprocess.run(
            [sys.executable, "-c", TOMORROW, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 76 and "98 to 99" in done.stderr and "Traceback" not in done.stderr

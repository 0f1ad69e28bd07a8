"""Programs are upgraded one after the other: an older client under this server, this client under an older server, and
two that share no protocol. What the older ones say was recorded (`recorded_1.py`), and what they understand is a copy
of their messages (`messages_1.py`).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gms import client_events as c
from gms import messages as m
from gms.client_machine import ClientMachine, Doing
from gms.reader import Reader
from gms.rundir import connect
from sidecar.frames import Channel, close_all
from tests.gms import messages_1 as m1
from tests.gms import recorded_1
from tests.gms.container import SLAB, Container, containers, hello, kill
from tests.gms.live import House, ask, houses, plain_layout
from tests.support.processes import ROOT
from tests.support.waiting import until

RECORDED = [recorded_1.WRITES, recorded_1.SLEEPS, recorded_1.WAKES, recorded_1.COMES_BACK, recorded_1.OBSERVES]


@pytest.fixture
def container() -> Iterator[Container]:
    yield from containers()


@pytest.fixture
def house() -> Iterator[House]:
    yield from houses()


def body(frame: recorded_1.Frame) -> bytes:
    return bytes.fromhex(frame[1])[4:]


class OldClient:
    """It says what was recorded, and understands what was understood then."""

    def __init__(self, container: Container) -> None:
        self.channel = Channel(connect(container.run_dir, "host:0"), m1.from_server, max_frame_bytes=m1.MAX_FRAME_BYTES)
        self.said: list[Any] = []
        self.heard: list[Any] = []
        self.descriptors: list[int] = []

    def says(self, frame: recorded_1.Frame, **instead: object) -> None:
        message = msgspec.structs.replace(m1.from_client.decode(body(frame)), fds=0, **instead)
        own = [os.pidfd_open(os.getpid())] if isinstance(message, m1.Hello) else []
        self.said.append(message)
        self.channel.send(message, own or (self.descriptors if frame[2] else []))
        close_all(own)

    def hears(self, frame: recorded_1.Frame) -> Any:
        """The next message but `Changed` is of the kind that was recorded."""
        found: list[Any] = []

        def came() -> bool:
            for message, descriptors in self.channel.receive():
                self.descriptors += descriptors
                if not isinstance(message, m1.Changed):
                    found.append(message)
            return bool(found)

        until(came, "an answer")
        assert len(found) == 1 and type(found[0]) is type(m1.from_server.decode(body(frame)))
        self.heard.append(found[0])
        return found[0]

    def plays(self, frames: list[recorded_1.Frame], **instead: object) -> Any:
        for frame in frames:
            if frame[0] == "client":
                message = m1.from_client.decode(body(frame))
                self.says(frame, **{name: value for name, value in instead.items() if hasattr(message, name)})
            else:
                answer = self.hears(frame)
        return answer

    def close(self) -> None:
        close_all(self.descriptors)
        self.channel.close()


def test_what_was_recorded_is_what_the_old_messages_say() -> None:
    """The copy is honest: it encodes to the same bytes."""
    for frame in [frame for frames in RECORDED for frame in frames]:
        decoder: Any = m1.from_client if frame[0] == "client" else m1.from_server
        message = decoder.decode(body(frame))
        assert msgspec.msgpack.encode(message) == body(frame)


def test_an_older_client_writes_sleeps_wakes_and_comes_back_under_this_server(container: Container) -> None:
    container.serves()
    old = OldClient(container)
    committed = old.plays(recorded_1.WRITES)
    assert isinstance(committed, m1.Committed) and container.status().state == "RO"
    kept = {"keeps": committed.generation, "have": committed.generation, "expect": committed.hash}
    old.plays(recorded_1.SLEEPS, **kept)
    assert container.status().state == "COMMITTED"
    opened = old.plays(recorded_1.WAKES, **kept)
    assert opened.generation == committed.generation and container.status().state == "RO"
    kill(container.server_pid())
    container.serves()
    back = OldClient(container)
    back.descriptors, old.descriptors = old.descriptors, []
    answer = back.plays(recorded_1.COMES_BACK, generation=committed.generation, hash=committed.hash)
    assert isinstance(answer, m1.HandedBack) and answer.reading
    status = container.status()
    assert (status.state, status.generation) == ("RO", committed.generation)
    old.close()
    back.close()


def test_an_older_gmsctl_understands_this_server(container: Container) -> None:
    container.serves()
    reader = container.writer()
    sleeper = container.caller(hello("sleeper"), m.Open(mode="ro"))
    close_all(sleeper.hear(m.Slabs)[1])
    sleeper.ask(m.Withdraw(keeps=container.status().generation), m.Withdrawn)
    reader.close()
    writer = container.caller(hello("writer"), m.Open(mode="rw"))
    writer.hear(m.Opened)
    observer = OldClient(container)
    observer.plays(recorded_1.OBSERVES)
    status = observer.heard[0]
    assert isinstance(status, m1.Status) and status.state == "RW"
    assert "sleeper" in status.pins[0], "what is called `pending_drops` by now"
    observer.close()


def test_this_client_reads_under_an_older_server() -> None:
    """It says only what the old one understands, and takes its answers."""
    machine, said = ClientMachine("engine", os.getpid()), list[Any]()

    def feed(event: c.Event) -> None:
        for effect in machine.handle(event, 0.0):
            if isinstance(effect, c.Say):
                said.append(m1.from_client.decode(msgspec.msgpack.encode(effect.message)))
            elif isinstance(effect, c.LetGo):
                feed(c.Gone(effect.generation))

    def answers(frames: list[recorded_1.Frame], kind: str) -> None:
        for message in [m.from_server.decode(body(frame)) for frame in frames if frame[0] == "server"]:
            if type(message).__name__ == kind:
                feed(c.Heard(message))

    feed(c.Tick())
    feed(c.Connected())
    assert said[0].protocol == 1
    answers(recorded_1.WRITES, "Welcome")
    feed(c.Want("rw", 10.0))
    answers(recorded_1.WRITES, "Opened")
    feed(c.Make(SLAB))
    answers(recorded_1.WRITES, "Created")
    asked = [m1.from_client.decode(body(frame)) for frame in recorded_1.WRITES if frame[0] == "client"]
    document = next(message.layout for message in asked if isinstance(message, m1.Commit))
    feed(c.Publish(document, (SLAB,)))
    answers(recorded_1.WRITES, "Committed")
    assert machine.doing is Doing.READING
    feed(c.Disconnected())
    machine.handle(c.Tick(), 1.0)
    feed(c.Connected())
    answers(recorded_1.COMES_BACK, "Welcome")
    assert isinstance(said[-1], m1.HandBack)
    answers(recorded_1.COMES_BACK, "HandedBack")
    assert machine.doing is Doing.READING and machine.kept is not None


def test_a_process_with_which_no_protocol_is_shared_is_told_so_and_an_alarm_names_it(container: Container) -> None:
    container.serves()
    writer = container.writer()
    for hello_of_another in (
        m.Hello(protocol=98, newest=99, engine_id="from-tomorrow", pid=1),
        m.Hello(protocol=0, engine_id="from-yesterday", pid=2),
    ):
        caller = container.caller(hello_of_another)
        problem, _ = caller.hear(m.Problem)
        assert problem.about == "protocol" and f"{m.OLDEST} to {m.PROTOCOL}" in problem.why
        caller.ends()
    alarms = container.status().alarms
    assert any("from-tomorrow" in alarm and "this server has to be upgraded" in alarm for alarm in alarms)
    assert any("from-yesterday" in alarm and "its program has to be upgraded" in alarm for alarm in alarms)
    assert writer.ask(m.Ping(), m.Pong) and container.status().state == "RO"


def test_the_welcome_says_what_is_spoken(container: Container) -> None:
    container.serves()
    for newest, spoken in ((0, 1), (2, 2), (7, 3)):
        caller = container.caller(m.Hello(protocol=1, newest=newest, engine_id="x", pid=os.getpid()))
        assert caller.hear(m.Welcome)[0].protocol == spoken


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
    monkeypatch.setattr(m, "PROTOCOL", 2)
    until(lambda: house.status().state == "RO", "it is back")
    assert house.status().generation == generation and not client.problem
    sleeper.wake(10)
    assert sleeper.memory(0)[0] == 7


def test_a_server_that_cant_talk_to_its_readers_says_so(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    client = house.client("reader", on_problem=lambda why: None)
    client.connected(10)
    monkeypatch.setattr(m, "OLDEST", 98)
    house.kill()
    house.start()
    until(lambda: client.problem, "it is told")
    monkeypatch.setattr(m, "OLDEST", 1)
    assert any("reader (pid" in alarm for alarm in ask(house.run_dir, "host:0", m.AskStatus()).alarms)


TOMORROW = """
import sys
from gms import messages as m
m.OLDEST, m.PROTOCOL = 98, 99
from gms import gmsctl
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

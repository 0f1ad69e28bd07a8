"""What a door's client does towards the pool, event by event (`pool/rules/client_machine.py`)."""

from typing import Any

from pool.entries import ModelDemand, ModelOutlook
from pool.rules import client_machine as c
from pool.rules import messages as m
from sidecar.machine.context import Heard, Tick

WAKE = m.Command(number=0, verb="wake", name="chat")


def welcomed() -> tuple[c.ClientMachine, list[Any]]:
    machine = c.ClientMachine()
    assert machine.handle(c.Started(), 0.0) == [c.Connect()]
    hello = machine.handle(c.Connected(True), 0.0)
    assert hello == [c.Say(m.DoorHello(protocol=1, newest=1))]
    return machine, machine.handle(Heard(m.Welcome(incarnation="a", protocol=1)), 0.0)


def test_the_newest_demand_is_said_after_each_welcome_and_when_it_changes() -> None:
    machine, said = welcomed()
    assert said == [c.Say(m.Demand()), c.Say(m.Watch())]
    demand = {"chat": ModelDemand(waiting=2)}
    assert machine.handle(c.Wants(demand), 1.0) == [c.Say(m.Demand(models=demand))]
    machine.handle(c.Disconnected(), 2.0)
    assert machine.handle(c.Wants({}), 3.0) == []
    machine.handle(c.Wants(demand), 3.0)
    assert machine.handle(Heard(m.Welcome(incarnation="b")), 4.0) == [c.Say(m.Demand(models=demand)), c.Say(m.Watch())]


def test_a_pool_that_went_away_is_looked_for_after_growing_pauses_and_the_door_is_told_once() -> None:
    machine, _ = welcomed()
    assert machine.handle(c.Disconnected(), 5.0) == [c.Tell(None)]
    pauses = []
    for _ in range(12):
        pauses.append(machine.deadline - 5.0)
        assert machine.handle(Tick(), machine.deadline) == [c.Connect()]
        assert machine.handle(c.Connected(False), 5.0) == []
    assert pauses == sorted(pauses) and pauses[0] == 0.0 and pauses[-1] == c.MOST_PAUSE_S


def test_a_command_is_answered_once_by_the_pool_or_by_the_end_of_the_connection() -> None:
    machine, answers = welcomed(), list[m.CommandDone]()
    client = machine[0]
    say = client.handle(c.Asks(WAKE, answers.append), 1.0)[0]
    assert isinstance(say, c.Say)
    done = m.CommandDone(number=say.message.number, ok=True, status=200)
    assert client.handle(Heard(done), 1.0) == [c.Answer(answers.append, done)]
    assert client.handle(Heard(done), 1.0) == []
    client.handle(c.Asks(WAKE, answers.append), 2.0)
    lost, told = client.handle(c.Disconnected(), 3.0)
    assert isinstance(lost, c.Answer) and (lost.said.ok, lost.said.status, lost.said.detail) == (False, 503, c.LOST)
    assert told == c.Tell(None)
    away = client.handle(c.Asks(WAKE, answers.append), 4.0)[0]
    assert isinstance(away, c.Answer) and away.said.detail == c.AWAY


def test_what_the_pool_says_is_told() -> None:
    machine, _ = welcomed()
    news = m.Outlook(models={"chat": ModelOutlook(turn=1)})
    assert machine.handle(Heard(news), 1.0) == [c.Tell(news)]

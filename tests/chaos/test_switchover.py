"""A planned change of holder, and the permit to initialise device memory."""

import pytest

from lockserver.rules import messages as m
from tests.chaos.house import Engine, House, Observer, Server
from tests.support.status import holder_of


def pair(house: House) -> tuple[Server, Engine, Engine, int]:
    server = house.server("--prepare-timeout-s", "0.3")
    a, b = house.engine("a"), house.engine("b")
    token = a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    return server, a, b, token


def ask(observer: Observer, to: str = "", drain_timeout_s: float = 30.0) -> list[m.SwitchoverStep]:
    """Every step until the last."""
    observer.ask(m.Switchover(to=to, drain_timeout_s=drain_timeout_s))
    steps = [observer.next(m.SwitchoverStep)]
    while not steps[-1].done:
        steps.append(observer.next(m.SwitchoverStep))
    return steps


def serves_on(server: Server, a: Engine, b: Engine, token: int) -> None:
    status = server.shows(lambda s: s.switchover is None)
    assert (
        status.state == "HELD"
        and status.holder is not None
        and (status.holder.engine_id, status.holder.token) == ("a", token)
    )
    a.do("ping")
    a.never_hears("exit", for_s=0)
    assert not b.heard("granted")
    a.kill()
    assert b.granted()["dead"] == [True]


def test_a_switchover_drains_ends_the_holder_and_grants_its_successor(house: House) -> None:
    server, a, b, token = pair(house)
    with server.observer() as observer:
        steps = ask(observer, "b")
    assert [step.phase for step in steps] == ["draining", "checking", "exiting", "done"] and steps[-1].ok
    a.hears("drain")
    a.hears("exit")
    grant = b.granted()
    assert grant["dead"] == [True] and grant["token"] > token
    assert holder_of(server.status()).engine_id == "b"


@pytest.mark.parametrize(
    ("drain", "timeout_s", "why"), [("fail", 30.0, "can't be finished"), ("hang", 0.2, "too long")]
)
def test_a_switchover_whose_drain_fails_or_takes_too_long_is_aborted_and_the_holder_serves_on(
    house: House, drain: str, timeout_s: float, why: str
) -> None:
    server, a, b, token = pair(house)
    a.do("set", drain=drain)
    with server.observer() as observer:
        last = ask(observer, drain_timeout_s=timeout_s)[-1]
    assert (last.phase, last.ok) == ("aborted", False) and why in last.detail
    a.hears("resume")
    serves_on(server, a, b, token)


@pytest.mark.parametrize("how", ["not well", "stopped"])
def test_a_switchover_to_an_engine_that_can_not_wake_is_aborted_and_the_holder_serves_on(
    house: House, how: str
) -> None:
    server, a, b, token = pair(house)
    if how == "stopped":
        b.stop()
    else:
        b.do("set", well=False)
    with server.observer() as observer:
        last = ask(observer)[-1]
    assert last.phase == "aborted" and "successor" in last.detail
    a.hears("resume")
    b.go_on()
    b.do("set", well=True)
    serves_on(server, a, b, token)


def test_a_switchover_without_a_ready_waiter_is_refused_and_the_holder_never_hears_of_it(house: House) -> None:
    server, a, b, token = pair(house)
    b.do("ready", ready=False)
    server.shows(lambda s: s.waiters and not s.waiters[0].ready)
    with server.observer() as observer:
        steps = ask(observer)
        assert [step.phase for step in steps] == ["refused"]
        assert "b" in ask(observer, "b")[-1].detail
    a.never_hears("drain", for_s=0.1)
    b.do("ready", ready=True)
    server.shows(lambda s: s.waiters and s.waiters[0].ready)
    serves_on(server, a, b, token)


def test_a_switchover_whose_asker_leaves_is_called_off(house: House) -> None:
    server, a, b, token = pair(house)
    a.do("set", drain="hang")
    with server.observer() as observer:
        observer.ask(m.Switchover())
        observer.next(m.SwitchoverStep)
        a.hears("drain")
    a.hears("resume")
    serves_on(server, a, b, token)


def test_a_switchover_can_be_called_off_while_it_drains(house: House) -> None:
    server, a, b, token = pair(house)
    a.do("set", drain="hang")
    with server.observer() as observer, server.observer() as other:
        observer.ask(m.Switchover())
        observer.next(m.SwitchoverStep)
        other.ask(m.AbortSwitchover())
        assert other.next(m.SwitchoverStep).ok
        assert observer.next(m.SwitchoverStep).phase == "aborted"
    a.hears("resume")
    serves_on(server, a, b, token)


def test_a_holder_that_dies_while_it_drains_is_replaced_as_ever(house: House) -> None:
    server, a, b, token = pair(house)
    a.do("set", drain="hang")
    with server.observer() as observer:
        observer.ask(m.Switchover())
        a.hears("drain")
        a.kill()
        assert [observer.next(m.SwitchoverStep).phase for _ in range(2)] == ["draining", "died"]
    grant = b.granted()
    assert grant["dead"] == [True] and grant["token"] > token


# -- the permit --------------------------------------------------------------------------------------------------------


def test_one_engine_at_a_time_has_the_permit_and_gives_it_back_by_word_or_by_death(house: House) -> None:
    server = house.server()
    a, b, c = (house.engine(x) for x in "abc")
    a.do("permit")
    a.hears("permit")
    b.do("permit")
    server.shows(lambda s: s.permits["init"].waiters == ["b"])
    c.do("permit")
    server.shows(lambda s: s.permits["init"].waiters == ["b", "c"])
    b.never_hears("permit", for_s=0.2)
    a.do("end_permit")
    b.hears("permit")
    assert server.status().permits["init"].holder == "b"
    c.never_hears("permit", for_s=0.2)
    b.kill()
    c.hears("permit")
    c.do("end_permit")
    server.shows(lambda s: s.permits["init"].holder is None)


def test_no_engine_has_the_permit_between_a_holders_death_and_its_successors_serving(house: House) -> None:
    """It would size itself by memory that moves."""
    server = house.server()
    a, b, c = (house.engine(x) for x in "abc")
    a.holds()
    c.do("permit")
    server.shows(lambda s: "waking" in " ".join(s.permits["init"].waiting_for))
    c.never_hears("permit", for_s=0.1)
    a.do("serving", url="http://a")
    c.hears("permit")
    c.do("end_permit")
    c.hears("permit_over")
    keeper = a.child("fork")
    b.wants(watching=[a, keeper])
    server.shows(lambda s: s.waiters)
    a.kill()
    server.fences("life lock")
    c.do("permit")
    server.shows(lambda s: s.permits["init"].waiters == ["c"])
    c.never_hears("permit", for_s=0.2)
    keeper.kill()
    assert b.granted()["dead"] == [True, True]
    c.never_hears("permit", for_s=0.2)
    b.do("serving", url="http://b")
    c.hears("permit")


def test_the_permit_survives_a_server_crash(house: House) -> None:
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    a.do("permit")
    a.hears("permit")
    b.do("permit")
    server.shows(lambda s: s.permits["init"].waiters == ["b"])
    server.kill()
    server = house.server()
    server.shows(lambda s: s.permits["init"].holder == "a" and s.permits["init"].waiters == ["b"])
    b.never_hears("permit", for_s=0.2)
    a.do("end_permit")
    b.hears("permit")

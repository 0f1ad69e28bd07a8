"""A planned change of holder, and the permit to initialise device memory. What ends a switchover before its time:
`tests/lockserver/test_switchover.py`, and with real programs `tests/lockctl/test_switchover.py`.
"""

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


def test_a_switchover_to_an_engine_that_can_not_wake_is_aborted_and_the_holder_serves_on(house: House) -> None:
    server, a, b, token = pair(house)
    b.do("set", well=False)
    with server.observer() as observer:
        last = ask(observer)[-1]
    assert last.phase == "aborted" and "successor" in last.detail
    a.hears("resume")
    b.do("set", well=True)
    status = server.shows(lambda s: s.switchover is None)
    assert status.state == "HELD" and (holder_of(status).engine_id, holder_of(status).token) == ("a", token)
    a.do("ping")
    a.never_hears("exit", for_s=0)
    assert not b.heard("granted")
    a.kill()
    assert b.granted()["dead"] == [True]


# -- the permit --------------------------------------------------------------------------------------------------------


def test_one_engine_at_a_time_has_the_permit_gives_it_back_by_word_or_by_death_and_keeps_it_over_a_server_crash(
    house: House,
) -> None:
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
    b = house.engine("b")
    b.do("permit")
    server.shows(lambda s: s.permits["init"].waiters == ["b"])
    server.kill()
    server = house.server()
    server.shows(lambda s: s.permits["init"].holder == "c" and s.permits["init"].waiters == ["b"])
    b.never_hears("permit", for_s=0.2)
    c.do("end_permit")
    b.hears("permit")
    b.do("end_permit")
    server.shows(lambda s: s.permits["init"].holder is None)

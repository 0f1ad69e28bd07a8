"""Processes that are stopped: they look dead to everybody but a pidfd, and go on where they were."""

import pytest

from tests.chaos.house import LONG_WINDOW, House
from tests.support.status import holder_of
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


def test_a_stopped_holder_is_never_replaced_and_goes_on(house: House) -> None:
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    token = a.holds()
    b.wants(watching=[a])
    a.stop()
    b.never_hears("granted")
    status = server.status()
    assert status.state == "HELD" and status.holder is not None and status.holder.token == token
    a.go_on()
    a.do("ping")
    a.do("serving", url="http://a")
    server.shows(lambda s: s.holder is not None and s.holder.endpoint == "http://a")
    a.never_hears("lost", for_s=0)
    a.kill()
    assert b.granted()["dead"] == [True]


def test_a_stopped_waiter_is_passed_over_and_keeps_its_place(house: House) -> None:
    server = house.server("--prepare-timeout-s", "0.2")
    a, b, c = (house.engine(x) for x in "abc")
    a.holds()
    b.wants()
    server.shows(lambda s: len(s.waiters) == 1)
    c.wants()
    server.shows(lambda s: len(s.waiters) == 2)
    b.stop()
    a.kill()
    c.granted()
    assert [w.engine_id for w in server.status().waiters] == ["b"]
    a2 = house.engine("a")
    a2.wants()
    server.shows(lambda s: [w.engine_id for w in s.waiters] == ["b", "a"])
    b.go_on()
    b.do("ping")
    c.kill()
    b.granted()


def test_a_waiter_that_is_not_ready_is_never_granted(house: House) -> None:
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    b.do("ready", ready=False)
    server.shows(lambda s: s.waiters and not s.waiters[0].ready)
    a.kill()
    server.shows(lambda s: s.state == "FREE")
    b.never_hears("granted")
    b.do("ready", ready=True)
    b.granted()


def test_a_waiter_whose_engine_is_not_well_is_passed_over_until_it_is(house: House) -> None:
    server = house.server()
    a, b, c = (house.engine(x) for x in "abc")
    a.holds()
    b.wants()
    server.shows(lambda s: len(s.waiters) == 1)
    c.wants()
    server.shows(lambda s: len(s.waiters) == 2)
    b.do("set", well=False)
    a.kill()
    c.granted()
    b.do("set", well=True)
    c.kill()
    b.granted()


def test_a_stopped_server_is_waited_for_and_nobody_is_disturbed(house: House) -> None:
    server = house.server(*LONG_WINDOW)
    a, b = house.engine("a"), house.engine("b")
    token = a.holds()
    b.wants(watching=[a])
    server.stop()
    a.never_hears("lost")
    server.go_on()
    assert holder_of(server.status()).token == token
    server.stop()
    a.kill()
    server.go_on()
    assert b.granted()["dead"] == [True]
    until(lambda: server.status().state == "HELD", "b holds")

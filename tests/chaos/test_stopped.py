"""Processes that are stopped: they look dead to all but a pidfd, and go on where they were."""

import pytest

from tests.chaos.house import LONG_WINDOW, House
from tests.support.status import holder_of
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


def test_a_stopped_server_is_waited_for_and_no_client_is_disturbed(house: House) -> None:
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

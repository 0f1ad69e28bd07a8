"""The run directory: made anew under a live holder, or robbed of its socket. And names that come back. A second server
that wants it: `test_shell_rules.py`; a directory that was moved away: `test_paths.py`."""

import os
import shutil
import signal
from collections.abc import Callable

import pytest

from tests.chaos.house import House
from tests.support.status import holder_of
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


def remove(house: House) -> None:
    """While clients may be making files in it."""

    def gone() -> bool:
        shutil.rmtree(house.run_dir, ignore_errors=True)
        return not house.run_dir.exists()

    until(gone, "the directory is gone")


def unlink_socket(house: House) -> None:
    (house.run_dir / "lock.sock").unlink()


@pytest.mark.parametrize("lose", [remove, unlink_socket])
def test_a_live_holder_finds_the_server_of_a_directory_that_was_made_anew(
    house: House, lose: Callable[[House], None]
) -> None:
    """It is back within the settling time, with its token. No other engine is granted, and the old server ends by
    itself."""
    old = house.server("--settle-s", "2")
    a, b = house.engine("a"), house.engine("b")
    token = a.holds()
    worker = a.child("exec").joins(a.tree).joined()
    b.wants(watching=[a, worker])
    old.shows(lambda s: s.waiters)
    lose(house)
    old.wait()
    assert house.exit_code(old) == 1
    new = house.server("--settle-s", "2")
    held = new.shows(
        lambda s: s.state == "HELD" and len(s.waiters) == 1 and s.holder is not None and len(s.holder.members) == 2
    )
    assert held.holder is not None and (held.holder.engine_id, held.holder.token) == ("a", token)
    assert not b.heard("granted")
    for engine in (a, worker, b):
        engine.do("ping")
        engine.never_hears("lost", for_s=0)
    a.kill()
    grant = b.granted()
    assert grant["dead"] == [True, True] and grant["token"] > token


# -- the same name again -----------------------------------------------------------------------------------------------


def test_namesakes_that_come_and_go_while_their_predecessor_dies_slowly_leave_nothing(house: House) -> None:
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    keeper = a.child("fork")
    b.wants(watching=[a, keeper])
    a.kill()
    for _ in range(20):
        again = house.engine("a")
        again.wants()
        again.kill()
    server.shows(lambda s: [w.engine_id for w in s.waiters] == ["b"])
    assert not b.heard("granted")
    keeper.kill()
    assert b.granted()["dead"] == [True, True]
    until(lambda: os.listdir(house.run_dir / "life") == [b.tree], "only the holder's life file is left")


def test_a_server_that_is_told_to_stop_leaves_cleanly_and_the_holder_goes_on(house: House) -> None:
    server = house.server()
    a = house.engine("a")
    token = a.holds()
    server.signal(signal.SIGTERM)
    assert house.exit_code(server) == 0
    assert not (house.run_dir / "lock.sock").exists()
    a.never_hears("lost", for_s=0.5)
    new = house.server()
    assert holder_of(new.shows(lambda s: s.state == "HELD")).token == token

"""Programs are upgraded one after the other: under a server that shares no version with it a holder serves on, and its
death is seen.
"""

import os
import select
import sys

import pytest

from lockserver.rules import messages as m
from lockserver.shell.rundir import LIFE, SOCKET, connect
from sidecar.kernel.lifelock import LifeLock
from sidecar.wire.frames import Channel
from tests.chaos.house import LONG_WINDOW, House, Server
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


def other_version(house: House, oldest: int, newest: int) -> Server:
    argv = [str(oldest), str(newest), "--run-dir", str(house.run_dir), *house.defaults, *LONG_WINDOW]
    process = house.run({"do": "exec", "argv": [sys.executable, "-m", "tests.chaos.other_version", *argv]})
    return house.grow(Server(process.pid, process.pidfd, house.run_dir))


def test_a_holder_serves_on_under_a_server_that_cannot_talk_to_it_and_both_sides_say_so(house: House) -> None:
    server = house.server(*LONG_WINDOW)
    holder, waiter = house.engine("a"), house.engine("b")
    token = holder.holds()
    waiter.wants(watching=[holder])
    server.kill()
    stranger = other_version(house, 8, 9)
    until(lambda: "finish the upgrade" in house.log.read_text(), "the server's alarm")
    until(lambda: "can't talk with this process" in holder.do("link")["warned"], "the client's")
    assert not waiter.heard("granted")
    stranger.kill()
    house.server(*LONG_WINDOW).has_back(holder)
    assert not waiter.heard("granted") and not holder.dead
    holder.kill()
    grant = waiter.granted()
    assert grant["dead"] == [True] and grant["token"] > token


def test_those_that_cannot_talk_with_the_server_leave_no_descriptors_in_it(house: House) -> None:
    """An engine that is started again and again has another life file each time."""
    server, descriptors = other_version(house, 8, 9), []
    until(lambda: (house.run_dir / SOCKET).exists(), "the server is there")
    for number in range(20):
        random = f"{number:08x}"
        life = LifeLock.create(house.run_dir / LIFE, f"e.{random}")
        channel = Channel(connect(house.run_dir), m.from_server)
        channel.send(
            m.Register(protocol=m.PROTOCOL, engine_id="e", incarnation=random, life=life.inode, pid=os.getpid())
        )
        while not channel.eof:
            select.select([channel.fileno()], [], [])
            channel.receive()
        channel.close()
        life.close()
        if number in (1, 19):
            descriptors.append(len(os.listdir(f"/proc/{server.pid}/fd")))
    assert descriptors[1] <= descriptors[0] + 2, "some of a client that leaves now"


def test_a_death_under_a_server_that_cannot_talk_is_seen_all_the_same(house: House) -> None:
    """It watched the holder from the moment at which the two could not agree."""
    server = house.server(*LONG_WINDOW)
    holder = house.engine("a")
    holder.holds()
    server.kill()
    other_version(house, 8, 9)
    until(lambda: "finish the upgrade" in house.log.read_text(), "the server's alarm")
    holder.kill()
    until(lambda: "released" in house.log.read_text(), "its end was proven")

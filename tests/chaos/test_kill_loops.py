"""Kills without end: of holders, of servers, of both. The witness is the tests' own lock, of which the server knows
nothing. And a server that is stopped, which looks dead to all but a pidfd.
"""

import os
import time

import pytest

from tests.chaos.house import LONG_WINDOW, Contenders, House, witnessed_tokens
from tests.support.chance import seeded
from tests.support.processes import Process
from tests.support.status import holder_of
from tests.support.waiting import readable

pytestmark = pytest.mark.chaos

ROUNDS = int(os.environ.get("FAILOVER_CHAOS_ROUNDS", "30"))
CRASH_LOOP_S = float(os.environ.get("FAILOVER_CHAOS_CRASH_LOOP_S", "5"))


def kill_holders(house: House, rounds: int) -> None:
    """Kills the holder again and again. After each, exactly one of three is granted, with a larger token, and it is
    alone."""
    random = seeded()
    contenders = Contenders(house, "abc")
    last = 0
    for round in range(rounds):
        event = contenders.next()
        assert event["event"] == "holding", f"round {round}: {event}"
        assert event["token"] > last, f"round {round}: {event} after {last}"
        last = event["token"]
        holder = Process(event["pid"], os.pidfd_open(event["pid"]))
        if random.random() < 0.2:  # not at once, but in the middle of whatever comes next
            for _ in range(random.randrange(2000)):
                os.sched_yield()
        assert contenders.silent(), f"round {round}: {contenders.next()} while {event} held"
        holder.kill()
        os.close(holder.pidfd)
    tokens = witnessed_tokens(house)
    assert len(tokens) >= rounds
    assert tokens == sorted(set(tokens)), "tokens strictly grow"
    contenders.close()


@pytest.mark.timeout(180)
def test_kills_of_the_holder_make_as_many_successors_and_never_two(house: House) -> None:
    server = house.server()
    before = len(server.descriptors())
    kill_holders(house, ROUNDS)
    assert server.status().state in ("HELD", "FENCING", "FREE")
    assert len(server.descriptors()) <= before + 40, "nothing is left behind by those who died"


def test_holders_and_servers_are_killed_in_turn(house: House) -> None:
    """The holder dies while its server is away, or the other way round: whichever comes back first."""
    random = seeded()
    server = house.server(*LONG_WINDOW)
    contenders = Contenders(house, "abc")
    last = 0
    for round in range(ROUNDS // 5):
        event = contenders.next()
        assert event["event"] == "holding" and event["token"] > last, f"round {round}: {event} after {last}"
        last = event["token"]
        server.shows(
            lambda s: s.state == "HELD" and len(s.waiters) == 2, "both others wait, and keep what they are given"
        )
        holder = Process(event["pid"], os.pidfd_open(event["pid"]))
        victims: list[Process] = [server, holder]
        random.shuffle(victims)
        for victim in victims:
            victim.kill()
        server = house.server(*LONG_WINDOW)
        os.close(holder.pidfd)
    contenders.close()


@pytest.mark.timeout(180)
def test_a_server_that_crashes_in_a_loop_does_not_end_the_service(house: House) -> None:
    """Killed at any moment of its life: before it listens, while the holder comes back, after. Each an interpreter of
    its own."""
    random = seeded()
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    token = a.holds()
    b.wants(watching=[a])
    end = time.monotonic() + CRASH_LOOP_S
    crashes = 0
    while time.monotonic() < end:
        server.kill()
        server = house.server("--window-s", "30", cold=True, wait=False)
        lifetime_s = random.uniform(0, 0.4)
        assert not a.heard("lost") and not b.heard("granted")
        assert not readable(server.pidfd, lifetime_s), "it ended by itself"
        crashes += 1
    print(f"{crashes} crashes")
    server.ready()
    held = server.shows(lambda s: s.state == "HELD" and s.waiters)
    assert held.holder is not None and held.holder.token == token
    a.do("ping")
    a.never_hears("lost", for_s=0)
    a.kill()
    assert b.granted()["dead"] == [True]


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
    server.shows(lambda status: status.state == "HELD", "b holds")

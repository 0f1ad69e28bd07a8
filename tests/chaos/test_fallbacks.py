"""The core scenarios on older kernels: tests of equal standing over every way in which a server may see its processes.

    auto  what this kernel can do
    peer  it names the peer of a connection, and pidfds have no inodes (Linux 6.5 to 6.8)
    sent  it names none; clients send their own pidfds (5.15, 6.1)
    none  no pidfds at all: an end of file and a free life lock are all there is

What is weaker with `none`, and stands in the tests below: a process is known by its connection and the life lock
alone, so a dead holder's socket that is kept open keeps it alive (the lock waits: that is the safe side); a process
that closed both and lives on passes for dead (nothing here can hold against that, only memory does); waiters have
nothing to hand back, so only memory or a person ends the window after a crash of both.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.house import LONG_WINDOW, House, Server
from tests.chaos.test_kill_loops import kill_holders
from tests.support.slow_exits import dies_slowly, hangs_in_exit
from tests.support.status import holder_of

pytestmark = pytest.mark.chaos

ROUNDS = int(os.environ.get("FAILOVER_CHAOS_FALLBACK_ROUNDS", "30"))
Start = Callable[..., Server]


@pytest.fixture(params=["auto", "peer", "sent", "none"])
def pidfds(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ended(grant: dict[str, Any], pidfds: str) -> list[bool]:
    """Those whom the engine that was granted had an eye on. Without pidfds they may still be dying, and run no more: a
    process's files are closed a moment before it is dead.
    """
    dead: list[bool] = grant["dead"]
    return [not runs for runs in grant["runs"]] if pidfds == "none" else dead


@pytest.fixture
def start(house: House, pidfds: str) -> Start:
    return lambda *arguments, **more: house.server("--pidfds", pidfds, *arguments, **more)


def test_status_says_what_evidence_there_is(start: Start, pidfds: str) -> None:
    evidence = start().status().evidence
    assert evidence == {"peer": "peer pidfd", "sent": "sent pidfd", "none": "end-of-file only"}.get(pidfds, evidence)


@pytest.mark.parametrize("pidfds", ["peer", "sent", "none"])
def test_kills_of_the_holder_make_as_many_successors_and_never_two(house: House, start: Start) -> None:
    """What this kernel itself can do: `test_kill_loops.py`."""
    start()
    kill_holders(house, ROUNDS)


def test_a_server_that_restarts_takes_its_holder_back_with_the_same_token(
    house: House, start: Start, pidfds: str
) -> None:
    server = start()
    a, b = house.engine("a"), house.engine("b")
    worker = a.child("exec").joins(a.tree)
    token = a.holds()
    worker.joined()
    b.wants(watching=[a, worker])
    for _ in range(5):
        server.kill()
        server = start("--window-s", "30")
        held = server.shows(lambda s: s.state == "HELD" and s.waiters)
        assert held.holder is not None and (held.holder.engine_id, held.holder.token) == ("a", token)
        server.has_back(a, worker, b)
    for engine in (a, worker, b):
        engine.never_hears("lost", for_s=0)
    assert not b.heard("granted")
    worker.kill()
    a.kill()
    assert ended(b.granted(), pidfds) == [True, True]


def test_a_holder_that_is_stopped_while_the_server_restarts_is_never_replaced(
    house: House, start: Start, pidfds: str
) -> None:
    first = start()
    a, b = house.engine("a"), house.engine("b")
    token = a.holds()
    b.wants(watching=[a])
    a.stop()
    first.kill()
    second = start("--window-s", "0.1")
    fenced = second.shows(lambda s: s.state == "FENCING" and s.waiters)
    assert holder_of(fenced).engine_id == "a", "the window is over; its life lock is held, so that proves nothing"
    b.never_hears("granted")
    a.go_on()
    held = second.shows(lambda s: s.state == "HELD")
    assert (holder_of(held).engine_id, holder_of(held).token) == ("a", token)
    a.do("ping")
    a.never_hears("lost", for_s=0)
    a.kill()
    assert ended(b.granted(), pidfds) == [True]


def test_what_the_waiters_kept_proves_the_holders_end_to_the_next_server(
    house: House, start: Start, pidfds: str
) -> None:
    server = start(*LONG_WINDOW)
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    server.kill()
    a.kill()
    if pidfds == "none":
        second = start("--window-s", "0.1")
        second.shows(lambda s: any("--grant-unproven" in alarm for alarm in s.alarms))
        b.never_hears("granted", for_s=0.2)
        second.kill()
        start("--window-s", "0.1", "--grant-unproven")
    else:
        start(*LONG_WINDOW)
    assert ended(b.granted(), pidfds) == [True]


def test_a_forked_child_that_keeps_the_socket_open_does_not_hide_a_death(
    house: House, start: Start, pidfds: str
) -> None:
    server = start()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    child = a.child("fork")
    child.do("let_go", of="/life/")
    child.do("let_go", of="/witness")
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    a.kill()
    if pidfds == "none":
        b.never_hears("granted")  # an open socket is all that it goes by: it waits, and the status says for whom
        assert server.status().state == "HELD"
        child.kill()
    assert ended(b.granted(), pidfds) == [True]
    assert child.dead is (pidfds == "none"), "the socket was open all the time"


def test_a_forked_child_that_holds_the_life_lock_is_waited_for(house: House, start: Start, pidfds: str) -> None:
    """Nor did it join: only the life lock knows of it."""
    server = start()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    child = a.child("fork")
    b.wants(watching=[a, child])
    server.shows(lambda s: s.waiters)
    a.kill()
    if pidfds != "none":
        server.fences("held by a process that did not join")
    b.never_hears("granted")
    child.kill()
    assert ended(b.granted(), pidfds) == [True, True]


def test_a_holder_that_dies_slowly_is_waited_for(house: House, start: Start, pidfds: str) -> None:
    """It was killed and hangs with all that it has."""
    server = start()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    with dies_slowly(a) as let_it_end:
        a.signal(9)
        hangs_in_exit(a)
        b.never_hears("granted")
        let_it_end()
    assert ended(b.granted(), pidfds) == [True]


def test_a_process_that_closed_everything_and_lives_is_waited_for(house: House, start: Start, pidfds: str) -> None:
    if pidfds == "none":
        pytest.skip("without pidfds nothing is left by which such a process could be seen; only free memory tells")
    server = start()
    a, b = house.engine(), house.engine("b")
    a.do("raw_start", run_dir=str(house.run_dir), engine_id="a")
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    a.do("raw_close", part="life")
    assert server.status().state == "HELD"
    b.never_hears("granted", for_s=0.1)
    a.do("raw_close", part="socket")
    server.fences(f"main process {a.pid} of a is alive")
    b.never_hears("granted")
    a.kill()
    assert ended(b.granted(), pidfds) == [True]


def test_a_joined_child_is_waited_for(house: House, start: Start, pidfds: str) -> None:
    """And killed, where there is a pidfd to kill it by."""
    server = start()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    worker = a.child("fork").joins(a.tree).joined()
    assert [member.pid for member in holder_of(server.status()).members] == [a.pid, worker.pid]
    b.wants(watching=[a, worker])
    server.shows(lambda s: s.waiters)
    a.kill()
    if pidfds == "none":
        b.never_hears("granted", for_s=0.2)
        worker.kill()
    assert ended(b.granted(), pidfds) == [True, True]


def test_a_child_that_joins_late_is_refused(house: House, start: Start, pidfds: str) -> None:
    server = start()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    late = a.child("exec")
    b.wants(watching=[a])
    a.kill()
    assert ended(b.granted(), pidfds) == [True]
    late.joins(a.tree)
    assert "proven" in late.hears("refused")["why"]
    assert holder_of(server.status()).engine_id == "b"


def test_a_second_process_can_not_pass_for_the_holder(house: House, start: Start) -> None:
    """It has the life lock, and knows names and tokens: it is another process all the same."""
    server = start()
    a, b = house.engine("a"), house.engine("b")
    token = a.holds()
    server.shows(lambda s: s.holder is not None)
    answer = b.do("pretend", run_dir=str(house.run_dir), tree=a.tree, token=token)
    assert answer["says"] == "Refused" and "another process" in answer["why"]
    assert holder_of(server.status()).pid == a.pid
    a.never_hears("lost", for_s=0.1)

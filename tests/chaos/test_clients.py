"""What a program does to its own client: signal handlers that raise, other programs in the same process, and closing
what it holds with. A holder is never deaf for it, and none is granted beside it. Forks, and exceptions in callbacks:
`tests/sidecar/test_client_loop.py`."""

import signal

import pytest

from lockserver.shell.rundir import LIFE
from tests.chaos.house import House, held_by
from tests.support.chance import seeded
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


def test_sys_exit_in_on_lost_ends_the_process(house: House) -> None:
    server = house.server("--unsafe-presume-dead", "--window-s", "0.5")
    a = house.engine().start("a", on_lost="exit")
    a.holds()
    server.kill()
    a.wait()


def test_signal_handlers_that_raise_in_acquire_leave_a_client_that_hears(house: House) -> None:
    server = house.server()
    first, a = house.engine("first"), house.engine("a")
    first.holds()
    a.order("acquire_interrupted", times=60, witness=str(house.witness))
    server.shows(lambda s: s.waiters, "it waits in between")
    server.kill()
    server = house.server()
    server.shows(lambda s: s.state == "HELD")
    first.kill()
    reply = a._next(lambda event: event.get("did") == "acquire_interrupted", "it is granted", 40.0)
    assert reply["interrupted"] > 0 and reply["alone"]
    held_by(server, "a", reply["token"])
    b = house.engine("b")
    b.wants(watching=[a])
    server.kill()
    held_by(house.server(), "a", reply["token"])
    a.kill()
    assert b.granted()["dead"] == [True]


def test_a_check_that_hangs_keeps_its_client_from_nothing(house: House) -> None:
    server = house.server("--prepare-timeout-s", "0.1")
    a, b, c = house.engine("a"), house.engine("b"), house.engine("c")
    a.holds()
    b.do("set", check_hangs=True)
    b.wants(watching=[a])
    server.shows(lambda s: len(s.waiters) == 1)
    c.wants(watching=[a])
    server.shows(lambda s: len(s.waiters) == 2)
    a.kill()
    assert c.granted()["dead"] == [True], "the one whose check hangs is passed over"
    server.kill()
    server = house.server("--prepare-timeout-s", "0.1")
    server.has_back(b, c)


def test_a_grant_that_comes_as_the_time_ends_is_held_and_ends_no_process(house: House) -> None:
    """Many wait for moments only, again and again, while one holder after the other is killed."""
    server, chance = house.server(), seeded()
    pollers = {f"p{number}": house.engine().start(f"p{number}", on_lost="end") for number in range(27)}
    for poller in pollers.values():
        poller.do("poll", seed=chance.randrange(1 << 30), witness=str(house.witness))
    while pollers:
        status = server.shows(lambda s: s.holder is not None and s.holder.engine_id in pollers, "one of them holds")
        assert status.holder is not None
        holder = pollers.pop(status.holder.engine_id)
        holder.granted()
        ended = {name: poller._events for name, poller in pollers.items() if poller.dead and not poller.heard("")}
        assert not ended, "ended though nothing was wrong with it"
        holder.kill()


def test_a_process_that_asks_with_a_new_client_each_time_costs_the_server_nothing(house: House) -> None:
    """It was two descriptors of the server's for each client, until the process ended."""
    server = house.server()
    a, b = house.engine("a"), house.engine()
    a.holds()
    before = server.descriptors_with(1)
    b.do("poll_anew", run_dir=str(house.run_dir), engine_id="b", times=50)
    until(lambda: server.descriptors_with(1) == before, "it has forgotten them all")
    assert len(list((house.run_dir / LIFE).iterdir())) == 1, "a's life file"
    b.start("b")
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    a.kill()
    assert b.granted()["dead"] == [True]


def test_a_holder_that_closes_its_clients_descriptors_ends(house: House) -> None:
    """With them it loses the names that it has, and it hears nothing any more: where its path comes to lead elsewhere,
    another one would be granted beside it.
    """
    house.server("--settle-s", "2")
    a = house.engine().start("a", on_lost="end")
    a.holds()
    b = house.engine("b")
    b.wants(watching=[a])
    a.do("close_everything")
    assert "descriptors" in a.hears("lost")["why"]
    a.wait()
    assert b.granted()["dead"] == [True]


def test_what_the_wire_does_not_take_is_refused_at_once_and_makes_no_holder_deaf(house: House) -> None:
    server = house.server()
    a = house.engine("a")
    token = a.holds()
    for url in ("x" * 2001, "http://\udcff"):
        assert "would not take" in a.do("serving_refused", url=url)["why"]
    server.kill()
    held_by(house.server(), "a", token)


def test_what_is_unexpected_is_told_without_waiting_for_a_reader(house: House) -> None:
    """Its standard error is a pipe that is full."""
    server = house.server()
    a = house.engine("a")
    token = a.holds()
    a.do("fill_stderr")
    a.do("raise_in_client")
    server.kill()
    held_by(house.server(), "a", token)


def test_a_holder_that_executes_its_program_anew_waits_for_its_children_and_may_hold_again(house: House) -> None:
    house.server()
    a = house.engine("a")
    token = a.holds()
    child = a.child("exec").joins(a.tree).joined()
    a.order("execute_anew")
    a.hears("born")
    a.start("a")
    a.wants(watching=[child])
    grant = a.granted()
    assert grant["dead"] == [True], "whatever else belonged to it is killed, and only then it is granted"
    assert grant["token"] > token


def test_who_joins_twice_is_one_member(house: House) -> None:
    server = house.server()
    a = house.engine("a")
    a.holds()
    child = a.child("exec").joins(a.tree).joined()
    before = server.status().server_incarnation
    assert child.do("join_again", run_dir=str(house.run_dir), tree=a.tree)["same"]
    holder = server.status().holder
    assert holder is not None and len(holder.members) == 2
    assert server.status().server_incarnation == before
    child.never_hears("lost", for_s=0.3)
    a.do("ping")
    child.signal(signal.SIGKILL)
    child.wait()


def test_a_holder_without_descriptors_goes_on_until_it_has_some(house: House) -> None:
    """It can't open the run directory, which doesn't say that the path leads elsewhere."""
    server = house.server()
    a = house.engine("a", limits={"RLIMIT_NOFILE": 1024})
    token = a.holds()
    a.do("use_up_descriptors")
    server.kill()
    server = house.server()
    a.never_hears("lost")
    a.do("free_descriptors")
    until(lambda: a.do("link")["server"], "it is back")
    a.never_hears("lost", for_s=0)
    held_by(server, "a", token)


def test_a_holder_whose_first_thread_has_ended_finds_the_next_server(house: House) -> None:
    """In such a process /proc/self shows no descriptors."""
    server = house.server()
    a = house.engine("a")
    token = a.holds()
    a.do("end_main_thread")
    server.kill()
    server = house.server()
    server.has_back(a)
    held_by(server, "a", token)


def test_a_thread_whose_time_is_over_withdraws_nothing_that_another_thread_waits_for(house: House) -> None:
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    b.do("acquire", timeout_s=0.05)
    assert b.hears("failed")["type"] == "NotInTime"
    assert server.status().waiters, "the other one waits on"
    a.kill()
    assert b.granted()["dead"] == [True]

"""The ledger with real processes: servers, holders and heirs that are killed, and memory of which the kernel keeps the
books.
"""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sidecar.terminal.formatting import size
from tests.support.processes import Process
from tests.support.waiting import NEVER_S, until
from tests.vram.programs import DEVICE, MIB, TOTAL, House
from vram.client import LedgerClient, LedgerError, NotInTime, Refused, join
from vram.rules.messages import MOST_HEIRED
from vram.shell.rundir import FILE, ledger_of


def test_a_holder_that_is_asked_makes_room(house: House) -> None:
    house.serve()
    a = house.holder("a").holds("one", 80 * MIB, "evictable")
    assert house.holder("b").does("reserve", "two", 60 * MIB) == "ok"
    assert a.program.out.next() == f"asked one {40 * MIB}"


def test_a_child_that_outlives_its_main_process_is_killed_and_waited_for(house: House) -> None:
    house.serve()
    a, b = house.holder("a").holds("one", 80 * MIB), house.holder("b")
    child = Process(int(a.does("child").split()[0]))
    child.stop()
    b.tell("reserve", "two", 80 * MIB)
    a.program.kill()
    child.wait()
    assert b.program.out.next() == "ok" and b.does("use", 80 * MIB) == "ok"


def test_holders_go_on_without_their_ledger_and_come_back_to_the_next(house: House) -> None:
    """One of them gives back meanwhile, and another one dies."""
    server = house.serve()
    a, b, c = house.holder("a").holds("one", 50 * MIB), house.holder("b"), house.holder("c")
    b.holds("two", 20 * MIB)
    c.holds("three", 20 * MIB)
    server.kill()
    a.tell("resize", "one", 70 * MIB)
    assert b.does("free") == "ok" and b.does("give", "two") == "ok"
    c.program.kill()
    house.serve()
    assert a.program.out.next() == "ok"
    seen = house.until(lambda status: not status.settled and len(status.leases) == 1, "a is back, and no other")
    assert seen.leases[0].bytes == {DEVICE: 70 * MIB}
    assert "NotInTime" in b.does("reserve", "four", 40 * MIB, "0.3") and b.does("reserve", "five", 30 * MIB) == "ok"


def test_what_is_held_counts_once_though_the_file_was_lost(house: House) -> None:
    server = house.serve()
    a, b = house.holder("a").holds("one", 60 * MIB), house.holder("b")
    stopped = Process(a.program.pid)
    stopped.stop()
    server.kill()
    (ledger_of(house.host_dir) / FILE).unlink()
    house.serve()
    house.until(lambda status: [d.foreign for d in status.devices] == [60 * MIB], "it is taken for another's")
    stopped.go_on()
    assert b.does("reserve", "two", 40 * MIB) == "ok" and b.does("use", 40 * MIB) == "ok"


def test_an_heir_has_what_its_killed_holder_had_whoever_else_waits(house: House) -> None:
    house.serve()
    a, b, c = house.holder("a").holds("chat", 80 * MIB), house.holder("b"), house.holder("c")
    assert b.does("heir", "chat") == "ok"
    c.tell("reserve", "other", 80 * MIB)
    b.tell("reserve", "chat", 80 * MIB)
    house.until(lambda status: status.waiters_total == 2, "both wait")
    a.program.kill()
    assert b.program.out.next() == "ok" and b.does("use", 80 * MIB) == "ok"
    b.program.kill()
    assert c.program.out.next() == "ok" and c.does("use", 80 * MIB) == "ok"


def test_a_holder_that_gives_back_less_than_it_said_is_named(house: House) -> None:
    house.serve("--patience-s", "0.1")
    a = house.holder("a").holds("one", 80 * MIB)
    assert a.does("give", "one") == "ok"
    seen = house.until(lambda status: status.alarms, "the alarm")
    assert f"a (process {a.program.pid}) said that it has given back one, and 80 MiB of " in seen.alarms[0]
    b = house.holder("b")
    b.tell("reserve", "two", 80 * MIB)
    assert a.does("free") == "ok" and b.program.out.next() == "ok"
    house.until(lambda status: not status.alarms, "and it is over")


def test_what_a_process_without_a_lease_takes_is_foreign(house: House) -> None:
    house.serve()
    training = house.holder("training")
    assert training.does("use", 60 * MIB) == "ok"
    a = house.holder("a")
    assert "NotInTime" in a.does("reserve", "one", 60 * MIB, "0.3")
    seen = house.until(lambda status: any(d.foreign for d in status.devices), "it is measured")
    assert seen.devices[0].foreign == 60 * MIB
    a.tell("reserve", "one", 60 * MIB)
    assert training.does("free") == "ok" and a.program.out.next() == "ok"


# -- the client, in this process ---------------------------------------------------------------------------------------


def test_what_cant_be_is_said_in_a_sentence(house: House) -> None:
    house.serve()
    ledger = LedgerClient(house.host_dir, "a").start()
    try:
        with pytest.raises(Refused, match=f"{size(TOTAL + 1)} of {DEVICE} are needed, and it has {size(TOTAL)} in all"):
            ledger.reserve("one", {DEVICE: TOTAL + 1})
        with pytest.raises(Refused, match="no device 'GPU-1' is known here; there are: host:0"):
            ledger.reserve("one", {"GPU-1": 1})
        for wrong in ({"": 1}, {DEVICE: -1}, {DEVICE: 1 << 70}):
            with pytest.raises(ValueError, match="the ledger would not take this"):
                ledger.reserve("one", wrong)
        with pytest.raises(ValueError, match="the ledger would not take this"):
            ledger.reserve("two\nlines", {DEVICE: 1})
        lease = ledger.reserve("one", {DEVICE: MIB})
        ledger.give_back(lease)
        ledger.give_back(lease)
        with pytest.raises(Refused, match="was given back"):
            ledger.resize(lease, {DEVICE: MIB})
    finally:
        ledger.close()


def test_one_name_too_many_is_a_sentence_and_costs_the_heir_nothing(house: House) -> None:
    """The server would have ended the connection, and every one after it."""
    house.serve()
    a, b = house.holder("a").holds("model-0", 60 * MIB), house.holder("b")
    for number in range(MOST_HEIRED):
        assert b.does("heir", f"model-{number}") == "ok"
    assert "heir of at most" in b.does("heir", "one-more")
    assert b.does("heir", "model-0") == "ok"
    a.program.kill()
    b.holds("model-0", 60 * MIB)


def test_it_waits_no_longer_than_it_was_told_and_while_one_thread_waits_another_is_granted(house: House) -> None:
    house.serve()
    with pytest.raises(NotInTime):
        LedgerClient(house.host_dir / "nowhere", "a").start(0.2)
    house.holder("b").holds("one", 60 * MIB)
    raised: list[str] = []

    def wait() -> None:
        try:
            ledger.reserve("two", {DEVICE: 60 * MIB}, priority=5)
        except LedgerError as error:
            raised.append(str(error))

    waits = threading.Thread(target=wait)
    with contextlib.closing(LedgerClient(house.host_dir, "a").start()) as ledger:
        with pytest.raises(NotInTime, match=r"two was not leased within 0\.1 s"):
            ledger.reserve("two", {DEVICE: 90 * MIB, "host:0 ": 0}, evictable=False, timeout_s=0.1, priority=1)
        house.until(lambda status: not status.waiters, "it waits no more")
        waits.start()
        house.until(lambda status: status.waiters, "it waits")
        assert ledger.reserve("three", {DEVICE: 10 * MIB}).bytes == {DEVICE: 10 * MIB}
    waits.join()
    assert raised == ["this client is closed"]


def test_a_child_joins_the_tree(house: House) -> None:
    house.serve()
    ledger = LedgerClient(house.host_dir, "a").start()
    try:
        environment = {**os.environ, **ledger.environment()}
        code = "from vram.client import join; assert join() is join(); print('joined')"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "joined\n"
        with pytest.raises(LedgerError, match="which tree's process"):
            join()
    finally:
        ledger.close()


def test_a_tree_that_closes_its_client_keeps_its_leases_as_long_as_it_lives(house: House) -> None:
    house.serve()
    ledger = LedgerClient(house.host_dir, "a").start()
    ledger.reserve("one", {DEVICE: 60 * MIB})
    ledger.close()
    assert "NotInTime" in house.holder("b").does("reserve", "two", 60 * MIB, str(NEVER_S))
    assert Path(ledger.run_dir / "life" / ledger.name).exists()
    until(lambda: house.ask("status")[0] == 0, "it says so")

"""The Python helper, and the contract's test that other writers have: it passes for the helper and for `fleetctl run`,
and fails for programs that break a rule each.
"""

import asyncio
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fleet
from fleet.rules.term import Phase
from fleet.shell.store import Store, open_store
from sidecar.terminal.names import BadValue
from tests.support.processes import environment_with
from tests.support.waiting import until


def lease_of(store: Store, host: str) -> str:
    name: str = store.call("look", host=host)[0]["lease"]
    return name


@pytest.mark.parametrize("database", ["sqlite", "packaged"], indirect=True)
def test_one_alone_waits_for_sharers_that_give_way(database: str, host: str) -> None:
    order: list[str] = []

    def share() -> None:
        with fleet.shared(host, purpose="agents", database=database, ttl_s=3) as lease:
            order.append("shared")
            until(lambda: lease.wanted, "it is to give way")
            order.append("gives way")

    sharers = [threading.Thread(target=share) for _ in range(3)]
    for each in sharers:
        each.start()
    until(lambda: order.count("shared") == 3, "all share")
    with fleet.exclusive(host, purpose="bench", database=database, ttl_s=3) as lease:
        order.append("alone")
        lease.check()
        assert lease.headers == {"x-failover-lease": str(lease.token)}
        with pytest.raises(fleet.NotGranted, match=r"not granted within 0\.5 s: .* for bench holds it"):
            fleet.exclusive(host, purpose="other", database=database, wait_s=0.5).__enter__()
    for each in sharers:
        each.join()
    assert order[-1] == "alone" and order.count("gives way") == 3


def test_a_lease_that_is_lost_is_said_by_all_it_has(database: str, host: str, store: Store) -> None:
    told: list[str] = []
    one = fleet.exclusive(host, purpose="a", database=database, ttl_s=3, on_lost=told.append)
    with pytest.raises(fleet.LeaseLost), one as lease:
        store.call("release", host=host, lease=lease_of(store, host))
        until(lambda: told, "it is lost")
        with pytest.raises(fleet.LeaseLost):
            lease.check()

    async def work() -> None:
        async with fleet.exclusive(host, purpose="b", database=database, ttl_s=3):
            store.call("release", host=host, lease=lease_of(store, host))
            await asyncio.sleep(1000)

    with pytest.raises(fleet.LeaseLost):
        asyncio.run(work())


def test_async_waiting_can_be_called_off_and_takes_its_wish_back(database: str, host: str, store: Store) -> None:
    async def both() -> None:
        async with fleet.exclusive(host, purpose="a", database=database, ttl_s=3):

            async def other() -> None:
                async with fleet.exclusive(host, purpose="b", database=database, ttl_s=3):
                    raise AssertionError("two have it")

            waiting = asyncio.create_task(other())
            await asyncio.to_thread(until, lambda: len(store.call("look", host=host)) == 2, "it waits")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert len(store.call("look", host=host)) == 1, "it waits no longer"

    asyncio.run(both())


def test_a_program_that_is_told_to_end_while_it_takes_the_host_has_given_it_back_by_then(tmp_path: Path) -> None:
    store = open_store(f"sqlite://{tmp_path}/f.db")
    store.init(["h"])

    def end(*_: object) -> None:
        raise SystemExit

    def tell() -> None:
        until(lambda: len(store.call("look", host="h")) == 2, "it waits")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with fleet.exclusive("h", purpose="a", database=f"sqlite://{tmp_path}/f.db"):
            telling = threading.Thread(target=tell)
            telling.start()
            with pytest.raises(SystemExit), fleet.exclusive("h", purpose="b", database=f"sqlite://{tmp_path}/f.db"):
                raise AssertionError("two have it")
            telling.join()
            assert len(store.call("look", host="h")) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_database_is_the_environments_where_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"sqlite://{tmp_path}/f.db")
    store.init(["h"])
    monkeypatch.setenv("FAILOVER_DATABASE", f"sqlite://{tmp_path}/f.db")
    with fleet.exclusive("h", purpose="a") as lease:
        assert lease.token == store.call("look", host="h")[0]["token"]
    with fleet.shared("h", purpose="a"):
        assert store.call("look", host="h")[0]["mode"] == "shared"


def test_more_may_wait_than_there_are_threads_and_who_has_it_leaves(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/f.db"
    open_store(url).init(["h"])
    done: list[int] = []

    async def work(number: int) -> None:
        async with fleet.exclusive("h", purpose=f"{number}", database=url, ttl_s=3, wait_s=60):
            await asyncio.sleep(0.05)
            done.append(number)

    async def all_of_them() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await asyncio.gather(*map(work, range(3)))

    asyncio.run(all_of_them())
    assert sorted(done) == [0, 1, 2]


def test_a_lease_that_is_lost_while_an_async_block_ends_is_said_to_be_lost(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/f.db"
    store = open_store(url)
    store.init(["h"])

    async def work() -> None:
        told: list[str] = []
        async with fleet.exclusive("h", purpose="a", database=url, ttl_s=3, on_lost=told.append):
            store.call("release", host="h", lease=lease_of(store, "h"))
            until(lambda: told, "it is lost")  # and the block ends before the loop hears of it

    with pytest.raises(fleet.LeaseLost):
        asyncio.run(work())


def test_an_error_in_the_block_is_the_one_that_comes_out(tmp_path: Path) -> None:
    open_store(f"sqlite://{tmp_path}/f.db").init(["h"])
    with pytest.raises(ZeroDivisionError), fleet.exclusive("h", purpose="", database=f"sqlite://{tmp_path}/f.db"):
        raise ZeroDivisionError
    with pytest.raises(fleet.NotGranted, match="there is no host x here"):
        fleet.shared("x", purpose="", database=f"sqlite://{tmp_path}/f.db").__enter__()


KEEPS = """
import os, pathlib, signal, sys, fleet
def end(*_): sys.exit(0)
signal.signal(signal.SIGTERM, end)
with fleet.exclusive(os.environ["FAILOVER_HOST"], purpose="w", database=os.environ["FAILOVER_DATABASE"], ttl_s=3) as it:
    while True:
        it.check()
        pathlib.Path(os.environ["FAILOVER_WORKING"]).touch()
        signal.sigtimedwait([], 0.05)
"""
WORKS = 'trap "kill $!; exit" TERM; while true; do touch $FAILOVER_WORKING; sleep 0.05 & wait $!; done'
SHELL = f"exec {sys.executable} -m fleet.cli.fleetctl run --exclusive $FAILOVER_HOST --ttl-s 3 -- sh -c '{WORKS}'"
BREAKS = {
    "its lease is a shared one": KEEPS.replace("fleet.exclusive", "fleet.shared"),
    "it works while another has the host": "import os, pathlib\npathlib.Path(os.environ['FAILOVER_WORKING']).touch()\n"
    + KEEPS,
    "given back": KEEPS.replace("sys.exit(0)", "os._exit(0)"),
    "works on without a lease": KEEPS.replace("it.check()", "pass"),
}


def contract(url: str, *command: str) -> tuple[int, str, str]:
    words = [sys.executable, "-m", "fleet.contract", "--database", url, "--patience-s", "60", "--", *command]
    done = subprocess.run(words, capture_output=True, text=True, env=environment_with(), check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [(sys.executable, "-c", KEEPS), ("sh", "-c", SHELL)], ids=["helper", "fleetctl run"]
)
def test_who_keeps_the_rules_passes_the_contracts_test(database: str, command: tuple[str, ...]) -> None:
    code, out, said = contract(database, *command)
    assert (code, out.count("ok    ")) == (0, 4), said


@pytest.mark.slow
@pytest.mark.parametrize("why", BREAKS)
def test_who_breaks_one_doesnt(tmp_path: Path, why: str) -> None:
    code, _, said = contract(f"sqlite://{tmp_path}/f.db", sys.executable, "-c", BREAKS[why])
    assert code == 1 and why in said, said


def test_the_contract_doesnt_wait_for_a_program_that_has_ended(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/fleet.db"
    code, _, said = contract(url, "sh", "-c", "exit 3")
    assert code == 1 and "the program has ended, with 3" in said


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_lease_is_given_back_whatever_on_lost_raises(tmp_path: Path, error: type[BaseException]) -> None:
    url = f"sqlite://{tmp_path}/fleet.db"
    store = open_store(url)
    store.init(["box"])

    def raises(why: str) -> None:
        raise error(why)

    lease = fleet.exclusive("box", purpose="a", database=url, ttl_s=3, on_lost=raises)
    with pytest.raises(fleet.LeaseLost), lease:
        store.call("release", host="box", lease=lease_of(store, "box"))
        until(lambda: lease.lost, "it is lost")
    assert lease._holding is not None
    lease._holding.join(20)
    assert lease._holding._term.phase is Phase.OVER, "its thread went on"


def test_what_is_of_the_wrong_type_is_said_before_anything_waits() -> None:
    for wrong in ({"wait_s": "5"}, {"purpose": 5}, {"ttl_s": None}):
        with pytest.raises(BadValue, match="are texts"):
            fleet.exclusive("box", **{"purpose": "x", **wrong})  # type: ignore[arg-type]

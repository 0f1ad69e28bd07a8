"""The rules of `statements.py`, one by one, on SQLite; and on each database what may be another's there: time, which
passes as its own clock says, whose turn it is, and what it refuses. That PostgreSQL answers as SQLite does to the rest:
`test_model_agrees.py`.
"""

import contextlib
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fleet.rules import statements
from fleet.rules.leases import in_the_way, seen
from fleet.shell.store import Refused, Store, StoreError, open_store
from tests.fleet import scripts
from tests.fleet.conftest import KINDS
from tests.fleet.postgres import Postgres
from tests.support.waiting import until

TURNS = int(os.environ.get("FAILOVER_FLEET_TURNS", "3"))
"""Of each contender. `make night` has more of them."""
on_each = pytest.mark.parametrize("database", KINDS, indirect=True)


class Host:
    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name

    def ask(self, mode: str, lease: str = "", *, priority: int = 0, ttl: float = 60.0, **more: Any) -> "Wish":
        wish = Wish(self, lease or secrets.token_hex(16), mode, priority, ttl, more)
        wish.again()
        return wish

    def events(self) -> list[str]:
        rows = self.store.call("history", host=self.name, last=1000)
        return [f"{row['event']} {row['token'] or ''}".strip() for row in reversed(rows)]


class Wish:
    def __init__(self, host: Host, lease: str, mode: str, priority: int, ttl: float, more: dict[str, Any]) -> None:
        self.host, self.lease = host, lease
        self._values = {"mode": mode, "priority": priority, "ttl": ttl, "wait": 100.0, "drain": 0.0, **more}
        self.answer: dict[str, Any] = {}

    def again(self) -> int | None:
        """The token, if it is granted by now."""
        said = {"holder": "it", "purpose": "a test", **self._values}
        self.answer = self.host.store.call("ask", host=self.host.name, lease=self.lease, **said)[0]
        token: int | None = self.answer["token"]
        return token

    def renew(self, token: int | None = None) -> dict[str, Any]:
        token = self.answer["token"] if token is None else token
        return self.host.store.call("renew", host=self.host.name, lease=self.lease, token=token)[0]

    def release(self) -> list[dict[str, Any]]:
        return self.host.store.call("release", host=self.host.name, lease=self.lease)

    @property
    def token(self) -> int | None:
        token: int | None = self.answer["token"]
        return token


@pytest.fixture
def it(store: Store, host: str) -> Host:
    return Host(store, host)


@on_each
def test_sharers_share_and_a_wish_for_the_host_alone_stops_new_ones_at_once(it: Host) -> None:
    first, second = it.ask("shared"), it.ask("shared")
    assert (first.token, second.token) == (1, 2)
    alone, late = it.ask("exclusive"), it.ask("shared")
    assert alone.token is late.token is None
    first.release()
    assert alone.again() is None and late.again() is None
    second.release()
    assert late.again() is None and alone.again() == 3
    assert late.again() is None and late.answer["wanted"] in (0, False)
    alone.release()
    assert late.again() == 4
    assert it.events() == [
        "asked", "granted 1", "asked", "granted 2", "asked", "asked", "released 1", "released 2", "granted 3",
        "released 3", "granted 4",
    ]  # fmt: skip


def test_exclusive_ones_come_by_priority_and_then_in_the_order_of_asking(it: Host) -> None:
    holder = it.ask("exclusive")
    a, b, c = it.ask("exclusive"), it.ask("exclusive", priority=5), it.ask("exclusive", priority=5)
    holder.release()
    order = []
    for _ in range(3):
        turn = next(wish for wish in (a, c, b) if wish.again())
        order.append(turn)
        turn.release()
    assert order == [b, c, a]


def test_no_priority_passes_what_asked_before_a_waiting_sharer(it: Host) -> None:
    holder = it.ask("exclusive")
    before, sharer, urgent = it.ask("exclusive"), it.ask("shared"), it.ask("exclusive", priority=100)
    holder.release()
    assert urgent.again() is sharer.again() is None and before.again()
    before.release()
    assert urgent.again() is None and sharer.again()
    assert urgent.again() is None
    sharer.release()
    assert urgent.again()


@on_each
def test_what_isnt_renewed_lapses_and_no_renewal_revives_it(it: Host) -> None:
    holder, waiter = it.ask("exclusive", ttl=0.5), it.ask("exclusive")
    time.sleep(0.6)
    assert holder.renew(1)["lease"] is None and waiter.again() == 2
    assert holder.again() is None and holder.answer["lease"] is None, "and it doesn't begin again"
    assert it.events() == ["asked", "granted 1", "asked", "lapsed 1", "granted 2"]


def test_a_waiter_that_is_away_or_has_waited_long_enough_is_in_no_ones_way(it: Host) -> None:
    holder = it.ask("shared")
    it.ask("exclusive", ttl=0.3)
    it.ask("exclusive", wait=0.3)
    time.sleep(0.4)
    assert it.ask("shared").token and holder.renew()["wanted"] in (0, False)


@on_each
def test_a_renewal_goes_on_for_a_term_and_needs_its_token(it: Host) -> None:
    holder = it.ask("exclusive", ttl=50.0)
    time.sleep(0.05)
    assert holder.renew(7)["expires_at"] == holder.answer["expires_at"]
    renewed = holder.renew()
    assert renewed["expires_at"] == pytest.approx(renewed["now"] + 50, abs=0.002) and renewed["token"] == 1


def test_a_sharer_can_renew_no_further_than_the_drain_and_is_never_shortened(it: Host) -> None:
    sharer = it.ask("shared", ttl=2.0)
    until = sharer.answer["expires_at"]
    asked_at = it.ask("exclusive", drain=3.0).answer["now"]
    assert sharer.renew()["expires_at"] >= until and sharer.renew()["wanted"] in (1, True)
    time.sleep(1.3)
    assert sharer.renew()["expires_at"] == pytest.approx(asked_at + 3.0, abs=0.002)
    other = it.ask("shared", ttl=20.0)
    assert other.token is None


def test_all_may_be_said_twice(it: Host) -> None:
    wish = it.ask("exclusive")
    first = dict(wish.answer)
    assert wish.again() == 1 and wish.answer["expires_at"] == first["expires_at"]
    assert wish.release() == wish.release() == [{"event": "released"}]
    assert it.ask("exclusive", secrets.token_hex(16)).token == 2
    assert it.events().count("granted 1") == 1


def test_a_wish_that_is_taken_back_is_gone(it: Host) -> None:
    holder, waiter = it.ask("shared"), it.ask("exclusive")
    assert waiter.release() == [{"event": "left"}]
    assert it.ask("shared").token and holder.renew()["wanted"] in (0, False)


def test_what_a_look_shows_is_what_the_statements_go_by(it: Host) -> None:
    holder = it.ask("exclusive")
    wishes = [it.ask("exclusive", priority=p) if p is not None else it.ask("shared") for p in (0, 5, None, 9, None)]
    order: list[int] = []
    holder.release()
    while len(order) < 5:
        found = seen(it.store.call("look", host=it.name))
        assert found is not None and found.newest == 1 + len(order)
        free = [n for n, wish in enumerate(wishes) if n not in order and not in_the_way(found.rows, wish.lease)]
        granted = [n for n, wish in enumerate(wishes) if n not in order and wish.again()]
        assert granted == free and granted
        for n in granted:
            wishes[n].release()
        order += granted
    assert order == [1, 0, 2, 3, 4]


def test_a_door_that_ended_without_a_word_counts_as_one_uncovered_request(it: Host) -> None:
    def report(incarnation: str, uncovered: int = 0, ended: bool = False) -> int:
        values = {"door": "d", "incarnation": incarnation, "uncovered": uncovered, "ended": ended, "knows": 0}
        it.store.call("report", host=it.name, **values)
        count: int = it.store.call("doors", host=it.name)[0]["uncovered"]
        return count

    assert [report("a"), report("a", 3), report("a", 2), report("a", ended=True)] == [0, 3, 5, 5]
    assert [report("b"), report("c"), report("c")] == [5, 6, 6]


@on_each
def test_the_database_itself_takes_nothing_else(it: Host) -> None:
    wrong: list[dict[str, Any]] = [{"holder": ""}, {"priority": 101}, {"ttl": 0.0}, {"mode": "mine"}, {"drain": -1.0}]
    for values in wrong:
        with pytest.raises(Refused, match="doesn't take this"):
            it.ask(**{"mode": "exclusive", **values})
    assert it.ask("exclusive").token == 1


@on_each
def test_a_host_that_doesnt_exist_is_no_row(store: Store, host: str) -> None:
    assert store.call("look", host="nowhere") == []
    assert store.call("renew", host="nowhere", lease="x" * 32, token=1) == []


def test_history_keeps_the_last_thousand() -> None:
    store = scripts.in_memory(time.time)
    scripts.add_hosts(store, ["h"])
    it = Host(store, "h")
    for _ in range(340):
        it.ask("exclusive").release()
    assert 1000 <= len(it.store.call("history", host=it.name, last=5000)) <= 1003


def patiently(call: Callable[[], Any]) -> Any:
    """Asks again while no answer comes, as the client's machine does."""

    def once() -> list[Any]:
        try:
            return [call()]
        except Refused:
            raise
        except StoreError:
            return []

    return until(once, "the database answers")[0]


@on_each
def test_two_that_ask_at_the_same_moment_dont_both_get_it(database: str, host: str) -> None:
    eight_contend(database, host)


def eight_contend(database: str, host: str) -> None:

    def contend(number: int) -> list[int]:
        own = Host(open_store(database), host)
        tokens = []
        for _ in range(TURNS):
            wish = patiently(lambda: own.ask("exclusive"))
            until(lambda wish=wish: patiently(wish.again), "it is granted")  # type: ignore[misc]
            rows = patiently(lambda: own.store.call("look", host=host))
            assert [row["token"] for row in rows if row["token"] is not None] == [wish.token]
            tokens.append(wish.token or 0)
            patiently(wish.release)
        own.store.close()
        return tokens

    with ThreadPoolExecutor(8) as pool:
        found = [token for tokens in pool.map(contend, range(8)) for token in tokens]
    assert sorted(found) == list(range(1, 8 * TURNS + 1))


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_stricter_isolation_makes_the_later_one_fail_and_ask_again(packaged: Postgres, isolation: str) -> None:
    import psycopg

    name, url = isolation.replace(" ", "_"), packaged.url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{isolation}'".encode())
    strict = url.replace("/postgres", f"/{name}")
    open_store(strict).init(["h"])
    eight_contend(strict, "h")


@pytest.mark.parametrize("database", ["sqlite", "packaged"], indirect=True)
def test_a_question_about_one_host_reads_an_index_among_a_thousand(database: str, store: Store) -> None:
    """With 1,000 hosts and 10,000 waiters: what `look` and `ask` read of the leases is found by the host."""
    store.init([f"many-{number}" for number in range(1000)])
    columns = "lease, host, mode, priority, holder, purpose, asked_at, renewed_at, expires_at, wait_until, ttl_s"
    values = "'waiter-' || (1000000000 + i), 'many-' || (i % 1000), 'exclusive', 0, 'it', '', 1, 1, 1e12, 1e12, 60, 0"
    fill = f"INSERT INTO leases ({columns}, drain_s) SELECT {values}"
    reads = [
        statements.LOOK,
        *(each for each in statements.ASK if "FROM leases x" in each or each.startswith("SELECT")),
    ]
    if database.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(database.removeprefix("sqlite://"), isolation_level=None)) as file:
            file.execute("BEGIN")
            numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)"
            file.execute(f"{numbers} {fill} FROM n")
            for each in reads:
                said = "EXPLAIN QUERY PLAN " + statements.for_sqlite(each)
                plan = str(file.execute(said, {"host": "many-7", "lease": "x"}).fetchall())
                assert not re.search(r"SCAN (leases|l|x|s)\b", plan), plan
        return
    import psycopg

    with psycopg.connect(database) as connection:
        connection.execute(f"SET search_path = {statements.SCHEMA}".encode())
        connection.execute(f"{fill} FROM generate_series(0, 9999) i".encode())
        connection.execute("ANALYZE leases")
        for each in reads:
            said = each.format(**statements._POSTGRES).replace(":host", "'many-7'").replace(":lease", "'x'")
            plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {said}".encode()))
            assert not re.search(r"Seq Scan on leases", plan), plan
        connection.rollback()

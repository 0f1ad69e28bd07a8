"""The simulator's model of a database answers as SQLite and PostgreSQL do, to the last bit: scripts that are drawn by
chance, and whole schedules of the simulator. And they would notice: each rule that is taken out of the statements.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet.rules import statements
from fleet.shell.store import PostgresStore, SqliteStore, StoreError, open_store
from tests.fleet import scripts, sim
from tests.fleet.postgres import Postgres

SEEDS = 12
"""Scripts on PostgreSQL: each rule of `WITHOUT` that the two spell otherwise is noticed by one of them."""


class Sqlite:
    def __init__(self) -> None:
        self.now = 0.0
        self.store: SqliteStore = scripts.in_memory(lambda: self.now)

    def say(self, now: float, name: str, values: dict[str, Any]) -> scripts.Answer:
        self.now = now
        return self.store.call(name, **values)

    def differs(self, seeds: range) -> str:
        for seed in seeds:
            scripts.add_hosts(self.store, scripts.hosts_of(seed))
            if found := scripts.differs(seed, self.say):
                return found
        return ""


def test_the_model_answers_as_sqlite_does() -> None:
    assert not Sqlite().differs(range(100))


@pytest.fixture(params=["packaged", "system"])
def postgres(request: pytest.FixtureRequest, servers: Callable[[str], Postgres]) -> Iterator[PostgresStore]:
    """With a clock of ours."""
    import psycopg

    server = servers(request.param)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE agrees")
    store = open_store(server.url().replace("/postgres", "/agrees"))
    assert isinstance(store, PostgresStore)
    store.init([host for seed in range(SEEDS) for host in scripts.hosts_of(seed)])
    schema = statements.SCHEMA
    store._connected().execute(
        f"CREATE TABLE {schema}.sim_now (s double precision); INSERT INTO {schema}.sim_now VALUES (0);"
        f"CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS double precision LANGUAGE sql VOLATILE"
        f" AS 'SELECT s FROM {schema}.sim_now'".encode()
    )
    yield store
    store.close()


def test_the_model_answers_as_postgresql_does(postgres: PostgresStore) -> None:
    def say(now: float, name: str, values: dict[str, Any]) -> scripts.Answer:
        postgres._connected().execute(f"UPDATE {statements.SCHEMA}.sim_now SET s = %s".encode(), (now,))
        return postgres.call(name, **values)

    for seed in range(SEEDS):
        assert not scripts.differs(seed, say)


def test_a_schedule_is_the_same_one_on_sqlite() -> None:
    for seed in range(10):
        told: list[list[str]] = [[], []]
        sim.World(seed, told[0].append).run()
        sim.World(seed, told[1].append, sqlite=True).run()
        assert told[0] == told[1], f"seed {seed}"


CLOCK = "(SELECT clock FROM hosts WHERE name = :host)"
WITHOUT = {
    "a shared one minds no exclusive one": ("ask", "        AND (x.mode = 'exclusive' OR leases.mode = 'exclusive'))",
                                            "        AND x.mode = leases.mode)"),
    "what is held is in no one's way": ("ask", "x.token IS NOT NULL\n", "x.id IS NULL\n"),
    "a wish stops no new ones": ("ask", "x.token IS NULL AND x.id < leases.id\n", "x.id IS NULL\n"),
    "a token is given twice": ("ask", "token + 1", "token"),
    "the last token is forgotten": ("ask", "WHERE name = :host AND token <", "WHERE name IS NULL AND token <"),
    "what has ended begins again": ("ask", "event IN ('released', 'left', 'lapsed'))", "event IS NULL)"),
    "another host's wish is granted": ("ask", "AND leases.host = excluded.host", ""),
    "another host's lease is given back": ("release", "lease = :lease AND host = :host", "lease = :lease"),
    "what has lapsed stays": ("ask", f"expires_at <= {CLOCK}", f"expires_at + 5 <= {CLOCK}"),
    "a renewal revives": ("renew", f"expires_at <= {CLOCK}", f"expires_at + 5 <= {CLOCK}"),
    "a renewal shortens": ("renew", "{later}(expires_at,\n", "{earlier}(expires_at,\n"),
    "a renewal needs no token": ("renew", " AND token = :token", ""),
    "a stubborn sharer stays": ("renew", f"{{earlier}}({CLOCK} + ttl_s", f"{{later}}({CLOCK} + ttl_s"),
    "what is given back stays": ("release", "FROM leases WHERE lease = :lease AND host", "FROM leases WHERE NOT host"),
    "time goes back": ("ask", "{later}(clock, {now})", "{now}"),
    "a door that vanished counts for nothing": ("report", "THEN 1", "THEN 0"),
}  # fmt: skip
"""A rule that is broken, by one change in one statement. Those of priorities: `test_statements.py`."""


@pytest.mark.parametrize("what", WITHOUT)
def test_a_rule_that_is_taken_out_of_the_statements_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, old, new = WITHOUT[what]
    body, takes, gives = statements.STATEMENTS[name]
    assert sum(each.count(old) for each in body) >= 1
    wrong = tuple(each.replace(old, new) for each in body)
    monkeypatch.setitem(statements.STATEMENTS, name, (wrong, takes, gives))
    with contextlib.suppress(StoreError):  # a rule of the tables' own notices, too
        assert Sqlite().differs(range(20))

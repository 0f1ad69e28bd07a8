"""Scripts of what clients say to a database, drawn by chance, and what it answers: for the simulator's model beside
SQLite and PostgreSQL. One seed is one script.
"""

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet.rules import statements
from fleet.shell.store import SqliteStore
from tests.fleet.model import Model

STEPS = 60
Answer = list[dict[str, Any]]
Say = Callable[[float, str, dict[str, Any]], Answer]
"""The database's time, what is said, and with which values."""


class InMemory(SqliteStore):
    def _there(self) -> list[int]:
        return []


def in_memory(now: Callable[[], float]) -> SqliteStore:
    """A file of SQLite's that is none, with a clock of ours."""
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256)
    connection.row_factory = lambda cursor, row: dict(zip([each[0] for each in cursor.description], row, strict=True))
    connection.create_function("sim_now", 0, now)
    connection.executescript(statements.for_sqlite(statements.TABLES))
    store = InMemory(Path("/nowhere"), "sim_now()")
    store._connection = connection
    return store


def add_hosts(store: SqliteStore, hosts: list[str]) -> None:
    assert store._connection is not None
    for host in hosts:
        store._connection.execute(statements.ADD_HOST, {"host": host})


def hosts_of(seed: int) -> list[str]:
    return [f"s{seed}-a", f"s{seed}-b"]


def script(seed: int) -> tuple[list[tuple[float, str, dict[str, Any]]], list[Answer]]:
    """And the model's answers: some of what is said follows from them."""
    dice, now = random.Random(seed), 1e9 + seed
    model = Model(lambda: now)
    hosts = hosts_of(seed)
    model.init(hosts)
    names = [f"{seed:08}-lease-{number}" for number in range(8)]
    wishes = {
        name: {
            "mode": mode,
            "priority": dice.choice((0, 0, 5)) if mode == "exclusive" else 0,
            "holder": "it",
            "purpose": name[-1],
            "ttl": dice.choice((3.0, 10.0, 60.0)),
            "wait": dice.choice((5.0, 40.0, 1e6)),
            "drain": dice.choice((0.0, 5.0, 20.0)),
        }
        for name in names
        for mode in [dice.choice(("shared", "exclusive"))]
    }
    tokens: dict[str, int] = {}
    said, answers = [], []
    for _ in range(STEPS):
        now += dice.choice((0.0, 0.0, 0.125, 0.125, 1.0, 1.5, 3.0, 9.0, -2.0))
        lease, host = dice.choice(names), hosts[dice.random() < 0.1]
        name = dice.choice(("ask", "ask", "ask", "ask", "renew", "renew", "release", "look", "report"))
        values: dict[str, Any] = {"host": host if dice.random() > 0.01 else "nowhere"}
        if name == "ask":
            values |= {"lease": lease, **wishes[lease]}
        elif name == "renew":
            values |= {"lease": lease, "token": tokens.get(lease, 1) + (dice.random() < 0.1)}
        elif name == "release":
            values |= {"lease": lease}
        elif name == "report":
            values |= {"door": dice.choice("de"), "incarnation": dice.choice("12"), "uncovered": dice.choice((0, 0, 3))}
            values |= {"ended": dice.random() < 0.2, "knows": dice.randrange(9)}
        said.append((now, name, values))
        answers.append(model.call(name, **values))
        if name == "ask" and answers[-1] and answers[-1][0]["token"] is not None:
            tokens[lease] = answers[-1][0]["token"]
    for host in hosts:
        said += [
            (now, "look", {"host": host}),
            (now, "doors", {"host": host}),
            (now, "history", {"host": host, "last": 99}),
        ]
        answers += [model.call(name, **values) for _, name, values in said[-3:]]
    return said, [alike(answer) for answer in answers]


def alike(rows: Answer) -> Answer:
    """Without what databases may do each in its own way: how they number, and how they spell what is true."""
    places = {number: place for place, number in enumerate(sorted(row["id"] or 0 for row in rows if "id" in row))}
    found = []
    for row in rows:
        row = row | {name: bool(row[name]) for name in ("wanted", "ended") if name in row}
        found.append(row | {"id": places[row["id"] or 0]} if "id" in row else row)
    return found


def differs(seed: int, say: Say) -> str:
    """Where a database answers otherwise than the model; empty: nowhere."""
    said, answers = script(seed)
    for place, ((now, name, values), answer) in enumerate(zip(said, answers, strict=True)):
        found = alike(say(now, name, values))
        if found != answer:
            return f"script {seed}, step {place}: {name} {values} is answered with {found}, and the model's is {answer}"
    return ""

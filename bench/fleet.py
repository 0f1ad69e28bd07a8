"""Leases in SQL: `python -m bench.fleet`.

What a lease takes, against a round trip to the same database, in turns; and how many questions a second a database
answers when 10,000 programs wait for 1,000 hosts. Each on every database that is here: SQLite, PostgreSQL of the system
and of the Python package. (What a lease costs a request at the door: `python -m bench.door`.)
"""

import argparse
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

from fleet.shell.store import PostgresStore, SqliteStore, Store, StoreError, open_store
from tests.fleet.postgres import SERVERS, postgres

HOSTS, WAITERS, THREADS = 1000, 10_000, 4
WISH = {"mode": "exclusive", "priority": 0, "holder": "bench", "purpose": "", "wait": 1e6, "drain": 0.0}


def round_trip(store: Store) -> Callable[[], object]:
    if isinstance(store, SqliteStore):
        return lambda: store.call("hosts")
    assert isinstance(store, PostgresStore)
    store.call("hosts")
    connection = store._connection
    assert connection is not None
    return lambda: connection.execute("SELECT 1").fetchall()


def uncontended(store: Store, rounds: int) -> str:
    ask = {name: [] for name in ("round trip", "commit", "acquire", "renew", "release")}  # type: ignore[var-annotated]
    trip = round_trip(store)

    def timed(name: str, what: Callable[[], object]) -> None:
        began = time.perf_counter()
        what()
        ask[name].append((time.perf_counter() - began) * 1000)

    report = {"door": "bench", "incarnation": "b" * 16, "uncovered": 0, "knows": 0, "ended": True}
    for _ in range(rounds):
        lease = secrets.token_hex(16)
        timed("round trip", trip)
        timed("commit", lambda: store.call("report", host="h0", **report))
        timed("acquire", lambda lease=lease: store.call("ask", host="h0", lease=lease, ttl=60.0, **WISH))  # type: ignore[misc]
        token = store.call("look", host="h0")[0]["token"]
        time.sleep(0.002)  # SQLite's clock counts milliseconds, and what is renewed within one needn't be written
        timed("renew", lambda lease=lease, token=token: store.call("renew", host="h0", lease=lease, token=token))  # type: ignore[misc]
        timed("release", lambda lease=lease: store.call("release", host="h0", lease=lease))  # type: ignore[misc]
    return ", ".join(
        f"{name} {median(times):.2f} (p99 {sorted(times)[len(times) * 99 // 100]:.2f})" for name, times in ask.items()
    )


def crowded(url: str, seconds: float) -> str:
    store = open_store(url)
    store.init([f"h{number}" for number in range(HOSTS)])
    leases = [(f"h{number % HOSTS}", secrets.token_hex(16)) for number in range(HOSTS + WAITERS)]
    for host, lease in leases:
        store.call("ask", host=host, lease=lease, ttl=86400.0, **WISH)
    found = []
    for name in ("look", "ask"):
        counts, end = [0] * THREADS, time.monotonic() + seconds

        def work(part: int, name: str = name, counts: list[int] = counts, end: float = end) -> None:
            own = open_store(url)
            while time.monotonic() < end:
                for host, lease in leases[part :: THREADS * 97]:
                    more = {} if name == "look" else {"lease": lease, "ttl": 86400.0, **WISH}
                    with suppress(StoreError):  # SQLite's file is locked by another for too long
                        own.call(name, host=host, **more)
                        counts[part] += 1
            own.close()

        threads = [threading.Thread(target=work, args=(part,)) for part in range(THREADS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        found.append(f"{sum(counts) / seconds:.0f} {name}s a second")
    return ", ".join(found)


@contextmanager
def databases() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as directory:
        place = Path(directory)
        place.chmod(0o755)
        urls = {"SQLite": f"sqlite://{place}/fleet.db"}
        servers = []
        try:
            for which, binaries in SERVERS.items():
                if binaries is not None:
                    servers.append(postgres(which, place / which, "fsync=on"))
                    urls[f"PostgreSQL, {which}"] = servers[-1].__enter__().url()
            yield urls
        finally:
            for server in servers:
                server.__exit__(None, None, None)


def main() -> None:
    it = argparse.ArgumentParser(description="Leases in SQL.")
    it.add_argument("--rounds", type=int, default=300)
    it.add_argument("--seconds", type=float, default=10.0)
    options = it.parse_args()
    with databases() as urls:
        for name, url in urls.items():
            store = open_store(url)
            store.init(["h0"])
            print(f"{name}: ms, p50 (p99) of {options.rounds}: {uncontended(store, options.rounds)}", flush=True)
            crowd = crowded(url, options.seconds)
            print(f"{name}: {HOSTS} hosts, {WAITERS} waiters, {THREADS} connections: {crowd}", flush=True)


if __name__ == "__main__":
    main()

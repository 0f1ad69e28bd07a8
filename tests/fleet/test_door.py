"""A real door under a lease: 64 streams, a wish for the host alone, a holder that is killed, a door that is stopped, a
database that is away. No stream is cut; a bench sees none but its own requests, or is told that it didn't.
"""

import asyncio
import json
import random
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.shell.store import Store, open_store
from pool.entries import State
from tests.engine.shims import House
from tests.fleet.postgres import Postgres
from tests.gateway import under_load
from tests.gateway.door import GatewayProgram, ask, request_bytes
from tests.gateway.test_many_models import Many
from tests.gateway.under_load import all_of, check, questions
from tests.support.processes import Process, Program
from tests.support.waiting import NEVER_S, readable, until

pytestmark = [pytest.mark.chaos]
BODY = {"prompt": "bench", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
BENCH = """
import json, os, re, sys, urllib.request
def get(path, body=None, **headers):
    data = json.dumps(body).encode() if body else None
    asked = urllib.request.Request(sys.argv[1] + path, data, {"content-type": "application/json", **headers})
    return urllib.request.urlopen(asked).read().decode()
print("started", os.getpid(), flush=True)
for line in sys.stdin if sys.argv[2] == "listens" else range(20):
    running = re.search(r"(?m)^vllm:num_requests_running\\S* (\\S+)", get("/metrics"))[1]
    get("/v1/completions", json.loads(sys.argv[3]), **{"x-failover-lease": os.environ["FAILOVER_LEASE"]})
    print("running", running, flush=True)
"""


class Site:
    def __init__(self, house: House, url: str, host: str) -> None:
        self.house, self.url, self.host = house, url, host
        self.store: Store = open_store(url)
        self.shim = under_load.pair(house)[0]
        self._programs: list[Program] = []
        self.door = self.opens()

    def opens(self, *more: str) -> GatewayProgram:
        leased = ("--lease-host", self.host, "--database", self.url, "--lease-ttl-s", "3", *more)
        return GatewayProgram(self.house, *leased).serving()

    def bench(self, *more: str, how: str = "runs", ttl_s: str = "3") -> Program:
        """A program that has the host alone, and says how many requests the engine has before each of its own."""
        words = ("run", "--exclusive", self.host, "--database", self.url, "--ttl-s", ttl_s, "--purpose", "bench", *more)
        command = (sys.executable, "-c", BENCH, self.door.url, how, json.dumps(BODY))
        self._programs.append(Program(sys.executable, "-m", "fleet.cli.fleetctl", *words, "--", *command))
        return self._programs[-1]

    def lease(self) -> dict[str, Any]:
        found = self.door.state().get("lease") or {}
        return dict(found)

    def until(self, state: str) -> None:
        until(lambda: self.lease().get("state") == state, f"the door says {state}; last: {self.lease()}")

    def close(self) -> None:
        for program in self._programs:
            program.close()
        self.store.close()


@pytest.fixture
def site(database: str, host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    house = House(Path(tmp_path_factory.mktemp("site")))
    house.devices.mkdir(mode=0o700)
    here = None
    try:
        here = Site(house, database, host)
        yield here
    finally:
        if here is not None:
            here.close()
        house.close()


def test_64_streams_and_a_wish_for_the_host_cut_none_and_the_bench_is_alone(site: Site) -> None:
    asked = questions(64, random.Random(1))
    like = asyncio.run(all_of(site.door.port, asked))
    benches: list[Program] = []

    def wish() -> None:
        """One that pauses them at once, and one that gives them time to finish."""
        for drain_s in ("0", "30"):
            signal.sigtimedwait([], 0.3)
            benches.append(site.bench("--drain-s", drain_s))
            assert benches[-1].ends() == 0, benches[-1].err.rest()

    streams = asyncio.run(all_of(site.door.port, asked, wish))
    check(streams, like)
    assert site.door.state()["continued"], "the first of them found some"
    for bench in benches:
        assert bench.out.rest().count("running 0") == 20 and "running" in bench.out.said[-1]
        assert "clean: 1 door let through none but its own requests" in bench.err.rest()
    assert site.lease()["uncovered"] == 0


def test_others_wait_or_are_refused_and_have_the_host_within_a_term_when_its_holder_is_killed(site: Site) -> None:
    refuses = site.opens("--when-leased", "refuse", "--lease-name", "door 2")
    bench = site.bench(how="listens")
    bench.out.with_words("started")
    site.until("leased")
    until(lambda: (refuses.state()["lease"] or {}).get("state") == "leased", "the other door, too")
    status, headers, body = ask(refuses.port, "/v1/completions", BODY)
    assert status == 503 and int(headers["retry-after"]) >= 1
    assert f"host {site.host} is leased by " in body.decode() and " for bench until " in body.decode()
    page = refuses.get("/failover/state")[1]["lease"]
    assert page["state"] == "leased" and " for bench until " in page["says"]
    assert f'failover_door_lease_open{{host="{site.host}"}} 0.0' in refuses.get("/metrics")[1]

    token = str(site.lease()["token"])
    with_tokens = [
        ask(site.door.port, "/v1/completions", BODY, x_failover_lease=it) for it in ("1", "99", "two", token)
    ]
    assert [status for status, _, _ in with_tokens] == [409, 409, 400, 200]
    assert "x-failover-lease" not in with_tokens[-1][1], "its own lease covers it"

    async def wait() -> None:
        stream = questions(1, random.Random(1))[0]
        task = asyncio.create_task(stream.run(site.door.port))
        await asyncio.sleep(NEVER_S)
        assert not task.done()
        bench.kill()
        assert (await task).whole

    asyncio.run(wait())
    rows = site.store.call("history", host=site.host, last=10)
    at = {(row["event"], row["mode"]): row["at"] for row in reversed(rows)}
    assert at["granted", "shared"] - at["lapsed", "exclusive"] < 3.0, "no later than the next look"
    assert ask(site.door.port, "/v1/completions", BODY, x_failover_lease=token)[0] == 409
    assert ask(site.door.port, "/v1/completions", BODY)[0] == 200


def test_a_door_taints_a_run_when_it_is_stopped_or_killed_and_not_when_it_ends_in_order(site: Site) -> None:
    """Stopped for longer than a term: what its engine had goes on meanwhile, and the lease is another's by then."""

    def begins(ttl_s: str = "3") -> Program:
        bench = site.bench(how="listens", ttl_s=ttl_s)
        bench.out.with_words("started")
        return bench

    def ends(bench: Program) -> tuple[int, str]:
        bench.process.stdin.close()  # type: ignore[union-attr]
        return bench.ends(), bench.err.rest()

    door = Process(site.door.pid)
    with socket.create_connection(("127.0.0.1", site.door.port)) as client:
        client.sendall(request_bytes("/v1/completions", {**BODY, "max_tokens": 400, "stream": True}))
        assert readable(client.fileno())
        door.stop()
        bench = begins("30")
        door.go_on()
        site.until("leased")
        code, said = ends(bench)
    assert code == 71 and "had requests with an engine that no lease covered" in said

    bench = begins()
    site.until("leased")
    site.door.kill()
    leased = ("--lease-host", site.host, "--database", site.url, "--lease-ttl-s", "3")
    site.door = GatewayProgram(site.house, *leased, port=site.door.port).serving()
    site.until("leased")
    assert ends(bench)[0] == 71

    bench = begins()
    site.until("leased")
    door = Process(site.door.pid)
    door.signal(signal.SIGTERM)
    door.wait()
    code, said = ends(bench)
    assert code == 0, said


def test_a_pools_door_asks_for_no_model_for_what_the_lease_keeps_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Else the pool would put a model to sleep in the middle of a bench."""
    place = Path(tmp_path_factory.mktemp("many"))
    url, lease = f"sqlite://{place}/f.db", "b" * 32
    store = open_store(url)
    store.init(["box"])
    wish = {"mode": "exclusive", "priority": 0, "holder": "bench", "purpose": "", "ttl": 3600.0, "wait": 3600.0}
    flags = ("--lease-host", "box", "--database", url, "--lease-ttl-s", "3")
    many = Many(place, flags=flags)
    streams: list[threading.Thread] = []

    def asks(**headers: Any) -> None:
        body = {**BODY, "model": "off"}
        streams.append(threading.Thread(target=ask, args=(many.door.port, "/v1/completions", body), kwargs=headers))
        streams[-1].start()

    def waiting() -> int:
        return many.pool.demand["off"].waiting if "off" in many.pool.demand else 0

    try:
        until(lambda: store.call("ask", host="box", lease=lease, drain=0.0, **wish)[0]["token"], "it is granted")
        until(lambda: many.door.state()["lease"]["state"] == "leased", "the door knows")
        token = str(many.door.state()["lease"]["token"])
        status, _, _ = ask(many.door.port, "/v1/completions", {**BODY, "model": "chat"}, x_failover_lease=token)
        assert status == 200
        asks()
        until(lambda: many.door.state()["waiting"] == 1, "it waits")
        asks(x_failover_lease=token)
        until(lambda: waiting() == 1, "the pool hears of the bench's")
        until(lambda: many.door.state()["waiting"] == 2, "both wait")
        assert waiting() == 1
        store.call("release", host="box", lease=lease)
        until(lambda: waiting() == 1 and many.door.state()["lease"]["state"] == "shared", "the other's, now")
        many.start("off")
        many.pool.see("off", State.AWAKE, estimate_ms=0)
        for each in streams:
            each.join()
    finally:
        many.house.close()
        many.pool.close()
        many.cloud.server.shutdown()
        store.close()


def test_without_the_database_traffic_goes_on_marked_and_counted(
    packaged: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> None:
    open_store(packaged.url()).init(["away"])
    house = House(Path(tmp_path_factory.mktemp("site")))
    house.devices.mkdir(mode=0o700)
    try:
        site = Site(house, packaged.url(), "away")
        status, headers, _ = ask(site.door.port, "/v1/completions", BODY)
        assert status == 200 and "x-failover-lease" not in headers
        packaged.stop()
        try:
            site.until("unverified")
            status, headers, _ = ask(site.door.port, "/v1/completions", BODY)
            assert (status, headers["x-failover-lease"]) == (200, "unverified")
            assert 'failover_door_lease_unverified{host="away"} 1.0' in site.door.get("/metrics")[1]
            assert site.bench("--wait-s", "1").ends() == 69, "and the host alone is refused"
        finally:
            packaged.go_on()
        site.until("shared")
        assert "x-failover-lease" not in ask(site.door.port, "/v1/completions", BODY)[1]
        until(lambda: site.store.call("doors", host="away")[0]["uncovered"] == 1, "it is reported")
        bench = site.bench()
        assert bench.ends() == 0, bench.err.rest()
        site.close()
    finally:
        house.close()

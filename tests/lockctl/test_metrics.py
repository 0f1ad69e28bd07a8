"""The lock as metrics: what a scrape says, and what is counted from one state to the next."""

import http.client
import math
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lockserver.rules import messages as m
from lockserver.shell.metrics import Metrics
from sidecar.http.metrics import page_of
from tests.lockctl.programs import House
from tests.lockctl.test_status_text import FENCING, HELD, HOLDER, WAITER
from tests.support.waiting import until

FREE = msgspec.structs.replace(HELD, state="FREE", holder=None, waiters=[])


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(tmp_path: Path, clock: Clock) -> Metrics:
    return Metrics(tmp_path, clock)


def scrape(address: tuple[str, int]) -> dict[str, float]:
    """Every sample of a server, by its name and labels."""
    return samples_of(page(address, "/metrics"))


def page(address: tuple[str, int], path: str) -> str:
    connection = http.client.HTTPConnection(*address, timeout=20)
    connection.request("GET", path)
    body = connection.getresponse().read().decode()
    connection.close()
    return body


def seen_in(metrics: Metrics) -> dict[str, float]:
    return samples_of(page_of(metrics.registry)().body.decode())


def samples_of(body: str) -> dict[str, float]:
    samples = {}
    for family in text_string_to_metric_families(body):
        assert family.name.startswith("failover_lock_")
        assert family.documentation
        assert family.type in ("gauge", "counter", "histogram")
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


def test_how_long_no_engine_has_served_is_a_figure(metrics: Metrics, clock: Clock) -> None:
    def unserved_s() -> float:
        return seen_in(metrics)["failover_lock_unserved_seconds"]

    clock.now += 3
    assert unserved_s() == 3, "since this server was started"
    metrics.observe(msgspec.structs.replace(HELD, state="RECOVERING", holder=None))
    assert unserved_s() == 0, "an engine serves on, as far as is known"
    wakes = msgspec.structs.replace(HELD, holder=msgspec.structs.replace(HOLDER, endpoint=None))
    for status in (FENCING, wakes):
        metrics.observe(status)
        clock.now += 20
    assert unserved_s() == 40
    metrics.observe(HELD)
    assert unserved_s() == 0


def test_the_room_in_the_run_directory_is_a_figure(metrics: Metrics, tmp_path: Path) -> None:
    space, seen = os.statvfs(tmp_path), seen_in(metrics)
    assert seen["failover_lock_run_dir_free_bytes"] == pytest.approx(space.f_frsize * space.f_bavail, rel=0.2)
    assert seen["failover_lock_run_dir_free_inodes"] > 0
    os.rmdir(tmp_path)
    assert math.isnan(seen_in(metrics)["failover_lock_run_dir_free_bytes"])


def granted(token: int) -> m.Status:
    return msgspec.structs.replace(HELD, token=token, holder=msgspec.structs.replace(HOLDER, token=token))


def test_the_state_is_one_of_four_and_the_gauges_are_the_status(metrics: Metrics) -> None:
    metrics.observe(FREE)
    metrics.observe(msgspec.structs.replace(HELD, alarms=["a", "b"]))
    seen = seen_in(metrics)
    states = {name: value for name, value in seen.items() if name.startswith("failover_lock_state{")}
    assert states == {
        "failover_lock_state{state=FREE}": 0,
        "failover_lock_state{state=HELD}": 1,
        "failover_lock_state{state=FENCING}": 0,
        "failover_lock_state{state=RECOVERING}": 0,
    }
    assert seen["failover_lock_token"] == 7
    assert (seen["failover_lock_waiters"], seen["failover_lock_waiters_ready"]) == (1, 1)
    assert seen["failover_lock_members"] == 2
    assert seen["failover_lock_memory_verified"] == 1
    assert seen["failover_lock_alarms"] == 2
    assert seen["failover_lock_granted_timestamp_seconds"] == 1795143408


def test_without_a_holder_the_gauges_go_back(metrics: Metrics) -> None:
    metrics.observe(HELD)
    metrics.observe(msgspec.structs.replace(FREE, waiters=[msgspec.structs.replace(WAITER, ready=False)]))
    seen = seen_in(metrics)
    assert (seen["failover_lock_members"], seen["failover_lock_granted_timestamp_seconds"]) == (0, 0)
    assert (seen["failover_lock_waiters"], seen["failover_lock_waiters_ready"]) == (1, 0)


def test_a_handoff_is_a_fencing_a_grant_and_the_time_between(metrics: Metrics, clock: Clock) -> None:
    metrics.observe(FREE)
    for status, seconds in ((granted(8), 10), (FENCING, 0.03), (FENCING, 0.04), (granted(9), 5)):
        metrics.observe(status)
        clock.now += seconds
    seen = seen_in(metrics)
    assert (seen["failover_lock_grants_total"], seen["failover_lock_fencings_total"]) == (2, 1)
    assert seen["failover_lock_fencing_duration_seconds_count"] == 1
    assert seen["failover_lock_fencing_duration_seconds_sum"] == pytest.approx(0.07)


def test_a_handoff_within_one_turn_of_the_loop_counts_too(metrics: Metrics) -> None:
    metrics.observe(HELD)
    metrics.observe(granted(8))
    seen = seen_in(metrics)
    assert (seen["failover_lock_grants_total"], seen["failover_lock_fencings_total"]) == (1, 1)
    assert seen["failover_lock_fencing_duration_seconds_count"] == 1


def test_the_holder_that_a_new_server_finds_was_granted_by_another(metrics: Metrics) -> None:
    metrics.observe(msgspec.structs.replace(HELD, state="RECOVERING"))
    metrics.observe(HELD)
    seen = seen_in(metrics)
    assert (seen["failover_lock_grants_total"], seen["failover_lock_fencings_total"]) == (0, 0)


def test_a_holder_that_comes_back_was_fenced_and_no_waiter_was_granted(metrics: Metrics) -> None:
    for status in (HELD, FENCING, HELD):
        metrics.observe(status)
    seen = seen_in(metrics)
    assert (seen["failover_lock_grants_total"], seen["failover_lock_fencings_total"]) == (0, 1)
    assert seen["failover_lock_fencing_duration_seconds_count"] == 0


def test_where_no_engine_waits_the_time_ends_with_the_proof(metrics: Metrics, clock: Clock) -> None:
    for status, seconds in ((HELD, 1), (FENCING, 0.5), (FREE, 3600), (granted(8), 1)):
        metrics.observe(status)
        clock.now += seconds
    seen = seen_in(metrics)
    assert seen["failover_lock_fencing_duration_seconds_count"] == 1
    assert seen["failover_lock_fencing_duration_seconds_sum"] == pytest.approx(0.5)


def test_a_real_server_serves_them(house: House) -> None:
    address = (f"127.1.{os.getpid() >> 8 & 255}.{os.getpid() & 255}", 9400)  # no other test of this machine is there
    house.serve("--metrics", "{}:{}".format(*address))
    holder, _ = house.holds("engine-a")
    second = house.hold("engine-b")
    house.until(lambda status: bool(status.waiters), "engine-b waits")

    def says(sample: str, value: float) -> Callable[[], bool]:
        return lambda: scrape(address).get(sample) == value

    until(says("failover_lock_waiters", 1), "the queue is seen")
    assert scrape(address)["failover_lock_state{state=HELD}"] == 1
    holder.kill()
    second.out.with_words("started")
    until(says("failover_lock_grants_total", 2), "the second grant is counted")
    seen = scrape(address)
    assert page(address, "/live") == "alive\n"
    assert seen["failover_lock_fencings_total"] == 1
    assert seen["failover_lock_fencing_duration_seconds_count"] == 1


def test_a_taken_address_ends_the_server_with_a_sentence(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        server = house.run(
            *(sys.executable, "-m", "lockserver", "--run-dir", str(house.run_dir), "--memory", "none"),
            *("--metrics", where),
        )
        assert server.ends() == 1
    said = server.err.rest()
    assert f"lockserver: can't listen on {where} for metrics: Address already in use by process {os.getpid()} (" in said
    assert said.rstrip().endswith("; give another --metrics")
    assert " ready " not in said, "it isn't said that it is ready before all of it is"

"""Metrics over real sockets: what is served, what isn't, and what bad clients can't do."""

import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sidecar import metrics


@pytest.fixture
def registry() -> CollectorRegistry:
    made = metrics.new_registry()
    Gauge("failover_token", "the newest fencing token", registry=made).set(7)
    return made


@pytest.fixture
def address(registry: CollectorRegistry) -> tuple[str, int]:
    return metrics.serve(("127.0.0.1", 0), registry)


def get(address: tuple[str, int], path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(*address, timeout=20)
    connection.request(method, path)
    answer = connection.getresponse()
    kind = answer.getheader("Content-Type") or ""
    body = answer.read().decode()
    connection.close()
    return answer.status, kind, body


def test_the_metrics_of_this_registry_are_served(address: tuple[str, int]) -> None:
    for path in ("/metrics", "/metrics?name=x"):
        status, kind, body = get(address, path)
        assert status == 200
        assert kind.startswith("text/plain")
        assert "failover_token 7.0\n" in body
        assert "python_info" not in body
    assert get(address, "/metrics", "HEAD")[::2] == (200, "")


def test_nothing_else_is(address: tuple[str, int]) -> None:
    assert get(address, "/")[0] == 404
    assert get(address, "/metrics/x")[0] == 404
    assert get(address, "/metrics", "POST")[0] == 405


def test_clients_that_send_nonsense_or_leave_harm_nobody(address: tuple[str, int]) -> None:
    for nonsense in (
        b"",
        b"\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n",
        b"x" * 30_000,
    ):
        with socket.create_connection(address, timeout=20) as client:
            client.sendall(nonsense)
    assert get(address, "/metrics")[0] == 200


def test_a_client_that_says_nothing_is_dropped(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_EXCHANGE_S", 0.05)
    with socket.create_connection(address, timeout=20) as silent:
        silent.sendall(b"GET /metr")
        assert silent.recv(100) == b""
    monkeypatch.undo()
    assert get(address, "/metrics")[0] == 200


def test_a_request_without_end_is_dropped(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_EXCHANGE_S", 10_000)
    with socket.create_connection(address, timeout=20) as client, pytest.raises((BrokenPipeError, ConnectionError)):
        while True:
            client.sendall(b"x" * 10_000)


class Moody(Collector):
    broken = False

    def collect(self) -> Iterator[Metric]:
        if self.broken:
            raise RuntimeError("no figures today")
        return iter(())


def test_a_collector_that_raises_costs_one_scrape() -> None:
    registry = metrics.new_registry()
    address = metrics.serve(("127.0.0.1", 0), registry)
    assert get(address, "/metrics")[0] == 200
    moody = Moody()
    registry.register(moody)
    moody.broken = True
    assert get(address, "/metrics")[::2] == (500, "RuntimeError: no figures today\n")
    moody.broken = False
    assert get(address, "/metrics")[0] == 200


def test_at_rest_the_thread_waits_in_accept_without_a_time_out(address: tuple[str, int]) -> None:
    """A thread that polls would be in poll, select or epoll_wait."""
    assert get(address, "/metrics")[0] == 200
    accept = {"x86_64": {"43", "288"}, "aarch64": {"202", "242"}}.get(os.uname().machine)
    if accept is None:
        pytest.skip("the numbers of the call accept")
    threads = [thread for thread in threading.enumerate() if thread.name == "metrics"]
    assert all(thread.daemon for thread in threads)
    deadline = 1_000_000
    for thread in threads:
        call = Path(f"/proc/self/task/{thread.native_id}/syscall")
        while call.read_text().split()[0] not in accept:
            deadline -= 1
            assert deadline, f"the thread waits in {call.read_text()}"
            os.sched_yield()


def test_an_address_that_is_taken_is_named(address: tuple[str, int], registry: CollectorRegistry) -> None:
    with pytest.raises(metrics.MetricsUnavailable, match=f"can't listen on 127.0.0.1:{address[1]} for metrics"):
        metrics.serve(address, registry)


def test_without_the_library_there_is_one_sentence_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(metrics.MetricsUnavailable, match="pip install 'gpu-failover"):
        metrics.new_registry()


def test_the_library_isnt_loaded_until_metrics_are_asked_for() -> None:
    program = "import sys, sidecar.metrics; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)

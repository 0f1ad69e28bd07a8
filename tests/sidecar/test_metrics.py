"""The page that a scrape gets, and what there is without the client library."""

import re
import select
import socket
import subprocess
import sys

import pytest
from prometheus_client import Gauge

from sidecar.http import metrics
from sidecar.machine.loop import Loop
from sidecar.terminal.extras import how_to_get


def test_the_page_has_the_metrics_of_its_registry_and_no_others() -> None:
    registry = metrics.new_registry()
    Gauge("failover_token", "the newest fencing token", registry=registry).set(7)
    page = metrics.page_of(registry)()
    assert page.status == 200 and page.kind.startswith("text/plain")
    assert b"failover_token 7.0\n" in page.body and b"python_info" not in page.body


def test_a_registry_is_served_in_the_programs_own_loop_which_answers_live_as_well() -> None:
    registry = metrics.new_registry()
    Gauge("failover_token", "the newest fencing token", registry=registry).set(7)
    loop = Loop()
    address = metrics.serve(("127.0.0.1", 0), registry, loop).address
    for path, expected in (("/metrics", b"failover_token 7.0\n"), ("/live", b"alive\n")):
        with socket.create_connection(address, timeout=20) as asking:
            asking.sendall(b"GET %b HTTP/1.0\r\n\r\n" % path.encode())
            assert not select.select([asking], [], [], 0)[0], "no answer comes while the loop does not turn"
            while not select.select([asking], [], [], 0)[0]:
                for fd, what in loop.poll(0.02):
                    loop.handlers[fd](what)
            assert expected in asking.recv(65536)
    with pytest.raises(metrics.MetricsUnavailable, match=f"can't listen on 127.0.0.1:{address[1]}"):
        metrics.serve(address, registry, loop)


def test_without_the_library_there_is_one_sentence_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(metrics.MetricsUnavailable, match=re.escape(how_to_get("metrics"))):
        metrics.new_registry()


def test_the_library_isnt_loaded_until_metrics_are_asked_for() -> None:
    program = "import sys, sidecar.http.metrics; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)

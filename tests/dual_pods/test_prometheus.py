"""Prometheus at a real port, which answers with figures, rubbish, or nothing."""

import asyncio
import json
from typing import Any

import pytest

from dual_pods.shell.prometheus import Prometheus
from dual_pods.shell.servers import Failed
from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import HttpServer, Limits
from sidecar.wire import tcp


def _used(status: int, body: bytes | None) -> dict[str, dict[str, int]]:
    def handle(request: Request, reply: Reply) -> None:
        if body is not None:
            reply.send(status, body)

    async def run() -> dict[str, dict[str, int]]:
        listener = tcp.listen("127.0.0.1", 0)
        http = HttpServer(asyncio.get_running_loop(), handle, lambda status, why: why.encode(), Limits())
        await http.listen(listener)
        port = listener.getsockname()[1]
        try:
            return await Prometheus(f"http://127.0.0.1:{port}", 0.5 if body is None else 60).used()
        finally:
            http.close()

    return asyncio.run(run())


def _series(value: Any, **labels: Any) -> bytes:
    metric = {"Hostname": "n1", "UUID": "GPU-0", "gpu": "0", **labels}
    return json.dumps({"status": "success", "data": {"result": [{"metric": metric, "value": [1.5, value]}]}}).encode()


def test_an_accelerator_is_known_by_its_uuid_and_its_number() -> None:
    assert _used(200, _series("3")) == {"n1": {"GPU-0": 3 << 20, "0": 3 << 20}}


def test_of_several_series_the_most_counts_and_one_without_a_figure_disturbs_no_other() -> None:
    several = [*(_series(value) for value in ("3", "7", "5")), _series("NaN"), _series("+Inf", Hostname="n2")]
    result = [series for body in several for series in json.loads(body)["data"]["result"]]
    said = json.dumps({"status": "success", "data": {"result": result}}).encode()
    assert _used(200, said) == {"n1": {"GPU-0": 7 << 20, "0": 7 << 20}}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        *((200, _series(value)) for value in ("NaN", "+Inf", "1e400", "much", 5, None)),
        *((200, body) for body in (b"", b"null", b"<html>", b"{}", b'{"data": {}}', b'{"a":' * 5000, b"[" * 5000)),
        *((200, body) for body in (_series("3", Hostname=5), b'{"data": {"result": {}}}')),
        *((503, body) for body in (_series("3"), b"", b"[" * 5000)),
        (200, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_figure_is_said_and_ends_nothing(status: int, body: bytes | None) -> None:
    with pytest.raises(Failed, match="DCGM_FI_DEV_FB_USED can't be read"):
        _used(status, body)


def test_why_prometheus_gives_no_figures_is_said_in_its_own_words() -> None:
    with pytest.raises(Failed, match="says 422: too many series"):
        _used(422, b'{"status": "error", "error": "too many series"}')

"""How the API server is followed when it, or what is between, answers what it shouldn't: never in a hot loop, and no
answer ends the program.
"""

import asyncio
import json
import time
from collections.abc import Callable
from email.utils import formatdate

import pytest

from dual_pods.shell import kube
from dual_pods.shell.kube import Kube, Refused
from sidecar.http.http_client import Answer, HttpClient, Unanswered
from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import HttpServer, Limits
from sidecar.terminal.logs import Log
from sidecar.wire import tcp
from tests.support.waiting import DEADLINE_S

Says = Callable[[Reply], None]


def _says(status: int, body: bytes) -> Says:
    return lambda reply: reply.send(status, body)


LIST = _says(200, json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": []}).encode())
EXPIRED = b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}\n'


def _follow(lists: Says, watches: Says, asked: int) -> tuple[Kube, float]:
    """Until it has been asked so often; how long that took."""

    async def run() -> tuple[Kube, float]:
        listener, heard, enough = tcp.listen("127.0.0.1", 0), [0], asyncio.Event()

        def handle(request: Request, reply: Reply) -> None:
            heard[0] += 1
            if heard[0] == asked:
                enough.set()
            (watches if b"watch=true" in request.target else lists)(reply)

        http = HttpServer(asyncio.get_running_loop(), handle, lambda status, why: why.encode(), Limits())
        await http.listen(listener)
        it = Kube(f"http://127.0.0.1:{listener.getsockname()[1]}", lambda: "", None, "test")

        async def follow() -> None:
            async for _ in it.follow("/api/v1/pods", Log("test")):
                pass

        began = time.monotonic()
        following = asyncio.create_task(follow())
        enoughs = asyncio.create_task(enough.wait())
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait([following, enoughs], return_when=asyncio.FIRST_COMPLETED)
        took_s = time.monotonic() - began
        http.close()
        if following.done():
            following.result()
        following.cancel()
        return it, took_s

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("watches", "asked", "says"),
    [
        (_says(410, b'{"kind": "Status", "code": 410}'), 8, "410"),
        (_says(200, EXPIRED), 8, "too old"),
        (_says(503, b""), 5, "says 503"),
        (_says(200, b""), 5, ""),
        (_says(200, b"<html>\n"), 5, "malformed"),
        (_says(200, b'{"type": "ADDED", "obj\n'), 5, "truncated"),
        (_says(200, b"{}\n"), 5, "`type`"),
        (_says(200, b'{"type": "ADDED", "object": {}}\n'), 5, "no object"),
        (_says(200, b'{"type": "ADDED", "object": ' + b'{"a":' * 5000 + b"\n"), 5, "recursion"),
    ],
)
def test_a_watch_that_ends_at_once_whatever_it_says_is_begun_again_after_a_pause(
    watches: Says, asked: int, says: str
) -> None:
    it, took_s = _follow(LIST, watches, asked)
    assert says in "".join(it.troubles.values()) and took_s > 3 * kube._PAUSE_S / 2


@pytest.mark.parametrize(
    ("body", "no"),
    [
        *((body, "object") for body in (b"", b"{}", b"[]", b"<html>", b"\xff", b'{"a":' * 5000)),
        (b'{"kind": "Status", "code": 500}', "object"),
        (b'{"kind": "PodList", "metadata": {}, "items": []}', "object"),
        (b'{"kind": "Pod", "metadata": {"resourceVersion": "5"}}', "list"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_list_that_is_none_is_asked_for_again(body: bytes, no: str) -> None:
    it, _ = _follow(_says(200, body), _says(200, b""), 3)
    assert f"it answers with what is no {no}" in it.troubles["/api/v1/pods"]


def test_a_deletion_may_be_answered_with_a_word_and_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answers(*_: object, **__: object) -> Answer:
        return Answer(200, {}, b'{"kind": "Status", "status": "Success"}')

    it = Kube("http://127.0.0.1:1", lambda: "", None, "test")
    monkeypatch.setattr(HttpClient, "ask", answers)
    assert asyncio.run(it.ask("DELETE", "/x"))["status"] == "Success"
    with pytest.raises(Unanswered, match="no object"):
        asyncio.run(it.ask("PATCH", "/x", {}))


def test_a_page_of_what_is_between_is_one_line_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answers(*_: object, **__: object) -> Answer:
        return Answer(502, {}, b"<html>\n  <p>Bad Gateway\n")

    it = Kube("http://127.0.0.1:1", lambda: "", None, "test")
    monkeypatch.setattr(HttpClient, "ask", answers)
    with pytest.raises(Refused, match=r"^the API server says 502: <html> <p>Bad Gateway$"):
        asyncio.run(it.ask("GET", "/x"))


@pytest.mark.parametrize("ahead_s", [-3600, 0, 3600])
def test_how_far_the_api_server_s_clock_is_ahead_follows_from_its_answers(
    ahead_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ["it", "yesterday", "", f"Mon, 01 Jan 2020 00:00:00 -{10**30}"]

    async def answers(*_: object, **__: object) -> Answer:
        date = said.pop(0).replace("it", formatdate(time.time() + ahead_s, usegmt=True))
        return Answer(200, {"date": date}, b'{"kind": "Status", "status": "Success"}')

    it = Kube("http://127.0.0.1:1", lambda: "", None, "test")
    monkeypatch.setattr(HttpClient, "ask", answers)
    while said:
        asyncio.run(it.ask("DELETE", "/x"))
        assert abs(it.ahead_s - ahead_s) <= 1 and (ahead_s or it.ahead_s == 0), "it says whole seconds"


def test_a_watch_that_says_nothing_and_isnt_ended_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "WATCH_S", 0)
    monkeypatch.setattr(kube, "REQUEST_S", 0.2)
    _follow(LIST, lambda reply: reply.open(200, []), 3)

"""How the API server is followed when it, or what is between, answers what it shouldn't: never in a hot loop, and no
answer ends the program.
"""

import asyncio
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

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


PODS = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": []}).encode()
LIST = _says(200, PODS)
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
        it = Kube(f"http://127.0.0.1:{listener.getsockname()[1]}", lambda: "", "test")

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
        (_says(200, b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "6"}}}\n'), 5, "no object"),
        (
            _says(200, b'{"type": "MODIFIED", "object": {"metadata": {"resourceVersion": "6", "uid": []}}}\n'),
            5,
            "no obj",
        ),
        (_says(200, b'{"type": "ADDED", "object": ' + b'{"a":' * 5000 + b"\n"), 5, "recursion"),
    ],
)
def test_a_watch_that_ends_at_once_whatever_it_says_is_begun_again_after_a_pause(
    watches: Says, asked: int, says: str
) -> None:
    it, took_s = _follow(LIST, watches, asked)
    assert says in "".join(it.troubles.values()) and took_s > 3 * kube._PAUSE_S / 2


def test_watches_that_end_at_once_and_say_nothing_are_begun_more_and_more_seldom() -> None:
    """Where what is between ends each: it was asked ten times a second for ever."""
    _, took_s = _follow(LIST, _says(200, b""), 6)
    assert took_s > (1 + 2 + 4 + 8) * kube._PAUSE_S / 2


@pytest.mark.parametrize(
    ("body", "no"),
    [
        *((body, "object") for body in (b"", b"{}", b"[]", b"<html>", b"\xff", b'{"a":' * 5000)),
        (b'{"kind": "Status", "code": 500}', "object"),
        (b'{"kind": "PodList", "metadata": {}, "items": []}', "object"),
        (b'{"kind": "Pod", "metadata": {"resourceVersion": "5"}}', "list"),
        *((PODS.replace(b"[]", items), "object") for items in (b"[1]", b'{"a": 1}', b'[{"metadata": {}}]')),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_list_that_is_none_is_asked_for_again(body: bytes, no: str) -> None:
    it, _ = _follow(_says(200, body), _says(200, b""), 3)
    assert f"what is no {no}" in it.troubles["/api/v1/pods"]


def test_a_page_of_objects_as_large_as_there_may_be_is_read() -> None:
    """A hundred pods with annotations and variables of 700 KiB made the controller blind for ever."""
    item = {"metadata": {"uid": "u", "resourceVersion": "4", "annotations": {"x": "y" * (3 << 19)}}}
    page = json.dumps({**json.loads(PODS), "items": [item] * kube._PAGE}).encode()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(page) + page)
        writer.close()

    async def run() -> list[int]:
        async with await asyncio.start_server(answers, "127.0.0.1", 0) as server:
            it = Kube(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lambda: "", "test")
            return [len(items) async for items, _ in it._pages("/api/v1/pods")]

    assert asyncio.run(run()) == [kube._PAGE]


def test_a_deletion_may_be_answered_with_a_word_and_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answers(*_: object, **__: object) -> Answer:
        return Answer(200, {}, b'{"kind": "Status", "status": "Success"}')

    it = Kube("http://127.0.0.1:1", lambda: "", "test")
    monkeypatch.setattr(HttpClient, "ask", answers)
    assert asyncio.run(it.ask("DELETE", "/x"))["status"] == "Success"
    with pytest.raises(Unanswered, match="no object"):
        asyncio.run(it.ask("PATCH", "/x", {}))


def test_a_page_of_what_is_between_is_one_line_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answers(*_: object, **__: object) -> Answer:
        return Answer(502, {}, b"<html>\n  <p>Bad Gateway\n")

    it = Kube("http://127.0.0.1:1", lambda: "", "test")
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

    it = Kube("http://127.0.0.1:1", lambda: "", "test")
    monkeypatch.setattr(HttpClient, "ask", answers)
    while said:
        asyncio.run(it.ask("DELETE", "/x"))
        assert abs(it.ahead_s - ahead_s) <= 1 and (ahead_s or it.ahead_s == 0), "it says whole seconds"


def test_each_page_is_told_before_the_next_one_is_asked_for_and_what_went_while_a_list_began_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of a large cluster's nodes at once had no room. The token of the next page may be too old, as a watch's."""
    told: list[str] = []

    async def answers(it: object, method: str, path: str, query: dict[str, str]) -> dict[str, Any]:
        told.append(f"asked for {query.get('continue', 'the first')}")
        name, more = pages.pop(0)
        if not name:
            raise Refused(410, "Expired", "too old")
        meta = {"resourceVersion": "5", "continue": more}
        return {"kind": "PodList", "metadata": meta, "items": [{"metadata": {"uid": name, "resourceVersion": "4"}}]}

    async def watch(it: object, path: str, version: str) -> Any:
        assert version == "5"
        raise EOFError
        yield

    async def follow() -> None:
        async for what, value in Kube("http://127.0.0.1:1", lambda: "", "test").follow("/api/v1/pods", Log("test")):
            told.append(f"{what} {value.get('metadata', {}).get('uid', '')}".strip())

    pages = [("a", "2nd"), ("", ""), ("b", "2nd"), ("c", "")]
    monkeypatch.setattr(Kube, "ask", answers)
    monkeypatch.setattr(Kube, "_watch", watch)
    with pytest.raises(EOFError):
        asyncio.run(follow())
    first = ["asked for the first", "ADDED a", "asked for 2nd"]
    assert told == [*first, first[0], "ADDED b", first[2], "ADDED c", "DELETED a", "LISTED"]


def test_a_watch_that_says_nothing_and_isnt_ended_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "SILENT_S", 0.2)
    _follow(LIST, lambda reply: reply.open(200, []), 3)


def test_a_watch_that_says_something_now_and_then_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "SILENT_S", 1.0)
    bookmark = b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}\n'
    left = [8, 8]
    """Of each watch."""
    watches = iter(range(2))

    def says(reply: Reply) -> None:
        reply.open(200, [])
        number = next(watches)

        def go_on() -> None:
            left[number] -= 1
            reply.stream(bookmark)
            if left[number]:
                asyncio.get_running_loop().call_later(0.2, go_on)
            else:
                reply.end()

        go_on()

    _follow(LIST, says, 3)
    assert left[0] == 0


def _certified(directory: Path) -> tuple[Path, Path]:
    """By an authority of now, `ca.crt`, that says no more than that it is one: a certificate and its key."""
    says = "[req]\ndistinguished_name=name\n[name]\n[ca]\nbasicConstraints=critical,CA:TRUE\n[server]\n"
    (directory / "config").write_text(f"{says}subjectAltName=IP:127.0.0.1\n")
    for words in (
        "-subj /CN=kubernetes -extensions ca -keyout ca.key -out ca.crt",
        "-subj /CN=api -extensions server -CA ca.crt -CAkey ca.key -keyout key -out certificate",
    ):
        command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -config config {words}"
        subprocess.run(command.split(), check=True, capture_output=True, cwd=directory)
    return directory / "certificate", directory / "key"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_the_cluster_s_authority_may_be_exchanged_and_lacks_what_python_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 refuses the authorities of EKS and others by default: they say too little of their keys."""
    plain, secure = ssl.create_default_context, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    monkeypatch.setattr(kube, "ACCOUNT", tmp_path)

    def as_of_3_13(**more: Any) -> ssl.SSLContext:
        tls = plain(**more)
        tls.verify_flags |= ssl.VERIFY_X509_STRICT
        return tls

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + PODS)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=secure)
        it = Kube.here(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, "test")
        for _ in range(2):
            secure.load_cert_chain(*_certified(tmp_path))
            assert (await it.ask("GET", "/api/v1/pods"))["kind"] == "PodList"
        (tmp_path / "ca.crt").write_text("")
        with pytest.raises(Unanswered):
            await it.ask("GET", "/api/v1/pods")
        server.close()

    monkeypatch.setattr(ssl, "create_default_context", as_of_3_13)
    asyncio.run(run())

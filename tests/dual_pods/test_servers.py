"""A server pod with one engine, as the controller sees it: in vLLM's words."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dual_pods.rules.events import Event, Order, Tells
from dual_pods.rules.facts import Requester, Server
from dual_pods.shell import servers
from dual_pods.shell.servers import TOKEN, Failed, Servers
from pool.entries import State
from sidecar.http.http_client import Unanswered
from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import HttpServer, Limits
from sidecar.wire import tcp
from tests.support.waiting import DEADLINE_S


class Engine:
    """Answers as it is told; a path that isn't there is never answered."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {"/health": (503, b""), "/is_sleeping": (404, b"")}
        self.heard: list[tuple[bytes, bytes]] = []
        self.told: list[tuple[State, str] | None] = []
        self.breaks = False

    def handle(self, request: Request, reply: Reply) -> None:
        if request.method == "POST":
            self.heard.append((request.target, request.header(TOKEN.encode())))
        if self.breaks:
            reply.abort()
        elif request.path in self.answers:
            reply.send(*self.answers[request.path])

    def tell(self, event: Event) -> None:
        assert isinstance(event, Tells)
        it = None if event.told is None else event.told.instances["i1"]
        self.told.append(None if it is None else (it.state, it.why))

    async def until(self, *last: tuple[State, str] | None) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.told or self.told[-1] not in last:
                await asyncio.sleep(0.01)


def _with(check: Callable[[Engine, Servers, Server], Any], *, sleeps: bool = True) -> None:
    async def run() -> None:
        engine, listener = Engine(), tcp.listen("127.0.0.1", 0)
        http = HttpServer(asyncio.get_running_loop(), engine.handle, lambda status, why: why.encode(), Limits())
        await http.listen(listener)
        port = listener.getsockname()[1]
        async with asyncio.TaskGroup() as group:
            its = Servers(group, engine.tell, print, lambda: 7, "key", sleeps=sleeps)
            server = Server("u", "s", "ns", "n", "127.0.0.1", running=True, pool=False, instance="i1", port=port,
                            probe=(port, "/health"))  # fmt: skip
            its.seen(server)
            await check(engine, its, server)
            its.gone("u")
        its.close()
        http.close()

    asyncio.run(run())


def test_an_engine_is_loading_until_its_probe_answers_and_asleep_when_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "ANSWER_S", 0.3)

    async def check(engine: Engine, its: Servers, server: Server) -> None:
        await engine.until((State.LOADING, "/health says 503"))
        engine.answers["/is_sleeping"] = (500, b"")
        await engine.until((State.LOADING, "/is_sleeping says 500"))
        engine.answers |= {"/health": (200, b""), "/is_sleeping": (200, b'{"is_sleeping": false}')}
        await engine.until((State.AWAKE, ""))
        engine.answers["/is_sleeping"] = (200, b'{"is_sleeping": true}')
        await engine.until((State.ASLEEP, ""))
        engine.answers["/is_sleeping"] = (200, b"no JSON")
        await engine.until((State.AWAKE, ""))
        del engine.answers["/is_sleeping"]
        await engine.until(None)

    _with(check)


def test_where_engines_don_t_sleep_the_probe_alone_decides() -> None:
    async def check(engine: Engine, its: Servers, server: Server) -> None:
        engine.answers |= {"/health": (200, b""), "/is_sleeping": (200, b'{"is_sleeping": true}')}
        await engine.until((State.AWAKE, ""))

    _with(check, sleeps=False)


def test_it_is_told_to_sleep_and_to_wake_with_the_leadership_s_token_and_a_refusal_is_a_sentence() -> None:
    async def check(engine: Engine, its: Servers, server: Server) -> None:
        engine.answers |= {"/sleep": (200, b""), "/wake_up": (500, b'{"error": {"message": "out of\\n memory"}}')}
        await its.order(Order("sleep", server, "i1"))
        with pytest.raises(Failed, match="says 500: out of memory"):
            await its.order(Order("wake", server, "i1"))
        assert engine.heard == [(b"/sleep?level=1", b"7"), (b"/wake_up", b"7")]
        engine.answers["/sleep"] = (500, b'{"error":' * 5000)
        with pytest.raises(Failed, match=r"says 500: .*error"):
            await its.order(Order("sleep", server, "i1"))

    _with(check)


def test_where_nothing_listens_it_is_loading() -> None:
    async def check(engine: Engine, its: Servers, server: Server) -> None:
        its.seen(replace(server, port=1, probe=(1, "/health")))
        await engine.until((State.LOADING, "it doesn't listen yet"))

    _with(check)


def test_one_that_breaks_off_may_do_anything() -> None:
    """It isn't taken for one that begins, and that would be sent away."""

    async def check(engine: Engine, its: Servers, server: Server) -> None:
        engine.answers |= {"/health": (200, b""), "/is_sleeping": (200, b'{"is_sleeping": true}')}
        await engine.until((State.ASLEEP, ""))
        engine.breaks = True
        await engine.until(None)

    _with(check)


def test_an_order_that_a_fault_of_ours_broke_off_may_have_been_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what its pod said before counts no more, as where it goes unanswered."""

    def fault(body: bytes) -> None:
        raise ZeroDivisionError

    async def check(engine: Engine, its: Servers, server: Server) -> None:
        engine.answers |= {"/is_sleeping": (200, b'{"is_sleeping": true}'), "/wake_up": (500, b"")}
        await engine.until((State.ASLEEP, ""))
        with pytest.raises(ZeroDivisionError):
            await its.order(Order("wake", server, "i1"))
        assert engine.told[-1] is None
        await engine.until((State.ASLEEP, ""))

    monkeypatch.setattr(servers, "sentence", fault)
    _with(check)


def test_what_is_too_long_for_an_answer_is_not_read() -> None:
    """No Lease is renewed while a list is read, and one of sixteen megabytes has no room in a controller's memory."""

    async def check(engine: Engine, its: Servers, server: Server) -> None:
        requester = Requester("r", "r", "ns", "n", "127.0.0.1", running=True, admin_port=server.port)
        path = "/v1/dual-pods/accelerators"
        engine.answers[path] = (200, b'["%s"]' % b'", "'.join(b"%d" % n for n in range(4000)))
        assert len(await its.accelerators(requester)) == 4000
        engine.answers[path] = (200, b'["%s"]' % b'", "'.join(b"%d" % n for n in range(9000)))
        with pytest.raises(Failed, match=r"accelerators says \d+ bytes, and 65536 at most are read"):
            await its.accelerators(requester)
        engine.answers[path] = (200, b" " * (2 << 20))
        with pytest.raises(Unanswered, match="more than 1048576 bytes"):
            await its.accelerators(requester)

    _with(check)

"""The API on a real socket, in a thread of its own; and what goes wrong with one: away, watches cut, writes refused."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from email.utils import formatdate
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import HttpServer, Limits
from tests.api_server.access import ADMINISTRATOR
from tests.api_server.api import Api
from tests.api_server.asked import Answer, Asked
from tests.api_server.reading import Watch

_LIMITS = Limits(connections=4000, unread_s=600, request_s=600, idle_s=600)
_BOOKMARK_BEFORE_END_S, _BOOKMARK_S = 2.0, 60.0


class ApiServer:
    """`with ApiServer() as server`: it listens at `server.url`."""

    def __init__(self) -> None:
        self.api = Api()
        self.meddle: Callable[[Asked], Answer | None] = lambda asked: None
        """Asked before each request: may answer it instead. Called in the server's thread."""
        self.seen: list[tuple[str, str, str, int]] = []
        """Each request's manager, method and path, and how it was answered."""
        self.watches: list[Watch] = []
        """All that ever were."""
        self._streams: dict[Watch, Reply] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api server")
        self.port = 0

    def __enter__(self) -> "ApiServer":
        self._thread.start()
        self.back()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, what: Callable[[], Any]) -> Any:
        """In the server's thread, where nothing else happens meanwhile."""

        async def run() -> Any:
            return what()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """As the administrator, without the socket. Returns the answer's body."""
        parts = urlsplit(path)
        known = {"content-type": "application/json", "authorization": f"Bearer {ADMINISTRATOR}", "user-agent": "test/1"}
        known |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = b"" if body is None else json.dumps(body).encode()
        asked = Asked(method, parts.path, dict(parse_qsl(parts.query)), known, data)
        answer = self.call(lambda: self.api.answer(asked))
        assert isinstance(answer, Answer)
        return answer.body

    def back(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]

        async def listen() -> None:
            self._http = HttpServer(self._loop, self._handle, lambda status, why: why.encode(), _LIMITS)
            await self._http.listen(listener)

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result()

    def away(self) -> None:
        """Nothing listens, and every connection breaks off. What is stored stays."""
        self.call(self._http.close)

    def cut_watches(self) -> None:
        def cut() -> None:
            for reply in list(self._streams.values()):
                reply.abort()

        self.call(cut)

    def _handle(self, request: Request, reply: Reply) -> None:
        parts = urlsplit(request.target.decode())
        headers = {name.decode(): value.decode() for name, value in request.headers}
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        asked = Asked(request.method, parts.path, query, headers, request.body)
        answer = self.meddle(asked) or self.api.answer(asked)
        code = 200 if isinstance(answer, Watch) else answer.code
        self.seen.append((asked.manager, asked.method, request.target.decode(), code))
        if isinstance(answer, Watch):
            self._watch(answer, reply)
            return
        text = isinstance(answer.body, str)
        body = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
        kind = b"text/plain; charset=utf-8" if text else b"application/json"
        more = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        more.append((b"date", formatdate(usegmt=True).encode()))
        reply.send(answer.code, body, [(b"content-type", kind), *more])

    def _watch(self, watch: Watch, reply: Reply) -> None:
        self.watches.append(watch)
        self._streams[watch] = reply
        reply.open(200, [(b"content-type", b"application/json")])

        def gone() -> None:
            self._streams.pop(watch, None)
            watch.wake = lambda: None
            watch.end()

        def wake() -> None:
            while watch.events:
                reply.stream(json.dumps(watch.events.popleft()).encode() + b"\n")
            if watch.ended:
                self._streams.pop(watch, None)
                reply.end()

        def bookmark() -> None:
            if not watch.ended:
                watch.bookmark()
                self._loop.call_later(_BOOKMARK_S, bookmark)

        reply.gone, watch.wake = gone, wake
        if watch.bookmarks:
            first_s = _BOOKMARK_S if watch.timeout_s is None else max(watch.timeout_s - _BOOKMARK_BEFORE_END_S, 0.0)
            self._loop.call_later(first_s, bookmark)
        if watch.timeout_s is not None:
            self._loop.call_later(watch.timeout_s, watch.end)
        wake()

"""The API server, as the controller needs it: requests, and what is there, followed from a list by watches.

A thin client on the house's own HTTP: decisions.md says why. A watch goes on from the last version that was told,
bookmarks too; one that is too old (410) begins again with a list. What this file may not do: know a pod.
"""

import asyncio
import contextlib
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from dual_pods.rules import reading
from sidecar.http.http_client import HttpClient, Unanswered
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.logs import Log
from sidecar.wire import tcp

Object = dict[str, Any]
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
REQUEST_S = 10.0
WATCH_S, SILENT_S = 300, 150
_PAGE = 24  # each may have 1.5 MiB, and an answer 64
_PAUSE_S, _PAUSE_MOST_S = 0.1, 5.0


class Refused(Exception):
    """The API server said no, in its words."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


def _refused(status: int, body: bytes) -> Refused:
    try:
        said = reading.decoded(body, Object)
    except reading.BadAnswer:  # what is between may say a page
        words = " ".join(body[:300].decode("utf-8", "replace").split())
        said = {"message": f"the API server says {status}: {words}".removesuffix(": ")}
    return Refused(status, said.get("reason", ""), said.get("message") or f"the API server says {status}")


def _trusted() -> ssl.SSLContext:
    """By the cluster's authority, as it is when a connection is opened: kubelet writes a new one where it is exchanged.
    Those of many clusters haven't all that Python asks for from 3.13 on.
    """
    authority = ACCOUNT / "ca.crt"
    tls = ssl.create_default_context(cafile=str(authority) if authority.is_file() else None)
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def _is_object(value: Object) -> bool:
    """Or a list of them. The answer to a deletion may be neither."""
    meta = value.get("metadata")
    return isinstance(meta, dict) and bool(meta.get("resourceVersion"))


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and _is_object(value) and isinstance(value["metadata"].get("uid"), str)


class _Change(msgspec.Struct, frozen=True):
    type: str
    object: Object


class Kube:
    def __init__(self, url: str, token: Callable[[], str], user_agent: str) -> None:
        self.url = url
        self._token, self._agent, self._http = token, user_agent, HttpClient(_trusted)
        self.requests = 0
        self.troubles: dict[str, str] = {}
        """What of the cluster can't be followed at the moment, and why."""
        self.ahead_s = 0.0
        """How far the API server's clock is ahead of this machine's, at least, as its last answer said."""

    @classmethod
    def here(cls, url: str, token_file: Path | None, user_agent: str) -> "Kube":
        """The cluster that this pod is in, where no other is named. Raises CannotStart."""
        if not url:
            host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                why = "this is no pod of a cluster (KUBERNETES_SERVICE_HOST isn't set)"
                raise CannotStart(f"{why}; give --api-server URL")
            url = f"https://{tcp.named(host, int(port))}"
            token_file = token_file or ACCOUNT / "token"
        return cls(url, (lambda: token_file.read_text().strip()) if token_file else lambda: "", user_agent)

    def _headers(self, content_type: str = "") -> dict[str, str]:
        try:
            token = self._token()  # kubelet writes a new one now and then
        except OSError as error:
            raise Unanswered(f"the account's token can't be read: {error}") from None
        headers = {"accept": "application/json", "user-agent": self._agent}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        return headers | ({"content-type": content_type} if content_type else {})

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout_s: float = REQUEST_S,
    ) -> Object:
        """Raises Refused and Unanswered."""
        self.requests += 1
        data = b"" if body is None else msgspec.json.encode(body)
        headers = self._headers(content_type if body is not None else "")
        target = self.url + path + (f"?{urlencode(query)}" if query else "")
        asked = time.time()
        answer = await self._http.ask(method, target, data, headers, timeout_s=timeout_s)
        self._mind_clock(answer.headers.get("date", ""), asked)
        if answer.status >= 300:
            raise _refused(answer.status, answer.body)
        with contextlib.suppress(reading.BadAnswer):
            found = reading.decoded(answer.body, Object)
            if "kind" in found and (method == "DELETE" or _is_object(found)):
                return found
        raise Unanswered(f"{self.url}{path}: it answers with what is no object")

    def _mind_clock(self, date: str, asked: float) -> None:
        """It says whole seconds."""
        with contextlib.suppress(ValueError, OverflowError):
            says = parsedate_to_datetime(date).timestamp()
            self.ahead_s = max(says - time.time(), 0.0) + min(says + 1 - asked, 0.0)

    async def follow(self, path: str, log: Log) -> AsyncIterator[tuple[str, Object]]:
        """Each object that is `ADDED`, `MODIFIED` or `DELETED`, without end; of one that went unseen, its uid. Once all
        that was there has been told: `LISTED`.
        """
        version, known, pause_s, listed = "", set[str](), _PAUSE_S, False
        while True:
            try:
                if not version:
                    there = set[str]()
                    async for items, as_of in self._pages(path):  # there may be no room for all of them at once
                        there |= {value["metadata"]["uid"] for value in items}
                        known, version = known | there, as_of
                        for value in items:
                            yield "ADDED", value
                    for uid in known - there:
                        yield "DELETED", {"metadata": {"uid": uid}}
                    known = there
                    if not listed:
                        yield "LISTED", {}
                    listed = True
                began = time.monotonic()
                async for kind, value in self._watch(path, version):
                    version, pause_s = str(value["metadata"]["resourceVersion"]), _PAUSE_S
                    if kind != "BOOKMARK":
                        (known.discard if kind == "DELETED" else known.add)(value["metadata"]["uid"])
                        yield kind, value
                pause_s = _PAUSE_S if time.monotonic() > began + _PAUSE_MOST_S else pause_s
            except (Refused, Unanswered) as error:
                if isinstance(error, Refused) and error.code == 410:
                    version = ""
                self.troubles[path] = f"{path} can't be followed: {error}"
                log.warning("watch_ended", path=path, why=str(error))
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)

    async def _pages(self, path: str) -> AsyncIterator[tuple[list[Object], str]]:
        """The last one comes with the version."""
        query = {"limit": str(_PAGE)}
        while True:
            page = await self.ask("GET", path, query=query)
            if "items" not in page:
                raise Unanswered(f"{self.url}{path}: it answers with what is no list")
            items = page["items"] or []
            if not isinstance(items, list) or not all(map(_is_named, items)):
                raise Unanswered(f"{self.url}{path}: it lists what is no object")
            query["continue"] = page["metadata"].get("continue", "")
            yield items, "" if query["continue"] else str(page["metadata"]["resourceVersion"])
            if not query["continue"]:
                return

    async def _watch(self, path: str, version: str) -> AsyncIterator[tuple[str, Object]]:
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query["timeoutSeconds"] = str(random.randint(WATCH_S, 2 * WATCH_S))
        url = f"{self.url}{path}?{urlencode(query)}"
        self.requests += 1
        async with self._http.stream(url, self._headers(), timeout_s=REQUEST_S) as (status, lines):
            try:
                # What is between may keep one that has ended, and say nothing by it: no bookmark each minute, either.
                async with asyncio.timeout(SILENT_S) as silence:
                    if status != 200:
                        raise _refused(status, await anext(lines, b""))
                    self.troubles.pop(path, None)
                    async for line in lines:
                        silence.reschedule(asyncio.get_running_loop().time() + SILENT_S)
                        if not line.strip():
                            continue
                        change = reading.decoded(line, _Change)
                        if change.type == "ERROR":
                            raise Refused(change.object.get("code", 500), "", change.object.get("message", ""))
                        if not (_is_object if change.type == "BOOKMARK" else _is_named)(change.object):
                            raise reading.BadAnswer("it tells of what is no object")
                        yield change.type, change.object
            except (Unanswered, TimeoutError):  # it broke off: what was told was told
                return
            except reading.BadAnswer as error:
                raise Unanswered(f"its watch: {error}") from None

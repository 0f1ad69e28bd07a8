"""The server in memory gives the answers that were recorded of a real one. The rules of the comparison stand in
`recorded/README.md`: equal, but for the words of messages; a placeholder is one value, and versions are in order.
"""

import http.client
import json
import queue
import re
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.api_server.access import ADMINISTRATOR
from tests.api_server.reading import Watch
from tests.api_server.server import ApiServer

CASES = {
    case["name"]: case
    for path in sorted((Path(__file__).parent / "recorded").glob("*.json"))
    for case in json.loads(path.read_text())["cases"]
}
NOT_SERVED = {
    **dict.fromkeys(("version", "discovery", "aggregated-discovery", "openapi-index"), "clients know what they ask"),
    **dict.fromkeys(("definition", "custom-resource"), "no kind of ours; a definition is made, and no more"),
    **{name: "claims are made and bound by others" for name in CASES if name.startswith("claim-")},
    **dict.fromkeys(("log-and-exec", "resize", "eviction", "pod-admission"), "nothing of ours asks for it"),
    "reviews": "nothing of ours asks what it may do",
    "deployment-life": "scale, in some of its steps",
}
_PLACE = re.compile(r"<(uid|rv|mark|time|suffix|continue|token|hash)(?::(\d+))?>|<any>")
_PATIENCE_S = 20.0
_END = object()


class Differs(Exception):
    pass


class Player:
    def __init__(self, server: ApiServer, case: dict[str, Any]) -> None:
        self.server, self.case = server, case
        self.known: dict[str, str] = {}
        self.watches: dict[str, tuple[Watch, queue.Queue[Any]]] = {}
        self.managed = case["name"].startswith("apply")

    def play(self) -> None:
        for number, step in enumerate(self.case["steps"]):
            try:
                self._step(step)
            except Differs as differs:
                raise AssertionError(f"step {number}: {json.dumps(step)[:600]}\n{differs}") from None
        versions = sorted((int(name.split(":")[1]), int(v)) for name, v in self.known.items() if name.startswith("rv:"))
        assert [version for _, version in versions] == sorted(version for _, version in versions), versions

    def _step(self, step: dict[str, Any]) -> None:
        if "compact" in step:
            self.server.call(self.server.api.store.compact)
        elif "pause" in step:
            time.sleep(step["pause"])
        elif "watch" in step:
            self._compare_events(step)
        else:
            self._exchange(step)

    def _exchange(self, step: dict[str, Any]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            before = dict(self.known)
            try:
                self._ask(step)
                return
            except Differs:
                if not step.get("until") or time.monotonic() > deadline:
                    raise
                self.known = before

    def _ask(self, step: dict[str, Any]) -> None:
        request, wanted = step["request"], step["response"]
        path = request["path"] + ("?" + urlencode(self._filled(request["query"])) if "query" in request else "")
        headers = {"User-Agent": "client/1.0", "Accept": "application/json", "Authorization": f"Bearer {ADMINISTRATOR}"}
        headers |= self._filled(request.get("headers", {}))
        body = request.get("rawBody") if "rawBody" in request else json.dumps(self._filled(request.get("body")))
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=_PATIENCE_S)
        sent = {name: value for name, value in headers.items() if value is not None}
        connection.request(request["method"], path, body if "body" in request or "rawBody" in request else None, sent)
        answer = connection.getresponse()
        if answer.status != wanted["status"]:
            raise Differs(f"{answer.status} {answer.read()!r}")
        if "open" in step and answer.status == 200:
            events = queue.Queue[Any]()
            self.watches[step["open"]] = self.server.call(lambda: self.server.watches[-1]), events
            threading.Thread(target=_follow, args=(answer, events), daemon=True).start()
            return
        self._compare_headers(wanted.get("headers", {}), answer)
        text = answer.read().decode()
        got = json.loads(text) if answer.getheader("Content-Type") == "application/json" else text
        self._compare(wanted.get("body", ""), got, "", partial=step.get("partial", False))
        connection.close()

    def _filled(self, value: Any) -> Any:
        text = json.dumps(value)
        return json.loads(_PLACE.sub(lambda m: self.known.get(m[0][1:-1], m[0]), text))

    def _compare_headers(self, wanted: dict[str, str], answer: http.client.HTTPResponse) -> None:
        kind = wanted.get("Content-Type", "application/json")
        got = {name: answer.getheader(name) for name in ("Warning", "Retry-After") if answer.getheader(name)}
        if answer.status != 204 and answer.getheader("Content-Type") != kind:
            raise Differs(f"Content-Type: {answer.getheader('Content-Type')}")
        if got != {name: value for name, value in wanted.items() if name != "Content-Type"}:
            raise Differs(str(got))

    def _compare_events(self, step: dict[str, Any]) -> None:
        watch, events = self.watches[step["watch"]]
        got: list[Any] = []
        bookmarks = False
        while step["then"] == "closed" or len(got) < len(step["events"]):
            event = events.get(timeout=_PATIENCE_S)
            if event is _END:
                break
            if bookmarks and event["type"] == "BOOKMARK":
                got.pop()
            bookmarks = event["type"] == "BOOKMARK"
            got.append(event)
        told, watch.told = self.server.call(lambda: watch.told), 0
        if step["then"] == "open" and told > len(got):
            raise Differs(f"{told - len(got)} more events than expected")
        self._compare(step["events"], got, step["watch"])

    def _compare(self, wanted: Any, got: Any, path: str, *, partial: bool = False) -> None:
        if isinstance(wanted, str) and _PLACE.search(wanted):
            self._compare_place(wanted, got, path)
        elif isinstance(wanted, dict) and isinstance(got, dict):
            self._compare_object(wanted, got, path, partial)
        elif isinstance(wanted, list) and isinstance(got, list):
            if len(got) != len(wanted) and not partial:
                raise Differs(f"{path}: {got} and not {wanted}")
            for number, each in enumerate(wanted):
                self._compare(each, got[number], f"{path}[{number}]", partial=partial)
        elif wanted != got or type(wanted) is not type(got):
            raise Differs(f"{path}: {got!r} and not {wanted!r}")

    def _compare_object(self, wanted: dict[str, Any], got: dict[str, Any], path: str, partial: bool) -> None:
        ignored = {"message"} if "reason" in wanted or wanted.get("kind") == "Status" or ".causes[" in path else set()
        ignored |= set() if self.managed else {"managedFields"}
        got = {key: value for key, value in got.items() if key not in ignored}
        wanted = {key: value for key, value in wanted.items() if key not in ignored}
        if "managedFields" in got:
            got["managedFields"].sort(key=lambda e: (e["manager"], e["operation"], e.get("subresource", "")))
        if set(wanted) - set(got) or (set(got) - set(wanted) and not partial):
            raise Differs(f"{path}: lacks {set(wanted) - set(got)}, has more {set(got) - set(wanted)}: {got}")
        for key, value in wanted.items():
            self._compare(value, got[key], f"{path}.{key}", partial=partial)

    def _compare_place(self, wanted: str, got: Any, path: str) -> None:
        if wanted in ("<any>", "<time>"):
            return
        names = [m[0][1:-1] for m in _PLACE.finditer(wanted)]
        pattern = "".join(
            re.escape(part) if number % 2 == 0 else "(.+?)"
            for number, part in enumerate(re.split(r"(<[a-z]+(?::\d+)?>)", wanted))
        )
        found = re.fullmatch(pattern, str(got))
        if found is None:
            raise Differs(f"{path}: {got!r} and not {wanted!r}")
        for name, value in zip(names, found.groups(), strict=True):
            if name.startswith("mark:") and name not in self.known:
                seen = [int(v) for known, v in self.known.items() if known.startswith("rv:")]
                if int(value) < max(seen, default=0):
                    raise Differs(f"{path}: {value} is older than what was written before")
            if name != "any" and self.known.setdefault(name, value) != value:
                raise Differs(f"{path}: {value} and not {self.known[name]}, which is {name}")


def _follow(answer: http.client.HTTPResponse, events: "queue.Queue[Any]") -> None:
    try:
        for line in answer:
            events.put(json.loads(line))
    except (OSError, http.client.HTTPException, ValueError):
        pass  # the end of the case
    events.put(_END)


def _params() -> list[Any]:
    ends = {name for name, case in CASES.items() if "timeoutSeconds" in json.dumps(case)}
    slow = {name: [pytest.mark.slow] for name in ends}
    return [pytest.param(name, marks=slow.get(name, [])) for name in CASES if name not in NOT_SERVED]


@pytest.mark.parametrize("name", _params())
def test_the_server_answers_as_a_real_one(name: str) -> None:
    with ApiServer() as server:
        server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        server.ask("POST", f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        Player(server, CASES[name]).play()


def test_what_is_not_served_is_named() -> None:
    assert set(NOT_SERVED) <= set(CASES)


def test_a_number_that_has_no_room_in_its_field_is_refused() -> None:
    """As the one of Lease's that counts; no recorded exchange has one."""
    with ApiServer() as server:
        server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "n"}})
        codes = []
        for number, count in enumerate(((1 << 31) - 1, 1 << 31, -(1 << 31), -(1 << 31) - 1)):
            body = {"metadata": {"name": f"l{number}"}, "spec": {"leaseTransitions": count}}
            found = server.ask("POST", "/apis/coordination.k8s.io/v1/namespaces/n/leases", body)
            codes.append(found.get("code", 201))
    assert codes == [201, 400, 201, 400]

"""Selectors, lists, pages and watches: where they start, what they show, how they end. No socket and no clock here."""

import base64
import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tests.api_server import kinds
from tests.api_server.asked import Answer, Asked, Refused, invalid_options
from tests.api_server.kinds import LABEL_VALUE, Resource
from tests.api_server.store import Change, Store

Object = dict[str, Any]
Matches = Callable[[Object], bool]
_RENAMED = {
    "involvedObject": "regarding", "message": "note", "source": "deprecatedSource", "count": "deprecatedCount",
    "firstTimestamp": "deprecatedFirstTimestamp", "lastTimestamp": "deprecatedLastTimestamp",
}  # fmt: skip
"""What an event's fields are called in the newer group."""
_POD = "spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName status.phase status.podIP"
_EVENT = "involvedObject.kind involvedObject.name involvedObject.uid reason type"
_FIELDS = {"Pod": _POD.split(), "Event": _EVENT.split()}
"""By which a kind is selected."""
_KEY = r"[-A-Za-z0-9_./]+"
_REQUIREMENT = re.compile(rf"({_KEY})\s*(?:(!=|==?)\s*(.*)|\s(in|notin)\s+\((.*)\))|(!?)\s*({_KEY})")


def _selected(asked: Asked) -> Matches:
    labels, fields = asked.query.get("labelSelector", ""), asked.query.get("fieldSelector", "")
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", labels)]
    wanted = [*(_label(part) for part in parts if part), *_fields(asked.resource, fields)]
    return lambda value: all(matches(value) for matches in wanted)


def _label(text: str) -> Matches:
    match = _REQUIREMENT.fullmatch(text)
    if match is None:
        raise Refused(400, f"unable to parse requirement: {text}")
    key, compares, value, within, several, absent, alone = match.groups()
    if alone:
        return lambda it: (alone in it["metadata"].get("labels", {})) != bool(absent)
    values = [each.strip() for each in several.split(",")] if within else [value.strip()]
    if not all(re.fullmatch(LABEL_VALUE, each) for each in values):
        raise Refused(400, f"unable to parse requirement: {text}")
    positive = (compares or within) in ("=", "==", "in")
    return lambda it: (it["metadata"].get("labels", {}).get(key) in values) == positive


def _fields(resource: Resource, text: str) -> Iterator[Matches]:
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"([^!=]+)(!=|==?)(.*)", part)
        known = ("metadata.name", "metadata.namespace", *_FIELDS.get(resource.kind, ()))
        if match is None or match[1] not in known:
            raise Refused(400, f"field label not supported: {part}")
        yield _field(match[1].split("."), match[3], match[2] != "!=")


def _field(path: list[str], wanted: str, positive: bool) -> Matches:
    def matches(value: Any) -> bool:
        for step in path:
            value = value.get(step, "" if step == path[-1] else {})
        return bool(value == wanted) == positive

    return matches


def shaped(asked: Asked, value: Object) -> Object:
    """As the client wants to see it: whole, or its metadata alone."""
    if "as=PartialObjectMetadata" not in asked.headers.get("accept", ""):
        return value
    of = "List" if "items" in value else ""
    items = {"items": [shaped(asked, each) for each in value["items"]]} if of else {}
    kind = {"kind": f"PartialObjectMetadata{of}", "apiVersion": "meta.k8s.io/v1"}
    return kind | {"metadata": value["metadata"]} | items


def _version(asked: Asked, code: int) -> int:
    text = asked.query.get("resourceVersion", "")
    if text and not text.isdigit():
        raise Refused(code, f'invalid resource version: parsing "{text}": invalid syntax')
    return int(text or 0)


def listed(store: Store, asked: Asked) -> Answer:
    resource, query, matches = asked.resource, asked.query, _selected(asked)
    if "sendInitialEvents" in query:
        raise invalid_options("ListOptions", kinds.FORBIDDEN, "sendInitialEvents")
    version, exact = _version(asked, 400), query.get("resourceVersionMatch") == "Exact"
    if "resourceVersionMatch" in query and version == 0:
        raise invalid_options("ListOptions", kinds.FORBIDDEN, "resourceVersionMatch")
    if version > store.version:
        causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
        details = {"causes": causes, "retryAfterSeconds": 1}
        raise Refused(504, f"Timeout: Too large resource version: {version}", details)
    at, after = _continued(store, query) if "continue" in query else (version if exact else store.version, "")
    if exact and at < store.oldest_list:
        raise Refused(410, "The resourceVersion for the provided list is too old.")
    name = resource.full_name.removesuffix(".events.k8s.io")
    found = [v for v in store.listed(name, asked.namespace, at) if matches(v) and _place(v) > after]
    limit = max(int(query.get("limit", 0)), 0) or len(found)
    meta: Object = {"resourceVersion": str(at)} | ({"continue": ""} if resource.custom else {})
    if len(found) > limit:
        meta["continue"] = _token(at, _place(found[limit - 1]))
        if not query.get("labelSelector") and not query.get("fieldSelector"):
            meta["remainingItemCount"] = len(found) - limit
    left_out = () if resource.custom else ("kind", "apiVersion")
    items = [{key: inner for key, inner in value.items() if key not in left_out} for value in found[:limit]]
    if resource.group == "events.k8s.io":
        items = [{_RENAMED.get(k, k): v for k, v in it.items() if not k.startswith("reporting")} for it in items]
    body = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta, "items": items}
    return Answer(200, shaped(asked, body))


def _place(value: Object) -> str:
    return f"{value['metadata'].get('namespace', '')}/{value['metadata']['name']}"


def _token(version: int, after: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, after]).encode()).decode()


def _continued(store: Store, query: dict[str, str]) -> tuple[int, str]:
    if query.get("resourceVersion"):
        raise Refused(400, "specifying resource version is not allowed when using continue")
    try:
        version, after = json.loads(base64.urlsafe_b64decode(query["continue"]))
    except ValueError as error:
        raise Refused(400, f"invalid continue token: {error}") from None
    if 0 < version < store.oldest_list:
        metadata = {"continue": _token(0, after)}
        raise Refused(410, "The provided continue parameter is too old", metadata=metadata)
    return version or store.version, after


class Watch:
    """What a watch has to tell, in its order. `wake` is called when there is more."""

    def __init__(self, store: Store, asked: Asked) -> None:
        self.events: deque[Object] = deque()
        self.told = 0
        self.ended = False
        self.wake: Callable[[], None] = lambda: None
        self.timeout_s = float(asked.query["timeoutSeconds"]) if "timeoutSeconds" in asked.query else None
        self.bookmarks = asked.query.get("allowWatchBookmarks") == "true"
        self._store, self._asked, self._matches, self._after = store, asked, _selected(asked), _version(asked, 500)
        self._start(asked.query.get("sendInitialEvents"))

    def _start(self, initial: str | None) -> None:
        store, after = self._store, self._after
        if initial is not None and self._asked.query.get("resourceVersionMatch") != "NotOlderThan":
            raise invalid_options("ListOptions", kinds.FORBIDDEN, "resourceVersionMatch")
        store.told.append(self._on_change)
        if initial == "true" or (initial is None and after == 0):
            for value in filter(self._matches, store.listed(self._asked.resource.full_name, self._asked.namespace)):
                self._tell("ADDED", value)
            if initial and self.bookmarks:
                self.bookmark(**{"k8s.io/initial-events-end": "true"})
        elif 0 < after < store.oldest_event:
            refused = Refused(410, f"too old resource version: {after} ({store.oldest_event})")
            self._tell("ERROR", refused.status)
            self.end()
        elif after:
            for change in store.changes:
                self._on_change(change)

    def _on_change(self, change: Change) -> None:
        is_mine = change.key.resource == self._asked.resource.full_name and change.version > self._after
        if not is_mine or self._asked.namespace not in ("", change.key.namespace):
            return
        was = change.old if change.old is not None and self._matches(change.old) else None
        if change.new is not None and self._matches(change.new):
            self._tell("ADDED" if was is None else "MODIFIED", change.last)
        elif was is not None:
            self._tell("DELETED", {**was, "metadata": {**was["metadata"], "resourceVersion": str(change.version)}})

    def _tell(self, kind: str, value: Object) -> None:
        self.told += 1
        self.events.append({"type": kind, "object": shaped(self._asked, value) if kind != "ERROR" else value})
        self.wake()

    def bookmark(self, **annotations: str) -> None:
        resource: Resource = self._asked.resource
        meta: Object = {"resourceVersion": str(self._store.version)}
        meta |= {"annotations": annotations} if annotations else {}
        self._tell("BOOKMARK", {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta})

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._store.told.remove(self._on_change)
            self.wake()

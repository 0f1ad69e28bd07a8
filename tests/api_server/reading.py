"""Lists, pages and watches: where they start, what they show, how they end. No socket and no clock here."""

import base64
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.api_server import kinds
from tests.api_server.answers import Refused, invalid_options
from tests.api_server.asked import Answer, Asked
from tests.api_server.kinds import Resource
from tests.api_server.selectors import selected
from tests.api_server.store import Change, Store

Object = dict[str, Any]
_RENAMED = {
    "involvedObject": "regarding", "message": "note", "source": "deprecatedSource", "count": "deprecatedCount",
    "firstTimestamp": "deprecatedFirstTimestamp", "lastTimestamp": "deprecatedLastTimestamp",
}  # fmt: skip
"""What an event's fields are called in the newer group."""
INITIAL_END = "k8s.io/initial-events-end"


def shaped(asked: Asked, value: Object) -> Object:
    """As the client wants to see it: whole, or its metadata alone."""
    if "as=PartialObjectMetadata" not in asked.headers.get("accept", ""):
        return value
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    if "items" not in value:
        return partial | {"metadata": value["metadata"]}
    items = [partial | {"metadata": each["metadata"]} for each in value["items"]]
    kind = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
    return kind | {"metadata": value["metadata"], "items": items}


def _version(asked: Asked, code: int) -> int:
    text = asked.query.get("resourceVersion", "")
    if text and not text.isdigit():
        raise Refused(code, f'invalid resource version: parsing "{text}": invalid syntax')
    return int(text or 0)


def listed(store: Store, asked: Asked) -> Answer:
    resource, query = asked.resource, asked.query
    matches = selected(resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    if "sendInitialEvents" in query:
        raise invalid_options("ListOptions", kinds.FORBIDDEN, "sendInitialEvents")
    version, exact = _version(asked, 400), query.get("resourceVersionMatch") == "Exact"
    if "resourceVersionMatch" in query and (version == 0):
        raise invalid_options("ListOptions", kinds.FORBIDDEN, "resourceVersionMatch")
    if version > store.version:
        causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
        details = {"causes": causes, "retryAfterSeconds": 1}
        raise Refused(504, f"Timeout: Too large resource version: {version}", details)
    at, after = version if exact else store.version, ""
    if "continue" in query:
        at, after = _continued(store, query)
    if exact and at < store.oldest_list:
        raise Refused(410, "The resourceVersion for the provided list is too old.")
    found = [v for v in store.listed_at(resource, asked.namespace, at) if matches(v) and _place(v) > after]
    limit = max(int(query.get("limit", 0)), 0) or len(found)
    meta: Object = {"resourceVersion": str(at)}
    if len(found) > limit:
        meta["continue"] = _token(at, _place(found[limit - 1]))
        if not query.get("labelSelector") and not query.get("fieldSelector"):
            meta["remainingItemCount"] = len(found) - limit
    elif resource.custom:
        meta["continue"] = ""
    items = [v if resource.custom else _without_kind(v) for v in found[:limit]]
    if resource.group == "events.k8s.io":
        items = [{_RENAMED.get(key, key): inner for key, inner in value.items()} for value in items]
        items = [{k: v for k, v in value.items() if not k.startswith("reporting")} for value in items]
    body = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta, "items": items}
    return Answer(200, shaped(asked, body))


def _place(value: Object) -> str:
    return f"{value['metadata'].get('namespace', '')}/{value['metadata']['name']}"


def _without_kind(value: Object) -> Object:
    return {key: inner for key, inner in value.items() if key not in ("kind", "apiVersion")}


def _token(version: int, after: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([version, after]).encode()).decode()


def _continued(store: Store, query: dict[str, str]) -> tuple[int, str]:
    if query.get("resourceVersion"):
        raise Refused(400, "specifying resource version is not allowed when using continue")
    try:
        version, after = json.loads(base64.urlsafe_b64decode(query["continue"]))
    except ValueError as error:
        raise Refused(400, f"invalid continue token: {error}") from None
    if version == 0:
        return store.version, after
    if version < store.oldest_list:
        metadata = {"continue": _token(0, after)}
        raise Refused(410, "The provided continue parameter is too old", metadata=metadata)
    return version, after


class Watch:
    """What a watch has to tell, in its order. `wake` is called when there is more."""

    def __init__(self, store: Store, asked: Asked, matches: Callable[[Object], bool], after: int) -> None:
        self.events: deque[Object] = deque()
        self.told = 0
        self.ended = False
        self.wake: Callable[[], None] = lambda: None
        self.timeout_s = float(asked.query["timeoutSeconds"]) if "timeoutSeconds" in asked.query else None
        self.bookmarks = asked.query.get("allowWatchBookmarks") == "true"
        self._store, self._asked, self._matches, self._after = store, asked, matches, after
        store.told.append(self._on_change)

    def _on_change(self, change: Change) -> None:
        resource, namespace = self._asked.resource, self._asked.namespace
        if change.key.resource != resource.full_name or namespace not in ("", change.key.namespace):
            return
        if change.version <= self._after:
            return
        was = change.old is not None and self._matches(change.old)
        is_in = change.new is not None and self._matches(change.new)
        if is_in:
            self.tell("MODIFIED" if was else "ADDED", change.last)
        elif was:
            assert change.old is not None
            meta = {**change.old["metadata"], "resourceVersion": str(change.version)}
            self.tell("DELETED", {**change.old, "metadata": meta})

    def tell(self, kind: str, value: Object) -> None:
        self.told += 1
        self.events.append({"type": kind, "object": shaped(self._asked, value) if kind != "ERROR" else value})
        self.wake()

    def bookmark(self, **annotations: str) -> None:
        resource: Resource = self._asked.resource
        meta: Object = {"resourceVersion": str(self._store.version)}
        meta |= {"annotations": annotations} if annotations else {}
        self.tell("BOOKMARK", {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta})

    def replay(self, changes: list[Change]) -> None:
        for change in changes:
            self._on_change(change)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._store.told.remove(self._on_change)
            self.wake()


def watched(store: Store, asked: Asked) -> Watch:
    query = asked.query
    matches = selected(asked.resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
    version, initial = _version(asked, 500), query.get("sendInitialEvents")
    if initial is not None and query.get("resourceVersionMatch") != "NotOlderThan":
        raise invalid_options("ListOptions", kinds.FORBIDDEN, "resourceVersionMatch")
    shows_all = initial == "true" if initial is not None else version == 0
    watch = Watch(store, asked, matches, version)
    if shows_all:
        for value in store.listed(asked.resource, asked.namespace):
            if matches(value):
                watch.tell("ADDED", value)
        if initial and watch.bookmarks:
            watch.bookmark(**{INITIAL_END: "true"})
    elif version and version < store.oldest_event:
        refused = Refused(410, f"too old resource version: {version} ({store.oldest_event})")
        watch.tell("ERROR", refused.status)
        watch.end()
    elif version:
        watch.replay(store.changes)
    return watch

"""Selectors of labels and fields, and what can't be read as one. Pure."""

import re
from collections.abc import Callable
from typing import Any

from tests.api_server.answers import Refused
from tests.api_server.kinds import LABEL_VALUE, Resource

Object = dict[str, Any]
Matches = Callable[[Object], bool]
_POD_FIELDS = (
    "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase",
    "status.podIP", "status.nominatedNodeName",
)  # fmt: skip
_FIELDS = {
    "Pod": _POD_FIELDS,
    "Event": ("involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason", "type"),
}
_KEY = r"[-A-Za-z0-9_./]+"


def selected(resource: Resource, labels: str, fields: str) -> Matches:
    wanted = [*_labels(labels), *_fields(resource, fields)]
    return lambda value: all(matches(value) for matches in wanted)


def _labels(text: str) -> list[Matches]:
    return [_label(part.strip()) for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _label(text: str) -> Matches:
    match = re.fullmatch(rf"({_KEY})\s*(!=|==|=|\s+in\s+|\s+notin\s+)\s*(.*)", text)
    if match is None:
        exists = re.fullmatch(rf"(!?)\s*({_KEY})", text)
        if exists is None:
            raise Refused(400, f"unable to parse requirement: {text}")
        key, wanted = exists[2], not exists[1]
        return lambda value: (key in _labels_of(value)) == wanted
    key, operator, rest = match[1], match[2].strip(), match[3].strip()
    several = re.fullmatch(r"\((.*)\)", rest) if operator in ("in", "notin") else None
    if operator in ("in", "notin") and several is None:
        raise Refused(400, f"unable to parse requirement: found {rest!r} expected: '('")
    values = [each.strip() for each in several[1].split(",")] if several else [rest]
    if not all(re.fullmatch(LABEL_VALUE, each) for each in values):
        raise Refused(400, f"unable to parse requirement: {text}")
    positive = operator in ("=", "==", "in")
    return lambda value: (_labels_of(value).get(key) in values) == positive


def _labels_of(value: Object) -> dict[str, str]:
    labels: dict[str, str] = value["metadata"].get("labels", {})
    return labels


def _fields(resource: Resource, text: str) -> list[Matches]:
    return [_field(resource, part) for part in text.split(",") if part]


def _field(resource: Resource, text: str) -> Matches:
    match = re.fullmatch(r"([^!=]+)(!=|==|=)(.*)", text)
    if match is None or match[1] not in ("metadata.name", "metadata.namespace", *_FIELDS.get(resource.kind, ())):
        raise Refused(400, f"field label not supported: {text}")
    path, positive, wanted = match[1].split("."), match[2] != "!=", match[3]

    def matches(value: Any) -> bool:
        for step in path:
            value = value.get(step, "" if step == path[-1] else {})
        return bool(value == wanted) == positive

    return matches

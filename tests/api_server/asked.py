"""A request and what it asks for, its answer, and refusals, as the real server words them for programs."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.api_server.kinds import PODS, Cause, Resource
from tests.api_server.store import Key

Object = dict[str, Any]
_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    406: "NotAcceptable", 409: "Conflict", 410: "Expired", 415: "UnsupportedMediaType", 422: "Invalid", 504: "Timeout",
}  # fmt: skip


class User(NamedTuple):
    name: str
    namespace: str = ""
    account: str = ""


NOBODY = User("system:anonymous")


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    user: User = NOBODY
    resource: Resource = PODS
    namespace: str = ""
    name: str = ""
    sub: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return Key(self.resource.full_name, self.namespace, self.name)

    @property
    def manager(self) -> str:
        return self.query.get("fieldManager") or self.headers.get("user-agent", "unknown").partition("/")[0]

    @property
    def dry(self) -> bool:
        return "dryRun" in self.query


@dataclass
class Answer:
    code: int
    body: Object | str
    headers: dict[str, str] = field(default_factory=dict)


def rfc3339(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class Refused(Exception):
    def __init__(self, code: int, message: str, details: Object | None = None, **more: Any) -> None:
        super().__init__(message)
        self.code = code
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
        status |= {"reason": _REASONS[code]} if code in _REASONS else {}
        self.status: Object = status | ({} if details is None else {"details": details}) | {"code": code, **more}


def named(resource: Resource, name: str = "", *, kind: str = "", **more: Any) -> Object:
    found = ({"name": name} if name else {}) | ({"group": resource.group} if resource.group else {})
    return found | {"kind": kind or resource.plural, **more}


def not_found(resource: Resource, name: str) -> Refused:
    return Refused(404, f'{resource.full_name} "{name}" not found', named(resource, name))


def conflict(resource: Resource, name: str, why: str = "the object has been modified", *, kind: str = "") -> Refused:
    details = {"name": name, "kind": kind} if kind else named(resource, name)
    return Refused(409, f'Operation cannot be fulfilled on {details["kind"]} "{name}": {why}', details)


def invalid(details: Object, causes: Iterable[Cause]) -> Refused:
    told = [{"reason": reason, "message": reason, "field": field} for reason, field in causes]
    message = f"{details.get('kind', '')} is invalid: {', '.join(cause['field'] for cause in told)}"
    return Refused(422, message, details | {"causes": told})


def invalid_options(kind: str, reason: str, field: str) -> Refused:
    return invalid({"group": "meta.k8s.io", "kind": kind}, [(reason, field)])

"""What a request gets that isn't an object: refusals, as the real server words them for programs."""

from collections.abc import Iterable
from typing import Any

from tests.api_server.kinds import Cause, Resource

Object = dict[str, Any]
_REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed",
    406: "NotAcceptable", 409: "Conflict", 410: "Expired", 415: "UnsupportedMediaType", 422: "Invalid", 504: "Timeout",
}  # fmt: skip


class Refused(Exception):
    def __init__(self, code: int, message: str, details: Object | None = None, **more: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.status["message"] = message
        if code in _REASONS:
            self.status["reason"] = _REASONS[code]
        if details is not None:
            self.status["details"] = details
        self.status |= {"code": code, **more}


class PageNotFound(Exception):
    """Not even the group is known: plain text."""


def named(resource: Resource, name: str = "", *, kind: str = "", **more: Any) -> Object:
    found = {"name": name} if name else {}
    found |= {"group": resource.group} if resource.group else {}
    return found | {"kind": kind or resource.plural, **more}


def success(details: Object) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def not_found(resource: Resource, name: str) -> Refused:
    return Refused(404, f'{resource.full_name} "{name}" not found', named(resource, name))


def conflict(resource: Resource, name: str, why: str = "the object has been modified", *, kind: str = "") -> Refused:
    details = named(resource, name) if not kind else {"name": name, "kind": kind}
    return Refused(409, f'Operation cannot be fulfilled on {details["kind"]} "{name}": {why}', details)


def invalid(details: Object, causes: Iterable[Cause]) -> Refused:
    told = [{"reason": reason, "message": reason, "field": field} for reason, field in causes]
    message = f"{details.get('kind', '')} is invalid: {', '.join(field for _, field in causes)}"
    return Refused(422, message, details | {"causes": told})


def invalid_options(kind: str, reason: str, field: str) -> Refused:
    return invalid({"group": "meta.k8s.io", "kind": kind}, [(reason, field)])

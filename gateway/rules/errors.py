"""Errors of the door's own, in OpenAI's form. Pure.

`engine_lost` is the one that every client of a broken answer gets: what it has, and whether it may ask again.
"""

import msgspec

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "request_timeout",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    431: "headers_too_large",
    503: "service_unavailable",
    504: "timeout",
}


class Refusal(Exception):
    """A request that is refused. `more`: fields of the error."""

    def __init__(self, status: int, why: str, *, retry_after_s: int = 0, **more: int | None) -> None:
        super().__init__(why)
        self.status, self.retry_after_s, self.more = status, retry_after_s, more

    def answer(self) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        said = body(self.status, str(self), None, **self.more)
        return self.status, said, [*JSON, *again(True, self.retry_after_s)]


def body(status: int, why: str, param: str | None = None, **more: int | None) -> bytes:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return msgspec.json.encode({"error": {"message": why, "type": kind, "param": param, "code": status, **more}})


def again(retry_safe: bool, retry_after_s: int = 0) -> list[tuple[bytes, bytes]]:
    """What a client's program is told of asking again. OpenAI's own asks twice more unless it is told not to."""
    if not retry_safe:
        return [(b"x-should-retry", b"false")]
    return [(b"retry-after", b"%d" % retry_after_s)] if retry_after_s else []


def lost(why: str, *, detail: str, tokens: int | None, retry_safe: bool, for_good: bool = False) -> bytes:
    """`tokens`: how many the client has; None where it has some of the answer, and they can't be counted. `for_good`:
    the same request will be refused again.
    """
    again = "it is safe to ask again" if retry_safe else "asking again may do it twice"
    if for_good:
        again = "the same request will be refused again"
    has = "some of the answer was delivered" if tokens is None else f"{tokens} tokens of the answer were delivered"
    if tokens == 0:
        has = "nothing of the answer was delivered"
    error = {
        "message": f"{why}; {has}, and {again}",
        "type": "engine_lost",
        "param": None,
        "code": 502,
        "delivered_tokens": tokens,
        "retry_safe": retry_safe,
    }
    return msgspec.json.encode({"error": error | ({"detail": detail} if detail else {})})

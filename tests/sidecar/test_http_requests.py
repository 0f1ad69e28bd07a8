"""Bytes in, requests out: the reader built alone, without a connection."""

import gc
import weakref

import pytest

from sidecar.http.http_exchange import Request
from sidecar.http.http_requests import Bodies, Heads, LetIn, Refused, RequestReader, every_caller

MOST_HEAD, MOST_BODY, MOST_BODIES = 512, 100, 6000
HEAD = b"POST /v1/x?y=1 HTTP/1.1\r\nHost: h\r\nX-Name: Some\r\n"


class Reading:
    def __init__(self, bodies: Bodies | None = None, let_in: LetIn = every_caller, heads: Heads | None = None) -> None:
        self.told_to_go_on = 0
        self.bodies = bodies or Bodies(MOST_BODIES, MOST_BODIES)
        self.reader = RequestReader(MOST_HEAD, MOST_BODY, self.bodies, let_in, self._go_on, heads)
        self.reader.peer = "client"

    def _go_on(self) -> None:
        self.told_to_go_on += 1

    def feed(self, *pieces: bytes) -> "Reading":
        for piece in pieces:
            self.reader.feed(piece)
        return self

    @property
    def refused(self) -> int:
        return self.reader.refused[0] if self.reader.refused is not None else 0


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"


def post(body: bytes, more: bytes = b"") -> bytes:
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_a_request_is_the_same_however_its_bytes_come() -> None:
    data = post(b"0123456789")
    at_once = Reading().feed(data).reader.ready[0]
    one_by_one = Reading().feed(*(data[i : i + 1] for i in range(len(data)))).reader.ready[0]
    assert all(getattr(at_once, name) == getattr(one_by_one, name) for name in Request.__slots__ if name != "held"), (
        "but what is counted: the pieces of a head are counted as they come"
    )
    request = at_once
    assert (request.method, request.target, request.path, request.body) == (
        "POST",
        b"/v1/x?y=1",
        "/v1/x",
        b"0123456789",
    )
    assert request.header(b"x-name") == b"Some" and request.peer == "client"
    assert at_once.chunked and at_once.keeps


def test_a_request_whose_head_is_known_is_read_as_the_first_one_was() -> None:
    heads: Heads = {}
    first = Reading(heads=heads).feed(post(b"0123456789"))
    assert len(heads) == 1
    again = Reading(heads=heads).feed(post(b"9876543210"), post(b"0123456789"))
    assert again.reader.ready[0].body == b"9876543210"
    one, other = first.reader.ready[0], again.reader.ready[1]
    assert all(getattr(one, name) == getattr(other, name) for name in Request.__slots__)
    assert again.bodies.bytes == 2 * first.bodies.bytes


@pytest.mark.parametrize(
    ("more", "body"),
    [(b"Transfer-Encoding: chunked\r\n", b"1\r\nx\r\n0\r\n\r\n"), (OFFER + b"Content-Length: 1\r\n", b"x")],
)
def test_a_head_that_is_more_than_plain_is_known_to_no_user(more: bytes, body: bytes) -> None:
    heads: Heads = {}
    reading = Reading(heads=heads).feed(HEAD + more + b"\r\n" + body)
    assert [request.body for request in reading.reader.ready] == [b"x"] and not heads


def test_with_a_known_head_more_or_less_of_a_body_is_read_as_ever() -> None:
    heads: Heads = {}
    Reading(heads=heads).feed(post(b"0123456789"))
    assert not Reading(heads=heads).feed(post(b"0123456789")[:-1]).reader.ready
    reading = Reading(heads=heads).feed(post(b"0123456789") + post(b"next")[:-1])
    assert [request.body for request in reading.reader.ready] == [b"0123456789"]
    reading.feed(b"t")
    assert [request.body for request in reading.reader.ready] == [b"0123456789", b"next"]
    assert (
        Reading(heads=heads, let_in=lambda request, _: Refused(401, "no key")).feed(post(b"0123456789")).refused == 401
    )


def test_requests_in_one_piece_wait_in_their_order() -> None:
    reading = Reading().feed(post(b"a") + post(b"b") + post(b"c")[:20])
    assert [request.body for request in reading.reader.ready] == [b"a", b"b"]
    reading.feed(post(b"c")[20:])
    assert [request.body for request in reading.reader.ready] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no host
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"no HTTP at all\r\n\r\n", 400),
        (post(b"x" * (MOST_BODY + 1)), 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"41\r\n" + b"x" * 65 + b"\r\n" + b"41\r\n" + b"x" * 65, 413),
        (HEAD + b"X: " + b"x" * MOST_HEAD + b"\r\n\r\n", 431),
        (HEAD + b"X: " + b"x" * (MOST_HEAD + 200), 431),  # and it hasn't ended yet
    ],
)
def test_what_breaks_a_rule_is_refused(data: bytes, status: int) -> None:
    reading = Reading().feed(data)
    assert reading.refused == status and not reading.reader.ready


def test_all_requests_together_have_a_bound_and_what_goes_makes_room() -> None:
    bodies = Bodies(MOST_BODIES, MOST_BODIES)
    some = [Reading(bodies).feed(post(b"x" * 90)) for _ in range(3)]
    one = bodies.bytes // 3
    assert one > 1000, "a small request takes more than its bytes"
    assert Reading(bodies).feed(post(b"x" * 90)).refused == 429 and bodies.bytes == 3 * one, "it is one client"
    some.pop().reader.drop()
    assert bodies.bytes == 2 * one and not Reading(bodies).feed(post(b"x" * 90)).refused


def test_half_a_head_is_counted_and_so_is_each_of_its_headers() -> None:
    bodies = Bodies(1 << 20, 1 << 20)
    reading = Reading(bodies).feed(HEAD + b"a:\r\n" * 90)
    assert bodies.bytes > 90 * 128
    reading.reader.drop()
    assert bodies.bytes == 0


def test_what_is_read_is_gone_with_its_connection_without_the_collector() -> None:
    gc.disable()
    try:
        reading = Reading().feed(post(b"x" * 90)[:-10])
        gone = weakref.ref(reading.reader)
        reading.reader.drop()
        del reading
        assert gone() is None
    finally:
        gc.enable()


def test_a_client_that_waits_for_a_word_is_told_to_go_on() -> None:
    assert Reading().feed(post(b"", b"Expect: 100-continue\r\n")).told_to_go_on == 1
    assert Reading().feed(HEAD + b"Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n").told_to_go_on == 0  # refused
    old = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n"
    assert Reading().feed(old).told_to_go_on == 0, "HTTP/1.0 has no such word"


def test_a_client_that_offers_another_protocol_is_read_on() -> None:
    reading = Reading().feed(post(b"body", OFFER) + post(b"next"))
    assert [request.body for request in reading.reader.ready] == [b"body", b"next"]
    assert reading.refused == 0


def test_any_number_of_offers_is_read_on_in_order() -> None:
    """Each of them was read within the one before: with 1,500 it was too deep, and all but some were no HTTP."""
    bodies = Bodies(1 << 30, 1 << 30)
    asked = [b"%d" % number for number in range(1500)]
    reading = Reading(bodies).feed(b"".join(post(body, OFFER) for body in asked))
    assert [request.body for request in reading.reader.ready] == asked and reading.refused == 0


def test_a_refused_offer_takes_nothing_of_the_request_before_it() -> None:
    """The one before was taken for it, and had no answer."""

    def let_in(request: Request, has_body: bool) -> str | Refused:
        return Refused(401, "no key") if request.header(b"upgrade") else ""

    reading = Reading(let_in=let_in).feed(post(b"good") + post(b"bad", OFFER))
    assert [request.body for request in reading.reader.ready] == [b"good"] and reading.refused == 401


def test_only_so_many_requests_of_no_user_wait_on_one_connection() -> None:
    asked = b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n"
    reading = Reading(let_in=lambda request, has_body: None).feed(asked * 64)
    assert len(reading.reader.ready) == 64 and reading.refused == 0
    assert reading.feed(asked).refused == 429 and len(reading.reader.ready) == 64

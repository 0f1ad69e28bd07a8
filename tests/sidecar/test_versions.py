"""Two programs speak the newest version that both know, or are told which of them is too old."""

from typing import NamedTuple

import pytest

from sidecar.wire.versions import Spoken


class Hello(NamedTuple):
    protocol: int
    newest: int = 0


@pytest.mark.parametrize(
    ("hello", "agreed"),
    [
        (Hello(2), 2),
        (Hello(3), 3),
        (Hello(1, 2), 2),
        (Hello(1, 9), 4),
        (Hello(3, 3), 3),
        (Hello(1), 0),
        (Hello(5), 0),
        (Hello(5, 9), 0),
        (Hello(0, 1), 0),
    ],
)
def test_the_newest_that_both_speak_is_spoken(hello: Hello, agreed: int) -> None:
    assert Spoken(2, 4).agreed(hello) == agreed


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (Hello(98, 99), "the caller speaks versions 98 to 99 of the protocol, and this server versions 2 to 4; this "),
        (Hello(5), "the caller speaks version 5 of the protocol, and this server versions 2 to 4; this server has to"),
        (Hello(1), "the caller speaks version 1 of the protocol, and this server versions 2 to 4; its program has to"),
    ],
)
def test_where_there_is_none_the_older_one_is_named(hello: Hello, why: str) -> None:
    assert Spoken(2, 4).why_none(hello).startswith(why)

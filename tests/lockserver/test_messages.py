"""The decoder at the door: what names a file is checked before a path is made of it, and a newer peer's extra
fields are no reason to hang up."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockserver.rules import messages as m

REGISTER: dict[str, Any] = {
    "type": "Register",
    "protocol": 1,
    "engine_id": "engine-a",
    "incarnation": "0123abcd",
    "life": [1, 2],
    "pid": 41,
}
JOIN: dict[str, Any] = {**REGISTER, "type": "Join"}
HAND_BACK: dict[str, Any] = {"type": "HandBack", "token": 7, "tree": "engine-a.0123abcd", "numbers": [1, 2]}
ACQUIRE: dict[str, Any] = {"type": "Acquire"}

PATHS = ["..", ".", "../x", "a/b", "/etc/passwd", "a/../../b", "a\0b", "a\\b/c", "./a", "~/a", "a/", ""]
BAD_ENGINE_IDS = [
    *(*PATHS, ".hidden", "-rf", "_x", "a b", "a\n", "a\nb", "ä", "a" * 65, "a;b", "a*", "a\u202eb"),
    *(7, None, ["a"]),
]
BAD_INCARNATIONS = [
    *(*PATHS, "0123abc", "0" * 33, "0123ABCD", "0123abcg", "0123abcd\n", " 0123abcd", "../../.."),
    *(12345678, None),
]
BAD_TREES = [
    *(*PATHS, "engine-a", "engine-a.", ".0123abcd", "../engine-a.0123abcd", "engine-a/../x.0123abcd"),
    *("engine-a.0123abcd/..", "engine-a.0123abcd\n", "engine-a.0123ABCD", "a" * 65 + ".0123abcd", 7),
]
GOOD_ENGINE_IDS = ["a", "0", "engine-a", "A.b_c-9", "a" * 64, "a..b", "vllm-0.example.com"]


def said(fields: dict[str, Any]) -> m.ClientMessage:
    return m.from_client.decode(msgspec.msgpack.encode(fields))


def refused(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        said(fields)
    assert "$." in str(error.value) or "type" in str(error.value), "it says which field is wrong"


@pytest.mark.parametrize("hello", [REGISTER, JOIN], ids=["Register", "Join"])
@pytest.mark.parametrize("engine_id", BAD_ENGINE_IDS, ids=repr)
def test_a_name_that_is_no_name_is_refused(hello: dict[str, Any], engine_id: object) -> None:
    refused({**hello, "engine_id": engine_id})


@pytest.mark.parametrize("hello", [REGISTER, JOIN], ids=["Register", "Join"])
@pytest.mark.parametrize("incarnation", BAD_INCARNATIONS, ids=repr)
def test_an_incarnation_that_is_none_is_refused(hello: dict[str, Any], incarnation: object) -> None:
    refused({**hello, "incarnation": incarnation})


@pytest.mark.parametrize("tree", BAD_TREES, ids=repr)
def test_a_tree_that_names_no_life_file_is_refused(tree: object) -> None:
    refused({**HAND_BACK, "tree": tree})


@pytest.mark.parametrize("engine_id", GOOD_ENGINE_IDS)
def test_good_names_are_taken(engine_id: str) -> None:
    for hello in (REGISTER, JOIN):
        message = said({**hello, "engine_id": engine_id})
        assert isinstance(message, m.Register | m.Join) and message.engine_id == engine_id
    assert isinstance(said({**HAND_BACK, "tree": f"{engine_id}.0123abcd"}), m.HandBack)


characters = "aZ0._-/ \n\0\u00e4f"


@given(engine_id=st.text(characters, max_size=4), incarnation=st.text("0fg/\n", min_size=7, max_size=10))
def test_whatever_is_taken_names_a_file_in_its_directory_and_no_other(engine_id: str, incarnation: str) -> None:
    try:
        message = said({**REGISTER, "engine_id": engine_id, "incarnation": incarnation})
    except msgspec.ValidationError:
        return
    assert isinstance(message, m.Register)
    name = f"{message.engine_id}.{message.incarnation}"
    assert (
        name.isascii()
        and name.isprintable()
        and "/" not in name
        and not name.startswith((".", "-"))
        and len(name) < 100
    )
    assert name.rpartition(".") == (message.engine_id, ".", message.incarnation), (
        "no two engines share a life file's name"
    )


@pytest.mark.parametrize(
    "needs",
    [
        {"gpu": -1},
        {"gpu": 1 << 62},
        {"gpu": 1.5},
        {"gpu": "much"},
        {"g" * 129: 1},
        {f"gpu{i}": 1 for i in range(65)},
        {7: 1},
        ["gpu"],
        7,
    ],
    ids=lambda needs: repr(needs)[:40],
)
def test_needs_that_cannot_be_are_refused(needs: object) -> None:
    refused({**ACQUIRE, "needs": needs})
    refused({"type": "Ready", "needs": needs})


def test_needs_that_can_be_are_taken() -> None:
    needs = {"GPU-5a6b": 0, "host:card0": (1 << 62) - 1}
    assert said({**ACQUIRE, "needs": needs}) == m.Acquire(needs=needs)
    assert said({"type": "Ready"}) == m.Ready(ready=True, needs=None)


@pytest.mark.parametrize(
    "fields",
    [
        {**ACQUIRE, "lock": "other"},
        {**ACQUIRE, "lock": "../active"},
        {**REGISTER, "claims": {"other": 1}},
        {**REGISTER, "claims": {"active": -1}},
        {**REGISTER, "claims": {"active": 1 << 62}},
        {**REGISTER, "life": [1]},
        {**REGISTER, "life": [1, 2, 3]},
        {**HAND_BACK, "token": -1},
        {**HAND_BACK, "numbers": ["1"]},
        {"type": "Serving", "url": "u" * 2001},
        {"type": "Prepared", "round": 1, "ok": False, "why": "w" * 2001},
        {"type": "Switchover", "drain_timeout_s": -1},
        {"type": "Switchover", "drain_timeout_s": 1e9},
        {"type": "Switchover", "drain_timeout_s": float("nan")},
        {"type": "Granted", "lock": "active", "token": 1},
        {"type": "Nonsense"},
        {},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_other_nonsense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        said(fields)


@pytest.mark.parametrize(
    "hello",
    [
        {**REGISTER, "secret": "s" * 100_000},
        {**JOIN, "number": -5},
        {"type": "Switchover", "to": "x" * 100_000},
    ],
    ids=["a secret of 100 kB", "member number -5", "a successor's name of 100 kB"],
)
def test_what_is_kept_or_said_again_has_a_bound(hello: dict[str, Any]) -> None:
    refused(hello)


def test_unknown_fields_of_a_newer_peer_are_ignored() -> None:
    assert said({**REGISTER, "colour": "green", "nested": {"a": [1]}}) == said(REGISTER)
    newer = {"type": "Granted", "lock": "active", "token": 7, "since": "noon"}
    assert m.from_server.decode(msgspec.msgpack.encode(newer)) == m.Granted(lock="active", token=7)


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_but_a_decoding_error(data: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        m.from_client.decode(data)


def test_nothing_that_is_kept_for_a_grant_may_be_changed() -> None:
    message = said(REGISTER)
    with pytest.raises(AttributeError):
        setattr(message, "engine_id", "b")  # noqa: B010

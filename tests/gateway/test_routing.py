"""Which model answers: names, aliases, profiles, ladders and the guard; bounds and deadlines; and what of a request its
engine gets.
"""

import json
import math
from typing import Any

import msgspec
import pytest

from gateway.rules import kinds, remote, routing, wishes
from gateway.rules.errors import Refusal
from gateway.rules.routing import Catalogue
from pool.entries import Entry, Flags, Limits, ModelOutlook, Profile, Remote, State

CLOUD = Remote(url="https://api.example.com/openai/v1", model="gpt-x", key_env="KEY")
AWAKE, ASLEEP = ModelOutlook(state=State.AWAKE, estimate_ms=0), ModelOutlook(state=State.ASLEEP, estimate_ms=3000)
LOADING = ModelOutlook(state=State.LOADING, estimate_ms=60_000, turn=3)
ENTRIES = [
    Entry(name="chat", aliases=["gpt-4", "org/chat:8b"]),
    Entry(name="small", aliases=["gpt-4", "mini"]),
    Entry(name="best", ladder=["chat", "small", "cloud"]),
    Entry(name="cloud", remote=CLOUD),
    Entry(name="deep", ladder=["best", "deep"]),
    Entry(name="loop", ladder=["loop"]),
]
PROFILES = [Profile(clients=["agent", "bot"], models={"gpt-4": "small|chat", "x": "cloud|gpt-4"}, priority=-5)]


def found(asked: str, client: str = "", *, cloud: bool = True, default: str = "") -> list[str]:
    catalogue = Catalogue(ENTRIES, PROFILES, Flags(allow_cloud_fallback=cloud), default)
    return [entry.name for entry in catalogue.candidates(asked, client)]


def refused(asked: str, **more: Any) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        found(asked, **more)
    return refusal.value


@pytest.mark.parametrize(
    ("asked", "client", "models"),
    [
        ("chat", "", ["chat"]),
        ("org/chat:8b", "", ["chat"]),
        ("gpt-4", "", ["chat"]),
        ("gpt-4", "agent", ["small", "chat"]),
        ("chat|gpt-4", "agent", ["chat", "small"]),
        ("x", "bot", ["cloud", "chat"]),
        (" mini | chat |", "", ["small", "chat"]),
        ("best", "", ["chat", "small", "cloud"]),
        ("deep", "", ["chat", "small", "cloud"]),
        ("ghost|chat", "", ["chat"]),
        ("chat|chat|gpt-4", "", ["chat"]),
    ],
)
def test_a_name_an_alias_a_profile_and_a_ladder_lead_to_models(asked: str, client: str, models: list[str]) -> None:
    assert found(asked, client) == models


@pytest.mark.parametrize(
    ("asked", "models"),
    [
        ("best", ["chat", "small"]),
        ("cloud", ["cloud"]),
        ("cloud|chat", ["cloud", "chat"]),
        ("chat|cloud", ["chat"]),
        ("cloud|cloud", ["cloud"]),
        ("chat|ghost|cloud|small", ["chat", "small"]),
    ],
)
def test_the_guard_takes_remote_models_out_but_for_one_that_stands_first(asked: str, models: list[str]) -> None:
    assert found(asked, cloud=False) == models


def test_a_name_that_isnt_known_makes_no_fallback_a_first_choice() -> None:
    assert found("ghost|cloud") == ["cloud"]
    assert refused("ghost|cloud", cloud=False).status == 404


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("chatt", "; is chat meant?"),
        ("Mini", "; is mini meant?"),
        ("GPT4|q", "; is gpt-4 meant?"),
        ("zzzzzz", "there are: best, chat, cloud, deep, loop, small"),
        ("y" * 5000, "does not exist"),
    ],
)
def test_an_unknown_model_is_404_with_what_is_called_nearly_so(asked: str, words: str) -> None:
    refusal = refused(asked)
    assert refusal.status == 404 and words in str(refusal) and len(str(refusal)) < 1000


def test_a_request_without_a_model_has_the_default_or_is_told_what_there_is() -> None:
    assert found("", default="mini") == ["small"]
    assert refused("loop").status == 404, "a ladder that leads to itself leads nowhere"
    assert refused("").status == 400 and "chat" in str(refused(""))
    with pytest.raises(Refusal, match="no model is known yet"):
        Catalogue().candidates("chat", "")


# -- which of a ladder -----------------------------------------------------------------------------------------------


def ordered(
    asked: str, deadline_ms: int | None = None, awake_first_ms: float = routing.AWAKE_FIRST_MS, **seen: ModelOutlook
) -> list[str]:
    candidates = Catalogue(ENTRIES).candidates(asked, "")
    chosen = routing.order(candidates, seen, lambda _: (0, 0), deadline_ms, awake_first_ms)
    return [entry.name for entry in chosen]


@pytest.mark.parametrize(
    ("chat", "small", "order"),
    [
        (ASLEEP, AWAKE, ["chat", "small", "cloud"]),
        (LOADING, AWAKE, ["small", "chat", "cloud"]),
        (LOADING, ASLEEP, ["chat", "small", "cloud"]),
        (ModelOutlook(), AWAKE, ["small", "chat", "cloud"]),
        (ModelOutlook(state=State.FAILED), AWAKE, ["small", "cloud"]),
        (ModelOutlook(leaving=True, state=State.AWAKE), LOADING, ["small", "cloud"]),
    ],
)
def test_the_first_that_can_is_asked_and_one_that_is_awake_before_one_that_needs_long(
    chat: ModelOutlook, small: ModelOutlook, order: list[str]
) -> None:
    assert ordered("best", chat=chat, small=small) == order


def test_a_ladder_says_whether_its_first_is_waited_for() -> None:
    assert ordered("best", chat=LOADING, small=AWAKE, awake_first_ms=math.inf) == ["chat", "small", "cloud"]
    strict = Entry(name="strict", aliases=["s"], ladder=["chat", "small"], in_order=True)
    profile = Profile(clients=["agent"], models={"gpt-4": "strict"})
    catalogue = Catalogue([*ENTRIES, strict], [profile], default="strict")
    kept = [("strict", ""), ("s", ""), ("", ""), ("gpt-4", "agent")]
    assert all(catalogue.in_order(*one) for one in kept)
    assert not any(catalogue.in_order(*one) for one in [("best", ""), ("gpt-4", ""), ("chat|small", ""), ("ghost", "")])


def test_a_deadline_that_the_estimate_exceeds_is_refused_at_once_and_another_may_be_kept() -> None:
    with pytest.raises(Refusal) as refusal:
        ordered("chat", 2000, chat=LOADING)
    assert (refusal.value.status, refusal.value.more, refusal.value.retry_after_s) == (504, {"estimate_ms": 60_000}, 60)
    assert ordered("chat", 60_000, chat=LOADING) == ["chat"]
    in_haste = ModelOutlook(state=State.ASLEEP, estimate_ms=60_000, soonest_ms=2000)
    assert ordered("chat", 2000, chat=in_haste) == ["chat"], "turns of others are shortened for it"
    with pytest.raises(Refusal) as refusal:
        ordered("chat", 1999, chat=in_haste)
    assert refusal.value.more == {"estimate_ms": 2000}, "with which it would be taken"
    assert ordered("chat", 1) == ["chat"], "what isn't known is tried"
    assert ordered("chat|small", 2000, chat=ASLEEP, small=AWAKE) == ["small"]
    assert ordered("chat|cloud", 2000, chat=ASLEEP) == ["cloud"]
    with pytest.raises(Refusal, match="'chat' is loading"):
        ordered("chat|small", 2000, chat=LOADING, small=ASLEEP)


@pytest.mark.parametrize(("load", "words"), [((2, 0), "wait for the model"), ((0, 3), "of this client")])
def test_a_model_and_a_client_have_bounds(load: tuple[int, int], words: str) -> None:
    entry = Entry(name="chat", limits=Limits(waiting=2, per_client=3))
    with pytest.raises(Refusal, match=words) as refusal:
        routing.order([entry], {"chat": ASLEEP}, lambda _: load, None)
    assert refusal.value.status == 429 and refusal.value.retry_after_s == 3
    less = (max(load[0] - 1, 0), max(load[1] - 1, 0))
    assert routing.order([entry], {}, lambda _: less, None) == [entry]


def test_a_failed_model_is_refused_with_the_reason() -> None:
    with pytest.raises(Refusal, match=r"it doesn't fit; it may be asked again in 8 s$") as refusal:
        ordered("chat", chat=ModelOutlook(state=State.FAILED, why="it doesn't fit", estimate_ms=8000))
    assert (refusal.value.status, refusal.value.retry_after_s) == (503, 8)
    with pytest.raises(Refusal, match="it failed") as refusal:
        ordered("chat", chat=ModelOutlook(state=State.FAILED))
    assert refusal.value.retry_after_s == 1


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (ModelOutlook(state=State.LOADING, turn=3, estimate_ms=3400), "loading, third in the queue, about 4 s"),
        (ModelOutlook(state=State.WAKING, estimate_ms=90), "waking, about 1 s"),
        (ModelOutlook(state=State.ASLEEP, turn=12), "asleep, number 12 in the queue"),
        (ModelOutlook(state=State.ASLEEP, why="it takes more than there is"), "asleep, it takes more than there is"),
        (
            ModelOutlook(state=State.ASLEEP, turn=1, why="first in the queue: a is pinned"),
            "asleep, first in the queue, a is pinned",
        ),
        (AWAKE, "awake"),
    ],
)
def test_what_is_waited_for_in_words(seen: ModelOutlook, says: str) -> None:
    assert routing.told(ENTRIES[0], seen, away=False).says == says
    assert (
        routing.told(ENTRIES[3], seen, away=True).says == "" and routing.outlook_of(ENTRIES[3], {}).state is State.AWAKE
    )
    failed = ModelOutlook(state=State.FAILED, why="it doesn't fit", estimate_ms=3_600_400)
    told = routing.told(ENTRIES[0], failed, away=True)
    assert "it doesn't fit" in told.failed and told.retry_after_s == 3601
    assert "went away" in routing.told(ENTRIES[0], seen, away=True).says


def test_a_model_is_listed_with_what_is_known_of_it() -> None:
    shown = routing.listed(ENTRIES[0], ASLEEP, 5, None)
    assert (shown["id"], shown["state"], shown["estimate_ms"]) == (
        "chat",
        "asleep",
        3000,
    ) and "max_model_len" not in shown
    assert routing.listed(ENTRIES[0], ASLEEP, 5, 4096)["max_model_len"] == 4096


def test_a_request_that_names_no_model_goes_to_one_that_is_awake() -> None:
    catalogue = Catalogue(ENTRIES)
    assert [entry.name for entry in catalogue.awake({"small": AWAKE})] == ["small"]
    with pytest.raises(Refusal, match="no model is awake"):
        catalogue.awake({"small": ASLEEP})


# -- what an engine gets ---------------------------------------------------------------------------------------------

OWN = {"x_client_id": "agent", "x_priority": -2, "x_deadline_ms": 1500, "x_keep_alive_s": 2.5}
CHAT = "/v1/chat/completions"


def got(body: dict[str, Any], entry: Entry, profile: Profile | None = None, path: str = CHAT) -> dict[str, Any]:
    wish = wishes.wish_of(json.dumps(body).encode(), b"application/json")
    return dict(json.loads(wishes.body_for(wish, path, entry, profile)))


def test_the_doors_own_fields_never_reach_an_engine() -> None:
    body = {"model": "gpt-4", "messages": [], **OWN}
    wish = wishes.wish_of(json.dumps(body).encode(), b"application/json")
    assert msgspec.to_builtins(wish.own) == OWN
    assert got(body, ENTRIES[0]) == {"model": "chat", "messages": []}
    assert got({"model": "chat", "x_client_id": None, "x_other": 1}, ENTRIES[0]) == {"model": "chat", "x_other": 1}


def test_what_needs_no_change_is_the_very_same_bytes() -> None:
    assert wishes.wish_of(b'{"model": null}', b"").model == ""
    many = b"{%b}" % b",".join(b'"f%d":1' % n for n in range(1001))
    parts = b"--b" + b"\r\n\r\nx\r\n--b" * 1001
    for body in (b'{"model": 5}', b'{"model": "\xff"}', b'{"chat_template_kwargs": "\xff"}', many):
        with pytest.raises(Refusal):
            wishes.wish_of(body, b"application/json")
    with pytest.raises(Refusal, match="a form may have 1000 parts"):
        wishes.wish_of(parts, b"multipart/form-data; boundary=b")
    for body in (b'{"model":  "chat", "n": 1.0}', b'{"model": 5', b"", b"[1]"):
        assert wishes.body_for(wishes.wish_of(body, b"application/json"), CHAT, ENTRIES[0], None) == body


@pytest.mark.parametrize(
    "bad", [{"x_priority": "high"}, {"x_deadline_ms": 0}, {"x_client_id": ""}, {"x_keep_alive_s": []}]
)
def test_a_field_that_says_what_it_cant_mean_is_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=next(iter(bad))):
        wishes.wish_of(json.dumps({"model": "chat", **bad}).encode(), b"application/json")


def form(*parts: tuple[str, bytes]) -> bytes:
    said = b"".join(
        b'--XyZ\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (n.encode(), d) for n, d in parts
    )
    return said + b"--XyZ--\r\n"


def test_a_form_with_a_sound_in_it_is_read_and_changed_likewise() -> None:
    sound = bytes(range(256)) * 9 + b"\r\n--Xy no end of it"
    own = [(name, str(value).encode()) for name, value in OWN.items()]
    kind = b'multipart/form-data; boundary="XyZ"'
    wish = wishes.wish_of(form(own[0], ("file", sound), *own[1:], ("model", b"gpt-4"), ("language", b"en")), kind)
    assert msgspec.to_builtins(wish.own) == OWN and wish.model == "gpt-4"
    path = "/v1/audio/transcriptions"
    assert wishes.body_for(wish, path, ENTRIES[0], None) == form(
        ("file", sound), ("model", b"chat"), ("language", b"en")
    )
    for said, gets in (
        ([("file", sound), ("model", b"gpt-4")], [("file", sound), ("model", b"chat")]),
        ([("model", b"chat"), own[1]], [("model", b"chat")]),
        ([("file", sound), own[1]], [("file", sound)]),
        ([("file", sound), ("model", b"chat")], [("file", sound), ("model", b"chat")]),
    ):
        assert wishes.body_for(wishes.wish_of(form(*said), kind), path, ENTRIES[0], None) == form(*gets)
    with pytest.raises(Refusal, match="x_priority"):
        wishes.wish_of(form(("x_priority", b"high")), kind)


def test_template_and_thinking_come_from_the_entry_where_a_request_says_nothing() -> None:
    thinking = {"enable_thinking": False, "depth": 1}
    entry = Entry(name="chat", chat_template="{{t}}", defaults={"temperature": 0.6, "chat_template_kwargs": thinking})
    profile = Profile(clients=["a"], defaults={"temperature": 0.1, "chat_template_kwargs": {"depth": 2}})
    base = {"model": "chat", "messages": []}
    assert got(base, entry) == {**base, "chat_template": "{{t}}", **entry.defaults}
    mine = {**base, "temperature": 1, "chat_template": "x", "chat_template_kwargs": {"enable_thinking": True}}
    assert got(mine, entry) == {**mine, "chat_template_kwargs": {"enable_thinking": True, "depth": 1}}
    assert got({**base, "chat_template_kwargs": "odd"}, entry)["chat_template_kwargs"] == "odd"
    assert got(base, Entry(name="x", remote=Remote(url="http://x")))["model"] == "x"
    assert got(base, entry, profile)["temperature"] == 0.1
    assert got(base, entry, profile)["chat_template_kwargs"] == {"enable_thinking": False, "depth": 2}
    assert got({"model": "chat", "input": "x"}, entry, path="/v1/embeddings") == {
        "model": "chat", "input": "x", "temperature": 0.6,
    }  # fmt: skip


def test_urgency_and_keep_alive_are_the_requests_its_profiles_or_its_models() -> None:
    entry, profile = Entry(name="chat", priority=3), Profile(clients=["a"], priority=2, keep_alive_s=60)
    assert wishes.standing(wishes.Fields(x_priority=1, x_keep_alive_s=0), entry, profile) == (1, 0)
    assert wishes.standing(wishes.Fields(), entry, profile) == (2, 60)
    assert wishes.standing(wishes.Fields(), entry, None) == (3, None)


@pytest.mark.parametrize(
    ("body", "header", "ms"),
    [
        ({"x_deadline_ms": 700}, b"600", 700),
        ({}, b"2.5", 2500),
        ({"stream": False}, b"2.5", 2500),
        ({"stream": True}, b"2.5", None),
        ({}, b"NOT_GIVEN", None),
        ({}, b"inf", None),
        ({}, b"0", None),
        ({}, b"1e9", None),
        ({}, b"", None),
    ],
)
def test_a_clients_own_time_out_is_a_deadline(body: dict[str, Any], header: bytes, ms: int | None) -> None:
    assert wishes.patience_ms(wishes.wish_of(json.dumps(body).encode(), b"application/json"), header) == ms


def test_a_request_for_an_endpoint_elsewhere_carries_its_own_key_name_and_path_and_nothing_of_ours() -> None:
    body = {"model": "cloud", "messages": [], "stream": True, "x_client_id": "agent"}
    wish = wishes.wish_of(json.dumps(body).encode(), b"application/json")
    there = wishes.body_for(wish, CHAT, ENTRIES[3], None)
    headers = [(b"host", b"engine"), (b"authorization", b"Bearer client"), (b"accept", b"*/*")]
    kind = kinds.kind_of("POST", CHAT.encode() + b"?a=1", headers, there, request_id="r", seed=1)
    kind = remote.kind_there(kind, there, CLOUD, "secret")
    assert (kind.target, remote.address_of(CLOUD)) == (b"/openai/v1/chat/completions?a=1", "https://api.example.com")
    assert kind.afar
    mine = [(b"accept", b"*/*"), (b"host", b"api.example.com")]
    assert kind.headers == [*mine, (b"authorization", b"Bearer secret")]
    assert remote.kind_there(kind, there, CLOUD, "").headers == mine
    assert json.loads(kind.body) == {"model": "gpt-x", "messages": [], "stream": True} and kind.api is kinds.Api.OTHER


def test_all_have_failed_where_none_is_left_but_ladders() -> None:
    failed = {name: ModelOutlook(state=State.FAILED) for name in ("chat", "small")}
    models = [Entry(name="chat"), Entry(name="small"), Entry(name="best", ladder=["chat", "small"])]
    assert routing.all_have_failed(models, failed)
    assert not routing.all_have_failed(models, failed | {"small": ModelOutlook(state=State.OFF)})
    assert not routing.all_have_failed([*models, Entry(name="cloud", remote=Remote(url="http://there/v1"))], failed)

"""What a request says for the door, beside what it asks of a model: `x_client_id`, `x_priority`, `x_deadline_ms` and
`x_keep_alive_s`. And the body that an engine gets: without these, with the name that the model has there, and with what
its client's profile or the model's entry says for requests that don't say it themselves. Bodies are JSON, or a form
with a file in it. Pure.

What this file may not do: choose a model (`routing.py`).
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.rules.errors import Refusal
from gateway.rules.kinds import read_fields
from pool.entries import Entry, Profile

_CHATS = ("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/chat/completions/render")
_KWARGS = "chat_template_kwargs"
_LONGEST_MS = 86_400_000


class Fields(msgspec.Struct, frozen=True):
    """What the door takes out."""

    x_client_id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    x_priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    x_deadline_ms: Annotated[int, Meta(ge=1, le=_LONGEST_MS)] | None = None
    x_keep_alive_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None


class Wish(msgspec.Struct, frozen=True):
    body: bytes
    """As the client sent it."""
    model: str = ""
    own: Fields = Fields()
    taken: bool = False
    """Some of them were in the body."""
    fields: Mapping[str, msgspec.Raw] | None = None
    """The others, where it is JSON."""
    parts: tuple[bytes, ...] = ()
    """The others' parts, where it is a form; what is between them is the first of these."""
    model_at: int = 0
    """Which part has the model."""
    unread: str = ""
    """Why the body can't be read."""


_NAMES = frozenset(Fields.__struct_fields__)
MOST_PARTS = 1000
_FORM = re.compile(rb'^multipart/form-data\b.*boundary="?([^";,\s]{1,200})', re.IGNORECASE)
_NAME = re.compile(rb'^content-disposition:[^\r\n]*;\s*name="?([^";\r\n]*)', re.IGNORECASE | re.MULTILINE)


def wish_of(body: bytes, content_type: bytes) -> Wish:
    """Raises Refusal, where one of the door's own fields says what it can't mean."""
    form = _FORM.match(content_type)
    if form is not None:
        return _of_form(body, b"--" + form[1])
    try:
        fields = read_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Wish(body, unread=str(error) if body else "")  # it is no request that an engine takes
    if len(fields) > MOST_PARTS:
        raise Refusal(400, f"a body may have {MOST_PARTS} fields")
    own = {name: fields.pop(name) for name in _NAMES & fields.keys()}
    try:  # what is taken out undecoded may be no text yet
        model = msgspec.json.decode(fields["model"]) if "model" in fields else ""
        msgspec.json.decode(fields.get(_KWARGS, msgspec.Raw(b"null")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"the body can't be read: {error}") from None
    if not isinstance(model, str | None):
        raise Refusal(400, f"model is a name in quotes, and not {msgspec.json.encode(model).decode()[:80]}")
    return Wish(body, model or "", _read(own), bool(own), fields)


def _of_form(body: bytes, between: bytes) -> Wish:
    """A part: headers, an empty line, what it says."""
    kept, own, model, model_at = [between], dict[str, msgspec.Raw](), "", 0
    pieces = body.split(between, MOST_PARTS)
    if len(pieces) > MOST_PARTS:
        raise Refusal(400, f"a form may have {MOST_PARTS} parts")
    for part in pieces:
        head, _, said = part.partition(b"\r\n\r\n")
        found = _NAME.search(head)
        name = found[1].decode("utf-8", "replace") if found is not None else ""
        if name in _NAMES:
            said = said.removesuffix(b"\r\n")
            own[name] = msgspec.Raw(
                msgspec.json.encode(said.decode("utf-8", "replace")) if name == "x_client_id" else said
            )
            continue
        if name == "model":
            model, model_at = said.removesuffix(b"\r\n").decode("utf-8", "replace"), len(kept)
        kept.append(part)
    return Wish(body, model, _read(own), bool(own), parts=tuple(kept), model_at=model_at)


def _read(own: Mapping[str, msgspec.Raw]) -> Fields:
    try:
        return msgspec.json.decode(
            b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), raw) for name, raw in own.items()), type=Fields
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"{', '.join(sorted(own))}: {error}") from None


def patience_ms(wish: Wish, read_timeout: bytes) -> int | None:
    """How long its client waits for the answer to begin. `read_timeout`: what OpenAI's clients say in the header
    `x-stainless-read-timeout`; comments keep that of a stream from passing.
    """
    if wish.own.x_deadline_ms is not None:
        return wish.own.x_deadline_ms
    streams = (wish.fields or {}).get("stream")
    try:
        ms = int(float(read_timeout) * 1000)
    except (ValueError, OverflowError):
        return None
    return ms if 0 < ms <= _LONGEST_MS and (streams is None or bytes(streams) != b"true") else None


def standing(own: Fields, entry: Entry, profile: Profile | None) -> tuple[int, float | None]:
    """How urgent it is, and for how long its model is to stay awake after it: as it says, else its client's profile."""
    priority, keep_alive_s = own.x_priority, own.x_keep_alive_s
    if profile is not None:
        priority = profile.priority if priority is None else priority
        keep_alive_s = profile.keep_alive_s if keep_alive_s is None else keep_alive_s
    return entry.priority if priority is None else priority, keep_alive_s


# -- what an engine gets ---------------------------------------------------------------------------------------------


def body_for(wish: Wish, path: str, entry: Entry, profile: Profile | None) -> bytes:
    """The same bytes where nothing has to be another."""
    model = entry.name if entry.remote is None else entry.remote.model or entry.name
    if wish.fields is not None:
        add = _defaults(wish.fields, path, entry, profile)
        if wish.model != model:
            add["model"] = model
        return msgspec.json.encode({**wish.fields, **add}) if add or wish.taken else wish.body
    if not wish.parts or (wish.model == model and not wish.taken):
        return wish.body
    between, *parts = wish.parts
    if wish.model_at:
        head = parts[wish.model_at - 1].partition(b"\r\n\r\n")[0]
        parts[wish.model_at - 1] = b"%b\r\n\r\n%b\r\n" % (head, model.encode())
    return between.join(parts)


def _defaults(fields: Mapping[str, msgspec.Raw], path: str, entry: Entry, profile: Profile | None) -> dict[str, object]:
    """What the request doesn't say. Of `chat_template_kwargs` each is one of its own."""
    said = {"chat_template": entry.chat_template} if entry.chat_template else dict[str, object]()
    said |= entry.defaults | (profile.defaults if profile is not None else {})
    add = {name: value for name, value in said.items() if name not in fields}
    kwargs = _kwargs(entry.defaults) | (_kwargs(profile.defaults) if profile is not None else {})
    given = msgspec.json.decode(fields[_KWARGS]) if _KWARGS in fields else None
    if kwargs and isinstance(given, dict | None):
        add[_KWARGS] = kwargs | (given or {})
    if path not in _CHATS:
        add.pop(_KWARGS, None)
        add.pop("chat_template", None)
    return add


def _kwargs(defaults: Mapping[str, Any]) -> dict[str, object]:
    found = defaults.get(_KWARGS)
    return found if isinstance(found, dict) else {}

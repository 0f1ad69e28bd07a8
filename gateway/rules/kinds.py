"""What a request is, and what becomes of its answer when the engine that makes it is lost. Pure.

CONTINUED   The tokens so far are all that the rest depends on: prompt and tokens so far, as a completion.
COMPARED    It depends on more (a grammar, a parser, penalties), but is the same every time: asked again whole, and
            nothing is passed on while it repeats what the client has.
RESTARTED   The client has nothing yet, which is so for every answer that doesn't stream: asked again whole.
ENDED       None of these: an error that says so.

A request is CONTINUED only when each of its fields is known to allow that; a field that isn't known here makes it
COMPARED. So that a compared answer is the same every time, it gets a seed if its client gave none.
"""

import enum
import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.rules import errors

Headers = list[tuple[bytes, bytes]]


class Api(enum.Enum):
    COMPLETION = "completion"
    CHAT = "chat"
    OTHER = "other"


class Recovery(enum.Enum):
    CONTINUED = "continued"
    COMPARED = "compared"
    RESTARTED = "restarted"
    ENDED = "ended"


class Kind(msgspec.Struct, frozen=True):
    method: str
    target: bytes
    headers: Headers
    """As an engine gets them."""
    body: bytes
    """As an engine gets it, the first time and whenever it is asked for the whole."""
    request_id: str = ""
    fingerprint: int = 0
    """It tells path and body, as the client sent them, from others; 0 without a body. Python's own hash of bytes has
    a secret key."""
    api: Api = Api.OTHER
    recovery: Recovery = Recovery.ENDED
    """What can be done once the client has some of the answer. Before, it is restarted, if it is repeatable."""
    why: str = ""
    """Why it isn't continued: the field that forbids it."""
    repeatable: bool = True
    """It may be sent twice: it only asks."""
    streams: bool = False
    choices: int = 1
    """As many as its answer has."""
    per_prompt: int = 1
    """How many of them are for the same prompt."""
    wants_ids: bool = False
    """The client asked for token ids itself."""
    logprobs: bool = False
    usage: bool = False
    running_usage: bool = False
    same_again: bool = False
    """Asked again it would have the same answer."""
    seeded: bool = False
    """The seed is ours: another one will do where the answer is continued."""
    model: str = ""
    lease: int = 0
    """The token of the exclusive lease that it carries."""
    client: str = ""
    """What it calls itself, or its key or address: where a pool says what each may have."""
    priority: int = 0
    until: float = math.inf
    """It is to have an engine by then."""
    ladder: bool = False
    """Another model may answer it."""
    afar: bool = False
    """What answers it is elsewhere: no shim may judge that."""


class NotAllowed(Exception):
    """A path that isn't relayed."""


class WrongMethod(Exception):
    """A path that is relayed, and a method that isn't."""


MOST_CHOICES = 1024
"""A streamed answer with more for each prompt is passed on as it comes: no account is kept of it. So is one whose `n`
is no number here: an engine may take 2.0 or "2" for 2."""
LEASE = b"x-failover-lease"
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")
_NOT_UNDER_V1 = {
    "/tokenize",
    "/detokenize",
    "/classify",
    "/pooling",
    "/score",
    "/rerank",
    "/v2/rerank",
    "/v2/embed",
    "/cohere/v2/chat",
    "/generative_scoring",
}
"""Where vLLM answers beside `/v1`; `tests/vllm/test_routes.py` asks it. All of these only ask."""
_PATH = re.compile(rb"/v1(?:/[A-Za-z0-9_~-][A-Za-z0-9._~:-]*)+")
_EXACT = frozenset(path.encode() for path in _NOT_UNDER_V1 | {"/version", "/health"})
_ASKS = _NOT_UNDER_V1 | {
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/messages/render",
    "/v1/responses",
    "/v1/responses/render",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/render",
    "/v1/completions/derender",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/classify",
    "/v1/pooling",
    "/v1/systemone",
}
"""What may be posted twice, beside completions and chats: it changes nothing."""

SAMPLING = frozenset(
    (
        *("model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "allowed_token_ids", "logit_bias"),
        *("stop_token_ids", "ignore_eos", "include_stop_str_in_output", "return_tokens_as_token_ids"),
        *("skip_special_tokens", "spaces_between_special_tokens", "stream_interval"),
        *("priority", "cache_salt", "user", "session_id"),
    )
)
"""Fields that mean the same for the rest of an answer as for all of it. A repetition penalty looks at prompt and
answer alike; those over the answer alone don't stand here."""
_ONCE = frozenset(
    (
        *("prompt", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "n", "stop"),
        *("stream", "stream_options", "return_token_ids", "truncate_prompt_tokens", "truncation_side"),
        *("add_special_tokens", "add_generation_prompt", "continue_final_message", "chat_template"),
        *("chat_template_kwargs", "documents", "reasoning_effort", "request_id", "metadata", "service_tier"),
        *("prompt_cache_key", "safety_identifier"),
    )
)
"""Fields that have done their work once the prompt's tokens are known, or that the door sees to itself."""
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "seed": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "prompt_logprobs": (),
    "bad_words": ([],),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "include_reasoning": (True,),
    "return_prompt_text": (False,),
    "top_logprobs": (0,),
    "store": (False,),
    "logprobs": (False,),
    "modalities": (["text"],),
}
"""Fields that forbid continuing unless they have one of these values, or null, which ask for nothing."""

_Raw = dict[str, msgspec.Raw]
read_fields = msgspec.json.Decoder(_Raw).decode


class _Asked(msgspec.Struct):
    """All that counts while nothing is streamed."""

    model: Any = None
    stream: Any = None


_read_asked = msgspec.json.Decoder(_Asked).decode


_GENERATES = {"/v1/completions": Api.COMPLETION, "/v1/chat/completions": Api.CHAT}
_KNOWN = {path.encode(): path for path in (*_GENERATES, *_ASKS, "/v1/models")}


def allowed(method: str, target: bytes) -> str:
    """The path, if it is relayed. Raises NotAllowed or WrongMethod."""
    if target in _KNOWN and method in METHODS:
        return _KNOWN[target]
    path = target.partition(b"?")[0]
    if path not in _EXACT and not _PATH.fullmatch(path):
        raise NotAllowed
    if method not in METHODS:
        raise WrongMethod
    return path.decode("ascii")


def kind_of(
    method: str,
    target: bytes,
    headers: Headers,
    body: bytes,
    *,
    request_id: str,
    seed: int,
    parses: Callable[[str], bool] = lambda model: False,
    tells_ids: bool = True,
) -> Kind:
    """What has come. `parses`: are a model's chats known to go through a parser of the engine's? `tells_ids`: its
    engine may tell token ids. Raises NotAllowed or WrongMethod.
    """
    path = allowed(method, target)
    named = request_id, hash((path, body)) if body else 0
    again, model, streams = method != "DELETE", "", False
    if method == "POST" and path in _GENERATES:
        try:
            asked = _read_asked(body)
            model = asked.model if isinstance(asked.model, str) else ""
            kind = Kind(method, target, headers, body, *named, _GENERATES[path], model=model)
            return kind if asked.stream is not True else _streaming(kind, read_fields(body), seed, parses, tells_ids)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError, KeyError):
            model = ""  # it is no request that an engine takes: the engine says what is wrong with it
    elif method == "POST":
        again = path in _ASKS
        model, streams = _model_and_stream(body, headers)
    return Kind(method, target, headers, body, *named, repeatable=again, streams=streams, model=model)


def carrying(kind: Kind, token: bytes) -> Kind:
    """The same with the token of an exclusive lease, as its header has it. Raises errors.Refusal."""
    token = token.strip(b" \t")
    if not token:
        return kind
    if not token.isdigit() or len(token) > 18:
        raise errors.Refusal(400, "x-failover-lease has to be the token of a lease")
    return msgspec.structs.replace(kind, lease=int(token))


def _streaming(base: Kind, fields: _Raw, seed: int, parses: Callable[[str], bool], tells_ids: bool) -> Kind:
    if _per_prompt(fields) > MOST_CHOICES or type(value(fields, "n")) not in (int, type(None)):
        return msgspec.structs.replace(base, streams=True, api=Api.OTHER)
    options = value(fields, "stream_options")
    usage = isinstance(options, dict) and options.get("include_usage") is True
    why = _why_not_continued(base.api, fields)
    if not why and base.api is Api.CHAT and parses(base.model):
        why = "reasoning"
    if not why and not tells_ids:
        why = "token_ids"
    greedy = value(fields, "temperature") == 0
    if not why and not greedy and value(fields, "seed") is not None:
        why = "seed"
    seeded = bool(why) and not greedy and value(fields, "seed") is None
    ids = value(fields, "return_token_ids") is True
    add: dict[str, object] = {}
    if not ids and value(fields, "echo") is not True:  # vLLM leaves an echo's text out beside token ids
        add["return_token_ids"] = True
    if seeded:
        add["seed"] = seed
    return msgspec.structs.replace(
        base,
        streams=True,
        body=_extended(base.body, fields, add),
        recovery=Recovery.COMPARED if why else Recovery.CONTINUED,
        why=why,
        choices=_per_prompt(fields) * _prompts(base.api, fields),
        per_prompt=_per_prompt(fields),
        wants_ids=ids,
        logprobs=base.api is Api.COMPLETION and value(fields, "logprobs") is not None,
        usage=usage,
        running_usage=usage and isinstance(options, dict) and options.get("continuous_usage_stats") is True,
        same_again=greedy or seeded or value(fields, "seed") is not None,
        seeded=seeded,
    )


_COUNTS = ("max_tokens", "max_completion_tokens", "min_tokens")


def _why_not_continued(api: Api, fields: _Raw) -> str:
    """The first field that forbids it."""
    for name, raw in fields.items():
        if name in _COUNTS and type(value(fields, name)) not in (int, type(None)):
            return name  # an engine may take "50" for 50; the door doesn't count with it
        if name in SAMPLING or name in _ONCE or bytes(raw) == b"null":
            continue
        if name == "logprobs" and api is Api.COMPLETION:
            continue
        neutral = _NEUTRAL.get(name)
        if name == "seed":
            continue
        given = msgspec.json.decode(raw)
        if neutral is None or not any(type(given) is type(one) and given == one for one in neutral):
            if name == "tool_choice" and value(fields, "tools") in (None, []):
                continue
            return name
    return "messages" if api is Api.CHAT and not _only_text(fields) else ""


def _only_text(fields: _Raw) -> bool:
    """Else the prompt's tokens are not all of the prompt: some stand for a picture or a sound."""
    for message in msgspec.json.decode(fields["messages"], type=list[_Raw]):
        content = bytes(message.get("content", msgspec.Raw(b"null")))
        if content.startswith(b"["):
            parts = msgspec.json.decode(content, type=list[_Raw])
            if any(set(part) != {"type", "text"} or bytes(part["type"]) != b'"text"' for part in parts):
                return False
    return True


def _per_prompt(fields: _Raw) -> int:
    n = value(fields, "n")
    return n if isinstance(n, int) and n > 0 else 1


def _prompts(api: Api, fields: _Raw) -> int:
    prompt = value(fields, "prompt") if api is Api.COMPLETION else None
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return 1
    return len(prompt)


def _extended(body: bytes, fields: _Raw, add: dict[str, object]) -> bytes:
    """The same body with these fields, which are there only once afterwards."""
    if not add:
        return body
    if not fields or any(name in fields for name in add):
        return msgspec.json.encode({**fields, **add})
    at = body.index(b"{") + 1
    return body[:at] + msgspec.json.encode(add)[1:-1] + b"," + body[at:]


def _model_and_stream(body: bytes, headers: Headers) -> tuple[str, bool]:
    """What can be told of a body of no kind that is known here: JSON, or a form with a file in it."""
    try:
        fields = read_fields(body)
        model = value(fields, "model")
        return (model if isinstance(model, str) else ""), value(fields, "stream") is True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = re.search(rb'name="model"\r\n(?:[^\r\n]{1,1000}\r\n){0,8}\r\n([^\r\n]{0,1000})\r\n', body)
        return (found[1].decode("utf-8", "replace") if found else ""), False


def value(fields: _Raw, name: str) -> Any:
    raw = fields.get(name)
    return None if raw is None else msgspec.json.decode(raw)

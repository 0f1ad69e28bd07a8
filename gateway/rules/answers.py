"""What a client has of a streamed answer: for each choice the tokens, the text, what a parser made of it, and its end.

`Account.take` is given every event that goes to the client. When the engine is lost this is all that is known, and all
that is needed to go on. The other half of this file says the rest in the words of the answer's beginning: same id, same
model, and usage counted over all of it. Pure.

What this file may not do: know where events come from, or decide (`request.py`).
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from gateway.rules.kinds import Api, Kind
from gateway.rules.sse import data_of, event

_BROKEN_OFF = ("abort", "error")
"""Reasons of an engine's to end an answer that isn't finished."""
_IDS_KEY, _IDS = b'token_ids":', re.compile(rb'token_ids":\s*\[[^\]]*\]')


_ABSENT = msgspec.Raw(b"null")


class Malformed(Exception):
    """An engine says what it can't mean."""


class BrokenOff(Exception):
    """An engine ends an answer that isn't finished, and says so."""


# -- a chunk, as far as it matters ---------------------------------------------------------------------------------


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class Delta(msgspec.Struct, gc=False):
    content: str | None = None
    role: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class CompletionLogprobs(msgspec.Struct, gc=False):
    tokens: list[str] = []
    text_offset: list[int] = []


class ChunkChoice(msgspec.Struct, gc=False):
    index: int = 0
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    stop_reason: int | str | None = None
    logprobs: CompletionLogprobs | None = None
    """A chat's have another form, of which nothing is needed."""


class Chunk(msgspec.Struct, gc=False):
    choices: list[ChunkChoice] = []
    error: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT
    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    prompt_token_ids: list[int] | None = None
    system_fingerprint: str | None = None


_decode = msgspec.json.Decoder(Chunk).decode


def read(data: bytes, choices: int) -> Chunk:
    """A chunk of an answer with so many choices. Raises Malformed or BrokenOff."""
    try:
        chunk = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"an event of its stream is no chunk of an answer: {error}") from None
    if chunk.error is not _ABSENT and bytes(chunk.error) != b"null":
        raise BrokenOff("it says: " + _message(chunk.error))
    if chunk.object == "error":  # vLLM's older form: the error's fields are the event's own
        raise BrokenOff("it says: " + _message(data))
    for said in chunk.choices:
        if not 0 <= said.index < choices:
            raise Malformed(f"a chunk is for choice {said.index} of {choices}")
        if said.finish_reason in _BROKEN_OFF:
            raise BrokenOff(f"it ended the answer with finish_reason {said.finish_reason!r}")
    return chunk


def broken_off(body: bytes) -> str:
    """Why an answer in one piece isn't whole, as the engine itself says. Empty if it is."""
    if b'"abort"' not in body and b'"error"' not in body:
        return ""
    try:
        read(body, 1 << 30)
    except BrokenOff as error:
        return str(error)
    except Malformed:
        pass  # the client sees what it is
    return ""


_READ_MOST = 1 << 20
"""A larger answer is only looked at where it ends: 6 MB of embeddings took 30 ms to read, in one go."""


class _Whole(msgspec.Struct, gc=False):
    choices: Annotated[list[dict[str, msgspec.Raw]], msgspec.Meta(min_length=1)]


def why_no_answer(body: bytes, *, choices: bool) -> str:
    """What is wrong with a body that should be JSON (with `choices`: of a completion or a chat); empty if nothing is. A
    proxy in between may answer with a page; an engine that ends may leave half of its answer.
    """
    if not body:
        return "its answer has no body"
    if len(body) > _READ_MOST:
        return "" if body.rstrip().endswith((b"}", b"]")) else "its answer is none: it ends in the middle"
    try:
        body.decode()  # msgspec looks into no value that isn't asked for
        msgspec.json.decode(body, type=_Whole if choices else msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"its answer is none: {error}"
    return ""


def tokens(ids: Sequence[int]) -> "array[int]":
    """Raises Malformed."""
    try:
        return array("i", ids)
    except OverflowError:
        raise Malformed(f"there can't be a token {max(ids)}") from None


class _Code(msgspec.Struct, gc=False):
    code: int | str | None = None


class _Error(_Code, gc=False):
    error: _Code | None = None


# -- the account ---------------------------------------------------------------------------------------------------


class ToolCall:
    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id, self.name, self.arguments = "", "", ""


class Choice:
    """What the client has of one choice."""

    __slots__ = ("blanks", "finish", "ids", "offset", "parsed", "prompt", "reasoning", "role", "text", "told", "tools")

    def __init__(self) -> None:
        self.ids = array("i")
        self.text = bytearray()
        self.told = 0
        """How many tokens the client had, without any text, when the choice began anew."""
        self.blanks = 0
        """How many of its pieces had neither text nor token ids."""
        self.prompt: array[int] | None = None
        self.finish: str | None = None
        self.role = False
        """It has had the chunk with the role."""
        self.parsed = False
        """Something of the engine's stands between its tokens and what the client gets."""
        self.reasoning = bytearray()
        self.tools: list[ToolCall] | None = None
        self.offset = 0
        """Where the text of the next token begins, as log probabilities count it."""

    @property
    def empty(self) -> bool:
        return not (self.ids or self.told or self.text or self.reasoning or self.tools or self.finish)


class Account:
    """What the client has of one answer."""

    __slots__ = ("_wanted", "choices", "created", "fingerprint", "id", "model", "object", "usage")

    def __init__(self, kind: Kind) -> None:
        self.choices: list[Choice] = []
        self.id, self.object, self.created, self.model = "", "", 0, ""
        self.fingerprint: str | None = None
        """The engine says it where an answer ends."""
        self._wanted = kind.choices
        self.usage = False
        """The client has the closing chunk with the usage."""

    @property
    def empty(self) -> bool:
        """The client has nothing of an answer; a role is nothing."""
        return all(choice.empty for choice in self.choices)

    @property
    def complete(self) -> bool:
        """Every choice is finished."""
        choices = self.choices
        return len(choices) == self._wanted and all(choice.finish is not None for choice in choices)

    @property
    def tokens(self) -> int:
        return sum(len(choice.ids) for choice in self.choices)

    def had(self, index: int) -> Choice:
        return self.choices[index] if index < len(self.choices) else Choice()

    def choice_for(self, index: int) -> Choice:
        """To write down what comes."""
        choices = self.choices
        while len(choices) <= index:
            choices.append(Choice())
        return choices[index]

    def take(self, data: bytes) -> Chunk:
        """One event of the answer. Raises Malformed or BrokenOff, and then has taken nothing of it."""
        chunk = read(data, self._wanted)
        if not self.id:
            self.id, self.object, self.created, self.model = chunk.id, chunk.object, chunk.created, chunk.model
        if not chunk.choices and bytes(chunk.usage) != b"null":
            self.usage = True
        self.fingerprint = chunk.system_fingerprint or self.fingerprint
        for said in chunk.choices:
            index = said.index
            choice = self.choices[index] if index < len(self.choices) else self.choice_for(index)
            ids = said.token_ids
            if ids:
                try:
                    choice.ids.extend(ids)
                except OverflowError:
                    raise Malformed(f"there can't be a token {max(ids)}") from None
            if said.text:
                choice.text += said.text.encode()
            elif said.delta is not None:
                _count_delta(choice, said.delta, bool(ids))
            elif not ids:
                choice.blanks += 1
            if said.finish_reason is not None:
                choice.finish = choice.finish or said.finish_reason
            if choice.prompt is None:
                prompt = said.prompt_token_ids or chunk.prompt_token_ids
                choice.prompt = None if prompt is None else tokens(prompt)
            if said.logprobs is not None and said.logprobs.tokens:
                choice.offset = (said.logprobs.text_offset or [0])[-1] + len(said.logprobs.tokens[-1])
        return chunk


def _count_delta(choice: Choice, delta: Delta, has_ids: bool) -> None:
    if delta.content:
        choice.text += delta.content.encode()
    elif not has_ids:
        choice.blanks += 1
    elif delta.content is None:
        choice.parsed = True
    if delta.role is not None:
        choice.role = True
    reasoning = delta.reasoning or delta.reasoning_content
    if reasoning or delta.refusal:
        choice.parsed = True
        choice.reasoning += ((reasoning or "") + (delta.refusal or "")).encode()
    for call in delta.tool_calls or ():
        choice.parsed = True
        tools = choice.tools = choice.tools or []
        while len(tools) <= call.index < 1000:
            tools.append(ToolCall())
        tool = tools[call.index]
        tool.id = tool.id or call.id or ""
        if call.function is not None:
            tool.name += call.function.name or ""
            tool.arguments += call.function.arguments or ""


def _message(error: bytes) -> str:
    """OpenAI's form of an error, or whatever it is."""
    try:
        found = msgspec.json.decode(error)
    except msgspec.DecodeError:
        return "an error"
    said = found.get("message", "an error") if isinstance(found, dict) else found
    return str(said)[:500]


def error_of(said: bytes) -> tuple[int, bytes]:
    """The status and the body of an answer that is nothing but this event of an error."""
    body = data_of(said) or b""
    try:
        found = msgspec.json.decode(body, type=_Error)
        code = (found.error or found).code
    except (msgspec.DecodeError, UnicodeDecodeError):
        code = None
    return code if isinstance(code, int) and 400 <= code <= 599 else 500, body


@dataclass(slots=True)
class Piece:
    """What an engine that goes on with an answer adds to a choice."""

    ids: Sequence[int]
    text: str
    logprobs: Any = None
    finish: str | None = None
    stop: int | str | None = None


# -- how it is passed on -------------------------------------------------------------------------------------------


def without_ids(data: bytes) -> bytes:
    """What the engine would have said to a client that didn't ask for token ids. Only the end of a name can match: a
    quote within a string has a backslash before it.
    """
    return _IDS.sub(b'token_ids":null', data) if _IDS_KEY in data else data


_NOTHING = Delta()


def may_say_nothing(chunk: Chunk) -> bool:
    return any(said.delta == _NOTHING and said.finish_reason is None for said in chunk.choices)


def says_nothing(choices: Sequence[Mapping[str, Any]]) -> bool:
    """vLLM has such a chunk, for a token that its parser keeps to itself, only for a client that asks for token ids."""
    return bool(choices) and all(
        choice.get("delta") == {} and choice.get("finish_reason") is None and not choice.get("logprobs")
        for choice in choices
    )


def chunk_of(kind: Kind, account: Account, index: int, piece: Piece) -> bytes:
    """A chunk of the door's own, as the engine of the answer's beginning would have said it."""
    shown = list(piece.ids) if kind.wants_ids else None
    choice: dict[str, Any] = {"index": index}
    if kind.api is Api.CHAT:
        choice |= {"delta": {"content": piece.text}, "logprobs": piece.logprobs, "finish_reason": piece.finish}
        if piece.finish is not None:
            choice["stop_reason"] = piece.stop
        choice["token_ids"] = shown
    else:
        choice |= {"text": piece.text, "logprobs": piece.logprobs, "finish_reason": piece.finish}
        choice |= {"stop_reason": piece.stop, "prompt_token_ids": None, "token_ids": shown}
    body = _head(account) | {"choices": [choice]}
    if piece.finish is not None and account.fingerprint is not None and not kind.usage:
        body["system_fingerprint"] = account.fingerprint
    if kind.running_usage:
        has = account.had(index)
        body["usage"] = usage_of(len(has.prompt or ()), len(has.ids))
    return event(msgspec.json.encode(body))


def role_of(account: Account, index: int) -> bytes:
    """What a chat's choice begins with."""
    delta = {"role": "assistant", "content": ""}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
    return event(msgspec.json.encode(_head(account) | {"choices": [choice]}))


def closing_usage(kind: Kind, account: Account) -> bytes:
    prompt = sum(len(choice.prompt or ()) for choice in account.choices[:: kind.per_prompt])
    body = _head(account) | {"choices": [], "usage": usage_of(prompt, account.tokens)}
    if account.fingerprint is not None:
        body["system_fingerprint"] = account.fingerprint
    return event(msgspec.json.encode(body))


def usage_of(prompt: int, completion: int) -> Mapping[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def _head(account: Account) -> dict[str, Any]:
    return {"id": account.id, "object": account.object, "created": account.created, "model": account.model}

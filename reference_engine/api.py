"""What OpenAI's clients say and want to hear, in the form that vLLM gives it, with token ids where they are asked for.

`return_token_ids`: the prompt's ids come with the first chunk, for completions in its choice, for chats beside it; each
chunk's choice has the ids that it adds. An answer without streaming has both.

What can't be had here is refused by name; what is unknown is ignored, as vLLM does. Pure: `app.py` says where the
requests come from.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from reference_engine import tokenizer
from reference_engine.answer import Piece, Question
from reference_engine.sampling import Sampling


class Bad(Exception):
    """A request that gets an answer with this status, and why."""

    def __init__(self, why: str, *, status: int = 400, param: str | None = None, allow: str = "") -> None:
        super().__init__(why)
        self.status = status
        self.param = param
        self.allow = allow
        """Of status 405: what is allowed."""


_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    431: "HeadersTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}


def error_body(status: int, why: str, param: str | None = None) -> bytes:
    kind = _TYPES.get(status, "BadRequestError")
    return msgspec.json.encode({"error": {"message": why, "type": kind, "param": param, "code": status}})


# -- requests ------------------------------------------------------------------------------------------------------

_Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Stop = Annotated[str, Meta(min_length=1, max_length=1000)]


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Common(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=64)] | None = None
    stop_token_ids: Annotated[list[_Token], Meta(max_length=1000)] | None = None
    include_stop_str_in_output: bool | None = False
    ignore_eos: bool | None = False
    min_tokens: Annotated[int, Meta(ge=0)] | None = 0
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    skip_special_tokens: bool | None = True
    return_token_ids: bool | None = False
    add_special_tokens: bool | None = None


class Completion(_Common, kw_only=True):
    prompt: str | list[str | _Token | list[_Token]]


class _Text(msgspec.Struct):
    type: Literal["text"]
    text: str


class Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Text] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


_Messages = Annotated[list[Message], Meta(min_length=1, max_length=10_000)]


class Chat(_Common, kw_only=True):
    messages: _Messages
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = False


class Tokenize(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: _Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = False
    return_token_strs: bool | None = False


class Detokenize(msgspec.Struct):
    tokens: list[_Token]
    model: str | None = None


_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "min_p": (0, 0.0),
    "logit_bias": ({},),
    "use_beam_search": (False,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "chat_template": (),
    "audio": (),
}
"""What isn't offered here, and the values that ask for nothing (as null does)."""

RequestT = TypeVar("RequestT", Completion, Chat, Tokenize, Detokenize)


def read(body: bytes, kind: type[RequestT]) -> RequestT:
    """Raises Bad."""
    try:
        raw = msgspec.json.decode(body)
        if not isinstance(raw, dict):
            raise Bad("the body has to be a JSON object")
        if issubclass(kind, _Common):
            _refuse_what_isnt_offered(raw)
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise Bad(str(error), param=_named(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Bad(f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Bad("the body is nested too deeply") from None


def _refuse_what_isnt_offered(raw: Mapping[str, Any]) -> None:
    for name, neutral in _NEUTRAL.items():
        value = raw.get(name)
        if value is not None and not any(type(value) is type(allowed) and value == allowed for allowed in neutral):
            raise Bad(f"{name!r} isn't supported by the reference engine; leave it out", param=name)


def _named(error: str) -> str | None:
    """msgspec says at its end where: "... - at `$.max_tokens`"."""
    where = error.rpartition("`$.")[2].rstrip("`") if "`$." in error else ""
    return where or None


# -- what they ask for ---------------------------------------------------------------------------------------------


def completion_prompt(request: Completion, max_len: int) -> list[int]:
    """Raises Bad."""
    prompt: str | list[str | int | list[int]] | list[int] = request.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise Bad("one prompt at a time: the reference engine doesn't take several", param="prompt")
        prompt = prompt[0]
    if isinstance(prompt, str):
        _check_size(prompt, max_len)
        return [*([] if request.add_special_tokens is False else [tokenizer.BEGIN]), *tokenizer.encode(prompt)]
    if not isinstance(prompt, list):
        raise Bad("the prompt is a text or a list of token ids", param="prompt")
    tokens = [token for token in prompt if isinstance(token, int)]
    if not tokens or len(tokens) != len(prompt):
        raise Bad("the prompt is empty, or mixes texts and token ids", param="prompt")
    _check_tokens(tokens, "prompt")
    return tokens


def chat_prompt(request: Chat | Tokenize, messages: list[Message], max_len: int) -> list[int]:
    """Raises Bad."""
    texts = [(message.role, message.text) for message in messages]
    for _, text in texts:
        _check_size(text, max_len)
    left_open = bool(request.continue_final_message)
    if left_open and request.add_generation_prompt:
        raise Bad("continue_final_message and add_generation_prompt exclude each other", param="continue_final_message")
    begin = request.add_generation_prompt is not False
    return tokenizer.chat(texts, begin_answer=begin, leave_last_open=left_open)


def question(request: Completion | Chat, prompt: list[int], max_len: int) -> Question:
    """Raises Bad."""
    room = max_len - len(prompt)
    if isinstance(request, Chat):
        wanted, name = request.max_completion_tokens or request.max_tokens, "max_completion_tokens"
    else:
        wanted, name = request.max_tokens or 16, "max_tokens"
    if room < 1 or (wanted or 0) > room:
        asked = f"{wanted} tokens are asked for" if wanted else "no room is left for an answer"
        raise Bad(
            f"this model's context is {max_len} tokens; the prompt has {len(prompt)}, and {asked}",
            param=name if wanted and room > 0 else "prompt" if isinstance(request, Completion) else "messages",
        )
    max_tokens = wanted or room
    if (request.min_tokens or 0) > max_tokens:
        raise Bad(f"min_tokens {request.min_tokens} is more than max_tokens {max_tokens}", param="min_tokens")
    _check_tokens(request.stop_token_ids or [], "stop_token_ids")
    stop = request.stop or []
    return Question(
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        sampling=Sampling(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            top_k=max(0, request.top_k or 0),
            seed=request.seed,
        ),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        keep_stop=bool(request.include_stop_str_in_output),
        ignore_end=bool(request.ignore_eos),
        min_tokens=request.min_tokens or 0,
        show_special=request.skip_special_tokens is False,
    )


def tokenize(request: Tokenize, max_len: int) -> bytes:
    """Raises Bad."""
    if (request.prompt is None) is (request.messages is None):
        raise Bad("either a prompt or messages", param="prompt")
    if request.messages is not None:
        tokens = chat_prompt(request, request.messages, 1 << 30)
    else:
        begin = [] if request.add_special_tokens is False else [tokenizer.BEGIN]
        tokens = begin + tokenizer.encode(request.prompt or "")
    strings = [tokenizer.decode([token]) for token in tokens] if request.return_token_strs else None
    return msgspec.json.encode(
        {"count": len(tokens), "max_model_len": max_len, "tokens": tokens, "token_strs": strings}
    )


def detokenize(request: Detokenize) -> bytes:
    """Raises Bad."""
    _check_tokens(request.tokens, "tokens")
    return msgspec.json.encode({"prompt": tokenizer.decode(request.tokens)})


def _check_size(text: str, max_len: int) -> None:
    """Before time is spent on it."""
    least = len(text) // tokenizer.BYTES_MAX
    if least > max_len:
        raise Bad(f"this model's context is {max_len} tokens, and the prompt has at least {least}", param="prompt")


def _check_tokens(tokens: list[int], param: str) -> None:
    if tokens and max(tokens) >= tokenizer.VOCABULARY:
        wrong = max(tokens)
        raise Bad(f"token id {wrong} is out of the vocabulary: 0 to {tokenizer.VOCABULARY - 1}", param=param)


# -- answers -------------------------------------------------------------------------------------------------------


class Form:
    """How one request's answer is written. Both kinds are alike but for names."""

    def __init__(self, request: Completion | Chat, prompt: list[int], model: str, name: str, created: int) -> None:
        options = request.stream_options or _StreamOptions()
        self._chat = isinstance(request, Chat)
        self._ids = bool(request.return_token_ids)
        self._prompt = prompt
        self._usage = bool(options.include_usage)
        self._running_usage = self._usage and bool(options.continuous_usage_stats)
        self._count = 0
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{name}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created,
            "model": model,
        }

    def chunks(self, piece: Piece) -> list[bytes]:
        """What a stream says of a piece: one chunk as a rule."""
        first = not self._count
        self._count += len(piece.token_ids)
        said = []
        if first and self._chat:
            opening = {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            said.append(self._chunk(opening, 0, {"prompt_token_ids": self._prompt if self._ids else None}))
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
        choice |= {"logprobs": None, "finish_reason": piece.finish_reason}
        if not self._chat or piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if not self._chat:
            choice["prompt_token_ids"] = self._prompt if self._ids and first else None
        choice["token_ids"] = piece.token_ids if self._ids else None
        said.append(self._chunk(choice, self._count, {}))
        if piece.finish_reason is not None:
            if self._usage:
                said.append(_event(self._head | {"choices": [], "usage": self._used(self._count)}))
            said.append(b"data: [DONE]\n\n")
        return said

    def whole(self, pieces: list[Piece]) -> bytes:
        """An answer in one piece."""
        text = "".join(piece.text for piece in pieces)
        tokens = [token for piece in pieces for token in piece.token_ids]
        last = pieces[-1]
        choice: dict[str, Any] = {"index": 0}
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": last.finish_reason, "stop_reason": last.stop_reason}
        body: dict[str, Any] = self._head | {"choices": [choice], "usage": self._used(len(tokens))}
        if self._chat:
            body["object"] = "chat.completion"
        if self._ids:
            choice["token_ids"] = tokens
            (body if self._chat else choice)["prompt_token_ids"] = self._prompt
        return msgspec.json.encode(body)

    def _chunk(self, choice: Mapping[str, Any], count: int, beside: Mapping[str, Any]) -> bytes:
        usage = {"usage": self._used(count)} if self._running_usage else {}
        return _event({**self._head, "choices": [choice], **beside, **usage})

    def _used(self, count: int) -> dict[str, int]:
        prompt = len(self._prompt)
        return {"prompt_tokens": prompt, "total_tokens": prompt + count, "completion_tokens": count}


def _event(what: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(what) + b"\n\n"

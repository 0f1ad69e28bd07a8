"""What OpenAI's clients say, in the form that vLLM takes. Pure.

What can't be had here is refused by name; what is unknown is ignored, as vLLM does. What becomes of a request:
`asking.py`; how it is answered: `forms.py`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta


class Bad(Exception):
    """A request that gets an answer with this status, and why."""

    def __init__(self, why: str, *, status: int = 400, param: str | None = None, allow: str = "") -> None:
        super().__init__(why)
        self.status = status
        self.param = param
        self.allow = allow
        """What is allowed, where the status is 405."""


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

Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Top = Annotated[int, Meta(ge=0, le=20)]
_Json = dict[str, Any]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object"]


class Structured(msgspec.Struct):
    """vLLM's own words for a grammar."""

    choice: Annotated[list[str], Meta(min_length=1, max_length=100)]


class Begun(msgspec.Struct, rename=lambda name: f"failover_answer_{name}"):
    """How much of the prompt's end is an answer, and how much of that its client has."""

    tokens: Annotated[int, Meta(ge=0)] = 0
    chars: Annotated[int, Meta(ge=0)] = 0
    crc32: int = 0


class Common(msgspec.Struct, kw_only=True):
    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=16)] = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    temperature: Annotated[float, Meta(ge=0, le=1e6)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] = 0
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] = 1.0
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] = {}
    bad_words: list[str] = []
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=64)] = []
    stop_token_ids: Annotated[list[Token], Meta(max_length=1000)] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    add_special_tokens: bool = True
    response_format: ResponseFormat | None = None
    structured_outputs: Structured | None = None


class Completion(Common, kw_only=True):
    prompt: str | list[str | Token | list[Token]]
    echo: bool = False
    logprobs: _Top | None = None
    vllm_xargs: Begun | None = None


class Part(msgspec.Struct):
    """A part of a message: text, or a picture, which this model reads as the letters of its address."""

    type: Literal["text", "image_url"]
    text: str = ""
    image_url: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.type == "image_url" and not self.image_url.get("url"):
            raise ValueError("an image_url needs a url")


class Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text or part.image_url["url"] for part in self.content)
        return self.content or ""


Messages = Annotated[list[Message], Meta(min_length=1, max_length=10_000)]


class Function(msgspec.Struct):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    parameters: _Json | None = None


class Tool(msgspec.Struct):
    function: Function
    type: Literal["function"] = "function"


class Chat(Common, kw_only=True):
    messages: Messages
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: _Top = 0
    tools: list[Tool] = []
    tool_choice: Literal["none", "auto", "required"] = "auto"
    chat_template_kwargs: _Json = {}


class Embedding(msgspec.Struct):
    input: str | list[str]
    model: str | None = None


_NEUTRAL: dict[str, tuple[object, ...]] = {
    "min_p": (0, 0.0),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "best_of": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "functions": ([],),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "chat_template": (),
    "audio": (),
}
"""What isn't offered here, and the values that ask for nothing."""

RequestT = TypeVar("RequestT", Completion, Chat, Embedding)


def read(body: bytes, kind: type[RequestT]) -> RequestT:
    """Raises Bad."""
    try:
        raw = msgspec.json.decode(body)
        if not isinstance(raw, dict):
            raise Bad("the body has to be a JSON object")
        raw = {name: value for name, value in raw.items() if value is not None}  # null asks for nothing
        if issubclass(kind, Common):
            _refuse_what_isnt_offered(raw)
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise Bad(str(error), param=_named(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Bad(f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Bad("the body is nested too deeply") from None


def _refuse_what_isnt_offered(raw: Mapping[str, Any]) -> None:
    for name, value in raw.items():
        if name in _NEUTRAL and not any(type(value) is type(each) and value == each for each in _NEUTRAL[name]):
            raise Bad(f"{name!r} isn't supported by the reference engine; leave it out", param=name)


def _named(error: str) -> str | None:
    """msgspec says at its end where: "... - at `$.max_tokens`"."""
    where = error.rpartition("`$.")[2].rstrip("`") if "`$." in error else ""
    return where or None

"""An engine for the simulator: the reference engine's own forms, grammars and samplers over a cheap model.

The model thinks of the last tokens only, and only of their order: so an answer that goes on elsewhere from its tokens
goes on exactly, and an engine that loses, repeats or invents one says something else from there on. Pure.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from reference_engine import api, asking, tokenizer
from reference_engine.answer import Answer, Question
from reference_engine.forms import Form
from reference_engine.model import Floats
from reference_engine.sampling import Sampler, chosen
from reference_engine.weights import _prior

MAX_LEN = 512
MODEL = "sim"
JSON = ((b"content-type", b"application/json"),)
EVENTS = ((b"content-type", b"text/event-stream; charset=utf-8"),)


@lru_cache(maxsize=1)
def _tastes() -> Floats:
    return _prior(tokenizer.VOCABULARY)


@lru_cache(maxsize=20_000)
def _think(last: tuple[int, ...]) -> Floats:
    noise = np.random.PCG64(zlib.crc32(repr(last).encode())).random_raw(tokenizer.VOCABULARY)
    found: Floats = _tastes()[last[-1]] + (np.asarray(noise % 1024, np.float32) / np.float32(256))
    return found


@dataclass(frozen=True)
class Said:
    """A whole HTTP answer: its body in the pieces in which an engine writes it."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    pieces: tuple[bytes, ...]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


def answer(method: str, target: bytes, headers: Any, body: bytes, *, created: int = 1) -> Said:
    """What this engine says to a request."""
    name = dict(headers).get(b"x-request-id", b"none").decode()
    return _answer(target.partition(b"?")[0].decode(), name, body, created)


@lru_cache(maxsize=2000)
def _answer(path: str, name: str, body: bytes, created: int) -> Said:
    try:
        if path == "/v1/models":
            return _json({"object": "list", "data": [{"id": MODEL, "max_model_len": MAX_LEN}]})
        if path == "/v1/completions":
            wanted = api.read(body, api.Completion)
            return _generated(wanted, asking.completion_prompts(wanted, MAX_LEN), name, created)
        if path == "/v1/chat/completions":
            chat = api.read(body, api.Chat)
            return _generated(chat, [asking.chat_prompt(chat, MAX_LEN)], name, created)
    except api.Bad as bad:
        return Said(bad.status, JSON, (api.error_body(bad.status, str(bad), bad.param),))
    return Said(404, JSON, (api.error_body(404, "nothing here"),))


def _json(found: object) -> Said:
    return Said(200, JSON, (json.dumps(found).encode(),))


def _generated(wanted: api.Completion | api.Chat, prompts: list[list[int]], name: str, created: int) -> Said:
    questions = asking.questions(wanted, prompts, MAX_LEN)
    form = Form(wanted, questions, MODEL, name, created)
    pieces: list[bytes] = []
    for index, piece in _together([_pieces(question) for question in questions]):
        if wanted.stream:
            pieces += form.chunks(index, piece)
        else:
            form.gather(index, piece)
    if wanted.stream:
        return Said(200, EVENTS, tuple(pieces))
    return Said(200, JSON, (form.whole(),))


def _together(some: list[Iterator[Any]]) -> Iterator[tuple[int, Any]]:
    """A piece of each, in turns."""
    left = dict(enumerate(some))
    while left:
        for index, pieces in list(left.items()):
            piece = next(pieces, None)
            if piece is None:
                del left[index]
            else:
                yield index, piece


def _pieces(question: Question) -> Iterator[Any]:
    tokens = list(question.prompt)
    sampler, told = Sampler(question.sampling, question.prompt), Answer(question)
    while True:
        logits = _think(tuple(tokens[-5:]))
        token = sampler.choose(logits, told.banned, told.only)
        tokens.append(token)
        piece = told.push(token)
        if question.logprobs is not None:
            piece = replace(piece, logprobs=(chosen(logits, token, question.logprobs),))
        yield piece
        if piece.finish_reason is not None:
            return

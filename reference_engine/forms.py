"""How an answer is written: chunk by chunk or whole, in the form that vLLM gives it.

`return_token_ids`: the prompt's ids come with the first chunk, for completions in its choice, for chats beside it; each
chunk's choice has the ids that it adds. An answer without streaming has both. Pure.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from reference_engine import asking, tokenizer
from reference_engine.answer import Piece, Question
from reference_engine.api import Chat, Completion
from reference_engine.parser import Call, Delta, Parser
from reference_engine.sampling import Chosen


class _Said:
    """What has been written of one choice."""

    def __init__(self, question: Question, parses: bool) -> None:
        self.question = question
        self.count = 0
        self.offset = 0
        self.pieces: list[Piece] = []
        self.parser = Parser() if parses else None
        self.finished = False


class Form:
    """How one request's answer is written. Both kinds are alike but for names."""

    def __init__(
        self, request: Completion | Chat, questions: Sequence[Question], model: str, name: str, created: int
    ) -> None:
        options = request.stream_options
        self._chat = isinstance(request, Chat)
        self._ids = request.return_token_ids
        self._echo = isinstance(request, Completion) and request.echo
        self._choices = [_Said(question, asking.parses(request)) for question in questions]
        self._per_prompt = request.n
        self._usage = bool(options.include_usage)
        self._running_usage = self._usage and bool(options.continuous_usage_stats)
        self._opened = False
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{name}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created,
            "model": model,
        }

    @property
    def complete(self) -> bool:
        return all(said.finished for said in self._choices)

    # -- as it comes -----------------------------------------------------------------------------------------------

    def chunks(self, index: int, piece: Piece) -> list[bytes]:
        """What a stream says of a piece: one chunk as a rule."""
        chunks = []
        if self._chat and not self._opened:
            chunks = [self._opening(place) for place in range(len(self._choices))]
        self._opened = True
        said = self._choices[index]
        first = not said.count
        said.count += len(piece.token_ids)
        choice: dict[str, Any] = {"index": index}
        reason = piece.finish_reason
        if self._chat:
            delta, reason = self._delta(said, piece)
            choice["delta"] = delta
        else:
            choice["text"] = (self._echoed(said) if first else "") + piece.text
        choice |= {"logprobs": self._logprobs(said, piece), "finish_reason": reason}
        if not self._chat or reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if not self._chat:
            prompt = said.question.prompt[: len(said.question.prompt) - said.question.answered]
            choice["prompt_token_ids"] = prompt if self._ids and first else None
        choice["token_ids"] = piece.token_ids if self._ids else None
        if not self._chat or choice["delta"] or reason is not None or self._ids or choice["logprobs"] is not None:
            chunks.append(self._chunk(choice, said, {}))
        said.finished = reason is not None
        if self.complete:
            if self._usage:
                chunks.append(_event(self._head | {"choices": [], "usage": self._used()}))
            chunks.append(b"data: [DONE]\n\n")
        return chunks

    def _opening(self, index: int) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        said = self._choices[index]
        return self._chunk(choice, said, {"prompt_token_ids": said.question.prompt if self._ids else None})

    def _delta(self, said: _Said, piece: Piece) -> tuple[dict[str, Any], str | None]:
        if said.parser is None:
            return {"content": piece.text}, piece.finish_reason
        delta = said.parser.push(piece.text, last=piece.finish_reason is not None)
        reason = piece.finish_reason
        if reason == "stop" and said.parser.called:
            reason = "tool_calls"
        return _written(delta), reason

    def _echoed(self, said: _Said) -> str:
        """vLLM leaves the text out beside token ids."""
        return tokenizer.decode(said.question.prompt, special=False) if self._echo and not self._ids else ""

    def _chunk(self, choice: Mapping[str, Any], said: _Said, beside: Mapping[str, Any]) -> bytes:
        usage = {"usage": _usage(len(said.question.prompt), said.count)} if self._running_usage else {}
        return _event({**self._head, "choices": [choice], **usage, **beside})

    # -- in one piece ----------------------------------------------------------------------------------------------

    def gather(self, index: int, piece: Piece) -> None:
        said = self._choices[index]
        said.pieces.append(piece)
        said.count += len(piece.token_ids)
        said.finished = piece.finish_reason is not None

    def whole(self) -> bytes:
        body: dict[str, Any] = self._head | {
            "choices": [self._whole(index) for index in range(len(self._choices))],
            "usage": self._used(),
        }
        if self._chat:
            body["object"] = "chat.completion"
            if self._ids:
                body["prompt_token_ids"] = self._choices[0].question.prompt
        return msgspec.json.encode(body)

    def _whole(self, index: int) -> dict[str, Any]:
        said = self._choices[index]
        text = "".join(piece.text for piece in said.pieces)
        tokens = [token for piece in said.pieces for token in piece.token_ids]
        last = said.pieces[-1]
        together = Piece(text, tuple(tokens), last.finish_reason, last.stop_reason)
        logprobs = tuple(chosen for piece in said.pieces for chosen in piece.logprobs)
        choice: dict[str, Any] = {"index": index}
        reason = last.finish_reason
        if self._chat:
            delta, reason = self._delta(said, together)
            choice["message"] = {"role": "assistant", "content": None} | delta
            for call in choice["message"].get("tool_calls", ()):
                del call["index"]
        else:
            choice["text"] = self._echoed(said) + text
        choice["logprobs"] = self._logprobs(said, Piece(text, together.token_ids, logprobs=logprobs))
        choice |= {"finish_reason": reason, "stop_reason": last.stop_reason}
        if self._ids:
            choice["token_ids"] = tokens
            if not self._chat:
                choice["prompt_token_ids"] = said.question.prompt
        return choice

    # -- figures ---------------------------------------------------------------------------------------------------

    def _logprobs(self, said: _Said, piece: Piece) -> dict[str, Any] | None:
        if said.question.logprobs is None:
            return None
        if self._chat:
            return {"content": [_chat_logprob(chosen) for chosen in piece.logprobs]}
        tokens = [_name(chosen.token) for chosen in piece.logprobs]
        offsets = []
        for token in tokens:
            offsets.append(said.offset)
            said.offset += len(token)
        top = [
            {_name(token): logprob for token, logprob in (*chosen.top, (chosen.token, chosen.logprob))}
            for chosen in piece.logprobs
        ]
        return {
            "text_offset": offsets,
            "token_logprobs": [chosen.logprob for chosen in piece.logprobs],
            "tokens": tokens,
            "top_logprobs": top,
        }

    def _used(self) -> dict[str, int]:
        prompt = sum(len(said.question.prompt) for said in self._choices[:: self._per_prompt])
        return _usage(prompt, sum(said.count for said in self._choices))


def _written(delta: Delta) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if delta.reasoning:
        found["reasoning"] = delta.reasoning
    if delta.content:
        found["content"] = delta.content
    if delta.calls:
        found["tool_calls"] = [_call(call) for call in delta.calls]
    return found


def _call(call: Call) -> dict[str, Any]:
    if not call.name:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {
        "index": call.index,
        "id": f"chatcmpl-tool-{secrets.token_hex(8)}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _name(token: int) -> str:
    return tokenizer.decode([token])


def _chat_logprob(chosen: Chosen) -> dict[str, Any]:
    top = [{"token": _name(token), "logprob": logprob, "bytes": _bytes(token)} for token, logprob in chosen.top]
    return {
        "token": _name(chosen.token),
        "logprob": chosen.logprob,
        "bytes": _bytes(chosen.token),
        "top_logprobs": top,
    }


def _bytes(token: int) -> list[int]:
    return list(tokenizer.token_bytes(token))


def _usage(prompt: int, count: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + count, "completion_tokens": count}


def _event(what: Mapping[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(what) + b"\n\n"

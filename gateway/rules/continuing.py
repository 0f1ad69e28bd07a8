"""How an answer can go on when its engine is lost, given what its client has of it; and the rest of one that is
continued, asked for choice by choice: prompt and tokens so far, as a completion.

What is possible at all follows from the request (`kinds.py`); what is possible now, from how much is known of it.

Each choice that isn't finished is a request of its own, whatever the first one was (a chat, several choices, several
prompts). What comes back is put into the words of the first answer: its id, its model, its form, usage over all of it,
and log probabilities whose offsets go on.

**The text is the engine's.** A token is some bytes, and not always whole characters; some show nothing, and some text
is kept back because it may begin a stop string. Only the engine knows, so it is told in `vllm_xargs` how many of the
prompt's last tokens are answer, how many characters of their text the client has, and those characters' CRC-32; it goes
through these tokens again, and begins to speak where the client stands. An engine that does so says the prompt without
the answer in its first chunk. One that doesn't say so hasn't understood, and nothing of its text is believed.

Pure.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.rules import answers, kinds
from gateway.rules.answers import Account, Choice, Piece
from gateway.rules.clients_part import UNFINISHED, ClientsPart, End, Torn, take_each
from gateway.rules.kinds import Api, Kind, Recovery
from gateway.rules.legs import Leg


@dataclass(frozen=True, slots=True)
class _Limits:
    """What of a request depends on how much of the answer there is already."""

    max_tokens: int | None
    """None: as many as the model has room for."""
    min_tokens: int
    holds: bool
    """Text may be kept back because of stop strings."""


class Continuing:
    def __init__(self, kind: Kind, account: Account, max_len: int | None) -> None:
        self._kind = kind
        self._account = account
        self._max_len = max_len
        self._limits = _limits_of(kind)
        self._awaits: dict[int, int | None] = {}
        """For each choice that goes on: how many prompt tokens the engine has to report when it goes on with tokens of
        the answer. None: there are no such tokens, or it has reported them."""
        self.proven = False
        """The engine has given a token."""

    @staticmethod
    def can(kind: Kind, account: Account, max_len: int | None) -> bool:
        """Whether what is known is enough."""
        limits = _limits_of(kind)
        for index in range(kind.choices):
            choice = account.had(index)
            if choice.finish is not None:
                continue
            prompt = _prompt(kind, account, index)
            known = prompt is not None or (kind.api is Api.COMPLETION and not choice.ids)
            if choice.parsed or not known or (choice.text and not choice.ids):
                return False
            left = _left(limits, max_len, len(prompt or ()), len(choice.ids))
            if limits.holds and left is not None and left <= 0:
                return False  # text was kept back, and no engine can be asked for that alone
        return max_len is not None or limits.max_tokens is not None

    def begin(self) -> tuple[bytes, list[tuple[int, bytes]]]:
        """What the client can have without any engine, and for each choice what to ask."""
        said, asked = b"", []
        for index in range(self._kind.choices):
            had = self._account.choice_for(index)
            if had.finish is not None:
                continue
            if not (had.text or self._kind.wants_ids or self._kind.logprobs):
                had.told = max(had.told, len(had.ids))
                del had.ids[:]  # the client has nothing of it: it begins anew, and the engine's own text is right
            prompt = _prompt(self._kind, self._account, index)
            self._awaits[index] = len(prompt) if had.ids else None
            if self._kind.api is Api.CHAT and not had.role:
                said += answers.role_of(self._account, index)
                had.role = True
            left = _left(self._limits, self._max_len, len(prompt or ()), len(had.ids))
            assert left is not None
            if left <= 0:
                said += self._tell(index, Piece((), "", finish="length"))
                continue
            least = self._limits.min_tokens - len(had.ids)
            is_open = self._limits.max_tokens is None
            asked.append((index, _body(self._kind, index, prompt, had, left, min(least, left), is_open)))
        return said, asked

    @property
    def choices(self) -> list[int]:
        """Those that go on."""
        return list(self._awaits)

    def take(self, leg: Leg, data: bytes) -> ClientsPart:
        """Raises sse.TooLarge."""
        assert leg.reader is not None and leg.choice is not None
        index = leg.choice

        def done() -> ClientsPart:
            leg.whole = True
            over = self._account.had(index).finish is not None
            return ClientsPart(b"") if over else ClientsPart(b"", End.BROKEN, UNFINISHED)

        return take_each(leg.reader.feed(data)[1], lambda event: self._take(index, event), done)

    def _take(self, index: int, data: bytes) -> bytes:
        """An event of the rest of this choice. What can be told by now. Raises Malformed, BrokenOff or Torn."""
        had = self._account.choice_for(index)
        chunk = answers.read(data, 1)
        self._account.fingerprint = chunk.system_fingerprint or self._account.fingerprint
        said = b""
        for choice in chunk.choices:
            if had.finish is not None:
                break
            if had.prompt is None and choice.prompt_token_ids is not None:
                had.prompt = answers.tokens(choice.prompt_token_ids)
            if self._awaits[index] is not None:
                if len(choice.prompt_token_ids or ()) != self._awaits[index]:
                    raise Torn("this engine can't begin with text in the middle of an answer")
                self._awaits[index] = None
            ids = choice.token_ids
            if ids is None:
                raise answers.Malformed("it was asked for token ids, and tells none")
            self.proven = self.proven or bool(ids)
            logprobs = msgspec.json.decode(data)["choices"][0].get("logprobs") if self._kind.logprobs else None
            piece = Piece(ids, choice.text or "", logprobs, choice.finish_reason, choice.stop_reason)
            said += self._tell(index, piece)
        return said

    def _tell(self, index: int, piece: Piece) -> bytes:
        choice = self._account.choice_for(index)
        if isinstance(piece.logprobs, dict):
            _go_on_counting(choice, piece.logprobs)
        choice.ids.extend(piece.ids)
        choice.text += piece.text.encode("utf-8", "replace")
        choice.finish = piece.finish
        if choice.told >= len(choice.ids) and not piece.text and piece.finish is None:
            return b""
        return answers.chunk_of(self._kind, self._account, index, piece)


def _prompt(kind: Kind, account: Account, index: int) -> Any:
    """The tokens of this choice's prompt; choices with the same prompt have it from each other."""
    first = index - index % kind.per_prompt
    known = (account.had(place).prompt for place in range(first, first + kind.per_prompt))
    return next((prompt for prompt in known if prompt is not None), None)


def _go_on_counting(choice: Choice, logprobs: dict[str, Any]) -> None:
    """The engine that goes on counts characters from its own beginning."""
    offsets = []
    for token in logprobs.get("tokens") or ():
        offsets.append(choice.offset)
        choice.offset += len(token)
    logprobs["text_offset"] = offsets


# -- how it can go on -----------------------------------------------------------------------------------------------

BYTES_A_TOKEN = 4
"""How many a token has, about, where tokens aren't known."""


def recovery_of(kind: Kind, account: Account | None, max_len: int | None) -> Recovery | None:
    """For a client that has the head of an answer. None: it has nothing of the answer itself, and may have any whole
    one.
    """
    if account is None:
        return Recovery.ENDED
    if not account.id:
        return None  # it has comments only
    if account.empty:
        return Recovery.COMPARED  # a role; there is nothing that could differ
    if kind.recovery is Recovery.CONTINUED and Continuing.can(kind, account, max_len):
        return Recovery.CONTINUED
    return Recovery.COMPARED if kind.same_again else Recovery.ENDED


def tokens_to_read(kind: Kind, account: Account | None) -> int:
    """About how many an engine has to read before it can go on: prompt and answer, or the prompt alone where all of the
    answer is made again.
    """
    if account is None:
        return len(kind.body) // BYTES_A_TOKEN
    choices = account.choices
    if kind.recovery is Recovery.CONTINUED:
        known = sum(len(choice.prompt or ()) + len(choice.ids) for choice in choices if choice.finish is None)
    else:
        known = sum(len(choice.prompt or ()) for choice in choices)
    return known or len(kind.body) // BYTES_A_TOKEN


def obstacle(kind: Kind) -> str:
    """Why it can't."""
    if kind.api is Api.OTHER:
        return "its form is not known here"
    return kind.why or "the engine tells no token ids"


# -- what is asked for ------------------------------------------------------------------------------------------------


def _limits_of(kind: Kind) -> _Limits:
    fields = kinds.read_fields(kind.body)
    most = kinds.value(fields, "max_tokens")
    if kind.api is Api.CHAT:
        most = kinds.value(fields, "max_completion_tokens") or most
    elif "max_tokens" not in fields:
        most = 16
    holds = bool(kinds.value(fields, "stop")) and kinds.value(fields, "include_stop_str_in_output") is not True
    return _Limits(most, kinds.value(fields, "min_tokens") or 0, holds)


def _left(limits: _Limits, max_len: int | None, prompt: int, has: int) -> int | None:
    """How many tokens may still come. None: that isn't known."""
    room = None if max_len is None else max_len - prompt - has
    most = None if limits.max_tokens is None else limits.max_tokens - has
    return min((limit for limit in (room, most) if limit is not None), default=None)


def _body(kind: Kind, index: int, prompt: Any, had: Choice, max_tokens: int, min_tokens: int, is_open: bool) -> bytes:
    """The body that asks for the rest of one choice, whose prompt is all tokens so far. While those aren't known it is
    the one that the client gave at this place. `is_open`: the client set no bound; there may be one of the model's own,
    of which nothing is known here.
    """
    fields = kinds.read_fields(kind.body)
    body: dict[str, object] = {name: raw for name, raw in fields.items() if name in kinds.SAMPLING or name == "stop"}
    if kind.logprobs:
        body["logprobs"] = fields["logprobs"]
    if not kind.seeded and "seed" in fields:
        body["seed"] = fields["seed"]
    body |= {"max_tokens": max_tokens, "stream": True, "return_token_ids": True}
    if prompt is not None:
        body["prompt"] = [*prompt, *had.ids]
    else:
        several = kinds.value(fields, "prompt")
        body["prompt"] = several[index // kind.per_prompt] if kind.choices > kind.per_prompt else several
    begun = {"open": 1} if is_open else {}
    if had.ids:
        text = bytes(had.text)
        begun |= {"tokens": len(had.ids), "chars": len(text.decode("utf-8", "replace")), "crc32": zlib.crc32(text)}
    if begun:
        body["vllm_xargs"] = {f"failover_answer_{name}": value for name, value in begun.items()}
    if min_tokens > 0:
        body["min_tokens"] = min_tokens
    return msgspec.json.encode(body)

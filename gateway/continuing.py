"""The rest of an answer, asked for choice by choice: prompt and tokens so far, as a completion.

Each choice that isn't finished is a request of its own, whatever the first one was (a chat, several choices, several
prompts). What comes back is put into the words of the first answer: its id, its model, its form, usage over all of it,
log probabilities whose offsets go on, and text that is made of all tokens together (`seam.py`). Pure.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from gateway import answers, kinds
from gateway.answers import Account, Choice
from gateway.kinds import Api, Kind
from gateway.legs import Leg
from gateway.seam import Piece, Seam, Stops, Torn
from gateway.took import UNFINISHED, End, Took, take_each

_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Limits:
    """What of a request ends its answer, for the door to see to when another engine goes on with it."""

    max_tokens: int | None
    """None: as many as the model has room for."""
    min_tokens: int
    stop: tuple[str, ...]
    keep_stop: bool


class _Rest:
    """One choice's."""

    def __init__(self, had: Choice, limits: _Limits) -> None:
        hold = 0 if limits.keep_stop else max(map(len, limits.stop), default=1) - 1
        self.sent = bytes(had.text[-_TAIL_BYTES:]).decode(
            "utf-8", "ignore" if len(had.text) > _TAIL_BYTES else "replace"
        )
        self.seam = Seam(self.sent, had.ids, hold, keep=limits.keep_stop)
        self.stops: Stops | None = None
        self.count = len(had.ids)
        self.told_before = 0
        """So many tokens the client had, without any text, before the choice began anew."""
        self.limits = limits
        self.asked = False
        """For the text that the seam wants."""
        self.ended = False
        """The engine has given its reason to end."""

    def stop(self, piece: Piece) -> Piece:
        """Also where there is nothing to stop at: what the seam owes the client comes first."""
        if self.stops is None:
            limits = self.limits
            self.stops = Stops(
                limits.stop,
                keep=limits.keep_stop,
                min_tokens=limits.min_tokens,
                count=self.count,
                sent=self.sent,
                owed=self.seam.owed,
            )
        return self.stops.push(piece)


class Continuing:
    def __init__(self, kind: Kind, account: Account, max_len: int | None) -> None:
        self._kind = kind
        self._account = account
        self._max_len = max_len
        self._limits = _limits_of(kind)
        self._rests: dict[int, _Rest] = {}
        self.proven = False
        """The engine has given a token."""

    @staticmethod
    def can(kind: Kind, account: Account, max_len: int | None) -> bool:
        """Whether what is known is enough."""
        for index in range(kind.choices):
            choice = account.choice(index)
            if choice.finish is not None:
                continue
            prompt = _prompt(kind, account, index)
            known = prompt is not None or (kind.api is Api.COMPLETION and not choice.ids)
            if choice.parsed or not known or (choice.text and not choice.ids):
                return False
        return max_len is not None or _limits_of(kind).max_tokens is not None

    def begin(self) -> tuple[bytes, list[tuple[int, bytes]]]:
        """What the client can have without any engine, and for each choice what to ask."""
        said, asked = b"", []
        for index in range(self._kind.choices):
            had = self._account.choice(index)
            if had.finish is not None:
                continue
            told = len(had.ids)
            if not (had.text or self._kind.wants_ids or self._kind.logprobs):
                del had.ids[:]  # the client has nothing of it: it begins anew, and the engine's own text is right
            rest = self._rests[index] = _Rest(had, self._limits)
            rest.told_before = told - len(had.ids)
            if self._kind.api is Api.CHAT and not had.role:
                said += answers.role_of(self._account, index)
                had.role = True
            prompt = _prompt(self._kind, self._account, index)
            left = self._left(len(prompt or ()), len(had.ids))
            if left <= 0:
                said += self._tell(index, rest.seam.push(Piece((), "", finish="length")))
                continue
            tokens = None if prompt is None else [*prompt, *had.ids]
            least = self._limits.min_tokens - len(had.ids)
            place = index // self._kind.per_prompt
            asked.append((index, _body(self._kind, tokens, place, left, min(least, left))))
        return said, asked

    def _left(self, prompt: int, has: int) -> int:
        room = None if self._max_len is None else self._max_len - prompt - has
        most = None if self._limits.max_tokens is None else self._limits.max_tokens - has
        return min(limit for limit in (room, most) if limit is not None)

    def questions(self) -> list[tuple[int, bytes]]:
        """For each choice the tokens whose text is wanted, once."""
        found = []
        for index, rest in self._rests.items():
            if rest.seam.wants is not None and not rest.asked:
                rest.asked = True
                body = {"model": self._kind.model} if self._kind.model else {}
                found.append((index, msgspec.json.encode(body | {"tokens": rest.seam.wants})))
        return found

    @property
    def choices(self) -> list[int]:
        """Those that go on."""
        return list(self._rests)

    def ended(self, index: int) -> bool:
        return self._rests[index].ended

    def take(self, leg: Leg, data: bytes) -> Took:
        """Raises sse.TooLarge."""
        assert leg.reader is not None and leg.choice is not None
        index = leg.choice

        def done() -> Took:
            leg.whole = True
            over = self._rests[index].ended or self._account.choice(index).finish is not None  # at a stop string
            return Took(b"") if over else Took(b"", End.BROKEN, UNFINISHED)

        return take_each(leg.reader.feed(data)[1], lambda event: self._take(index, event), done)

    def _take(self, index: int, data: bytes) -> bytes:
        """An event of the rest of this choice. What can be told by now. Raises Malformed or BrokenOff."""
        rest = self._rests[index]
        chunk = answers.read(data, answers.decode, 1)
        self._account.fingerprint = chunk.system_fingerprint or self._account.fingerprint
        said = b""
        for choice in chunk.choices:
            if rest.ended or self._account.choice(index).finish is not None:
                break
            had = self._account.choice(index)
            if had.prompt is None and choice.prompt_token_ids is not None:
                had.prompt = answers.tokens(choice.prompt_token_ids)
            ids = choice.token_ids
            if ids is None:
                raise answers.Malformed("it was asked for token ids, and tells none")
            self.proven = self.proven or bool(ids)
            logprobs = msgspec.json.decode(data)["choices"][0].get("logprobs") if self._kind.logprobs else None
            rest.ended = choice.finish_reason is not None
            piece = Piece(ids, choice.text or "", logprobs, choice.finish_reason, choice.stop_reason)
            said += self._tell(index, rest.seam.push(piece))
        return said

    def heard(self, index: int, data: bytes) -> bytes:
        """The text that was asked for. Raises Torn."""
        rest = self._rests[index]
        rest.asked = False
        try:
            text = msgspec.json.decode(data, type=_Text).prompt
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Torn("it doesn't say what some tokens are in text") from None
        return self._tell(index, rest.seam.heard(text))

    def _tell(self, index: int, pieces: list[Piece]) -> bytes:
        said = b""
        rest, choice = self._rests[index], self._account.choice(index)
        for piece in pieces:
            if choice.finish is not None:
                break
            piece = rest.stop(piece)
            if isinstance(piece.logprobs, dict):
                _go_on_counting(choice, piece.logprobs)
            choice.ids.extend(piece.ids)
            choice.text += piece.text.encode("utf-8", "replace")
            choice.finish = piece.finish
            if rest.told_before >= len(choice.ids) and not piece.text and piece.finish is None:
                continue
            said += answers.chunk_of(self._kind, self._account, index, piece)
        return said


class _Text(msgspec.Struct):
    prompt: str


def _prompt(kind: Kind, account: Account, index: int) -> Any:
    """The tokens of this choice's prompt; choices with the same prompt have it from each other."""
    first = index - index % kind.per_prompt
    known = (account.choice(place).prompt for place in range(first, first + kind.per_prompt))
    return next((prompt for prompt in known if prompt is not None), None)


def _go_on_counting(choice: Choice, logprobs: dict[str, Any]) -> None:
    """The engine that goes on counts characters from its own beginning."""
    offsets = []
    for token in logprobs.get("tokens") or ():
        offsets.append(choice.offset)
        choice.offset += len(token)
    logprobs["text_offset"] = offsets


# -- what is asked for ------------------------------------------------------------------------------------------------


def _limits_of(kind: Kind) -> _Limits:
    fields = kinds.read_fields(kind.body)
    most = kinds.value(fields, "max_tokens")
    if kind.api is Api.CHAT:
        most = kinds.value(fields, "max_completion_tokens") or most
    elif "max_tokens" not in fields:
        most = 16
    stop = kinds.value(fields, "stop")
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    keep = kinds.value(fields, "include_stop_str_in_output") is True
    return _Limits(most, kinds.value(fields, "min_tokens") or 0, tuple(text for text in strings if text), keep)


def _body(kind: Kind, prompt: list[int] | None, place: int, max_tokens: int, min_tokens: int) -> bytes:
    """The body that asks for the rest of one choice, whose prompt is all tokens so far. While those aren't known it is
    the one that the client gave at this place.
    """
    fields = kinds.read_fields(kind.body)
    given: object = prompt
    if prompt is None:
        several = kinds.value(fields, "prompt")
        given = several[place] if kind.choices > kind.per_prompt else several
    body: dict[str, object] = {name: raw for name, raw in fields.items() if name in kinds.SAMPLING}
    if kind.logprobs:
        body["logprobs"] = fields["logprobs"]
    if not kind.seeded and "seed" in fields:
        body["seed"] = fields["seed"]
    body |= {"prompt": given, "max_tokens": max_tokens, "stream": True, "return_token_ids": True}
    if min_tokens > 0:
        body["min_tokens"] = min_tokens
    return msgspec.json.encode(body)

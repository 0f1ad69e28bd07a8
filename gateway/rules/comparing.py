"""An answer that is made once more, beside what the client has of the first one.

Nothing is passed on while it repeats what the client has, token for token; then only what is new, under the first one's
names. If it ever differs, the two are different answers, and no sensible one can be made of them. Pure.
"""

from typing import Any

import msgspec

from gateway.rules import sse
from gateway.rules.answers import Account, Choice, ChunkChoice, ToolCall, says_nothing
from gateway.rules.clients_part import UNFINISHED, ClientsPart, Differs, End, take_each
from gateway.rules.kinds import Kind
from gateway.rules.legs import Leg
from gateway.rules.sse import event


class Comparison:
    def __init__(self, kind: Kind, had: Account) -> None:
        self._kind = kind
        self._had = had
        """What the client has. It grows as soon as it is caught up with."""
        self._again = Account(kind)
        self._caught_up: set[int] = set()
        self._compared: dict[int, tuple[int, int]] = {}
        """So much of each choice's text and reasoning is known to be the same."""

    @property
    def proven(self) -> bool:
        """The engine has given some of the answer."""
        return not self._again.empty

    def take(self, leg: Leg, data: bytes) -> ClientsPart:
        """Raises sse.TooLarge."""
        assert leg.reader is not None

        def done() -> ClientsPart:
            if not self._had.complete:
                return ClientsPart(b"", End.BROKEN, UNFINISHED)
            return ClientsPart(sse.event(sse.DONE), End.COMPLETE)

        return take_each(leg.reader.feed(data)[1], self._take, done)

    def _take(self, data: bytes) -> bytes:
        """An event of the second answer. What of it is new to the client. Raises Differs, Malformed or BrokenOff."""
        chunk = self._again.take(data)
        if not chunk.choices:
            if self._had.usage or bytes(chunk.usage) == b"null":
                return b""
            self._had.usage = True
            return self._said(msgspec.json.decode(data))
        behind = {said.index: said for said in chunk.choices if said.index not in self._caught_up}
        for said in behind.values():
            self._compare(said)
        behind = {index: said for index, said in behind.items() if not self._is_new(index)}
        if len(behind) == len(chunk.choices):
            return b""
        body: dict[str, Any] = msgspec.json.decode(data)
        choices = [choice for choice in body["choices"] if choice.get("index", 0) not in behind]
        for choice, said in zip(choices, (one for one in chunk.choices if one.index not in behind), strict=True):
            if said.index not in self._caught_up:
                self._cut(choice, said)
                self._catch_up(said.index)
        if not self._kind.wants_ids and says_nothing(choices):
            return b""
        return self._said({**body, "choices": choices})

    def _said(self, body: dict[str, Any]) -> bytes:
        had = self._had
        body |= {"id": had.id, "created": had.created, "model": had.model}
        if not self._kind.wants_ids:
            for place in (body, *body["choices"]):
                for name in ("prompt_token_ids", "token_ids"):
                    if name in place:
                        place[name] = None
        return event(msgspec.json.encode(body))

    def _compare(self, said: ChunkChoice) -> None:
        """Looks at what is new of the second answer; what is older was looked at before. Raises Differs."""
        index = said.index
        had, again = self._had.choice_for(index), self._again.choice_for(index)
        ids = len(said.token_ids or ())
        start = len(again.ids) - ids
        if had.ids and had.ids[start : len(again.ids)] != again.ids[start : len(had.ids)]:
            raise Differs(f"token {start + 1} or a later one of choice {index} is another")
        text, reasoning = self._compared.get(index, (0, 0))
        if not _agree(had.text, again.text, text) or not _agree(had.reasoning, again.reasoning, reasoning):
            raise Differs(f"the text of choice {index} is another")
        self._compared[index] = (len(again.text), len(again.reasoning))
        for old, new in zip(had.tools or (), again.tools or (), strict=False):
            if not _begin_alike(old.name, new.name) or not _begin_alike(old.arguments, new.arguments):
                raise Differs(f"a tool call of choice {index} is another")
        if again.finish is not None and had.finish is None and not self._has_all(had, again):
            raise Differs(f"choice {index} ends before what was sent")
        if had.finish is not None and (again.finish not in (None, had.finish) or len(again.ids) > len(had.ids) > 0):
            raise Differs(f"choice {index} ends otherwise")

    @staticmethod
    def _has_all(had: Choice, again: Choice) -> bool:
        """The second answer has said all that the client has."""
        olds, news = had.tools or [], again.tools or []
        return (
            len(again.ids) >= len(had.ids)
            and len(again.text) >= len(had.text)
            and len(again.reasoning) >= len(had.reasoning)
            and len(news) >= len(olds)
            and all(len(new.arguments) >= len(old.arguments) for old, new in zip(olds, news, strict=False))
        )

    def _is_new(self, index: int) -> bool:
        """The last piece of this choice goes further than what the client has."""
        had, again = self._had.choice_for(index), self._again.choice_for(index)
        if had.finish is not None or not self._has_all(had, again):
            return False
        if again.finish is not None or (again.role and not had.role):
            return True
        return _size(again) > _size(had) or (again.blanks > had.blanks and not again.ids)

    def _cut(self, choice: dict[str, Any], said: ChunkChoice) -> None:
        """Leaves of this piece what the client hasn't."""
        had, again = self._had.choice_for(said.index), self._again.choice_for(said.index)
        new_ids = list(again.ids[len(had.ids) :])
        skip = len(said.token_ids or ()) - len(new_ids)
        text = bytes(again.text[len(had.text) :]).decode("utf-8", "replace")
        if "token_ids" in choice:
            choice["token_ids"] = new_ids
        if skip > 0 and isinstance(choice.get("logprobs"), dict):
            for name, values in choice["logprobs"].items():
                choice["logprobs"][name] = values[skip:] if isinstance(values, list) else values
        if "text" in choice:
            choice["text"] = text
        delta = choice.get("delta")
        if delta is not None:
            choice["delta"] = _new_delta(delta, had, again, text)

    def _catch_up(self, index: int) -> None:
        """From here on both are one."""
        had, again = self._had.choices[index], self._again.choices[index]
        for old, new in zip(had.tools or (), again.tools or (), strict=False):
            new.id = old.id
        again.prompt = again.prompt if again.prompt is not None else had.prompt
        self._had.choices[index] = again
        self._caught_up.add(index)


def _new_delta(delta: dict[str, Any], had: Choice, again: Choice, text: str) -> dict[str, Any]:
    found = {name: value for name, value in delta.items() if name not in ("role", "tool_calls")}
    if not had.role and "role" in delta:
        found = {"role": delta["role"], **found}
    if text or "content" in found:
        found["content"] = text
    reasoning = bytes(again.reasoning[len(had.reasoning) :]).decode("utf-8", "replace")
    for name in ("reasoning", "reasoning_content"):
        if name in found:
            found[name] = reasoning
    calls = []
    for index, new in enumerate(again.tools or ()):
        old = (had.tools or [])[index] if index < len(had.tools or ()) else None
        if old is None:
            function: dict[str, Any] = {"name": new.name, "arguments": new.arguments}
            calls.append({"index": index, "id": new.id, "type": "function", "function": function})
        elif _tool_size(new) > _tool_size(old):
            calls.append({"index": index, "function": {"arguments": new.arguments[len(old.arguments) :]}})
    if calls:
        found["tool_calls"] = calls
    return found


def _agree(one: bytearray, other: bytearray, start: int) -> bool:
    """From here on, one is the beginning of the other."""
    end = min(len(one), len(other))
    return one[start:end] == other[start:end]


def _begin_alike(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _size(choice: Choice) -> int:
    tools = sum(_tool_size(tool) for tool in choice.tools or ())
    return len(choice.ids) + len(choice.text) + len(choice.reasoning) + tools


def _tool_size(tool: ToolCall) -> int:
    return len(tool.name) + len(tool.arguments)

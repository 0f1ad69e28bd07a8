"""What a server-side parser makes of an answer's text as it comes: thoughts, content, and tool calls.

`<think>...</think>` is reasoning, `<tool_call>{"name":...,"arguments":{...}}</tool_call>` a call, everything else
content. What may still become such a mark is held back. All of the text is read anew for each piece; what wasn't said
yet is said. Pure.
"""

import json
import re
from dataclasses import dataclass, field

from reference_engine.grammar import THINK, TOOL

_MARKS = (*THINK, *TOOL)
_PARTS = re.compile(
    rf"{THINK[0]}(?P<reasoning>.*?)(?:{THINK[1]}|\Z)|{TOOL[0]}(?P<call>.*?)(?:{TOOL[1]}|\Z)|(?P<content>[^<]+|<)",
    re.DOTALL,
)
_CALL = re.compile(r'\{"name":("[^"]*"),"arguments":(.*)', re.DOTALL)


@dataclass
class Call:
    index: int
    name: str = ""
    """Said once, when the call begins."""
    arguments: str = ""


@dataclass
class Delta:
    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


class Parser:
    def __init__(self) -> None:
        self._text = ""
        self._said = Delta()

    def push(self, text: str, *, last: bool) -> Delta:
        self._text += text
        before, now = self._said, _read(self._text if last else self._text[: len(self._text) - _could_be(self._text)])
        self._said = now
        new = Delta(now.content[len(before.content) :], now.reasoning[len(before.reasoning) :])
        for call in now.calls:
            known = before.calls[call.index] if call.index < len(before.calls) else None
            if known is None:
                new.calls.append(call)
            elif len(call.arguments) > len(known.arguments):
                new.calls.append(Call(call.index, arguments=call.arguments[len(known.arguments) :]))
        return new

    @property
    def called(self) -> bool:
        return bool(self._said.calls)


def _read(text: str) -> Delta:
    found = Delta()
    for part in _PARTS.finditer(text):
        found.reasoning += part["reasoning"] or ""
        found.content += part["content"] or ""
        if call := _CALL.match(part["call"] or ""):
            # the last character isn't said: it is the brace that closes the call, or may be
            found.calls.append(Call(len(found.calls), json.loads(call[1]), call[2][:-1]))
    return found


def _could_be(text: str) -> int:
    """So many characters at its end may be the beginning of a mark."""
    for length in range(min(len(text), max(map(len, _MARKS)) - 1), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in _MARKS):
            return length
    return 0

"""What a server-side parser makes of an answer's text as it comes: thoughts, content, and tool calls.

`<think>...</think>` is reasoning, `<tool_call>{"name":...,"arguments":{...}}</tool_call>` a call, everything else
content. What may still become such a mark is held back. Pure.
"""

import json
import re
from dataclasses import dataclass, field

from reference_engine.grammar import THINK, TOOL

_MARKS = (*THINK, *TOOL)
_NAME = re.compile(r'\{"name":("[^"]*"),"arguments":')


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

    @property
    def empty(self) -> bool:
        return not (self.content or self.reasoning or self.calls)


class Parser:
    def __init__(self) -> None:
        self._rest = ""
        self._within = ""
        self._calls = 0
        self._depth_text = ""
        """What is known of a call so far, while its name isn't complete."""
        self._named = False
        self._arguments = ""

    def push(self, text: str, *, last: bool) -> Delta:
        delta = Delta()
        self._rest += text
        while self._rest:
            found = min(((at, mark) for mark in _MARKS if (at := self._rest.find(mark)) >= 0), default=None)
            if found is not None:
                at, mark = found
                self._take(self._rest[:at], delta)
                self._enter(mark, delta)
                self._rest = self._rest[at + len(mark) :]
                continue
            safe = len(self._rest) if last else len(self._rest) - _could_be(self._rest)
            self._take(self._rest[:safe], delta)
            self._rest = self._rest[safe:]
            break
        return delta

    @property
    def called(self) -> bool:
        return self._calls > 0

    def _enter(self, mark: str, delta: Delta) -> None:
        if mark == TOOL[1] and self._within == TOOL[0]:
            self._arguments = self._arguments[:-1]  # the brace that closes the call, and not its arguments
            self._calls += 1
        if mark == TOOL[0]:
            self._depth_text, self._named, self._arguments = "", False, ""
        self._within = mark if mark in (THINK[0], TOOL[0]) else ""

    def _take(self, text: str, delta: Delta) -> None:
        if not text:
            return
        if self._within == THINK[0]:
            delta.reasoning += text
        elif self._within == TOOL[0]:
            self._call(text, delta)
        else:
            delta.content += text

    def _call(self, text: str, delta: Delta) -> None:
        """The last character is held back: it may be the brace that closes the call."""
        call = next((one for one in delta.calls if one.index == self._calls), None)
        if not self._named:
            self._depth_text += text
            name = _NAME.match(self._depth_text)
            if name is None:
                return
            self._named = True
            text = self._depth_text[name.end() :]
            call = Call(self._calls, json.loads(name[1]))
            delta.calls.append(call)
        if call is None:
            call = Call(self._calls)
            delta.calls.append(call)
        before = self._arguments
        self._arguments += text
        call.arguments += self._arguments[max(0, len(before) - 1) : max(0, len(self._arguments) - 1)]
        if not call.name and not call.arguments:
            delta.calls.remove(call)


def _could_be(text: str) -> int:
    """So many characters at its end may be the beginning of a mark."""
    for length in range(min(len(text), max(map(len, _MARKS)) - 1), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in _MARKS):
            return length
    return 0

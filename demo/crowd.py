"""The demo's clients: each asks its question again and again, streaming, and compares every byte of every answer with
what it was told when nothing happened.

They know one address, the door's, and nothing of engines. What may differ between two answers to one question is the
moment of their making (`created`) and the names of tool calls, which are made up anew for each answer.
"""

import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from demo.machine import NotSo

TIMEOUT_S = 120.0
TOKENS = 48
_TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
_JSON = {"type": "json_object"}
_TALK = {"messages": [{"role": "user", "content": "What does the lighthouse see?"}]}
QUESTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("text", "/v1/completions", {"prompt": "The old lighthouse", "temperature": 0}),
    ("text with log probabilities", "/v1/completions", {"prompt": "At sea", "temperature": 0, "logprobs": 2}),
    ("two choices at once", "/v1/completions", {"prompt": "Seagulls", "temperature": 0, "n": 2}),
    ("a chat", "/v1/chat/completions", {**_TALK, "temperature": 0}),
    ("sampled with a seed", "/v1/completions", {"prompt": "The keeper", "temperature": 1.0, "seed": 7}),
    ("with a penalty", "/v1/completions", {"prompt": "Waves", "temperature": 0, "presence_penalty": 1.0}),
    ("JSON by a grammar", "/v1/chat/completions", {**_TALK, "temperature": 0, "response_format": _JSON}),
    ("a tool call", "/v1/chat/completions", {**_TALK, "temperature": 0, "tools": [_TOOL], "tool_choice": "required"}),
)
"""Kind, path, and what is asked."""
CONTINUED = 4
"""So many of them go on from their tokens; the others are made again and compared."""
VLLM_QUESTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("text", "/v1/completions", {"prompt": "The old lighthouse", "temperature": 0}),
    ("text with a bias", "/v1/completions", {"prompt": "At sea", "temperature": 0, "logit_bias": {"5": 2}}),
    ("with a repetition penalty", "/v1/completions", {"prompt": "Gulls", "temperature": 0, "repetition_penalty": 1.1}),
    ("a chat", "/v1/chat/completions", {**_TALK, "temperature": 0}),
    ("sampled with a seed", "/v1/completions", {"prompt": "The keeper", "temperature": 1.0, "seed": 7}),
    ("two choices with a seed", "/v1/completions", {"prompt": "Fog", "temperature": 1.0, "seed": 7, "n": 2}),
    ("with a penalty", "/v1/completions", {"prompt": "Waves", "temperature": 0, "presence_penalty": 1.0}),
    ("with another penalty", "/v1/completions", {"prompt": "Rules", "temperature": 0, "frequency_penalty": 0.5}),
)


class Load(NamedTuple):
    """What is asked of an engine, and what is compared."""

    questions: tuple[tuple[str, str, dict[str, Any]], ...]
    more: dict[str, Any]
    """Of every question."""
    text_only: bool
    """Which tokens come in one piece depends on the moment, so only what is said is compared."""


LOADS = {
    "reference": Load(QUESTIONS, {"max_tokens": TOKENS}, False),
    "vllm": Load(VLLM_QUESTIONS, {"model": "tiny", "max_tokens": 300, "ignore_eos": True}, True),
}


@dataclass
class Answer:
    """As a client has it."""

    times: list[float]
    """When it was asked for, and when each piece came."""
    said: dict[int, bytes] = field(default_factory=dict)
    """What can be compared, by choice: between choices there is no order. What belongs to none is at -1."""
    whole: bool = False
    why: str = ""
    """It isn't."""

    @property
    def over(self) -> bool:
        return self.whole or bool(self.why)


def ask(at: tuple[str, int], path: str, body: dict[str, Any], answer: Answer, name: str, text_only: bool) -> None:
    """One request on a connection of its own; the answer grows as it comes."""
    connection = http.client.HTTPConnection(*at, timeout=TIMEOUT_S)
    try:
        words = json.dumps({**body, "stream": True})
        connection.request("POST", path, words, {"content-type": "application/json", "x-request-id": name})
        response = connection.getresponse()
        if response.status != 200:
            answer.why = f"status {response.status}: {response.read(300)!r}"
            return
        while line := response.readline():
            data = line.removeprefix(b"data: ").strip()
            if line.startswith(b"data: ") and data != b"[DONE]":
                answer.times.append(time.monotonic())
                event = json.loads(data)
                if error := event.get("error"):
                    answer.why = f"it broke off: {error}"
                _write_down(event, answer.said, text_only)
            elif line.startswith(b"data: "):
                answer.whole = True
        answer.why = "" if answer.whole else answer.why or "it broke off"
    except (OSError, ValueError, http.client.HTTPException) as error:
        answer.whole, answer.why = False, f"{type(error).__name__}: {error}"
    finally:
        connection.close()


def _write_down(event: dict[str, Any], said: dict[int, bytes], text_only: bool) -> None:
    event.pop("created", None)
    choices = event.get("choices") or [{"index": -1}]
    for choice in choices:
        for call in (choice.get("delta") or {}).get("tool_calls") or ():
            call.pop("id", None)
    index = choices[0]["index"]
    text = "".join(one.get("text") or (one.get("delta") or {}).get("content") or "" for one in choices)
    said[index] = said.get(index, b"") + (text if text_only else json.dumps(event)).encode()


@dataclass
class Client:
    kind: str
    path: str
    body: dict[str, Any]
    way: str
    """What becomes of its answer at a kill."""
    expected: dict[int, bytes] = field(default_factory=dict)
    current: Answer | None = None
    requests: int = 0
    failed: list[str] = field(default_factory=list)
    mismatched: int = 0
    longest_s: float = 0.0
    """Between two pieces of an answer."""
    answers: list[list[float]] = field(default_factory=list)
    """The times of each, once no client is told any more what the answers are undisturbed."""


class Crowd:
    """All of them, a thread for each."""

    def __init__(self, host: str, port: int, load: Load) -> None:
        self._at = (host, port)
        self._text_only = load.text_only
        self._stop = threading.Event()
        self.clients = [
            Client(kind, path, {**load.more, **body}, "continued" if number < CONTINUED else "made again, compared")
            for number, (kind, path, body) in enumerate(load.questions)
        ]
        self._threads: list[threading.Thread] = []

    def learn(self) -> None:
        """What the answers are when nothing happens. Raises NotSo."""
        self._together(self._learn)
        for client in self.clients:
            if not client.expected:
                why = client.current.why if client.current is not None else "there is no answer"
                raise NotSo(f"the question for {client.kind} is not answered though nothing has happened: {why}")

    def start(self) -> None:
        self._threads = [self._thread(self._go_on, client) for client in self.clients]

    def stop(self) -> None:
        """Each finishes its answer."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def everybody_reads(self, since: float) -> bool:
        """Each is in the middle of an answer, and has had some of it since then."""
        return all(not answer.whole and len(answer.times) > 3 and answer.times[-1] > since for answer in self.answers())

    def answers(self) -> list[Answer]:
        """Those that are being read now."""
        return [client.current for client in self.clients if client.current is not None]

    # -- in the threads --------------------------------------------------------------------------------------------

    def _together(self, what: Any) -> None:
        for thread in [self._thread(what, client) for client in self.clients]:
            thread.join()

    def _thread(self, what: Any, client: Client) -> threading.Thread:
        thread = threading.Thread(target=what, args=(client,), daemon=True)
        thread.start()
        return thread

    def _learn(self, client: Client) -> None:
        answer = self._one(client)
        client.expected = answer.said if answer.whole else {}
        client.requests += 1

    def _go_on(self, client: Client) -> None:
        while not self._stop.is_set():
            answer = self._one(client)
            client.requests += 1
            client.answers.append(answer.times)
            client.longest_s = max(client.longest_s, longest(answer.times))
            if not answer.whole:
                client.failed.append(answer.why)
                time.sleep(0.1)  # not again and again at once
            elif answer.said != client.expected:
                client.mismatched += 1

    def _one(self, client: Client) -> Answer:
        answer = client.current = Answer([time.monotonic()])
        ask(self._at, client.path, client.body, answer, f"demo {client.kind}".replace(" ", "-"), self._text_only)
        return answer


def longest(times: list[float], since: float = 0.0) -> float:
    """The longest time between two of these, of those that end later than `since`."""
    return max((b - a for a, b in pairwise(times) if b > since), default=0.0)

"""Clients of a pod who check each byte, as long as they are let.

    with asking(here, 2) as clients:
        ...                            # what is done to the pod
    assert clients.broken() == []

Each asks for one streamed answer after the other, at the pod's own address. The reference engine's answers are the same
from each engine, so all of them have to be the first one, which was made while nothing happened. What this file may
not do: hurt the pod, or ask again to hide an error.
"""

import http.client
import json
import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.local_pod.ordinary import PATIENCE_S, Place
from tools.local_pod import places, wire

PORT = 8000
TOKENS = 60
PROMPT = "Tell me about the sea."


@dataclass
class Answer:
    began: float
    """By the monotonic clock, as all times here."""
    text: str = ""
    ended: float = 0.0
    error: str = ""
    pieces: list[float] = field(default_factory=list)
    """When each came."""

    @property
    def pause_s(self) -> float:
        """The longest that its client waited between two pieces."""
        return max((later - earlier for earlier, later in zip(self.pieces, self.pieces[1:], strict=False)), default=0.0)


def ask(here: Place, tokens: int = TOKENS, answer: Answer | None = None) -> Answer:
    """One answer, streamed; an error is in it."""
    answer = answer or Answer(time.monotonic())
    try:
        connection = _connection(here, PORT)
        body = {"prompt": PROMPT, "max_tokens": tokens, "min_tokens": tokens, "temperature": 0, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            answer.error = f"{reply.status} {reply.read(500)!r}"
        else:
            answer.error = _read(reply, answer)
        connection.close()
    except (OSError, http.client.HTTPException, wire.NoPod, wire.Refused, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.ended = time.monotonic()
    return answer


def page(here: Place, port: int, path: str = "/metrics") -> str:
    """What a port of the pod's own address answers."""
    connection = _connection(here, port)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def _connection(here: Place, port: int) -> http.client.HTTPConnection:
    _, (descriptor,) = wire.ask(here.pod / places.CONTROL, {"do": "dial", "port": port})
    connection = http.client.HTTPConnection("pod")
    connection.sock = socket.socket(fileno=descriptor)
    connection.sock.settimeout(PATIENCE_S)
    return connection


def _read(reply: http.client.HTTPResponse, answer: Answer) -> str:
    """What is wrong with the stream, or ""."""
    while line := reply.readline():
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return ""
        if line.startswith(b"data: "):
            piece = json.loads(data)
            if "choices" not in piece:
                return f"in the stream: {data[:500]!r}"
            answer.pieces.append(time.monotonic())
            answer.text += piece["choices"][0]["text"]
    return "it ended without [DONE]"


@dataclass
class Clients:
    expected: str
    answers: list[Answer] = field(default_factory=list)
    begun: list[Answer] = field(default_factory=list)
    until: threading.Event = field(default_factory=threading.Event)

    def broken(self, *, refused_after: float = math.inf) -> list[str]:
        """What went wrong, except for requests that were refused from that moment on, before any of their answer."""
        return [
            f"{answer.began:.2f} to {answer.ended:.2f}: {answer.error or f'{answer.text!r} for {self.expected!r}'}"
            for answer in self.answers
            if (answer.error or answer.text != self.expected) and (answer.pieces or answer.ended < refused_after)
        ]

    def answered_since(self, count: int) -> None:
        """Waits until so many more answers are whole: whatever was done is behind them."""
        wanted = sum(not answer.error for answer in self.answers) + count
        deadline = time.monotonic() + PATIENCE_S
        while sum(not answer.error for answer in self.answers) < wanted:
            assert time.monotonic() < deadline, self.broken()[-3:]
            time.sleep(0.02)

    def under_way(self, at_most: int) -> Answer:
        """Waits for an answer of which a first piece has come, and no more than so many."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := [each for each in self.begun if each.pieces and not each.ended]) or all(
            len(each.pieces) > at_most for each in found
        ):
            assert time.monotonic() < deadline, self.broken()[-3:]
            time.sleep(0.002)
        return min(found, key=lambda each: len(each.pieces))


@contextmanager
def asking(here: Place, count: int = 2, tokens: int = TOKENS) -> Iterator[Clients]:
    """So many clients at a time, for the length of the block; each ends with its answer's end."""
    first = ask(here, tokens)
    assert not first.error, first.error
    assert first.text
    clients = Clients(first.text)

    def go_on() -> None:
        while not clients.until.is_set():
            clients.begun.append(answer := Answer(time.monotonic()))
            clients.answers.append(ask(here, tokens, answer))
            if answer.error:
                clients.until.wait(0.05)  # a client that is refused doesn't ask without a pause

    threads = [threading.Thread(target=go_on, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        clients.until.set()
        for thread in threads:
            thread.join(PATIENCE_S)

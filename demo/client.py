"""A client of the OpenAI-compatible endpoint, as the demo needs one: it keeps token ids, and sees a stream break off.

    stream = Stream("unix:/run/failover/engine/a.17.sock", "Hello", 64)
    stream.until(24)
    stream.ids, stream.text

Not a client for others: one request for each connection, and Unix sockets only.
"""

import json
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any, Self

import h11

from demo.machine import NotSo
from sidecar.sockets import address_of

TIMEOUT_S = 30.0


class Exchange:
    """One request, and its answer as it comes."""

    def __init__(self, url: str, path: str, body: dict[str, Any]) -> None:
        """Raises NotSo."""
        self.over = False
        """Nothing more comes: the answer has ended, or broken off."""
        self.whole = False
        """It has ended as it should."""
        self._http = h11.Connection(h11.CLIENT)
        self._sock = socket.socket(socket.AF_UNIX)
        data = json.dumps(body).encode()
        headers = [("Host", "demo"), ("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        request = h11.Request(method="POST", target=path, headers=headers)
        words = [self._http.send(event) or b"" for event in (request, h11.Data(data=data), h11.EndOfMessage())]
        try:
            with address_of(Path(url.removeprefix("unix:"))) as address:
                self._sock.connect(address)
            self._sock.sendall(b"".join(words))
        except OSError as error:
            self._sock.close()
            raise NotSo(f"whoever is to serve at {url} can't be asked: {error.strerror}") from None

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive(self, timeout_s: float) -> bytes:
        """What of the body has come by then; nothing is an answer."""
        if self.over or not select.select([self._sock], [], [], timeout_s)[0]:
            return b""
        found = b""
        try:
            self._http.receive_data(self._sock.recv(1 << 16))
            while (event := self._http.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response) and event.status_code != 200:
                    raise NotSo(f"an engine answers {event.status_code} to a request that is in order")
                if isinstance(event, h11.Data):
                    found += bytes(event.data)
                if isinstance(event, h11.EndOfMessage):
                    self.whole = self.over = True
                    break
        except (h11.RemoteProtocolError, ConnectionError):  # its sender was killed
            self.over = True
        return found

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stream(Exchange):
    """A completion, token by token."""

    def __init__(self, url: str, prompt: str | list[int], max_tokens: int) -> None:
        wanted = {"prompt": prompt, "max_tokens": max_tokens, "min_tokens": max_tokens, "temperature": 0}
        super().__init__(url, "/v1/completions", {**wanted, "stream": True, "return_token_ids": True})
        self.prompt_ids: list[int] = []
        self.ids: list[int] = []
        self.text = ""
        self.times: list[float] = []
        """When each token came."""
        self._rest = b""

    def take(self, timeout_s: float) -> None:
        """Takes in what comes by then; returns at the first of it."""
        *events, self._rest = (self._rest + self.receive(timeout_s)).split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                continue
            choice = json.loads(data)["choices"][0]
            self.prompt_ids = choice.get("prompt_token_ids") or self.prompt_ids
            self.ids += choice["token_ids"]
            self.times += [time.monotonic()] * len(choice["token_ids"])
            self.text += choice["text"]

    def until(self, tokens: int) -> None:
        """Until it has so many tokens, or is over. Raises NotSo when that takes long."""
        end = time.monotonic() + TIMEOUT_S
        while len(self.ids) < tokens and not self.over:
            self.take(1.0)
            if time.monotonic() > end:
                raise NotSo(f"an engine that serves has sent {len(self.ids)} tokens in {TIMEOUT_S:g} s")

    def to_its_end(self) -> None:
        """Raises NotSo when it has none."""
        self.until(sys.maxsize)
        if not self.whole:
            raise NotSo("an answer broke off, though nobody killed its engine")


def text_of(url: str, ids: list[int]) -> str:
    """What these tokens are in characters, says this engine. A last one that isn't complete is in no answer."""
    with Exchange(url, "/detokenize", {"tokens": ids}) as exchange:
        data = b""
        while not exchange.over:
            data += exchange.receive(TIMEOUT_S)
    return str(json.loads(data)["prompt"]).rstrip("\N{REPLACEMENT CHARACTER}")

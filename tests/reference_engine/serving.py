"""What the tests of the reference engine stand on: a cache without a device, an engine that serves in this process, and
a client that says and hears bytes.
"""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from engine_shim.engine import Listen
from reference_engine.engine import ReferenceEngine
from reference_engine.kv import KvCache, Pages, block_bytes
from reference_engine.kv_prefix import blocks_for
from reference_engine.model import Model, Part, Shape, share
from reference_engine.places import BLOCK, Floats, Span
from reference_engine.weights import fill
from tests.support.waiting import DEADLINE_S

SMALL = ("--standalone", "--layers", "2", "--width", "64", "--hidden", "96", "--max-model-len", "512")


def weights(shape: Shape) -> Mapping[str, Floats]:
    arrays = {name: np.empty(form, np.float32) for name, form in shape.tensors().items()}
    fill(shape, arrays)
    return arrays


class Split:
    """A model in several parts, as several processes would have them."""

    def __init__(self, shape: Shape, arrays: Mapping[str, Floats], ranks: int = 1) -> None:
        self.parts = []
        for rank in range(ranks):
            heads = len(share(shape.heads, rank, ranks))
            blocks = blocks_for(shape.max_len)
            cache = KvCache(shape, heads, blocks, Pages(blocks * block_bytes(shape, heads)))
            cache.allocate()
            self.parts.append(Part(shape, arrays, cache, rank, ranks))

    def attend(self, layer: int, x: Floats, spans: Sequence[Span]) -> Floats:
        return _sum([part.attend(layer, x, spans) for part in self.parts])

    def feed(self, layer: int, x: Floats) -> Floats:
        return _sum([part.feed(layer, x) for part in self.parts])


def _sum(parts: Sequence[Floats]) -> Floats:
    result = parts[0]
    for part in parts[1:]:
        result += part
    return result


def model(shape: Shape, arrays: Mapping[str, Floats], ranks: int = 1) -> Model:
    return Model(shape, arrays, Split(shape, arrays, ranks))


def forward(of: Model, tokens: Sequence[int], start: int, blocks: tuple[int, ...]) -> Floats:
    """The logits of one request's next token."""
    logits: Floats = of.forward([(tokens, Span(start, len(tokens), blocks))])[0]
    return logits


def every_block(shape: Shape, first: int = 0) -> tuple[int, ...]:
    """All blocks, beginning elsewhere than at the first."""
    count = shape.max_len // BLOCK
    return tuple((first + 7 * at) % count for at in range(count))


@contextmanager
def serving(*arguments: str) -> Iterator[ReferenceEngine]:
    """A standalone engine on a TCP port of its own."""
    engine = ReferenceEngine(arguments or SMALL)
    engine.start()
    engine.sleep()
    engine.wake()
    engine.serve(Listen(host="127.0.0.1", port=0))
    try:
        yield engine
    finally:
        engine.stop()


class Client:
    """One connection. It keeps no rule that a test doesn't keep."""

    def __init__(self, address: str) -> None:
        if address.startswith("unix:"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(address.removeprefix("unix:"))
        else:
            host, _, port = address.removeprefix("http://").rpartition(":")
            self.sock = socket.create_connection((host, int(port)))
        self.sock.settimeout(DEADLINE_S)
        self._unread = b""

    def say(self, data: bytes) -> None:
        self.sock.sendall(data)

    def request(self, path: str, body: object = None, *, method: str = "POST", headers: str = "") -> None:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: engine\r\ncontent-length: {len(data)}\r\n{headers}\r\n"
        self.say(head.encode() + data)

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        while b"\r\n\r\n" not in self._unread:
            self._more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        pairs = (line.partition(": ") for line in rest)
        return int(first.split()[1]), {name.lower(): value for name, _, value in pairs}

    def answer(self) -> tuple[int, Any]:
        """Status and body, which is JSON or nothing."""
        status, headers = self.head()
        body = self.exactly(int(headers["content-length"]))
        return status, json.loads(body) if body else None

    def ask(self, path: str, body: object = None, **how: str) -> tuple[int, Any]:
        self.request(path, body, **how)
        return self.answer()

    def events(self) -> Iterator[Any]:
        """Those of a stream whose head was read, until it ends or breaks off. The last is "[DONE]" if it ended."""
        text = b""
        while True:
            while b"\r\n" not in self._unread:
                if not self._more(may_end=True):
                    return
            size, _, self._unread = self._unread.partition(b"\r\n")
            text += self.exactly(int(size, 16))
            self.exactly(2)
            if int(size, 16) == 0:
                return
            while b"\n\n" in text:
                event, _, text = text.partition(b"\n\n")
                data = event.removeprefix(b"data: ")
                yield "[DONE]" if data == b"[DONE]" else json.loads(data)

    def stream(self, path: str, body: Mapping[str, object]) -> list[Any]:
        self.request(path, {**body, "stream": True})
        status, _ = self.head()
        assert status == 200
        return list(self.events())

    def exactly(self, count: int) -> bytes:
        while len(self._unread) < count:
            self._more()
        data, self._unread = self._unread[:count], self._unread[count:]
        return data

    def ended(self) -> bytes:
        """Whatever still comes, until the other end closes."""
        while self._more(may_end=True):
            pass
        return self._unread

    def _more(self, *, may_end: bool = False) -> bool:
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            data = b""
        assert data or may_end, f"the connection ended behind {self._unread!r}"
        self._unread += data
        return bool(data)

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask(engine: ReferenceEngine, path: str, body: object = None, **how: str) -> tuple[int, Any]:
    """On a connection of its own."""
    with Client(engine.address) as client:
        return client.ask(path, body, **how)


def unix(path: Path) -> Listen:
    return Listen(path=str(path))

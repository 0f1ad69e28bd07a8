"""Engines of the reference kind that follow each other on one GMS, each a process of its own that is killed while it
answers, and clients that go on where an answer broke.

There is no lock server here: this process starts each engine and waits for its end before the next one wakes, so it is
itself the proof. The next engine has started already and sleeps, as a standby does.
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_shim.engine import Listen, Setting
from reference_engine.engine import ReferenceEngine
from reference_engine.options import parse
from reference_engine.places import Span
from sidecar.kernel import io_uring
from tests.engine.shims import House
from tests.reference_engine.serving import every_block, model, weights

ARGUMENTS = ("--layers", "2", "--width", "64", "--hidden", "96", "--max-model-len", "256", "--kv-bytes", "1MiB")
GMS = ("--devices", "host:0", "--capacity", "28MiB")


@dataclass(frozen=True)
class Asked:
    prompt: tuple[int, ...]
    tokens: int


class Undisturbed:
    """What the model answers when no engine dies and nothing is shared: each token computed with a cache of its own."""

    def __init__(self) -> None:
        self._shape = parse((*ARGUMENTS, "--standalone")).shape
        self._weights = weights(self._shape)
        self._known: dict[Asked, list[int]] = {}

    def answer(self, asked: Asked) -> list[int]:
        if asked not in self._known:
            it, blocks = model(self._shape, self._weights), every_block(self._shape)
            todo, done, said = list(asked.prompt), 0, list[int]()
            while len(said) < asked.tokens:
                logits = it.forward([(todo, Span(done, len(todo), blocks))])[0]
                done += len(todo)
                todo = [int(logits.argmax())]
                said += todo
            self._known[asked] = said
        return self._known[asked]


class Successor:
    """An engine's process, forked from this one: it has everything loaded."""

    def __init__(
        self, house: House, number: int, kv: str = "keep", arguments: tuple[str, ...] = (), parked: int = 0
    ) -> None:
        self.path = house.directory / f"{number}.sock"
        self.log = house.directory / f"{number}.log"
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            who = (house.run_dir, f"e{number}", "primary", arguments)
            self._live(Setting(*who, kv=kv, kv_parked=parked), theirs)
        theirs.close()
        self._orders = ours
        self._hear(b"asleep")

    def wake(self, token: int, proven: bool = True) -> None:
        """Returns when it serves."""
        self._orders.sendall(f"{token} {int(proven)}\n".encode())
        self._hear(b"serving")

    def nap(self) -> None:
        """It sleeps in place, whatever it answers, and is waked by a newer grant."""
        self._orders.sendall(b"nap\n")
        self._hear(b"serving")

    def end(self) -> None:
        """In order."""
        self._orders.sendall(b"end\n")
        self._wait()

    def kill(self) -> None:
        """Returns when its end is certain."""
        os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def _wait(self) -> None:
        os.waitpid(self.pid, 0)
        self._orders.close()

    def _hear(self, wanted: bytes) -> None:
        heard = self._orders.recv(100)
        assert heard == wanted + b"\n", f"engine {self.pid} said {heard!r} and not {wanted!r}:\n{self.said()[-3000:]}"

    def _live(self, setting: Setting, orders: socket.socket) -> None:
        try:
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            io_uring.forbid()  # as the engine-shim does
            engine = ReferenceEngine((*ARGUMENTS, *setting.arguments), setting)
            engine.await_others()
            engine.start()
            engine.sleep()
            orders.sendall(b"asleep\n")
            token, proven = orders.recv(100).decode().split()
            for number in itertools.count(int(token)):
                engine.granted(number, proven == "1")
                engine.wake()
                engine.serve(Listen(path=str(self.path)))
                orders.sendall(b"serving\n")
                if orders.recv(100) != b"nap\n":
                    break
                engine.sleep()
            engine.drain(5)
            engine.stop()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)


@dataclass
class Chain:
    """One engine after the other."""

    house: House
    kv: str = "keep"
    arguments: tuple[str, ...] = ()
    token: int = 0
    number: int = 0
    current: Successor | None = None
    next: Successor | None = None
    pages: list[dict[str, float]] = field(default_factory=list)
    """The last metrics that were read of each engine."""

    def begin(self) -> None:
        self.current, self.next = self._start(), self._start()
        self._wake(self.current)

    def _start(self) -> Successor:
        self.number += 1
        return Successor(self.house, self.number, self.kv, self.arguments)

    def _wake(self, engine: Successor) -> None:
        self.token += 1
        engine.wake(self.token)
        self.pages.append({})

    def turn(self) -> None:
        """The current engine is killed, and the next one takes over."""
        assert self.current is not None and self.next is not None
        self.current.kill()
        self.current = self.next
        self._wake(self.current)
        self.next = self._start()

    def close(self) -> None:
        for engine in (self.current, self.next):
            if engine is not None:
                engine.kill()

    def total(self, name: str) -> float:
        return sum(page.get(name, 0.0) for page in self.pages)


async def metrics(path: Path) -> dict[str, float]:
    """By name, whatever the labels are; and whys of what was dropped as `why:...`."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: e\r\nconnection: close\r\n\r\n")
    data = (await reader.read()).decode()
    writer.close()
    found: dict[str, float] = {}
    for line in data.partition("\r\n\r\n")[2].splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0]] = float(value)
            if 'why="' in name:
                found["why:" + name.partition('why="')[2].partition('"')[0]] = 1.0
    return found


async def tokens(path: Path, asked: Asked, had: list[int]) -> bool:
    """Goes on with an answer of which some tokens are there; adds to them what comes. False: it broke off."""
    if len(had) == asked.tokens:  # only its last word was lost
        return True
    body: dict[str, Any] = {
        "model": "reference",
        "prompt": [*asked.prompt, *had],
        "max_tokens": asked.tokens - len(had),
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    data = json.dumps(body).encode()
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return False
    try:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        )
        writer.write(head.encode() + b"\r\n\r\n" + data)
        status = await reader.readline()
        if not status:
            return False
        assert b"200" in status, status + await reader.read(2000)
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                return True
            if line.startswith(b"data: ") and line.endswith(b"\n"):
                had += json.loads(line[6:])["choices"][0].get("token_ids") or []
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()
    return False

"""Swapping models, measured at an address: `python -m bench.swap --url http://127.0.0.1:8000 --models a,b ...`

It needs an OpenAI-compatible server that has several models and swaps them, whichever that is, and nothing but Python's
standard library. What it does:

    --swaps N            asks the models in turn, one short request at a time, so that each needs a swap; what it
                         reports is the time from the request to the other model's first token
    --traffic KIND       plays a kind of traffic (`traffic.py`: agents, chat beside a batch, bursts, one steady and one
                         rare; published distributions) for --seconds, as fast as --scale says
    --trace FILE         plays a file instead: BurstGPT's columns (Timestamp, Model, Response tokens), or lines of JSON
                         with at, model, tokens. Its models are given those of --models in the order of their coming

Every answer is streamed with temperature 0. Of each it is known: how long until the first token, the longest pause
between two, and whether it ended whole, was refused (429, 503, 504), cut, or came in other words than the same request
had before (wrong). So a server that shows a cut answer as a whole one, or mixes streams up, is found out.
"""

import argparse
import asyncio
import csv
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.traffic import Agents, Request, kinds

REFUSED = (429, 503, 504)
PATIENCE_S = 900.0
"""An answer that takes longer counts as cut."""
PROMPTS = 8
"""Of each model: a few that come again, so that their answers can be compared."""
LIMIT = 1 << 20


@dataclass
class Answer:
    model: str
    asked_at: float
    first_s: float | None = None
    pause_s: float = 0.0
    """The longest between two tokens."""
    took_s: float = 0.0
    tokens: int = 0
    how: str = "cut"
    why: str = ""


@dataclass
class Server:
    url: str
    key: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    seen: dict[tuple[str, str, int], str] = field(default_factory=dict)
    """What was answered to each request before."""

    async def ask(self, model: str, prompt: str, tokens: int) -> Answer:
        loop = asyncio.get_running_loop()
        answer = Answer(model, loop.time())
        last, text = answer.asked_at, ""
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for chunk in self._stream(answer, model, prompt, tokens):
                    now = loop.time()
                    if chunk:
                        if answer.first_s is None:
                            answer.first_s = now - answer.asked_at
                        else:
                            answer.pause_s = max(answer.pause_s, now - last)
                        answer.tokens += 1
                        last, text = now, text + chunk
        except (OSError, ValueError, asyncio.IncompleteReadError, TimeoutError) as error:
            answer.how, answer.why = "cut", f"{type(error).__name__}: {error}"
        answer.took_s = loop.time() - answer.asked_at
        if answer.how == "whole" and self.seen.setdefault((model, prompt, tokens), text) != text:
            answer.how, answer.why = "wrong", "the same request had other words before"
        return answer

    async def _stream(self, answer: Answer, model: str, prompt: str, tokens: int) -> AsyncIterator[str]:
        at = urlsplit(self.url)
        asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, **self.extra}
        body = json.dumps(asked).encode()
        key = f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        path = f"{at.path.rstrip('/')}/v1/completions"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {at.netloc}\r\n{key}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        secure = at.scheme == "https"
        port = at.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(at.hostname, port, ssl=secure or None, limit=LIMIT)
        try:
            writer.write(head.encode() + body)
            status, chunked = await _head(reader)
            lines = _lines(reader, chunked)
            if status != 200:
                said = "".join([line async for line in lines])
                answer.how, answer.why = "refused" if status in REFUSED else "failed", f"{status}: {said[:300]}"
                return
            finished = False
            async for line in lines:
                if not line.startswith("data:"):
                    continue  # a comment: it waits
                said = line.removeprefix("data:").strip()
                if said == "[DONE]":
                    answer.how = "whole" if finished else "cut"
                    return
                chunk = json.loads(said)
                if "error" in chunk:
                    answer.why = str(chunk["error"])[:300]
                    return
                for choice in chunk.get("choices", ()):
                    finished = finished or choice.get("finish_reason") is not None
                    yield choice.get("text") or ""
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    return int(head.split(maxsplit=2)[1]), "transfer-encoding: chunked" in head


async def _lines(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[str]:
    rest = b""
    while True:
        if chunked:
            size = int((await reader.readline()).split(b";")[0], 16)
            data = (await reader.readexactly(size + 2))[:-2] if size else b""
        else:
            data = await reader.read(1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").rstrip("\r")
    if rest:
        yield rest.decode(errors="replace")


# -- what is played ------------------------------------------------------------------------------------------------


class Play:
    def __init__(self, server: Server, models: dict[str, str], chance: random.Random, most_tokens: int) -> None:
        """`models`: what a trace calls them -> what the server does."""
        self.server, self.models, self.chance, self.most_tokens = server, models, chance, most_tokens
        self.answers: list[Answer] = []
        self.began = time.monotonic()

    async def one(self, model: str, tokens: int) -> None:
        prompt = f"The number {self.chance.randrange(PROMPTS)} is"
        self.answers.append(await self.server.ask(self.models[model], prompt, min(max(tokens, 1), self.most_tokens)))

    async def swaps(self, count: int) -> None:
        names = list(self.models)
        for number in range(count):
            await self.one(names[number % len(names)], 1)

    async def arrivals(self, requests: Iterator[Request], seconds: float, scale: float) -> None:
        """Open: a request comes when it comes, whatever others wait for."""
        async with asyncio.TaskGroup() as group:
            for request in requests:
                at = request.at / scale
                if at > seconds:
                    return
                await asyncio.sleep(max(self.began + at - time.monotonic(), 0))
                group.create_task(self.one(request.model, request.tokens))

    async def agents(self, agents: Agents, seconds: float, scale: float) -> None:
        async def loop(names: tuple[str, ...]) -> None:
            number = 0
            while time.monotonic() < self.began + seconds:
                tokens = round(self.chance.expovariate(1 / agents.tokens))
                await self.one(names[number % len(names)], tokens)
                await asyncio.sleep(agents.think_s / scale)
                number += 1

        async with asyncio.TaskGroup() as group:
            for names in agents.loops:
                group.create_task(loop(names))


def from_file(path: Path) -> Iterator[Request]:
    with path.open(newline="") as file:
        if path.suffix == ".csv":
            for row in csv.DictReader(file):
                yield Request(float(row["Timestamp"]), row["Model"], int(float(row["Response tokens"])))
        else:
            for line in file:
                said = json.loads(line)
                yield Request(float(said["at"]), str(said["model"]), int(said["tokens"]))


# -- what came of it -----------------------------------------------------------------------------------------------


def share(values: list[float], part: float) -> float | None:
    values = sorted(values)
    return round(values[min(len(values) - 1, int(part * len(values)))], 4) if values else None


def figures(answers: list[Answer], seconds: float) -> dict[str, Any]:
    first = [one.first_s for one in answers if one.first_s is not None]
    pauses = [one.pause_s for one in answers if one.tokens > 1]
    how = Counter(one.how for one in answers)
    return {
        "requests": len(answers),
        **{word: how[word] for word in ("whole", "refused", "cut", "wrong", "failed")},
        "first_token_p50_s": share(first, 0.5),
        "first_token_p99_s": share(first, 0.99),
        "first_token_longest_s": share(first, 1.0),
        "pause_p50_s": share(pauses, 0.5),
        "pause_p99_s": share(pauses, 0.99),
        "pause_longest_s": share(pauses, 1.0),
        "tokens_per_s": round(sum(one.tokens for one in answers) / seconds, 1) if seconds else 0.0,
    }


def shown(found: dict[str, dict[str, Any]]) -> str:
    """A row for each model, and one for all."""
    columns = list(next(iter(found.values())))
    rows = [["", *columns], *([name, *(str(one[column]) for column in columns)] for name, one in found.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns) + 1)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def parser() -> argparse.ArgumentParser:
    it = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    it.add_argument("--url", required=True, help="the server's, such as http://127.0.0.1:8000")
    it.add_argument("--models", required=True, help="what it calls them: a,b,c")
    it.add_argument("--key", default="", help="sent as a bearer token")
    it.add_argument("--swaps", type=int, default=0)
    it.add_argument("--traffic", default="", help="; ".join(kinds(random.Random(0))))
    it.add_argument("--trace", type=Path)
    it.add_argument("--seconds", type=float, default=60.0)
    it.add_argument("--scale", type=float, default=1.0, help="2: twice as fast as it was")
    it.add_argument("--most-tokens", type=int, default=1024, help="of an answer")
    it.add_argument("--seed", type=int, default=1)
    it.add_argument("--json", action="store_true")
    return it


async def run(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    chance = random.Random(options.seed)
    wanted = options.models.split(",")
    server = Server(options.url, options.key)
    if options.trace is not None:
        names = tuple(dict.fromkeys(request.model for request in from_file(options.trace)))
        traffic: Any = from_file(options.trace)
    elif options.traffic:
        names, traffic = kinds(chance)[options.traffic]
    else:
        names, traffic = tuple(wanted), None
    play = Play(server, {name: wanted[n % len(wanted)] for n, name in enumerate(names)}, chance, options.most_tokens)
    if options.swaps or traffic is None:
        await play.swaps(options.swaps or 20)
    elif isinstance(traffic, Agents):
        await play.agents(traffic, options.seconds, options.scale)
    else:
        await play.arrivals(traffic, options.seconds, options.scale)
    seconds = time.monotonic() - play.began
    found = {model: [one for one in play.answers if one.model == model] for model in wanted}
    for why, count in Counter(one.why for one in play.answers if one.why).most_common(5):
        print(f"{count} times: {why}", file=sys.stderr)
    return {name: figures(answers, seconds) for name, answers in {**found, "all": play.answers}.items()}


def main() -> int:
    options = parser().parse_args()
    if options.traffic and options.traffic not in kinds(random.Random(0)):
        print(
            f"bench.swap: {options.traffic!r} is no kind of traffic: {'; '.join(kinds(random.Random(0)))}",
            file=sys.stderr,
        )
        return 64
    found = asyncio.run(run(options))
    print(json.dumps(found, indent=1) if options.json else shown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

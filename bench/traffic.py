"""Kinds of traffic for many models on one device: published distributions, and what people describe.

Each yields requests in the order of their arrival. What is published, and where:

* BurstGPT (Wang et al., arXiv:2401.17644): arrivals by a Gamma distribution, lengths by a Zipf distribution. The
  parameters are the defaults of its own generator (github.com/HPMLL/BurstGPT, example/src/burstgpt/config.py at
  01131e1b: gamma_shape 0.5, gamma_scale 2.0, zipf_param 1.1, at most 1024 tokens).
* ServeGen (Xiang et al., NSDI '26, arXiv:2505.09999): each client has arrivals of its own, Weibull or Gamma, much
  burstier than Poisson; answers' lengths are exponential. The parameters are fits of its data for the first clients of
  `m-large` (github.com/alibaba/ServeGen, data/language/m-large/chunk-0-trace.csv and chunk-1-trace.csv, the rows named
  below); the mean answer is ours, near that client's (chunk-0-dataset.json: most have 50 to 200 tokens).
"""

import heapq
import itertools
import math
import random
from collections.abc import Iterator
from typing import NamedTuple


class Request(NamedTuple):
    at: float
    model: str
    tokens: int
    """Of the answer."""


class Agents(NamedTuple):
    """Closed loops: each asks its models in turn, and thinks for a while after each answer."""

    loops: tuple[tuple[str, ...], ...]
    tokens: int
    think_s: float


Traffic = Iterator[Request] | Agents


def poisson(chance: random.Random, model: str, rate: float, tokens: int) -> Iterator[Request]:
    at = 0.0
    while True:
        at += chance.expovariate(rate)
        yield Request(at, model, max(1, round(chance.expovariate(1 / tokens))))


def burst_gpt(chance: random.Random, model: str, rate: float) -> Iterator[Request]:
    """`rate` scales the trace, as its authors do; 1.0 is their generator's."""
    at = 0.0
    while True:
        at += chance.gammavariate(0.5, 2.0) / rate
        yield Request(at, model, _zipf(chance, 1.1, 1024))


_CLIENTS = (
    ("weibull", 0.4349429, 2.1991542),  # chunk-0, second 42600: 0.45 requests a second
    ("weibull", 0.3970279, 1.2177457),  # chunk-0, second 68400: 0.53
    ("gamma", 0.0624835, 83.5914412),  # chunk-0, second 40200: 0.14
    ("weibull", 0.3531201, 0.8682862),  # chunk-1, second 138000: 0.45
)


def serve_gen(chance: random.Random, model: str, client: int, tokens: int = 100) -> Iterator[Request]:
    kind, shape, scale = _CLIENTS[client % len(_CLIENTS)]
    at = 0.0
    while True:
        at += chance.weibullvariate(scale, shape) if kind == "weibull" else chance.gammavariate(shape, scale)
        yield Request(at, model, max(1, round(chance.expovariate(1 / tokens))))


def _zipf(chance: random.Random, a: float, most: int) -> int:
    """By rejection, as numpy does it, and again where it is too long, as BurstGPT's generator does."""
    b = 2.0 ** (a - 1.0)
    while True:
        u, v = 1.0 - chance.random(), chance.random()
        x = math.floor(u ** (-1.0 / (a - 1.0))) if u > 1e-30 else most
        if x < 1 or x >= most:
            continue
        t = (1.0 + 1.0 / x) ** (a - 1.0)
        if v * x * (t - 1.0) / (b - 1.0) <= t / b:
            return x


def together(*parts: Iterator[Request]) -> Iterator[Request]:
    return heapq.merge(*parts, key=lambda request: request.at)


def kinds(chance: random.Random) -> dict[str, tuple[tuple[str, ...], Traffic]]:
    """By name: the models, and the traffic."""
    two, four, eight = ("a", "b"), ("a", "b", "c", "d"), tuple("abcdefgh")

    def each() -> random.Random:
        return random.Random(chance.random())

    return {
        "alternating agents": (two, Agents((two, ("b", "a"), two), tokens=100, think_s=0.5)),
        "an agent for each model": (two, Agents((("a",), ("b",)), tokens=100, think_s=0.5)),
        "chat beside a batch": (
            two,
            together(poisson(each(), "a", 0.2, 150), (Request(n * 0.25, "b", 200) for n in itertools.count())),
        ),
        "bursts (BurstGPT)": (four, together(*(burst_gpt(each(), name, 0.25) for name in four))),
        "clients (ServeGen)": (four, together(*(serve_gen(each(), name, n) for n, name in enumerate(four)))),
        "one steady, one rare": (two, together(poisson(each(), "a", 1.0, 200), poisson(each(), "b", 1 / 60, 100))),
        "8 models, 64 streams": (eight, Agents(tuple((name,) for name in eight for _ in range(8)), 200, 0.0)),
    }

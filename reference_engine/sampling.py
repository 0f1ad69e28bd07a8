"""Which token comes next, given its logits. At temperature 0 the likeliest, and of equals the first."""

import random
from dataclasses import dataclass

import numpy as np

from reference_engine.model import Floats


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all of them."""
    seed: int | None = None


class Sampler:
    """One answer's. With a seed it draws the same numbers each time; one draw per token."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = random.Random(sampling.seed)

    def choose(self, logits: Floats, banned: frozenset[int] = frozenset()) -> int:
        if banned:
            logits = logits.copy()
            logits[list(banned)] = -np.inf
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")
        if self._sampling.top_k:
            order = order[: self._sampling.top_k]
        chosen = logits[order].astype(np.float64)
        shares = np.cumsum(np.exp((chosen - chosen[0]) / self._sampling.temperature))
        kept = int(np.searchsorted(shares, self._sampling.top_p * shares[-1])) + 1
        shares = shares[:kept]
        at = int(np.searchsorted(shares, self._random.random() * shares[-1], side="right"))
        return int(order[min(at, len(shares) - 1)])

"""Which token comes next, given its logits. At temperature 0 the likeliest, and of equals the first.

Penalties look at tokens: over the answer alone (`presence`, `frequency`), or over prompt and answer (`repetition`), as
vLLM has them.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from reference_engine.model import Floats


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all of them."""
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that don't appear in an answer."""


@dataclass(frozen=True)
class Chosen:
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens and their log probabilities."""


class Sampler:
    """One answer's. With a seed it draws the same numbers each time; one draw per token."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = ()) -> None:
        self._sampling = sampling
        self._random = random.Random(sampling.seed)
        self._prompt = frozenset(prompt)
        self._said: list[int] = []
        self._counts: Counter[int] = Counter()
        self._plain = sampling.repetition_penalty == 1 and not (
            sampling.presence_penalty or sampling.frequency_penalty or sampling.logit_bias or sampling.bad_words
        )

    def choose(self, logits: Floats, banned: frozenset[int] = frozenset(), only: frozenset[int] | None = None) -> int:
        token = self._draw(self._changed(logits, banned, only))
        self._said.append(token)
        self._counts[token] += 1
        return token

    def _changed(self, logits: Floats, banned: frozenset[int], only: frozenset[int] | None) -> Floats:
        if self._plain and not banned and only is None:
            return logits
        sampling = self._sampling
        logits = logits.copy()
        for token, bias in sampling.logit_bias.items():
            logits[token] += bias
        if sampling.repetition_penalty != 1:
            for token in self._prompt | self._counts.keys():
                logits[token] = _scaled(logits[token], sampling.repetition_penalty)
        for token, count in self._counts.items():
            logits[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
        for words in sampling.bad_words:
            if tuple(self._said[len(self._said) - len(words) + 1 :]) == words[:-1]:
                logits[words[-1]] = -np.inf
        if only is not None:
            hidden = np.ones(len(logits), bool)
            hidden[list(only)] = False
            logits[hidden] = -np.inf
        if banned and not (only is not None and only <= banned):
            logits[list(banned)] = -np.inf
        return logits

    def _draw(self, logits: Floats) -> int:
        sampling = self._sampling
        if sampling.temperature == 0:
            return int(logits.argmax())
        order = np.argsort(-logits, kind="stable")
        if sampling.top_k:
            order = order[: sampling.top_k]
        chosen = logits[order].astype(np.float64)
        weights = np.exp((chosen - chosen[0]) / sampling.temperature)
        shares = np.cumsum(weights)
        kept = int(np.searchsorted(shares, sampling.top_p * shares[-1])) + 1
        shares = shares[:kept]
        at = int(np.searchsorted(shares, self._random.random() * shares[-1], side="right"))
        return int(order[min(at, len(shares) - 1)])


def chosen(logits: Floats, token: int, top: int) -> Chosen:
    """What the model itself thought of a token, before a request's wishes."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= math.log(np.exp(values).sum())
    best = np.argsort(-values, kind="stable")[:top]
    return Chosen(token, float(values[token]), tuple((int(one), float(values[one])) for one in best))


def _scaled(logit: np.float32, penalty: float) -> np.float32:
    return np.float32(logit / penalty if logit > 0 else logit * penalty)

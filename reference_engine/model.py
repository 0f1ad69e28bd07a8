"""The transformer: RMSNorm, rotary attention over a KV cache, a gated MLP, the embedding used again as the head.

**Its arithmetic is exact.** Weights are whole numbers from -7 to 7, and what goes into a matrix product is rounded to
whole numbers from -127 to 127 first, as in a model that is quantised to 4 and 8 bits. Then no sum in a product reaches
2**24, up to which float32 holds every whole number, and it doesn't matter in which order a library adds, on how many
threads, for how many positions at a time, or in how many processes. What isn't a sum is a single operation on a single
number, which IEEE 754 defines to the last bit, or is looked up in a table. So a token has the same logits

    whether its position is computed alone or with others, from the cache or without one, in one process or in four,

not nearly but to the last bit: an answer that goes on elsewhere from its tokens goes on exactly.

What this file may not do: own memory. Weights come by name, and are views of memory that is another's; the cache is
`kv.py`, what the weights are is `weights.py`, which positions lie where is `places.py`, and how several processes share
the work is `crew.py`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from reference_engine.places import Floats as Floats
from reference_engine.places import Group, Indices, Places, Span

WEIGHT_MAX = 7
WEIGHT_STD = 4.32  # of whole numbers from -7 to 7, all equally likely
ACTIVATION_MAX = 127
ACTIVATION_STD = 32.0
EXACT = 1 << 24
CHUNK = 128
"""Positions of a prompt that are computed at a time."""
_SCORES_MOST = 1 << 18
"""So many pairs of positions are compared at a time. All that this takes at once stays with the process, and the kernel
clears it when the process is killed: with the 128 MiB of a context of 16k tokens that was a fifth of the takeover."""

_SHARPNESS = 3.0
"""Standard deviation of the attention's logits. Sharp, so that an answer depends on each token before it."""
_STEPS = 16.0  # entries of the tables per unit
_EXP = np.rint(4096.0 * np.exp(-np.arange(256) / _STEPS))
_SILU_AT = np.arange(-128, 128) / _STEPS
_SILU = (_SILU_AT / (1 + np.exp(-_SILU_AT))).astype(np.float32)
_EMBEDDING_GAIN = np.float32(64.0)
_RESIDUAL_STD = 2 * WEIGHT_STD * float(_EMBEDDING_GAIN)
"""What each half of a layer adds: more than the embedding has, else the model repeats its last token for ever."""
_RESIDUAL_MAX = 1 << 15
_LOGIT_STD = 3.0


class BadShape(ValueError):
    """Numbers that make no model."""


@dataclass(frozen=True)
class Shape:
    layers: int = 4
    width: int = 128
    heads: int = 4
    hidden: int = 384
    vocabulary: int = 384
    max_len: int = 2048
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.layers, self.width, self.heads, self.hidden, self.max_len) < 1:
            raise BadShape("a model has at least one layer, head, and position")
        if self.width % (2 * self.heads):
            raise BadShape(f"width {self.width} has to be a multiple of twice the heads ({self.heads})")
        widest = EXACT // (WEIGHT_MAX * ACTIVATION_MAX)
        if max(self.width, self.hidden) >= widest or self.head_width * ACTIVATION_MAX**2 >= EXACT:
            raise BadShape(f"width and hidden have to be below {widest}, and a head below {EXACT // ACTIVATION_MAX**2}")
        if self.max_len > 1 << 20:
            raise BadShape("positions up to 2**20 are exact, and no more")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every weight, and its shape."""
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (self.vocabulary, self.width),
            "prior": (self.vocabulary, self.vocabulary),
            "norm": (self.width,),
        }
        for layer in range(self.layers):
            shapes |= {
                f"layers.{layer}.attention.norm": (self.width,),
                f"layers.{layer}.attention.qkv": (self.heads, 3, self.head_width, self.width),
                f"layers.{layer}.attention.out": (self.heads, self.head_width, self.width),
                f"layers.{layer}.mlp.norm": (self.width,),
                f"layers.{layer}.mlp.gate_up": (self.hidden, 2, self.width),
                f"layers.{layer}.mlp.down": (self.hidden, self.width),
            }
        return shapes


class Cache(Protocol):
    """Keys and values of one process's heads."""

    def write(self, layer: int, places: Places, keys: Floats, values: Floats) -> None: ...
    def read(self, layer: int, table: Indices) -> tuple[Floats, Floats]: ...


class Halves(Protocol):
    """Both halves of every layer, by whomever they are computed."""

    def attend(self, layer: int, x: Floats, spans: Sequence[Span]) -> Floats: ...
    def feed(self, layer: int, x: Floats) -> Floats: ...


class Part:
    """Some of the heads and some of the MLP: what one process computes. All parts' results add up to the whole."""

    def __init__(
        self, shape: Shape, weights: Mapping[str, Floats], cache: Cache, rank: int = 0, ranks: int = 1
    ) -> None:
        self._cache = cache
        self._rotary = _rotary(shape)
        self._places: Places | None = None
        self._head_width = shape.head_width
        self._heads = share(shape.heads, rank, ranks)
        self._hidden = share(shape.hidden, rank, ranks)
        heads, hidden, width = len(self._heads), len(self._hidden), shape.width
        some_heads, some_hidden = _slice(self._heads), _slice(self._hidden)
        self._layers = []
        for layer in range(shape.layers):
            name = f"layers.{layer}"
            qkv = weights[f"{name}.attention.qkv"][some_heads].reshape(3 * heads * self._head_width, width)
            out = weights[f"{name}.attention.out"][some_heads].reshape(heads * self._head_width, width)
            gate_up = weights[f"{name}.mlp.gate_up"][some_hidden].reshape(2 * hidden, width)
            self._layers.append((qkv.T, out, gate_up.T, weights[f"{name}.mlp.down"][some_hidden]))
        self._project = np.float32(1 / (WEIGHT_STD * math.sqrt(width)))
        self._sharpness = np.float32(_STEPS * _SHARPNESS / (ACTIVATION_STD**2 * math.sqrt(self._head_width)))

    def attend(self, layer: int, x: Floats, spans: Sequence[Span]) -> Floats:
        """Attention of these positions, to themselves and to what the cache has of their requests."""
        places = self._where(spans)
        qkv, out, _, _ = self._layers[layer]
        projected = (x @ qkv).reshape(len(x), len(self._heads), 3, self._head_width)
        projected *= self._project
        cos, sin = (table[places.positions, None] for table in self._rotary)
        queries = _turned(projected[:, :, 0], cos, sin)
        self._cache.write(layer, places, _turned(projected[:, :, 1], cos, sin), _rounded(projected[:, :, 2]))
        mixed = np.empty((len(x), len(self._heads) * self._head_width), np.float32)
        for group in places.groups:
            mixed[group.rows] = self._mixed(layer, queries[group.rows], group)
        result: Floats = _rounded(mixed) @ out
        return result

    def _mixed(self, layer: int, queries: Floats, group: Group) -> Floats:
        """The values of a group's requests, each mixed as its queries ask for."""
        requests, count = group.hidden.shape[0], group.hidden.shape[2]
        keys, values = (
            part.reshape(requests, -1, len(self._heads), self._head_width)
            for part in self._cache.read(layer, group.table)
        )
        asked = queries.reshape(requests, count, len(self._heads), self._head_width)
        asked, keys = asked.transpose(0, 2, 1, 3), keys.transpose(0, 2, 3, 1)
        wide = values.transpose(0, 2, 1, 3).astype(np.float64)
        mixed = np.empty(asked.shape, np.float32)
        rows = max(1, _SCORES_MOST // (requests * len(self._heads) * keys.shape[-1]))
        for at in range(0, count, rows):
            some = slice(at, at + rows)
            scores = np.matmul(asked[:, :, some], keys)
            scores += group.hidden[:, :, some]
            scores = scores.max(axis=-1, keepdims=True) - scores
            scores *= self._sharpness
            shares = _EXP[np.minimum(np.rint(scores), 255).astype(np.intp)]
            mixed[:, :, some] = np.matmul(shares, wide) / (shares.sum(axis=-1, keepdims=True) / 2)  # exact: below 2**53
        return mixed.transpose(0, 2, 1, 3).reshape(requests * count, -1)

    def _where(self, spans: Sequence[Span]) -> Places:
        """The same for all layers of a step."""
        if self._places is None or self._places.spans != spans:
            self._places = Places(spans)
        return self._places

    def feed(self, layer: int, x: Floats) -> Floats:
        """The gated MLP."""
        _, _, gate_up, down = self._layers[layer]
        both = (x @ gate_up).reshape(len(x), -1, 2)
        both *= np.float32(self._project / ACTIVATION_STD)
        at = np.clip(np.rint(both[:, :, 0] * np.float32(_STEPS)), -128, 127).astype(np.intp) + 128
        gated = _SILU[at] * both[:, :, 1]
        gated *= np.float32(2 * ACTIVATION_STD)
        result: Floats = _rounded(gated) @ down
        return result


class Model:
    """Tokens in, the logits of the next one out."""

    def __init__(self, shape: Shape, weights: Mapping[str, Floats], halves: Halves) -> None:
        self.shape = shape
        self._halves = halves
        self._embedding = weights["embedding"]
        self._prior = weights["prior"]
        self._norm = weights["norm"]
        self._norms = [
            (weights[f"layers.{layer}.attention.norm"], weights[f"layers.{layer}.mlp.norm"])
            for layer in range(shape.layers)
        ]
        spread = WEIGHT_STD * ACTIVATION_STD
        self._attended = np.float32(_RESIDUAL_STD / (spread * math.sqrt(shape.width)))
        self._fed = np.float32(_RESIDUAL_STD / (0.7 * spread * math.sqrt(shape.hidden)))
        self._scale = np.float32(_LOGIT_STD / (spread * math.sqrt(shape.width)))

    def forward(self, asked: Sequence[tuple[Sequence[int], Span]]) -> Floats:
        """Puts the tokens of each request at the positions of its span into the cache. For each request the logits
        behind its last token.
        """
        tokens = [token for some, _ in asked for token in some]
        spans = [span for _, span in asked]
        x = self._embedding[np.asarray(tokens, np.intp)] * _EMBEDDING_GAIN
        for layer, (attention_norm, mlp_norm) in enumerate(self._norms):
            _add(x, self._halves.attend(layer, _normed(x, attention_norm), spans), self._attended)
            _add(x, self._halves.feed(layer, _normed(x, mlp_norm)), self._fed)
        lasts = np.cumsum([span.size for span in spans]) - 1
        logits = _normed(x[lasts], self._norm) @ self._embedding.T
        logits *= self._scale
        logits += self._prior[[tokens[last] for last in lasts]]
        result: Floats = logits
        return result


def share(things: int, rank: int, ranks: int) -> range:
    """Which of them are this rank's."""
    return range(things * rank // ranks, things * (rank + 1) // ranks)


def _slice(some: range) -> slice:
    return slice(some.start, some.stop)


def _rounded(x: Floats) -> Floats:
    """To what a product may take in."""
    y = np.rint(x)
    return np.clip(y, -ACTIVATION_MAX, ACTIVATION_MAX, out=y)


def _normed(x: Floats, gain: Floats) -> Floats:
    """The sum of squares is exact in float64: whole numbers, below 2**53."""
    wide = x.astype(np.float64)
    squares = (wide * wide).sum(axis=-1, keepdims=True)
    wide *= ACTIVATION_STD / np.sqrt(squares / x.shape[-1] + 1.0)
    wide *= gain
    return _rounded(wide.astype(np.float32))


def _add(x: Floats, y: Floats, scale: np.float32) -> None:
    """To the residual stream, which is of whole numbers, too."""
    y *= scale
    x += np.rint(y)
    np.clip(x, -_RESIDUAL_MAX, _RESIDUAL_MAX, out=x)


def _rotary(shape: Shape) -> tuple[Floats, Floats]:
    half = shape.head_width // 2
    turns = np.outer(np.arange(shape.max_len), 10000.0 ** (-np.arange(half) / half))
    return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)


def _turned(x: Floats, cos: Floats, sin: Floats) -> Floats:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return _rounded(np.concatenate((first * cos - second * sin, first * sin + second * cos), axis=-1))

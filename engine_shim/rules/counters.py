"""What is counted and measured in an engine's life, for `/metrics` and `/state`. Pure; `lifecycle.py` fills it in.

What this file may not do: know Prometheus. `metrics.py` does, and is loaded only when metrics are asked for.
"""

from collections import Counter

from engine_shim.rules.events import State

PHASES = ("permit", "init", "sleep", "fence_wait", "wake", "remap", "kv", "known", "serve")
"""The parts that are always shown; an engine may report others."""
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
MOST_PHASES = 32
MOST_WHYS = 32


class Durations:
    """A histogram: how many of them took at most so long."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0
        self.last_s: float | None = None

    def add(self, seconds: float) -> None:
        index = next((i for i, most in enumerate(BUCKETS_S) if seconds <= most), len(BUCKETS_S))
        self.counts[index] += 1
        self.sum_s += seconds
        self.last_s = seconds


class Counters:
    def __init__(self) -> None:
        self.phases: dict[str, Durations] = {name: Durations() for name in PHASES}
        self.transitions: Counter[tuple[State, State]] = Counter()
        self.entered_at: dict[State, float] = {}
        """When each state was last entered, by the wall clock."""
        self.starts = 0
        self.deaths = 0
        self.failovers = 0
        self.restored = Durations()
        """From the end of a tree until the next one is ready to take over."""
        self.kv_adopted = 0
        """Blocks of a predecessor's KV cache."""
        self.kv_dropped: Counter[str] = Counter()
        """Blocks that were there and were not believed, by why."""
        self.kv_wakes: Counter[str] = Counter()
        """Wakes, by why not all of the predecessor's KV cache was adopted."""

    def phase(self, name: str, seconds: float) -> None:
        if name in self.phases or len(self.phases) < MOST_PHASES:
            self.phases.setdefault(name, Durations()).add(seconds)

    def kept(self, adopted: int, dropped: int, why: str) -> None:
        if why in self.kv_wakes or len(self.kv_wakes) < MOST_WHYS:
            self.kv_adopted += adopted
            self.kv_dropped[why] += dropped
            self.kv_wakes[why] += 1

    def moved(self, before: State, after: State, wall: float) -> None:
        self.transitions[before, after] += 1
        self.entered_at[after] = wall

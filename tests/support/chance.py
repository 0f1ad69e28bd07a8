"""Randomness that can be replayed."""

import os
import random


def seeded(name: str = "FAILOVER_CHAOS_SEED") -> random.Random:
    """Set the variable to the number that is printed, and the same happens again."""
    seed = int(os.environ.get(name) or random.SystemRandom().randrange(1 << 32))
    print(f"{name}={seed}")
    return random.Random(seed)

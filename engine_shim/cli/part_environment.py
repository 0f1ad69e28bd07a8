"""What each part of a pair that `failover up` runs finds in its environment.

Every setting of a program may come from the environment, and several programs have settings of one name that mean
another thing in each: two would want the same port. So what a person sets for `failover up` reaches its parts thus:

    FAILOVER_LISTEN, METRICS, RESTART, STALL_S    no part; where `up` has such a setting itself, it is that setting
    FAILOVER_LOCK_X, FAILOVER_GMS_X,              FAILOVER_X in that part alone, whatever X is; the ledger and the pool
    FAILOVER_DOOR_X, FAILOVER_ENGINES_X,          are parts of failover models up
    FAILOVER_LEDGER_X, FAILOVER_POOL_X
    anything else                                 every part

What a part gets on its command line goes before its environment. Pure.
"""

from collections.abc import Mapping

PREFIX = "FAILOVER_"
LOCK, GMS, DOOR, ENGINES, LEDGER, POOL = PARTS = ("LOCK", "GMS", "DOOR", "ENGINES", "LEDGER", "POOL")
PAIR = (LOCK, GMS, DOOR, ENGINES)
ONE_EACH = ("LISTEN", "METRICS", "RESTART", "STALL_S")
"""Settings that mean another thing in each program, or that only one of them can have."""
OWN = ("LISTEN", "STALL_S")
"""Those of them that `failover up` has itself."""


def told(part: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What a person has set for this part alone, under the names that the part knows."""
    prefix = f"{PREFIX}{part}_"
    return {PREFIX + name.removeprefix(prefix): value for name, value in environment.items() if name.startswith(prefix)}


def kept_from_parts(environment: Mapping[str, str]) -> frozenset[str]:
    """The variables that no part gets as they are."""
    return frozenset(name for name in environment if _is_for_one(name))


def unused(environment: Mapping[str, str]) -> list[str]:
    """What a person has set and no part gets, in sentences."""
    names = [f"{PREFIX}{word}" for word in ONE_EACH if word not in OWN]
    return [
        f"{name} is passed on to no part: it would be another thing in each; "
        + ", ".join(name.replace(PREFIX, f"{PREFIX}{part}_") for part in PAIR if part != ENGINES)
        + " are for one part each"
        for name in names
        if environment.get(name)
    ]


def _is_for_one(name: str) -> bool:
    word = name.removeprefix(PREFIX)
    return word != name and (word in ONE_EACH or word.startswith(tuple(f"{part}_" for part in PARTS)))

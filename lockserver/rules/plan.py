"""What is to be done now, for the lock (`sidecar/machine/plan.py`), and whose end, or answer, is awaited. Pure."""

from dataclasses import dataclass, field
from typing import NamedTuple

from evidence.rules.incarnation import Incarnation
from sidecar.machine import plan


class Awaited(NamedTuple):
    """The incarnation whose end, or whose answer, is awaited, while no alarm says why."""

    who: Incarnation | None = None
    why: str = ""
    """What a waiter lacks; empty where an end is awaited."""


@dataclass(slots=True)
class Plan(plan.Plan):
    awaited: dict[str, Awaited] = field(default_factory=dict)
    """By the name of the lock."""

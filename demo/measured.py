"""What the demo has measured, for the story, the report and the recording. Frozen once the story is over."""

import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from demo.crowd import Client

PHASES = (
    ("granted", "lock granted"),
    ("serves", "woken, serves"),
    ("noticed", "end noticed"),
    ("engine", "no engine yet"),
    ("turn", "others first"),
    ("reading", "first token"),
    ("repeating", "said again"),
)
"""The first two are the pair's, the others what clients waited for: the door's words, and a person's."""


@dataclass(frozen=True)
class Kill:
    """Of the engine that served."""

    at: float
    engine: str
    pid: int
    pauses_s: list[float]
    """Each client's."""
    back_s: float
    """Until the killed one was ready again."""
    door: dict[str, Any]
    """What the door says of it."""

    def phases(self) -> dict[str, float]:
        """Milliseconds, each for itself."""
        told = self.door["phases_ms"]
        return {
            "granted": told["granted"],
            "serves": told["serves"] - told["granted"],
            **(self.door["gap_ms"] or {}).get("parts_p50", {}),
        }


@dataclass
class Measured:
    began: float
    words: tuple[str, ...]
    engine: str
    """A sentence about the engines."""
    date: datetime = field(default_factory=lambda: datetime.now(UTC))
    cold_start_ms: float = 0.0
    asked_from: float = 0.0
    """Clients ask again and again since then."""
    kills: list[Kill] = field(default_factory=list)
    servers_killed_at: float = 0.0
    ended: float = 0.0
    clients: list[Client] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        cores = len(os.sched_getaffinity(0))
        machine = (
            f"{cores} processor{'s' * (cores > 1)}, Linux {platform.release()}, Python {platform.python_version()}"
        )
        return f"{self.date:%Y-%m-%d %H:%M} UTC, {machine}, no GPU"

    def marks(self) -> list[tuple[float, str]]:
        """What died when."""
        found = [(kill.at, f"kill {number}: {kill.engine}") for number, kill in enumerate(self.kills, 1)]
        return [*found, *([(self.servers_killed_at, "lock, GMS")] if self.servers_killed_at else [])]

"""What the processes of the engine are told: where GMS is, who they are, on which devices, and how the checkpoint is to
be read. It travels in vLLM's own configuration, as the load format's extra settings.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Home:
    run_dir: str
    engine_id: str
    writes: bool
    """Loads the weights if nobody has."""
    devices: tuple[str, ...]
    """Of the ranks, in order."""
    weights_timeout_s: float = 3600.0
    """How long its start waits for weights that somebody else writes, or for those who read to let it write."""
    wake_timeout_s: float = 30.0
    load_format: str = "auto"
    """How a writer reads the checkpoint: what --load-format says without us, and its extra settings."""
    load_extra: Mapping[str, Any] = field(default_factory=dict)
    share: float = 0.0
    """On a GPU: what the pair may have of it, of 1 (`budget.py`)."""
    reserve: int = 0
    """On a GPU: what an engine may have beside weights and KV cache, in bytes; 0: what it measures."""

    @property
    def directory(self) -> Path:
        return Path(self.run_dir)

    def settings(self) -> dict[str, Any]:
        return asdict(self)


def home_of(settings: Mapping[str, Any]) -> Home:
    """The other way round. Lists were tuples, on their way through JSON."""
    return Home(**{**settings, "devices": tuple(settings["devices"])})

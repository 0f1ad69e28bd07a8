"""What the engine's processes are told: where GMS is, who they are, on which devices, and how the checkpoint is to be
read. It travels in vLLM's own configuration, as the extra settings of the load format.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from engine_shim.engine import Setting
from gms.client import WEIGHTS, GmsClient


@dataclass(frozen=True)
class WorkerSettings:
    run_dir: str
    engine_id: str
    writes: bool
    """It loads the weights if no engine has."""
    devices: tuple[str, ...]
    """The device of each rank, in order."""
    weights_timeout_s: float = 3600.0
    """How long its start waits for weights that another engine writes, or for readers to let it write."""
    wake_timeout_s: float = 30.0
    load_format: str = "auto"
    """How a writer reads the checkpoint: the user's own --load-format, and its extra settings below."""
    load_extra: Mapping[str, Any] = field(default_factory=dict)
    keeps: bool = False
    """The KV cache outlives the engine."""
    parks: int = 0
    """So many bytes of host memory may have what the KV cache holds while the engine sleeps, of all ranks."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """Digests of the files that decide what is computed, by what they are (`contents.py`)."""
    share: float = 0.0
    """On a GPU: the part of it that the pair may have, between 0 and 1 (`budget.py`)."""
    reserve: int = 0
    """On a GPU: the bytes that an engine may have beside weights and KV cache; 0: as many as it measures."""
    snapshot: str = ""
    """Where the weights are on disk, if they are."""
    host_dir: str = ""
    """Where GMS is, if it has the weights of several models; else it is in the run directory."""
    weights: str = ""
    """What they are called there, if other models have them, too."""

    @property
    def directory(self) -> Path:
        return Path(self.run_dir)

    @property
    def setting(self) -> Setting:
        """What of the engine's setting says who it is, and where GMS is."""
        role = "primary" if self.writes else "shadow"
        host_dir = Path(self.host_dir) if self.host_dir else None
        return Setting(self.directory, self.engine_id, role, (), host_dir=host_dir, weights=self.weights)

    def gms(self, device: str, **more: Any) -> GmsClient:
        """A client of this engine's, for this model's weights and pools on a device."""
        setting = self.setting
        region, model = setting.region or WEIGHTS, setting.model
        return GmsClient(setting.gms_dir, device, setting.name, region=region, model=model, **more)

    def to_extra(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Self:
        """From the load format's extra settings. JSON has made lists of tuples on the way."""
        return cls(**{**extra, "devices": tuple(extra["devices"])})

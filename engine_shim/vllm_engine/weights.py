"""The weights of one rank: its connection to GMS, and the layout that it reads there. It hangs on the model, where the
worker finds it.

What this file may not do: know how a model is built (`loader.py`), or import vLLM.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from engine_shim.engine import other_weights
from engine_shim.vllm_engine import engine_directory
from engine_shim.vllm_engine.worker_settings import WorkerSettings
from gms import torch as modules
from gms.client import Memory, Reader, Writer, open_memory
from gms.snapshot import from_snapshot
from gms.torch_views import torch_device

KEY = "vllm"
FILES_KEY = "vllm-files"
ON_HOST_KEY = "vllm-on-host"
"""Names of the tensors that were in the host's memory and not on the device before they were published."""


def differs(theirs: str, ours: Mapping[str, str]) -> str:
    """For the person who has to find the one argument. `theirs`: as it stands in the layout."""
    if not theirs:
        return "another program than vLLM wrote them"
    there = json.loads(theirs)
    names = [name for name in sorted({*there, *ours}) if there.get(name) != ours.get(name)]
    return "; ".join(f"{name} is {there.get(name)} there, and {ours.get(name)} here" for name in names)


class Weights:
    def __init__(self, settings: WorkerSettings, rank: int) -> None:
        """Touches the device. Blocks only in `get`."""
        self._settings = settings
        self._rank = rank
        self.device = settings.devices[rank]
        self.memory: Memory = open_memory(self.device)
        self._lost = ""
        self._there: str | None = None
        """The hash of the layout that GMS has; None: it has named none since ours was read or written."""
        self._reader: Reader | None = None
        self.client = settings.gms(  # its thread may tell of a change before we have it
            self.device, memory=self.memory, on_change=self._on_change, on_lost=self._on_lost
        )

    def get(
        self,
        described: Mapping[str, str],
        load: Callable[[], torch.nn.Module],
        private: Sequence[str] = (),
        files: str = "",
    ) -> Reader:
        """Returns a layout to read. An engine that may write loads it first if no engine has: `load` returns a module
        with its weights, which is moved to GMS and serves no other purpose afterwards. `private` has patterns of the
        names of tensors of which each engine keeps a copy of its own. `files`: what tells the checkpoint's files from
        others of that name, so that a snapshot isn't older than they are.
        """
        timeout_s = self._settings.weights_timeout_s
        granted = self.client.write_or_read(timeout_s) if self._settings.writes else self.client.read(timeout_s)
        said = json.dumps(dict(described), sort_keys=True)
        place = Path(self._settings.snapshot) if self._settings.snapshot else None
        granted = from_snapshot(self.client, granted, place, {KEY: said, FILES_KEY: files}, timeout_s)
        if isinstance(granted, Writer):
            with granted:
                module = load()
                metadata = {KEY: said, FILES_KEY: files, ON_HOST_KEY: json.dumps(self._on_host(module))}
                self._reader = modules.publish(module, granted, private=private, metadata=metadata)
        else:
            self._reader = granted
        self._there = None
        theirs = self._reader.layout.metadata.get(KEY, "")
        if theirs != said:
            raise other_weights(self.device, differs(theirs, described), self._settings.setting.region)
        return self._reader

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            raise RuntimeError("the weights have not been loaded")
        return self._reader

    @property
    def on_host(self) -> list[str]:
        """Names of tensors that have to be in the host's memory again once a module has adopted them."""
        found: list[str] = json.loads(self.reader.layout.metadata.get(ON_HOST_KEY, "[]"))
        return found

    def _on_host(self, module: torch.nn.Module) -> list[str]:
        if torch_device(self.device).type == "cpu":
            return []
        return [found.name for found in modules.find(module) if found.tensor.device.type == "cpu"]

    @property
    def name(self) -> str:
        """Which weights these are."""
        return f"{self.reader.hash} {self.client.contents}"

    @property
    def well(self) -> bool:
        """Whether they could be mapped now, as far as this process knows."""
        return not self._lost and self._there in (None, self.reader.hash)

    def sleep(self) -> None:
        self.reader.sleep()

    def wake(self) -> None:
        """Raises StaleLayout or NotInTime."""
        self.reader.wake(self._settings.wake_timeout_s)

    def _on_change(self, generation: int, hash: str) -> None:
        self._there = hash
        self._mark()

    def _on_lost(self, why: str) -> None:
        self._lost = why
        self._mark()

    def _mark(self) -> None:
        if self._reader is not None:
            engine_directory.mark(self._rank, well=self.well)

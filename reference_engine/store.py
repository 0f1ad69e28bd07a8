"""Where the weights are: in GMS, for an engine that is one of a pair; in the process's own memory, for one alone.

With GMS the engine's role decides (the specification's Decision 5): a primary writes them if no engine has, a shadow
only ever reads. Both map them read-only afterwards, and asleep neither has them mapped. Views keep their addresses.

What this file may not do: know how the weights are made (`weights.py`) or used (`model.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from engine_shim.engine import other_weights
from gms.client import WEIGHTS, GmsClient, Reader, Writer
from gms.layout import Layout, Tensor
from gms.memory import Memory
from gms.pack import pack
from gms.snapshot import from_snapshot
from reference_engine.model import Floats, Shape
from reference_engine.weights import fill

_KEY = "reference"
_SLAB_BYTES = 256 << 20


class Store:
    """In the process's own memory."""

    arrays: Mapping[str, Floats]
    """The weights. Asleep, touching one ends the process."""

    def __init__(self, shape: Shape) -> None:
        arrays = {name: np.empty(form, np.float32) for name, form in shape.tensors().items()}
        fill(shape, arrays)
        for array in arrays.values():
            array.flags.writeable = False
        self.arrays = arrays

    @property
    def size(self) -> int:
        """Bytes of the device that they take."""
        return 0

    @property
    def well(self) -> bool:
        """Could it wake, as far as is known?"""
        return True

    @property
    def name(self) -> str:
        """Which weights these are."""
        return "its own"

    def sleep(self) -> None: ...
    def wake(self, timeout_s: float) -> None: ...
    def close(self) -> None: ...


class GmsStore(Store):
    """Blocks until the weights are there, and maps them."""

    def __init__(
        self,
        run_dir: Path,
        device: str,
        engine_id: str,
        shape: Shape,
        *,
        memory: Memory,
        writes: bool,
        timeout_s: float,
        model: str = "",
        region: str = "",
        snapshot: Path | None = None,
    ) -> None:
        self._latest = ""
        """The hash of the layout that there is now."""
        self.client = GmsClient(
            run_dir, device, engine_id, region=region or WEIGHTS, model=model, memory=memory, on_change=self._changed
        )
        try:
            granted = self.client.write_or_read(timeout_s) if writes else self.client.read(timeout_s)
            said = {_KEY: described(shape)}
            granted = from_snapshot(self.client, granted, snapshot, said, timeout_s)
            self._reader = _write(granted, shape) if isinstance(granted, Writer) else granted
            self._latest = self._reader.hash  # a writer isn't told of its own commit
            self.arrays = _bound(self._reader, shape, region)
        except BaseException:
            self.client.close()
            raise

    @property
    def size(self) -> int:
        return sum(self._reader.sizes)

    @property
    def well(self) -> bool:
        """The layout that it needs stands, or is what a server that is new waits for. A hash and not a generation: the
        same layout, committed again, will do.
        """
        return self._latest == self._reader.hash

    @property
    def name(self) -> str:
        return f"{self._reader.hash} {self.client.contents}"

    def sleep(self) -> None:
        self._reader.sleep()

    def wake(self, timeout_s: float) -> None:
        """Raises StaleLayout or NotInTime."""
        self._reader.wake(timeout_s)

    def close(self) -> None:
        self.arrays = {}
        self.client.close()

    def _changed(self, generation: int, hash: str) -> None:
        self._latest = hash


def _write(writer: Writer, shape: Shape) -> Reader:
    with writer:
        forms = shape.tensors()
        sizes = [_bytes(form) for form in forms.values()]
        packing = pack(sizes, granularity=writer.granularity, slab_bytes=_SLAB_BYTES)
        slabs = [writer.create(size) for size in packing.slabs]
        tensors, arrays = [], {}
        for (name, form), (slab, offset) in zip(forms.items(), packing.places, strict=True):
            arrays[name] = np.ndarray(form, np.float32, writer.memory(slabs[slab]), offset)
            strides = tuple(step // 4 for step in arrays[name].strides)
            tensors.append(Tensor(name, slab, offset, form, strides, "float32"))
        fill(shape, arrays)
        arrays.clear()
        return writer.commit(Layout(packing.slabs, tuple(tensors), {_KEY: described(shape)}))


def _bound(reader: Reader, shape: Shape, region: str) -> Mapping[str, Floats]:
    said = reader.layout.metadata.get(_KEY, "none of the reference engine's")
    if said != described(shape):
        raise other_weights(reader.device, f"{said}; this one is {described(shape)}", region)
    return {name: reader.view(name) for name in shape.tensors()}


def described(shape: Shape) -> str:
    """What makes two models the same."""
    return json.dumps({key: value for key, value in asdict(shape).items() if key != "max_len"}, sort_keys=True)


def _bytes(form: tuple[int, ...]) -> int:
    return int(np.prod(form)) * 4

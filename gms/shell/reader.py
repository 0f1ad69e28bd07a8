"""What a program has of a committed layout: all its slabs, mapped read-only.

Addresses belong to the reader, and stay while it sleeps; descriptors to the store of the process (`slabs.py`).

What this file may not do: speak to the server. It asks the shell (`weights_shell.py`).
"""

from collections.abc import Sequence
from typing import Any, Self

from gms import layout as lay
from gms.rules import messages as m
from gms.rules.errors import Asleep
from gms.shell.slabs import Addresses, LayoutSlabs, buffer
from gms.shell.weights_shell import Use, WeightsShell


class Mapped:
    """What a reader and a writer have in common: slabs at addresses."""

    def __init__(self, shell: WeightsShell, use: Use, addresses: Addresses) -> None:
        self.maker = addresses.memory
        """The device's memory, as this process sees it."""
        self.device = self.maker.device
        self._shell = shell
        self._use = use
        self._addresses = addresses

    @property
    def generation(self) -> int:
        """The layout's number, or the one that it will have."""
        return self._use.generation

    @property
    def lost(self) -> str:
        """Why this layout, or a writer's work, is gone, once it is. It can still be read until it is given up."""
        return self._use.lost

    @property
    def sizes(self) -> list[int]:
        """The slabs' (so far). They are multiples of the granularity."""
        return [size for _, size in self._addresses.slabs]

    def address(self, slab: int) -> int:
        """The same until it is given up; a reader's, asleep or awake."""
        return self._addresses.slabs[slab][0]

    def __enter__(self) -> Self:
        return self


class Reader(Mapped):
    def __init__(self, shell: WeightsShell, use: Use, hash: str, document: bytes, addresses: Addresses) -> None:
        super().__init__(shell, use, addresses)
        self.hash = hash
        self.document = document
        self.sums: list[str] = []
        """The sums of the slabs' contents, as far as they were known when it was mapped."""
        self._slabs: LayoutSlabs | None = None
        """None: asleep."""
        self._layout: lay.Layout | None = None
        self._views: dict[str, tuple[Any, ...]] = {}
        self._array: Any = None
        self._closed = False
        use.end = self.close

    @property
    def awake(self) -> bool:
        return self._slabs is not None

    @property
    def fits(self) -> bool:
        """Is what the server has now, as far as is known, laid out in the same way? Then it can wake."""
        return self._shell.hash == self.hash

    @property
    def layout(self) -> lay.Layout:
        """What lies where. Read from its document when it is first asked for."""
        if self._layout is None:
            self._layout = lay.decode(self.document)
        return self._layout

    def memory(self, slab: int) -> memoryview:
        """A slab's bytes, on host memory."""
        self._must_be_awake()
        return buffer(*self._addresses.slabs[slab]).toreadonly()

    def view(self, name: str) -> Any:
        """A tensor as a numpy array that can't be written, on host memory. Types that numpy hasn't (bfloat16, the
        eight-bit floats) come as their bits, in uint16 and uint8.
        """
        if self._slabs is None or self._array is None:
            self._must_be_awake()
            self._prepare_views()
        return self._array(*self._views[name])

    def sleep(self) -> None:
        """Unmaps everything; addresses and descriptors stay. From now on this process reads no longer."""
        slabs, self._slabs = self._slabs, None
        if slabs is not None:
            self._addresses.unmap()
            self._shell.slept(slabs)

    def wake(self, timeout_s: float) -> None:
        """Maps everything at the same addresses. Raises StaleLayout when the weights are laid out in another way by
        now, and NotInTime; asleep it stays then.
        """
        if self._closed:
            raise Asleep("this reader is closed; read() gives a new one")
        if self._slabs is None:
            granted = self._shell.want_to_read(m.Open("ro", timeout_s, expect=self.hash))
            self._use = granted.use
            self._use.end = self.close
            self.take(granted.slabs, granted.kept.sums if granted.kept is not None else ())

    def leave(self) -> None:
        """Gives its addresses back. The process keeps the descriptors, as one that is asleep."""
        self.sleep()
        self._addresses.free()
        self._closed = True

    def close(self) -> None:
        """Gives everything up: addresses, and the descriptors if this was the last that this process did with them."""
        if not self._closed:
            self._closed = True
            self._views, self._array = {}, None
            slabs, self._slabs = self._slabs, None
            self._addresses.free()
            self._shell.release(self._use, slabs)

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, slabs: LayoutSlabs, sums: Sequence[str]) -> None:
        """Maps what was granted: imports all before it maps any. Asleep it stays if that fails."""
        try:
            slabs.import_all(self._addresses.memory, self.sizes)
            self._addresses.map(slabs, writable=False)
        except BaseException:
            self._addresses.unmap()
            self._shell.slept(slabs)
            raise
        self._slabs, self.sums = slabs, list(sums)

    def _must_be_awake(self) -> None:
        if self._slabs is None:
            raise Asleep("nothing is mapped: wake() first" if not self._closed else "this reader is closed")

    def _prepare_views(self) -> None:
        """What numpy has to be told of each tensor, so that a view takes no more than a microsecond."""
        import numpy

        slabs = [buffer(*slab).toreadonly() for slab in self._addresses.slabs]
        for tensor in self.layout.tensors:
            dtype = numpy.dtype(lay.TYPES[tensor.dtype].in_numpy or tensor.dtype)
            strides = tuple(step * dtype.itemsize for step in tensor.stride)
            offset = 0 if 0 in tensor.shape else tensor.offset
            self._views[tensor.name] = (tensor.shape, dtype, slabs[tensor.slab], offset, strides)
        self._array = numpy.ndarray

"""What a program has while it writes: new slabs, mapped writable, until `commit`. Left without one, it has written
nothing.

What this file may not do: speak to the server. It asks the shell (`weights_shell.py`).
"""

from collections.abc import Sequence

from gms import layout as lay
from gms.memory import Memory
from gms.rules import messages as m
from gms.rules.errors import Lost, Refused
from gms.shell.reader import Mapped, Reader
from gms.shell.slabs import Addresses, LayoutSlabs, buffer
from gms.shell.weights_shell import Use, WeightsShell


class Writer(Mapped):
    def __init__(self, shell: WeightsShell, use: Use, memory: Memory, slabs: LayoutSlabs) -> None:
        super().__init__(shell, use, Addresses(memory))
        self.granularity = memory.granularity
        self._slabs = slabs
        self._keeps_mapped = False
        self._open = True
        use.end = self.abort

    def create(self, size: int, timeout_s: float | None = None) -> int:
        """One more slab, mapped writable; it reads as zeros. Its number. Waits, within bounds, on a full device."""
        self._must_not_be_lost()
        made = self._shell.make(size, timeout_s)
        self._addresses.reserve(made.size)
        self._slabs.import_all(self._addresses.memory, self.sizes)
        self._addresses.map(self._slabs, writable=True)
        return made.slab

    def memory(self, slab: int) -> memoryview:
        """A slab's bytes, on host memory."""
        return buffer(*self._addresses.slabs[slab])

    def keep_mapped(self) -> None:
        """If this fails from here on, what is written stays mapped until the process ends: the program has views
        of it that can't be told.
        """
        self._keeps_mapped = True

    def commit(self, layout: lay.Layout, timeout_s: float | None = None) -> Reader:
        """The layout is there for every process, as long as one wants it; and this process reads it from now on, at
        the same addresses. If it is refused, this is still a writer.
        """
        return self.publish(lay.encode(layout), timeout_s)

    def publish(self, document: bytes, timeout_s: float | None = None, sums: Sequence[str] = ()) -> Reader:
        """The same, of a layout that is encoded. `sums`: the slabs' contents', where they are known already."""
        self._must_not_be_lost()
        if len(document) > lay.MAX_LAYOUT_BYTES:
            raise Refused(f"the layout takes {len(document)} bytes; at most {lay.MAX_LAYOUT_BYTES} are allowed")
        done = self._shell.publish(document, tuple(self.sizes), timeout_s)
        assert isinstance(done, m.Committed)
        self._open = False
        reader = Reader(self._shell, self._use, done.hash, document, self._addresses)
        self._addresses.unmap()
        reader.take(self._slabs, ())
        if sums:
            self._shell.tell(m.Checksums(done.generation, list(sums)))
        self._shell.background.begin(self._slabs, self.sizes)
        return reader

    def _must_not_be_lost(self) -> None:
        if self.lost:
            raise Lost(self.lost)

    def abort(self) -> None:
        if self._open:
            self._open = False
            if not self._keeps_mapped:
                self._addresses.free()
            self._shell.release(self._use, None if self._keeps_mapped else self._slabs)

    def leave(self) -> None:
        """The same; but what the process has kept of another layout it keeps."""
        if self._open:
            self._open = False
            self._addresses.free()
            self._shell.slept(self._slabs)

    def __exit__(self, *_: object) -> None:
        self.abort()

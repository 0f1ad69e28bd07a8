"""The slabs of layouts that this process has: their descriptors, and what was imported from them.

A layout is let go of when nobody here uses it any more: a reader that has it mapped, the thread that sums it up. Until
then "let go" is only remembered, because whoever reads would crash.

What this file may not do: map (`mapped.py`), or decide what is kept (`client_machine.py`).
"""

import threading
from collections.abc import Callable, Sequence

from gms.memory import DeviceError, Handle, Memory
from sidecar.frames import close_all


class Held:
    """One layout's slabs."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.descriptors: list[int] = []
        self.handles: list[Handle] = []
        """Of the first slabs, as many as were imported."""
        self.users = 0
        self.unwanted = False

    def import_all(self, memory: Memory, sizes: Sequence[int]) -> None:
        """All of them or an error: nobody maps a layout of which a part can't be had. They stay imported, so that a
        wake need not do it again.
        """
        if len(self.descriptors) != len(sizes):
            raise DeviceError(f"layout {self.generation} has {len(sizes)} slabs, and {len(self.descriptors)} came")
        for number in range(len(self.handles), len(sizes)):
            self.handles.append(memory.import_(self.descriptors[number], sizes[number]))


class Shelf:
    """All layouts of which this process has slabs: as a rule one, and another while one replaces the other."""

    def __init__(self, gone: Callable[[int], None]) -> None:
        """`gone` is called, in whatever thread, once nothing of a layout that was let go of is left."""
        self._gone = gone
        self._lock = threading.Lock()
        self._held: dict[int, Held] = {}
        self.memory: Memory | None = None

    def keep(self, generation: int, first: int, descriptors: Sequence[int]) -> None:
        """They belong to the shelf from now on."""
        with self._lock:
            held = self._held.setdefault(generation, Held(generation))
            if first == len(held.descriptors):
                held.descriptors += descriptors
            else:
                close_all(descriptors)

    def descriptors(self, generation: int, first: int, count: int) -> list[int]:
        held = self._held.get(generation)
        return held.descriptors[first : first + count] if held is not None else []

    def use(self, generation: int) -> Held:
        """Nothing of it goes until it is put back."""
        with self._lock:
            held = self._held.setdefault(generation, Held(generation))
            held.users += 1
            return held

    def use_too(self, held: Held) -> None:
        """By one more, while somebody does."""
        with self._lock:
            held.users += 1

    def put_back(self, held: Held) -> None:
        with self._lock:
            held.users -= 1
            if held.users > 0 or not held.unwanted:
                return
            self._drop(held)
        self._gone(held.generation)

    def let_go(self, generation: int) -> bool:
        """False: somebody still uses it, and `gone` is called later."""
        with self._lock:
            held = self._held.get(generation)
            if held is None:
                return True
            held.unwanted = True
            if held.users > 0:
                return False
            self._drop(held)
            return True

    def close(self) -> None:
        with self._lock:
            for held in list(self._held.values()):
                self._drop(held)

    def _drop(self, held: Held) -> None:
        self._held.pop(held.generation, None)
        handles, held.handles = held.handles, []
        if self.memory is not None:
            for handle in handles:
                self.memory.release(handle)
        close_all(held.descriptors)
        held.descriptors = []

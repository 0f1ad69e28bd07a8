"""Moves a process's memory into huge pages, so that the process ends quickly.

The lock waits until a killed engine's processes are gone, and most of that time they give back their memory page by
page: about 420 MiB of Python's objects in each of vLLM's processes take 250 to 390 ms on busy processors. In huge pages
the same takes 20 to 110 ms. The allocators don't ask for them, so what has been loaded is moved once, in a thread of
its own, for about a second of processor time. Nothing depends on it: where the kernel can't (before Linux 6.1), ends
are slower.

What this file may not do: touch memory that is shared. Weights and KV caches belong to files and stay as
they are.
"""

import ctypes
import threading
from collections.abc import Iterable, Iterator

_HUGE = 2 << 20
_MADV_COLLAPSE = 25
_FULL = 0.5
"""The part of a mapping that must be in memory. Below it, huge pages would cost more memory than they are worth."""


def move_memory() -> threading.Thread:
    """Returns at once. Threads that allocate memory meanwhile wait for moments."""
    thread = threading.Thread(target=_collapse, name="huge-pages", daemon=True)
    thread.start()
    return thread


def _collapse() -> None:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as smaps:
        found = list(spans(smaps))
    for start, end in found:
        for at in range(start, end, _HUGE):  # one by one, so that one that was unmapped meanwhile stops nothing
            madvise(at, _HUGE, _MADV_COLLAPSE)


def spans(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """The ranges of whole huge pages in private memory that belongs to no file and is mostly there."""
    start = end = 0
    ours = False
    for line in smaps:
        words = line.split()
        if not words[0].endswith(":"):  # addresses, permissions, offset, device, inode, path
            start, end = (int(word, 16) for word in words[0].split("-"))
            ours = words[1] == "rw-p" and words[4] == "0"
        elif words[0] == "Anonymous:" and ours and int(words[1]) << 10 >= (end - start) * _FULL:
            first, last = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
            if first < last:
                yield first, last

"""A process's memory in huge pages, so that it ends quickly.

The lock waits until a killed engine's processes are gone, and most of what that takes is giving their memory back page
by page: some 420 MiB of Python's objects in each of vLLM's processes, 250 to 390 ms on busy processors. In huge pages
the same takes 20 to 110. The allocators ask for none by themselves, so what has been loaded is moved once, in a thread
of its own, for about a second of processor time. Nothing depends on it: where the kernel won't (before Linux 6.1), ends
are slower.

What this file may not do: touch memory that is shared with anybody. Weights and KV caches are files' and stay as they
are.
"""

import ctypes
import threading
from collections.abc import Iterable, Iterator

_HUGE = 2 << 20
_MADV_COLLAPSE = 25
_FULL = 0.5
"""Of a mapping there must be so much, or huge pages would make more of it than they give."""


def into_huge_pages() -> threading.Thread:
    """Returns at once. Threads that allocate meanwhile wait for moments."""
    thread = threading.Thread(target=_collapse, name="huge-pages", daemon=True)
    thread.start()
    return thread


def _collapse() -> None:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as smaps:
        found = list(spans(smaps))
    for start, end in found:
        for at in range(start, end, _HUGE):  # one by one: what was unmapped in the meantime ends nothing
            madvise(at, _HUGE, _MADV_COLLAPSE)


def spans(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Whole huge pages of private memory that is no file's, and mostly there."""
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

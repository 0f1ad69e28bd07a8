"""Memory in huge pages: which of it, and that it is the same afterwards. Needs no vLLM."""

from engine_shim.vllm_engine import huge_pages

SMAPS = """\
00400000-00a00000 r-xp 00000000 fe:00 17 /usr/bin/python3
Anonymous:             6144 kB
00f00000-01700000 rw-p 00000000 00:00 0 [heap]
Rss:                   8192 kB
Anonymous:             7000 kB
02000000-02800000 rw-p 00000000 00:00 0 [stack]
Anonymous:               64 kB
03000000-03800000 rw-s 00000000 00:01 9 /dev/shm/device
Anonymous:             8192 kB
04000000-04100000 rw-p 00000000 00:00 0
Anonymous:             1024 kB
05000000-05800000 rw-p 00000000 fe:00 18 /usr/lib/libtorch.so
Anonymous:             8192 kB
"""


def test_only_private_memory_that_is_mostly_there_is_moved() -> None:
    assert list(huge_pages.spans(SMAPS.splitlines())) == [(0x1000000, 0x1600000)]


def test_what_was_moved_is_as_it_was() -> None:
    things = [(n, str(n)) for n in range(200_000)]
    thread = huge_pages.move_memory()
    more = [(n, str(n)) for n in range(200_000)]
    thread.join(60)
    assert not thread.is_alive()
    assert things == more

"""What this process has open."""

import contextlib
import os
import resource
from collections.abc import Iterator


def open_descriptors() -> dict[int, str]:
    """Every descriptor of this process and what it is."""
    found: dict[int, str] = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed the directory
            found[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
    return found


@contextlib.contextmanager
def no_descriptor_leaks() -> Iterator[None]:
    """Nothing is open afterwards that wasn't before. What was garbage before may be closed in between."""
    before = open_descriptors()
    yield
    assert dict(open_descriptors().items() - before.items()) == {}


@contextlib.contextmanager
def descriptors_left(room: int) -> Iterator[None]:
    """This process can open that many more files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare: list[int] = []
    highest = max(open_descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 100 + room, limits[1]))
    try:
        # Fill all, so that what is left is exactly the room. A thread that waits in accept() has a number that no
        # directory shows.
        with contextlib.suppress(OSError):
            while True:
                spare.append(os.dup(0))
        for fd in sorted(spare)[len(spare) - room :] if room else []:
            os.close(fd)
            spare.remove(fd)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in spare:
            os.close(fd)

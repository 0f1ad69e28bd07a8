"""What the tests of host memory share: how large their device is, and other processes that have it open."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from gms.memory.host_device import GRANULARITY
from sidecar.kernel import host_usage
from tests.gms.memory.remote import Remote
from tests.support.children import Child

UNITS = 16
CAPACITY = UNITS * GRANULARITY


@contextlib.contextmanager
def process(devices: Path) -> Iterator[Remote]:
    """Has the device `0` of this directory open, until it is killed."""
    remote = Remote("host", {host_usage.ENVIRONMENT: str(devices)})
    try:
        yield remote
    finally:
        remote.kill()


@contextlib.contextmanager
def crowd(*functions: Callable[[Callable[[str], None]], None]) -> Iterator[list[Child]]:
    """Forked processes, each with what it does; killed at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Child(function)) for function in functions]

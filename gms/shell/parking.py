"""Weights between the device and host memory: a process parks the layout of a region, or brings it back.

GMS maps nothing, and needs no context on a GPU: so the bytes are copied by a process that has both, as a writer that
replaces the layout by itself (rule 12 of `machine.py`). An engine that wakes, or starts, brings back what is parked;
`gmsctl park` parks. Whatever is killed in the middle was a writer that has not committed.

The digests of the contents go with them. They are made when it is parked, and looked at by `gmsctl verify`: not at a
wake, which they would make ten times as long.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

from gms import layout as lay
from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.client_machine import GRACE_S
from gms.rules.errors import Damaged, Lost, Parked
from gms.shell import device_io, tables
from gms.shell.background import Checksum
from gms.shell.slabs import Addresses, LayoutSlabs
from gms.shell.weights_shell import WeightsShell, left_s
from gms.shell.writer import Writer


def park(shell: WeightsShell, timeout_s: float | None) -> m.Committed | m.RegionDropped:
    """Returns what has become of the device's slabs; `Committed`: the server is gone, and can't say. Raises Parked if
    that is done already, NotInTime while a process reads or writes, and NoRoom, Damaged and DeviceError.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    granted = shell.want(m.Open("ro", timeout_s))
    kept = granted.kept
    assert kept is not None
    shell.slept(granted.slabs)
    granted = shell.want(m.Open("rw", left_s(until), replace=True, parks=kept.generation))
    try:
        shell.make(sum(kept.sizes))
        _copy_out(shell, kept, granted.use.generation)
        return shell.publish(kept.layout, (sum(kept.sizes),), None)
    finally:
        shell.slept(granted.slabs)


def _copy_out(shell: WeightsShell, kept: c.Kept, generation: int) -> None:
    (descriptor,) = shell.store.descriptors(generation, 0, 1)
    addresses, slabs, size = Addresses(shell.memory), shell.store.use(kept.generation), sum(kept.sizes)
    try:
        tables.check(descriptor, size)  # a server too old to park makes a slab, and beside it lies what is another's
        _map(addresses, slabs, kept.sizes)
        device_io.make_pages(descriptor, size)
        with device_io.host_memory(shell.memory, descriptor, size) as whole, contextlib.ExitStack() as views:
            parts = [views.enter_context(part) for part in _parts(whole, kept.sizes)]
            for (address, _), part in zip(addresses.slabs, parts, strict=True):
                device_io.copy_out(shell.memory, address, part)
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                sums = list(threads.map(_sum, parts))
    finally:
        addresses.free()
        shell.store.put_back(slabs)
    if kept.sums and sums != kept.sums:
        raise Damaged(f"layout {kept.generation} is no longer what was committed, and isn't parked: gmsctl verify")
    shell.tell(m.Checksums(kept.generation, sums))


def bring_back(shell: WeightsShell, until: float | None) -> None:
    """So that it can be read. If another process has done that, or the server dies meanwhile, it only returns: the next
    attempt to read says which. Raises NotInTime, NoRoom and DeviceError: then this process keeps what is parked.
    """
    kept, memory = shell.parked, shell.memory  # what can't be opened holds up no other process
    if kept is None:
        return
    sizes, slabs = lay.decode(kept.layout).slabs, shell.store.use(kept.generation)
    wish = m.Open("rw", left_s(until), replace=True, bytes=sum(sizes), unparks=kept.generation)
    try:
        with contextlib.suppress(Parked, Lost):
            granted = shell.want(wish)
            _copy_in(Writer(shell, granted.use, memory, granted.slabs), kept, sizes, slabs, until)
    finally:
        shell.store.put_back(slabs)


def _copy_in(writer: Writer, kept: c.Kept, sizes: Sequence[int], slabs: LayoutSlabs, until: float | None) -> None:
    try:
        for size in sizes:
            writer.create(size, left_s(until, GRACE_S))
        (descriptor,) = slabs.descriptors
        with device_io.host_memory(writer.maker, descriptor, sum(sizes)) as whole:
            for slab, part in enumerate(_parts(whole, sizes)):
                with part:
                    device_io.copy_in(writer.maker, writer.address(slab), part)
        writer.publish(kept.layout, left_s(until, GRACE_S)).leave()
    finally:
        writer.leave()


def _map(addresses: Addresses, slabs: LayoutSlabs, sizes: Sequence[int]) -> None:
    for size in sizes:
        addresses.reserve(size)
    slabs.import_all(addresses.memory, sizes)
    addresses.map(slabs, writable=False)


def _parts(whole: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Slab after slab."""
    return [whole[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _sum(part: memoryview) -> str:
    total = Checksum()
    total.add(part)
    return total.text

"""Checks of the cuda maker on one GPU. Each runs in a process of its own, gives figures, and raises Failed.

python -m tests.gpu.memory CHECK UUID. What the emulated driver only chose ("chosen" in its sources) is asked here.
"""

import contextlib
import json
import os
import select
import socket
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from engine_shim.vllm_engine.kv_pool import KvPool
from gms.memory import DeviceError, Handle, OutOfMemory
from gms.memory.cuda import CudaMemory, devices
from tests.gpu.kernel_writer import BLOCKS as WRITER_BLOCKS
from tools.vmm_refcount.contents import contents
from tools.vmm_refcount.meters import nvml_meter
from tools.vmm_refcount.processes import Process

MIB = 1 << 20
SIZE = 64 * MIB
TOLERANCE = 16 * MIB  # what the driver takes for itself beside the memory
SETTLE_S = 10.0
WRITER_TURNS = 20
WATCHED_S = 1.0
Counters = dict[str, Any]


class Failed(Exception):
    """What was expected, and what is."""


def expect(holds: bool, sentence: str) -> None:
    if not holds:
        raise Failed(sentence)


def eventually(condition: Callable[[], bool], sentence: str) -> float:
    """How long it took."""
    started = time.monotonic()
    while not condition():
        expect(time.monotonic() - started < SETTLE_S, sentence)
        time.sleep(0.002)
    return time.monotonic() - started


def about(value: int, wanted: int) -> bool:
    return abs(value - wanted) <= TOLERANCE


def device_error(do: Callable[[], object]) -> str | None:
    try:
        do()
    except DeviceError as error:
        return str(error)
    return None


@contextlib.contextmanager
def process(name: str, uuid: str) -> Iterator[Process]:
    other = Process(name, "cuda", uuid, os.environ)
    try:
        yield other
    finally:
        other.kill()


def mapped(memory: CudaMemory, handle: Handle, size: int, *, offset: int = 0, writable: bool = True) -> int:
    address = memory.reserve(size)
    memory.map(address, handle, size=size, offset=offset, writable=writable)
    return address


# --- the checks


def context_is_needed_by(uuid: str) -> Counters:
    """Every call of the path in a process without a context: which of them the driver refuses."""
    from cuda.bindings import driver

    memory = CudaMemory(uuid)
    before = memory.free()
    handle = memory.create(SIZE)
    fd = memory.export(handle)
    memory.identity(fd)
    memory.release(memory.import_(fd, SIZE))
    os.close(fd)
    server = before - memory.free() - SIZE
    address = memory.reserve(SIZE)
    raw = memory._allocations[handle].driver_handle
    said = {
        "cuMemMap": driver.cuMemMap(address, SIZE, 0, raw, 0)[0].name,
        "cuMemSetAccess": driver.cuMemSetAccess(address, SIZE, memory._access[True], 1)[0].name,
        "cuMemUnmap": driver.cuMemUnmap(address, SIZE)[0].name,
    }
    without = before - memory.free() - SIZE
    memory.map(address, handle, size=SIZE, writable=True)
    context = before - memory.free() - SIZE
    memory.close()
    expect(
        server <= TOLERANCE, f"a server has a context after all: {server} bytes of the GPU are gone beside its memory"
    )
    return {"without_a_context": said, "server_bytes": server, "mapped_raw_bytes": without, "context_bytes": context}


def counts(uuid: str) -> Counters:
    """Free memory follows create and release; more than there is is OutOfMemory with true figures."""
    memory = CudaMemory(uuid)
    before = memory.free()
    handle = memory.create(SIZE)
    after = memory.free()
    expect(about(before - after, SIZE), f"{before - after} bytes are gone after {SIZE} were created")
    memory.release(handle)
    took = eventually(lambda: about(memory.free(), before), "released memory isn't free again")
    too_much = (before // memory.granularity + 16) * memory.granularity
    try:
        memory.create(too_much)
    except OutOfMemory as error:
        refused = {"needed": error.needed, "free": error.free}
    else:
        raise Failed(f"{too_much} bytes were created where {before} were free")
    expect(about(memory.free(), before), "a refused create took memory")
    return {
        "free": before,
        "capacity": memory.capacity(),
        "granularity": memory.granularity,
        "created_costs": before - after,
        "release_took_s": took,
        "out_of_memory": refused,
    }


def reads_as_zeros(uuid: str) -> Counters:
    """Also where another process wrote: all of the free memory is filled by one and had by the next."""
    memory = CudaMemory(uuid)
    size = min(memory.free() // 2, 8 << 30) // memory.granularity * memory.granularity
    with process("writer", uuid) as writer:
        writer.create("w", size)
        writer.map("w", "a", size, writable=True)
        for at in range(0, size, max(size // 256, memory.granularity)):
            writer.poke("a", "somebody's", offset=at)
    eventually(lambda: memory.free() >= size, "a killed writer's memory isn't free again")
    address = mapped(memory, memory.create(size), size)
    peek = contents(uuid).peek
    step = 16 * MIB
    dirty = sum(any(peek(address + at, min(step, size - at))) for at in range(0, size, step))
    expect(dirty == 0, f"new memory isn't zero: {dirty} of {-(-size // step)} pieces have something in them")
    return {"checked_bytes": size}


def sizes_are_checked(uuid: str) -> Counters:
    """`import_` believes that no more can be mapped than there is, and that all of it can."""
    memory = CudaMemory(uuid)
    unit = memory.granularity
    fd = memory.export(memory.create(4 * unit))
    said = {size // unit: device_error(partial(memory.import_, fd, size)) for size in (unit, 3 * unit, 5 * unit)}
    for units, refused in said.items():
        expect(refused is not None, f"memory of 4 units was taken for {units}")
    memory.release(memory.import_(fd, 4 * unit))
    os.close(fd)
    return {"refused": said}


def garbage_is_refused(uuid: str) -> Counters:
    """Descriptors that are no memory, and numbers that are no descriptor."""
    memory = CudaMemory(uuid)
    near, far = socket.socketpair()
    reading, writing = os.pipe()
    descriptors = {
        "socket": near.fileno(),
        "other socket": far.fileno(),
        "pipe": reading,
        "pipe's end": writing,
        "null": os.open("/dev/null", os.O_RDWR),
        "memfd": os.memfd_create("garbage"),
        "directory": os.open("/", os.O_RDONLY),
        "closed": 9999,
        "negative": -1,
    }
    with contextlib.suppress(OSError):
        descriptors["nvidiactl"] = os.open("/dev/nvidiactl", os.O_RDWR)
    said = {name: device_error(partial(memory.import_, fd, SIZE)) for name, fd in descriptors.items()}
    for name, refused in said.items():
        expect(refused is not None, f"a descriptor that is no memory was imported: {name}")
    return {"refused": said}


def descriptors_look_like(uuid: str) -> Counters:
    """What the kernel tells of exported descriptors: could two pieces of memory be told apart after all?"""
    from cuda.bindings import driver

    memory = CudaMemory(uuid)
    one, two = memory.create(SIZE), memory.create(SIZE)
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    raw = driver.cuMemExportToShareableHandle(memory._allocations[one].driver_handle, kind, 0)[1]
    found: Counters = {"close_on_exec_by_the_driver": not os.get_inheritable(raw)}
    for name, fd in {"one": raw, "one again": memory.export(one), "two": memory.export(two)}.items():
        status = os.fstat(fd)
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
            found[name] = {
                "link": os.readlink(f"/proc/self/fd/{fd}"),
                "kind": stat.filemode(status.st_mode),
                "device": status.st_dev,
                "inode": status.st_ino,
                "of_device": status.st_rdev,
                "fdinfo": info.read(),
            }
        os.close(fd)
    return found


def mappings(uuid: str) -> Counters:
    """Two addresses, an offset, the same address again, and what overlaps is refused."""
    memory = CudaMemory(uuid)
    unit = memory.granularity
    handle = memory.create(4 * unit)
    one = mapped(memory, handle, 4 * unit)
    touch = contents(uuid)
    for at in range(4):
        touch.poke(one + at * unit, bytes([at + 1]))
    two = mapped(memory, handle, 4 * unit, writable=False)
    expect(touch.peek(two, 1) == b"\1", "a second mapping of a handle shows other bytes")
    fd = memory.export(handle)
    imported = memory.import_(fd, 4 * unit)
    os.close(fd)
    figures: Counters = {}
    for name, of in {"own": handle, "imported": imported}.items():
        address = memory.reserve(2 * unit)
        refused = device_error(partial(memory.map, address, of, size=2 * unit, offset=2 * unit, writable=False))
        figures[f"offset_of_{name}_handle"] = refused or "works"
        if refused is None:
            expect(touch.peek(address, 1) == b"\3", f"a mapping at an offset of the {name} handle shows other bytes")
    for at, size in ((one, unit), (one + 2 * unit, unit)):
        refused = device_error(partial(memory.map, at, handle, size=size, writable=True))
        expect(refused is not None, "something was mapped over a mapping")
    for at in (one + 4 * unit, one - unit):
        if not any(start <= at < start + size for start, size in memory._reserved):
            refused = device_error(partial(memory.map, at, handle, size=unit, writable=True))
            expect(refused is not None, "something was mapped outside of a reservation")
    memory.unmap(one, 4 * unit)
    memory.map(one, handle, size=4 * unit, writable=False)
    expect(touch.peek(one + unit, 1) == b"\2", "mapped at its old address again, memory shows other bytes")
    memory.close()
    return figures


def read_only(uuid: str) -> Counters:
    """A write through a read-only mapping fails, and hurts no process but its own."""
    with process("writer", uuid) as writer, process("offender", uuid) as offender:
        writer.create("w", SIZE)
        writer.map("w", "a", SIZE, writable=True)
        writer.poke("a", "intact")
        writer.export("w")
        writer.send("w", offender)
        offender.import_("w", SIZE)
        offender.map("w", "a", SIZE)
        offender.expect("a", "intact")
        write = device_error(lambda: offender.poke("a", "oops!!"))
        afterwards = device_error(lambda: offender.expect("a", "intact"))
        writer.expect("a", "intact")
    expect(write is not None, "a write through a read-only mapping succeeded")
    return {"write": write, "reading_afterwards": afterwards or "works"}


def costs(uuid: str) -> Counters:
    """Medians of 50, in microseconds, for 64 MiB. The first of each is left out."""
    memory = CudaMemory(uuid)
    seen: dict[str, list[float]] = {}

    def timed(name: str, do: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        value = do()
        seen.setdefault(name, []).append((time.perf_counter() - started) * 1e6)
        return value

    address = memory.reserve(SIZE)
    for _ in range(51):
        handle = timed("create", lambda: memory.create(SIZE))
        fd = timed("export", partial(memory.export, handle))
        imported = timed("import_ with its check of the size", partial(memory.import_, fd, SIZE))
        timed("identity", partial(memory.identity, fd))
        timed("map", partial(memory.map, address, imported, size=SIZE, writable=False))
        timed("unmap", lambda: memory.unmap(address, SIZE))
        timed("release of the import", partial(memory.release, imported))
        os.close(fd)
        timed("release of the last", partial(memory.release, handle))
        timed("free", memory.free)
    memory.close()
    return {name: {"median": statistics.median(times[1:]), "first": times[0]} for name, times in seen.items()}


def a_kv_cache(uuid: str) -> Counters:
    """One piece mapped over and over, then memory of its own at the same addresses; twice. What each step takes."""
    memory = CudaMemory(uuid)
    touch = contents(uuid)
    memory.release(memory.create(memory.granularity))
    size = min(memory.free() // 2, 64 << 30) // memory.granularity * memory.granularity
    pool = KvPool(memory, pieces=1024)
    figures: Counters = {"bytes": size}

    def timed(name: str, do: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        value = do()
        figures[name] = time.perf_counter() - started
        return value

    warm = mapped(memory, memory.create(memory.granularity), memory.granularity)  # the context is there from now on
    touch.poke(warm, b"x")
    before = memory.free()
    address = timed("into_scratch_s", lambda: pool.allocate(size))
    figures["scratch_bytes"] = pool.scratch
    expect(about(before - memory.free(), pool.scratch), f"scratch of {pool.scratch} cost {before - memory.free()}")
    last = address + size - 4
    touch.poke(last, b"last")
    expect(touch.peek(last, 4) == b"last", "what was written into scratch isn't read there again")
    for turn in ("first", "second"):
        timed(f"{turn}_sleep_s", pool.sleep)
        eventually(lambda: about(memory.free(), before), "asleep, a KV cache still has memory")
        timed(f"{turn}_wake_s", pool.wake)
        expect(pool.addresses == [address], "a KV cache moved")
        expect(about(before - memory.free(), size), f"awake, {size} bytes cost {before - memory.free()}")
        expect(touch.peek(last, 4) == b"\0" * 4, "a KV cache doesn't begin as zeros")
        touch.poke(last, b"last")
    memory.close()
    return figures


def writes_end_with_the_process(uuid: str) -> Counters:
    """A kernel writes for ever, and its process is killed. Once its pidfd is readable nothing may change any more: on
    this stand pools on a GPU (docs/inside/gms.md), which are off until a real device has shown it.
    """
    memory = CudaMemory(uuid)
    size = memory.granularity
    handle = memory.create(size)
    address = mapped(memory, handle, size)
    peek, fd, watched = contents(uuid).peek, memory.export(handle), WRITER_BLOCKS * 8
    took: list[float] = []

    def is_written() -> bool:
        before = peek(address, watched)
        time.sleep(0.01)
        return peek(address, watched) != before

    for _ in range(WRITER_TURNS):
        command = [sys.executable, "-m", "tests.gpu.kernel_writer", uuid, str(fd), str(size)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[fd]) as writer:
            try:
                assert writer.stdout is not None
                said = writer.stdout.readline().strip()
                if said != "writes":
                    expect(nvml_meter(uuid).emulated, f"no kernel could be launched: {said}")
                    return {"not_asked": f"an emulated GPU runs no kernels ({said})"}
                eventually(is_written, "the kernel doesn't write")
                pidfd = os.pidfd_open(writer.pid)
                killed = time.perf_counter()
                writer.kill()
                select.select([pidfd], [], [])
                took.append(time.perf_counter() - killed)
                os.close(pidfd)
                seen, until = peek(address, watched), time.monotonic() + WATCHED_S
                while time.monotonic() < until:
                    expect(peek(address, watched) == seen, "memory changed after the end of its writer's process")
            finally:
                writer.kill()
    os.close(fd)
    memory.close()
    return {"turns": WRITER_TURNS, "watched_s": WATCHED_S, "end_took_s": sorted(took)}


CHECKS: dict[str, Callable[[str], Counters]] = {
    check.__name__: check
    for check in (
        context_is_needed_by,
        counts,
        reads_as_zeros,
        sizes_are_checked,
        garbage_is_refused,
        descriptors_look_like,
        mappings,
        read_only,
        a_kv_cache,
        writes_end_with_the_process,
        costs,
    )
}


def main(name: str, uuid: str) -> None:
    try:
        result: Counters = {"passed": True, "figures": CHECKS[name](uuid)}
    except (Failed, DeviceError) as error:
        result = {"passed": False, "why": str(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:] == ["devices"]:
        print(json.dumps(devices()))
    else:
        main(*sys.argv[1:])

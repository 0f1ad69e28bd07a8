"""GMS: binding, waking, publishing, and coming back, each beside what it could cost at least.

One server on host memory, and clients of it in this process. What touches every byte is measured a few times only:
4 GiB take a second each.
"""

import array
import contextlib
import ctypes
import gc
import mmap
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.figures import Comparison, Reading, Result
from bench.stage import DEADLINE_S, ROOT, Broken, directory
from gms import layout as lay
from gms.client import GmsClient, Layout, Reader, Tensor, Writer, pack
from gms.memory import libc
from gms.memory.host import HostMemory
from gms.memory.host_device import GRANULARITY, create_device
from gms.observer import Observer
from gms.rules import messages as m
from gms.rules.safetensors_file import compose
from gms.shell.device_process import Settings
from gms.shell.rundir import connect
from sidecar.wire.frames import Channel

GIB = 1 << 30
DEVICE = "host:0"
_HEAVY_ROUNDS = 3
"""For what takes a second each."""


class Stage:
    def __init__(self, place: Path, capacity: int) -> None:
        self.run_dir = place / "run"
        self.devices = place / "devices"
        create_device("0", capacity, self.devices)
        self.clients: list[GmsClient] = []
        self.server = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        settings = Settings(
            run_dir=str(self.run_dir), parent_pid=os.getpid(), host_devices=str(self.devices), host_memory=1 << 40
        )
        command = [sys.executable, "-m", "gms.shell.device_process", DEVICE, msgspec.json.encode(settings).decode()]
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ready(self) -> float:
        """When its socket was there."""
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                connect(self.run_dir, DEVICE).close()
                return time.perf_counter()
            if self.server.poll() is not None:
                break
        raise Broken("GMS did not start; try: python -m gms --run-dir /tmp/x --devices host:0 --capacity 1GiB")

    def client(self, name: str) -> GmsClient:
        client = GmsClient(
            self.run_dir, DEVICE, name, memory=HostMemory("0", self.devices), checksums=False, huge_pages=False
        )
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.kill()
        self.server.wait()


@contextlib.contextmanager
def _stage(place: Path, size: int) -> Iterator[Stage]:
    with directory(place) as path:
        stage = Stage(path, size + 64 * GRANULARITY)
        try:
            stage.ready()
            yield stage
        finally:
            stage.close()


def _layout(size: int, tensors: int, granularity: int) -> Layout:
    """So many tensors of the same size: matrices, as models have them."""
    each = size // tensors // 512 * 512
    packing = pack([each] * tensors, granularity=granularity)
    shape, stride = (each // 512, 256), (256, 1)
    return Layout(
        packing.slabs,
        tuple(
            Tensor(f"model.layers.{number // 10}.part_{number % 10}.weight", *place, shape, stride, "bfloat16")
            for number, place in enumerate(packing.places)
        ),
    )


def _commit(client: GmsClient, size: int, tensors: int) -> Reader:
    writer = client.write(DEADLINE_S)
    layout = _layout(size, tensors, writer.granularity)
    for slab in layout.slabs:
        number = writer.create(slab)
        ctypes.memset(writer.address(number), 7, slab)
    return writer.commit(layout)


# -- binding and views ---------------------------------------------------------------------------------------------


def measure_bind(place: Path, size: int, tensors: int, rounds: int) -> Iterator[Result]:
    """From asking to everything mapped, beside a peer that hands out the same bytes and descriptors at once."""
    with _stage(place, size) as stage:
        wrote = _commit(stage.client("writer"), size, tensors)
        fair = Comparison(f"bind {_size(size)} in {tensors} tensors", "bare system calls", goal_median=2.0)
        reader_client = stage.client("reader")

        def bind() -> int:
            began = time.perf_counter_ns()
            reader = reader_client.read(DEADLINE_S)
            took = time.perf_counter_ns() - began
            reader.close()
            return took

        with _bare_peer(wrote) as bare:
            yield fair.in_turns(rounds, 3, bare, bind)
        yield from _views(reader_client.read(DEADLINE_S))


def _views(reader: Reader) -> Iterator[Result]:
    try:
        import numpy  # noqa: F401
    except ImportError:
        return
    names = [tensor.name for tensor in reader.layout.tensors]
    reader.view(names[0])
    gc.disable()
    began = time.perf_counter_ns()
    views = [reader.view(name) for name in names]
    took = time.perf_counter_ns() - began
    gc.enable()
    yield Reading("a view of a tensor (numpy)", took / len(views) / 1000, "us", 2.0)


@contextlib.contextmanager
def _bare_peer(reader: Reader) -> Iterator[Callable[[], int]]:
    """A process that answers a byte with a document and descriptors, and what it takes to map those."""
    descriptors = list(reader._slabs.descriptors) if reader._slabs is not None else []
    sizes, document = reader.sizes, reader.document
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        while theirs.recv(1):
            sent = theirs.sendmsg([document], rights)
            theirs.sendall(memoryview(document)[sent:])
        os._exit(0)
    theirs.close()

    def once() -> int:
        began = time.perf_counter_ns()
        ours.send(b"?")
        came, got = array.array("i"), 0
        while got < len(document):
            data, control, _, _ = ours.recvmsg(1 << 20, 4096, socket.MSG_CMSG_CLOEXEC)
            got += len(data)
            for _, _, payload in control:
                came.frombytes(payload)
        mapped = []
        for fd, size in zip(came, sizes, strict=True):
            address = libc.reserve_addresses(size, GRANULARITY)
            libc.map_file(address, size, fd, 0, writable=False)
            mapped.append((address, size))
        took = time.perf_counter_ns() - began
        for address, size in mapped:
            libc.free_addresses(address, size)
        for fd in came:
            os.close(fd)
        return took

    try:
        yield once
    finally:
        ours.close()
        os.waitpid(child, 0)


# -- waking --------------------------------------------------------------------------------------------------------


def measure_wake(place: Path, size: int, tensors: int, rounds: int) -> Iterator[Result]:
    """A sleeper wakes at its addresses; then with ten times the tensors; then every byte is touched."""
    growth = Comparison(f"wake {_size(size)} in {tensors * 10} tensors", f"in {tensors}", goal_median=1.2)
    with _stage(place, size) as few, _stage(place, size) as many:
        reader = _commit(few.client("few"), size, tensors)
        other = _commit(many.client("many"), size, tensors * 10)
        yield growth.in_turns(rounds, 5, lambda: _wake(reader), lambda: _wake(other))
        median_ms = statistics.median(growth.floor) / 1e6
        yield Reading(f"wake {_size(size)} at stable addresses", median_ms, "ms", 0.5, "median")
        yield Reading(f"touch {_size(size)} after a wake, small pages", _touch_ms(reader), "ms")
        collapsed = all(
            reader._addresses.memory.collapse(address, slab)  # type: ignore[attr-defined]
            for address, slab in reader._addresses.slabs
        )
        how = "huge pages" if collapsed else "no huge pages to be had"
        yield Reading(f"touch {_size(size)} after a wake, {how}", _touch_ms(reader), "ms")


def _wake(reader: Reader) -> int:
    """Once the server has heard of the sleep: a wake doesn't wait for that."""
    reader.sleep()
    machine = reader._shell._machine
    until = time.monotonic() + DEADLINE_S
    while machine._session and time.monotonic() < until:
        time.sleep(0.0002)
    began = time.perf_counter_ns()
    reader.wake(DEADLINE_S)
    return time.perf_counter_ns() - began


def _touch_ms(reader: Reader) -> float:
    times = []
    for _ in range(_HEAVY_ROUNDS):
        reader.sleep()
        reader.wake(DEADLINE_S)
        began = time.perf_counter_ns()
        for slab in range(len(reader.sizes)):
            _read_all(reader.memory(slab))
        times.append(time.perf_counter_ns() - began)
    return min(times) / 1e6


def _read_all(data: Any) -> None:
    """Every page of it, and every byte as fast as the processor can."""
    try:
        import numpy

        numpy.frombuffer(data, "u8").max()
    except ImportError:
        bytes(data[::4096])


# -- touching every byte -------------------------------------------------------------------------------------------


def measure_read(place: Path, size: int, tensors: int) -> Iterator[Result]:
    """From nothing to every byte seen, tensor by tensor: ours, and `safetensors` from page cache."""
    try:
        import numpy
        from safetensors import safe_open
    except ImportError:
        print("bench: without numpy and safetensors there is nothing to compare with", file=sys.stderr)
        return
    fair = Comparison(f"read {_size(size)} in {tensors} tensors, each byte", "safetensors, page cache", goal_median=1.0)
    with _stage(place, size) as stage:
        wrote = _commit(stage.client("writer"), size, tensors)
        file = place / f"failover-bench-{os.getpid()}.safetensors"
        try:
            with file.open("wb") as out:
                layout = wrote.layout
                out.write(compose([(t.name, "uint16", t.shape) for t in layout.tensors], {}))
                for tensor in layout.tensors:
                    at = tensor.offset
                    out.write(wrote.memory(tensor.slab)[at : at + lay.extent_bytes(tensor)])
            wrote.close()
            client = stage.client("reader")

            def theirs() -> int:
                began = time.perf_counter_ns()
                with safe_open(file, "numpy") as opened:
                    for name in opened.keys():  # noqa: SIM118
                        numpy.max(opened.get_tensor(name))
                return time.perf_counter_ns() - began

            def ours() -> int:
                began = time.perf_counter_ns()
                with client.read(DEADLINE_S) as reader:
                    for tensor in reader.layout.tensors:
                        reader.view(tensor.name).max()
                return time.perf_counter_ns() - began

            yield fair.in_turns(_HEAVY_ROUNDS, 1, theirs, ours)
        finally:
            file.unlink(missing_ok=True)


# -- publishing ----------------------------------------------------------------------------------------------------


def measure_publish(place: Path, size: int, tensors: int) -> Iterator[Result]:
    """From memory into slabs and committed; beside it the same copy into a fresh file in memory, and into memory that
    is there already.
    """
    fair = Comparison(f"publish {_size(size)}", "plain copy into fresh memory", goal_median=1.25)
    bare = Comparison(f"publish {_size(size)}", "plain copy over touched memory")
    source = mmap.mmap(-1, GIB if size >= GIB else size)
    source_address = ctypes.addressof(ctypes.c_char.from_buffer(source))
    ctypes.memset(source_address, 7, len(source))
    with _stage(place, size) as stage:
        client = stage.client("writer")
        for round in range(_HEAVY_ROUNDS + 1):
            began = time.perf_counter_ns()
            with client.write(DEADLINE_S) as writer:
                reader = _publish(writer, size, tensors, source_address, len(source))
            took = time.perf_counter_ns() - began
            reader.close()
            fair.add(_copy_fresh(size, source_address, len(source)), took, keep=round > 0)
            bare.add(_copy_twice(size, source_address, len(source)), took, keep=round > 0)
    yield fair
    yield bare


def _publish(writer: Writer, size: int, tensors: int, source: int, length: int) -> Reader:
    layout = _layout(size, tensors, writer.granularity)
    for slab in layout.slabs:
        number = writer.create(slab)
        _copy(writer.address(number), slab, source, length)
    return writer.commit(layout)


def _copy(target: int, size: int, source: int, length: int) -> None:
    for at in range(0, size, length):
        ctypes.memmove(target + at, source, min(length, size - at))


def _copy_fresh(size: int, source: int, length: int) -> int:
    began = time.perf_counter_ns()
    fd = os.memfd_create("bench")
    os.ftruncate(fd, size)
    target = mmap.mmap(fd, size)
    at = ctypes.c_char.from_buffer(target)
    _copy(ctypes.addressof(at), size, source, length)
    took = time.perf_counter_ns() - began
    del at
    target.close()
    os.close(fd)
    return took


def _copy_twice(size: int, source: int, length: int) -> int:
    target = mmap.mmap(-1, length)
    at = ctypes.c_char.from_buffer(target)
    _copy(ctypes.addressof(at), length, source, length)
    began = time.perf_counter_ns()
    for done in range(0, size, length):
        ctypes.memmove(ctypes.addressof(at), source, min(length, size - done))
    took = time.perf_counter_ns() - began
    del at
    target.close()
    return took


# -- requests ------------------------------------------------------------------------------------------------------

_ECHO = """
import socket, sys
from gms.rules import messages as m
from sidecar.wire.frames import Channel
from sidecar.machine.loop import Loop
loop = Loop()
channel = Channel(socket.socket(fileno=int(sys.argv[1])), m.from_client)
pong = m.Pong(server_incarnation="0123456789abcdef")
def echo(_):
    for _ in channel.receive():
        channel.send(pong)
    if channel.eof:
        sys.exit()
loop.add(channel.fileno(), echo)
while True:
    for fd, what in loop.poll():
        loop.handlers[fd](what)
"""


def measure_request(place: Path, rounds: int) -> Iterator[Result]:
    """A question to the server, beside the same frames and loop in a process that decides nothing."""
    fair = Comparison("a request to GMS", "an echo on the same loop", goal_median=2.0)
    with _stage(place, 64 * GRANULARITY) as stage:
        ours, theirs = socket.socketpair()
        echo = subprocess.Popen(
            [sys.executable, "-c", _ECHO, str(theirs.fileno())], cwd=ROOT, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        asked = Channel(connect(stage.run_dir, DEVICE), m.from_server)
        asked.send(m.Observe(protocol=m.PROTOCOL))
        echoed = Channel(ours, m.from_server)
        try:
            yield fair.in_turns(rounds, 20, lambda: _round_trip(echoed), lambda: _round_trip(asked))
        finally:
            asked.close()
            echoed.close()
            echo.wait()


def _round_trip(channel: Channel) -> int:
    began = time.perf_counter_ns()
    channel.send(m.Ping())
    select.select([channel], [], [])
    channel.receive()
    return time.perf_counter_ns() - began


# -- coming back ---------------------------------------------------------------------------------------------------


def measure_hand_back(place: Path, size: int, tensors: int, rounds: int) -> Iterator[Result]:
    """From a new server's socket being ready to the layout standing again, brought by a sleeper."""
    times = []
    with _stage(place, size) as stage:
        reader = _commit(stage.client("reader"), size, tensors)
        reader.sleep()
        for _ in range(rounds):
            stage.server.kill()
            stage.server.wait()
            stage.server = stage.start()
            ready = stage.ready()
            with Observer(stage.run_dir, DEVICE, DEADLINE_S) as observer:
                while observer.ask(m.AskStatus(), m.Status).state != "COMMITTED":
                    if time.perf_counter() > ready + DEADLINE_S:
                        raise Broken("the layout was not handed back")
            times.append((time.perf_counter() - ready) * 1000)
    worst, middle = max(times), statistics.median(times)
    yield Reading(
        f"hand back {_size(size)} after a crash", worst, "ms", 20.0, f"worst of {rounds}; median {middle:.1f}"
    )


def _size(size: int) -> str:
    return f"{size / GIB:g} GiB" if size >= GIB else f"{size >> 20} MiB"

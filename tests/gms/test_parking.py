"""Parked weights with a real server, on host devices: what was parked comes back byte for byte, takes nothing of the
device meanwhile, and whatever is killed on the way leaves the weights in one place or the other.
"""

import errno
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType

import msgspec
import pytest

from gms.client import Damaged, GmsClient, NoRoom, NotInTime, Parked, Reader
from gms.memory import DeviceError
from gms.rules import messages as m
from gms.shell import device_io, parking
from gms.shell.slabs import buffer
from gms.shell.weights_shell import Granted, WeightsShell
from gms.shell.writer import Writer
from sidecar.kernel import host_usage
from tests.gms.live import MIB, House, houses, plain_layout
from tests.support.interruptions import Interrupted
from tests.support.processes import ROOT
from tests.support.waiting import until

SIZES = (2 * MIB, 4 * MIB)
BYTES = sum(SIZES)


@pytest.fixture
def house() -> Iterator[House]:
    yield from houses()


def load(house: House, seed: int = 1, engine: str = "engine-a") -> tuple[bytes, Reader]:
    """Two slabs of chance, and who wrote them, who is asleep."""
    data = random.Random(seed).randbytes(BYTES)
    with house.client(engine).write(10) as writer:
        for size, begin in zip(SIZES, (0, SIZES[0]), strict=True):
            writer.memory(writer.create(size))[:] = data[begin : begin + size]
        reader = writer.commit(plain_layout(tuple(writer.sizes)))
    reader.sleep()
    return data, reader


def contents(reader: Reader) -> bytes:
    return b"".join(reader.memory(slab) for slab in range(len(reader.sizes)))


def parker(house: House) -> GmsClient:
    client = house.client("parker", unparks=False)
    client.await_server(10)
    return client


def parks(house: House) -> m.RegionDropped:
    """By a process of its own kind, as `gmsctl park` is."""
    with parker(house) as client:
        gone = client.park(10)  # the server may not have heard yet that who slept sleeps
        assert isinstance(gone, m.RegionDropped)
        return gone


def test_a_reader_that_is_asleep_finds_every_byte_again_at_the_same_addresses(house: House) -> None:
    data, reader = load(house)
    addresses, views = [reader.address(slab) for slab in range(2)], reader.hash
    client = house.clients[0]
    contents_of, changes = client.contents, reader.generation
    assert parks(house) == m.RegionDropped(key="weights", bytes=BYTES, seen=True)
    status = house.status()
    assert (status.state, status.bytes, status.parked, house.used()) == ("PARKED", 0, {"weights": BYTES}, 0)
    assert reader.fits and client.contents == contents_of
    reader.wake(30)
    assert contents(reader) == data and reader.hash == views and reader.generation > changes
    assert [reader.address(slab) for slab in range(2)] == addresses and client.contents == contents_of
    status = house.status()
    assert (status.state, status.bytes, status.parked, house.used()) == ("RO", BYTES, {}, BYTES)
    assert reader.sums and reader.sums == [parking._sum(reader.memory(slab)) for slab in range(2)]


def test_a_second_reader_and_an_engine_that_starts_bring_them_back_too(house: House) -> None:
    data, reader = load(house)
    parks(house)
    with house.client("engine-b").write_or_read(10) as other:
        assert isinstance(other, Reader) and contents(other) == data
        reader.wake(30)
        assert contents(reader) == data
    reader.sleep()
    parks(house)
    with house.client("engine-c", unparks=False) as client, pytest.raises(Parked, match="gmsctl unpark weights"):
        client.read(10)


@pytest.mark.parametrize("left", [(BYTES - 1,), (BYTES, BYTES - 4 * MIB - 1)])
def test_what_the_machine_has_left_bounds_it_too(
    house: House, monkeypatch: pytest.MonkeyPatch, left: tuple[int, ...]
) -> None:
    """Before the kernel kills a process for it. The other devices' weights may have taken some since it was asked."""
    data, reader = load(house)
    monkeypatch.setattr(device_io, "PIECE_BYTES", MIB)
    answers = iter(left)
    monkeypatch.setattr(host_usage, "memory_left", lambda *kinds: next(answers))
    says = f"{BYTES} bytes of host memory can't be had: the machine itself has {left[-1]} bytes left"
    with parker(house) as client, pytest.raises(DeviceError, match=says):
        client.park(10)
    monkeypatch.undo()
    reader.wake(30)
    assert contents(reader) == data and not house.status().parked


@pytest.mark.parametrize(
    ("owner", "name", "error", "says"),
    [
        (device_io, "copy_out", DeviceError("the driver says no"), "the driver says no"),
        (mmap, "mmap", OSError(errno.EMFILE, "Too many open files"), "can't be mapped: Too many open files"),
    ],
)
def test_what_goes_wrong_on_the_way_is_said_and_leaves_them_in_the_device(
    house: House, monkeypatch: pytest.MonkeyPatch, owner: ModuleType, name: str, error: Exception, says: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    data, reader = load(house)
    monkeypatch.setattr(owner, name, fails)
    with parker(house) as client, pytest.raises(DeviceError, match=says):
        client.park(10)
    monkeypatch.undo()
    reader.wake(30)
    assert contents(reader) == data and not house.status().parked


def test_a_server_that_is_too_old_to_park_is_told_apart_and_no_other_model_is_overwritten(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes a slab, and a host device's slabs are ranges of one file."""
    with house.client("llama", region="llama-3").write(10) as writer:
        writer.memory(writer.create(8 * MIB))[:] = b"l" * (8 * MIB)
        other = writer.commit(plain_layout(tuple(writer.sizes)))
    data, reader = load(house)
    want = WeightsShell.want
    monkeypatch.setattr(WeightsShell, "want", lambda shell, wish: want(shell, msgspec.structs.replace(wish, parks=0)))
    with parker(house) as client, pytest.raises(DeviceError, match="is no table"):
        client.park(10)
    assert bytes(other.memory(0)) == b"l" * (8 * MIB)
    reader.wake(30)
    assert contents(reader) == data


def test_a_device_that_is_full_leaves_them_parked(house: House) -> None:
    data, reader = load(house)
    parks(house)
    memory = house.memory()
    foreign = memory.create(memory.free())
    with pytest.raises(NoRoom):
        reader.wake(30)
    assert house.status().state == "PARKED"
    house.kill()
    house.start()
    until(lambda: house.status().state == "PARKED", "it has kept what it could not bring back")
    memory.release(foreign)
    reader.wake(30)
    assert contents(reader) == data
    memory.close()


def test_contents_that_have_changed_are_not_parked(house: House) -> None:
    _, reader = load(house)
    parks(house)
    reader.wake(30)
    damage(house, reader)
    reader.sleep()
    with parker(house) as client, pytest.raises(Damaged):
        client.park(10)
    assert house.status().state == "COMMITTED" and not house.status().parked


def damage(house: House, reader: Reader) -> None:
    """A bit of the first slab."""
    slabs = house.clients[0].store.use(reader.generation)
    memory = house.clients[0].memory
    address = memory.reserve(SIZES[0])
    memory.map(address, slabs.handles[0], size=SIZES[0], writable=True)
    buffer(address, SIZES[0])[77] ^= 1
    memory.unmap(address, SIZES[0])
    memory.free_address(address, SIZES[0])
    house.clients[0].store.put_back(slabs)


def test_parked_bytes_that_have_changed_are_found_by_verify(house: House) -> None:
    _, reader = load(house)
    parks(house)
    client = house.clients[0]
    assert client.parked is not None
    (descriptor,) = client.store.descriptors(client.parked.generation, 0, 1)
    os.pwrite(descriptor, bytes([os.pread(descriptor, 1, 99)[0] ^ 1]), 99)
    reader.wake(30)
    assert reader.sums[0] != parking._sum(reader.memory(0)) and reader.sums[1] == parking._sum(reader.memory(1))


def test_nothing_piles_up(house: House) -> None:
    _, reader = load(house)
    server = house.servers["host:0"].pid

    def descriptors() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{server}/fd"))

    parks(house)
    reader.wake(30)
    before = descriptors()
    for _ in range(5):
        reader.sleep()
        parks(house)
        reader.wake(30)
        until(
            lambda: all(now <= then for now, then in zip(descriptors(), before, strict=True)),
            "what was needed on the way is closed",
        )
    assert house.used() == BYTES and not house.status().pending_drops


def test_a_reader_that_another_was_faster_than_reads_what_that_one_has_brought_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, reader = load(house)
    parks(house)
    slow, want = house.clients[0], WeightsShell.want

    def second(shell: WeightsShell, wish: m.Open) -> Granted:
        if shell is slow and wish.unparks:
            others.append(house.client("engine-b").read(10))
        return want(shell, wish)

    others: list[Reader] = []
    monkeypatch.setattr(WeightsShell, "want", second)
    reader.wake(30)
    assert contents(reader) == data and reader.generation == others[0].generation


def test_what_is_copied_takes_no_time_that_a_wake_may_wait(house: House) -> None:
    """A large model takes longer than that."""
    data, reader = load(house)
    parks(house)
    reader.wake(0)
    assert contents(reader) == data


def test_a_process_that_cant_open_the_device_keeps_no_other_from_bringing_them_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, reader = load(house)
    parks(house)
    with GmsClient(house.run_dir, "host:0", "blind") as blind:
        monkeypatch.setenv("FAILOVER_HOST_DEVICES", "/nowhere")
        with pytest.raises(DeviceError, match="isn't there"):
            blind.read(10)
        reader.wake(10)
        assert contents(reader) == data


def test_a_wake_that_is_interrupted_or_not_in_time_keeps_what_is_parked(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, reader = load(house)
    parks(house)
    engine, other, want, writers = house.clients[0], house.client("other", unparks=False), WeightsShell.want, []

    def interrupted(shell: WeightsShell, wish: m.Open) -> Granted:
        """While it waits behind a writer."""
        if wish.unparks:
            writers.append(other.replace(BYTES, 10))
            threading.Thread(target=interrupt).start()
        return want(shell, wish)

    def interrupt() -> None:
        until(lambda: house.status().waiting_for, "it waits")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def raises(*_: object) -> None:
        raise Interrupted

    monkeypatch.setattr(WeightsShell, "want", interrupted)
    before = signal.signal(signal.SIGUSR1, raises)
    with pytest.raises(Interrupted):
        reader.wake(30)
    signal.signal(signal.SIGUSR1, before)
    monkeypatch.setattr(WeightsShell, "want", want)
    until(lambda: not house.status().waiting_for, "it waits no more")
    writers[0].abort()
    assert engine.parked is not None
    server, create = house.servers["host:0"], Writer.create

    def stopped(writer: Writer, size: int, timeout_s: float | None = None) -> int:
        server.send_signal(signal.SIGSTOP)
        return create(writer, size, timeout_s)

    monkeypatch.setattr(Writer, "create", stopped)
    with pytest.raises(NotInTime):
        reader.wake(0.5)
    server.send_signal(signal.SIGCONT)
    monkeypatch.setattr(Writer, "create", create)
    house.kill()
    house.start()
    until(lambda: house.status().state == "PARKED", "it is handed back")
    reader.wake(30)
    assert contents(reader) == data


# -- what dies ---------------------------------------------------------------------------------------------------------


def test_a_server_that_dies_while_weights_are_parked_or_brought_back_leaves_them_where_they_were(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.kill()
    house.window_s = 0.5
    house.start()
    data, reader = load(house)
    copy_out, copy_in = device_io.copy_out, device_io.copy_in

    def dies_before(copies: Callable[..., None]) -> Callable[..., None]:
        def copy(*words: object) -> None:
            if not dead:
                dead.append(True)
                house.kill()
                house.start()
            copies(*words)

        dead: list[bool] = []
        return copy

    monkeypatch.setattr(device_io, "copy_out", dies_before(copy_out))
    with parker(house) as client, pytest.raises(Exception, match="the server is gone"):
        client.park(10)
    until(lambda: house.status().state == "COMMITTED", "it is handed back")
    monkeypatch.setattr(device_io, "copy_out", copy_out)
    with parker(house) as client:
        client.park(30)
    first = house.status().server_incarnation
    monkeypatch.setattr(device_io, "copy_in", dies_before(copy_in))
    reader.wake(30)
    assert contents(reader) == data and house.used() == BYTES, "it is handed back to the next one, and brought back"
    assert house.status().server_incarnation != first


@pytest.mark.slow
def test_a_process_that_is_killed_at_any_step_leaves_them_in_one_place_or_the_other(house: House) -> None:
    data, reader = load(house)
    command = [sys.executable, "-m", "tests.gms.parks_and_dies", str(house.run_dir), "host:0"]
    environment = {**os.environ, "FAILOVER_HOST_DEVICES": str(house.devices)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=-1, stdout=-1, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        seen = set()
        while True:
            program.stdin.write("on\n")
            program.stdin.flush()
            code = int(program.stdout.readline())
            until(lambda: house.status().state in ("COMMITTED", "PARKED"), "what it did is over")
            until(lambda: len(house.status().clients) == 1, "it is gone")
            status = house.status()
            where = (status.state, house.used(), status.parked.get("weights", 0))
            assert where in (("COMMITTED", BYTES, 0), ("PARKED", 0, BYTES)), where
            seen.add((status.state, code))
            if code == 0:
                break
            if status.state == "PARKED":
                reader.wake(20)
                assert contents(reader) == data
                reader.sleep()
    assert {("COMMITTED", -signal.SIGKILL), ("PARKED", 0)} <= seen
    reader.wake(30)
    assert contents(reader) == data


# -- gmsctl ------------------------------------------------------------------------------------------------------------


def test_gmsctl_parks_and_brings_back_on_all_devices(house: House) -> None:
    data, reader = load(house)
    done = house.gmsctl("park", "weights", "--json", "--timeout-s", "10")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.pop("seconds") >= 0
    assert said == {"device": "host:0", "key": "weights", "bytes": BYTES, "seen": True, "still": []}
    status = house.gmsctl("status")
    assert status.returncode == 3 and "weights are parked in host memory" in status.stdout
    assert "parked      6 MiB in host memory, of the 256 MiB" in status.stdout, status.stdout
    assert json.loads(house.gmsctl("status", "--json").stdout)["parked"] == {"weights": BYTES}
    again = house.gmsctl("park", "weights")
    assert again.returncode == 0 and "weights is parked already" in again.stdout
    for words in (("verify",), ("save", "/nowhere")):
        refused = house.gmsctl(*words)
        assert refused.returncode == 1 and "gmsctl unpark weights brings it back" in refused.stderr
    done = house.gmsctl("unpark", "weights")
    assert done.returncode == 0 and "weights is in the device: 6 MiB" in done.stdout, done.stderr
    assert house.gmsctl("verify").returncode == 0, "the sums came with them"
    assert "is in the device" in house.gmsctl("unpark", "weights").stdout
    reader.wake(30)
    assert contents(reader) == data
    refused = house.gmsctl("park", "weights")
    assert refused.returncode == 3 and "engine-a (pid" in refused.stderr and "reads" in refused.stderr
    refused = house.gmsctl("park", "llama-3")
    assert refused.returncode == 1 and "there are no weights of llama-3" in refused.stderr


def test_a_process_that_is_stopped_keeps_the_devices_memory_and_is_named(house: House) -> None:
    load(house)
    house.clients[0].close()
    sleeper = house.program("engine-b")
    with house.client("engine-a").write(10) as writer:
        writer.create(2 * MIB)
        writer.commit(plain_layout(tuple(writer.sizes))).close()
    sleeper.do("read", 10)
    sleeper.do("sleep")
    until(lambda: "asleep" in [client.doing for client in house.status().clients], "the server knows it")
    sleeper.stop()
    done = house.gmsctl("park", "weights")
    assert done.returncode == 3 and "is parked" in done.stdout
    assert f"engine-b (pid {sleeper.pid})" in done.stderr and "was asked to drop it" in done.stderr
    again = house.gmsctl("park", "weights", "--json")
    assert again.returncode == 3 and f"engine-b (pid {sleeper.pid})" in json.loads(again.stdout)["still"][0]
    sleeper.process.send_signal(signal.SIGCONT)
    until(lambda: house.used() == 0, "it lets go")
    assert house.gmsctl("park", "weights").returncode == 0
    assert sleeper.do("wake", 20) and sleeper.do("byte", 0, 5) == 0

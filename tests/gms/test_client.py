"""The client and a real server, in this process and that one."""

import os
import subprocess
import sys
import zlib
from typing import Any

import pytest

from gms.client import GmsError, Lost, NoRoom, NotInTime, Refused, StaleLayout
from gms.layout import Layout, Tensor
from gms.rules import messages as m
from gms.rules.errors import Asleep
from gms.shell.reader import Reader
from gms.shell.writer import Writer
from tests.gms.live import MIB, House, ask, plain_layout
from tests.support.processes import ROOT
from tests.support.waiting import until


def commit(house: House, *fills: int, name: str = "w", engine: str = "writer", size: int = 2 * MIB) -> Reader:
    """A layout of as many slabs, each full of its byte."""
    with house.client(engine).write(10) as writer:
        return written(writer, *fills, name=name, size=size)


def written(writer: Writer, *fills: int, name: str = "w", size: int = 2 * MIB) -> Reader:
    for fill in fills:
        slab = writer.create(size)
        writer.memory(slab)[:] = bytes([fill]) * size
    return writer.commit(plain_layout(tuple(writer.sizes), name))


def test_what_one_writes_the_other_reads_and_nothing_is_copied(house: House) -> None:
    wrote = commit(house, 1, 2, 3)
    read = house.client("reader").read(10)
    assert [read.memory(slab)[12345] for slab in range(3)] == [1, 2, 3]
    assert (read.generation, read.hash, read.layout) == (wrote.generation, wrote.hash, wrote.layout)
    assert house.used() == 3 * 2 * MIB
    status = house.status()
    assert status.state == "RO"
    assert {(client.engine_id, client.doing) for client in status.clients} == {
        ("writer", "reading"),
        ("reader", "reading"),
    }


def test_views_are_there_as_numpy_arrays_and_cannot_be_written(house: House) -> None:
    numpy: Any = pytest.importorskip("numpy")
    values = numpy.arange(24, dtype="float32").reshape(4, 6)
    with house.client().write(10) as writer:
        slab = writer.create(MIB)
        writer.memory(slab)[256 : 256 + 96] = values.tobytes()
        layout = Layout(
            tuple(writer.sizes),
            (
                Tensor("a", 0, 256, (4, 6), (6, 1), "float32"),
                Tensor("transposed", 0, 256, (6, 4), (1, 6), "float32"),
                Tensor("bits", 0, 256, (48,), (1,), "bfloat16"),
                Tensor("fp8", 0, 256, (2, 48), (48, 1), "float8_e4m3fn"),
                Tensor("scalar", 0, 260, (), (), "float32"),
                Tensor("empty", 0, 2 * MIB, (0, 3), (3, 1), "float64"),
            ),
        )
        reader = writer.commit(layout)
    assert (reader.view("a") == values).all()
    assert (reader.view("transposed") == values.T).all()
    assert reader.view("bits").dtype == numpy.uint16
    assert reader.view("fp8").shape == (2, 48)
    assert reader.view("scalar") == 1.0
    assert reader.view("empty").shape == (0, 3)
    with pytest.raises(ValueError, match="read-only"):
        reader.view("a")[0, 0] = 1
    with pytest.raises(KeyError):
        reader.view("b")
    reader.sleep()
    reader.wake(10)
    assert (reader.view("a") == values).all()


def test_a_reader_wakes_at_the_same_addresses(house: House) -> None:
    commit(house, 7).close()
    reader = house.client().read(10)
    address = reader.address(0)
    for _ in range(3):
        reader.sleep()
        assert not reader.awake
        with pytest.raises(Asleep):
            reader.memory(0)
        reader.wake(10)
        assert reader.address(0) == address
        assert reader.memory(0)[-1] == 7


def test_asleep_one_is_no_reader_and_keeps_the_memory_as_long_as_it_lives(house: House) -> None:
    reader = commit(house, 7)
    reader.sleep()
    until(lambda: house.status().state == "COMMITTED", "no client reads")
    assert house.status().clients[0].doing == "asleep"
    house.kill()
    assert house.used() == 2 * MIB
    house.clients[0].close()
    assert house.used() == 0
    house.start()
    until(lambda: house.status().state == "EMPTY", "no process has that memory any more: it can't come back")


def test_what_was_just_committed_or_handed_back_fits(house: House) -> None:
    with house.client().write(10) as writer:
        writer.create(2 * MIB)
        reader = writer.commit(Layout((2 * MIB,), ()))
    assert reader.fits
    reader.sleep()
    assert reader.fits
    house.kill()
    house.start()
    until(lambda: house.status().state == "COMMITTED", "it is handed back")
    until(lambda: reader.fits, "and known to be")


def test_a_writer_that_leaves_without_a_commit_has_written_nothing(house: House) -> None:
    client = house.client()
    with client.write(10) as writer:
        writer.create(8 * MIB)
    until(lambda: house.used() == 0, "the slab is gone")
    assert house.status().state == "EMPTY"
    with pytest.raises(ZeroDivisionError), client.write(10) as writer:
        writer.create(8 * MIB)
        raise ZeroDivisionError
    until(lambda: house.used() == 0, "the slab is gone")


def test_what_was_kept_mapped_stays_mapped_after_an_abort(house: House) -> None:
    client = house.client()
    with client.write(10) as writer:
        writer.create(2 * MIB)
        writer.keep_mapped()
    until(lambda: house.status().state == "EMPTY", "it doesn't write any more")
    assert writer.memory(0)[0] == 0


def test_a_refused_commit_can_be_made_again(house: House) -> None:
    with house.client().write(10) as writer:
        writer.create(2 * MIB)
        with pytest.raises(Refused, match="slabs of"):
            writer.commit(plain_layout((4 * MIB,)))
        reader = writer.commit(plain_layout((2 * MIB,)))
    assert reader.awake


def test_without_a_server_it_ends_in_time_and_says_where_it_looked(house: House) -> None:
    house.kill()
    client = house.client()
    with pytest.raises(NotInTime, match=r"host:0\.sock"):
        client.read(0.05)
    with pytest.raises(NotInTime, match="no GMS answered"):
        client.await_server(0.05)


def test_a_client_may_be_there_before_its_server(house: House) -> None:
    house.kill()
    client = house.client()
    house.start()
    assert client.write(10).generation > 0


def test_a_full_device_is_waited_for_and_then_said(house: House) -> None:
    memory = house.memory()
    memory.create(510 * MIB)
    with house.client().write(10) as writer, pytest.raises(NoRoom, match="free"):
        writer.create(4 * MIB)
    memory.close()


def test_a_replacement_leaves_the_old_layout_until_the_commit_and_then_sleepers_drop_it(house: House) -> None:
    changes: list[int] = []
    sleeper = house.client("sleeper", on_change=lambda generation, hash: changes.append(generation))
    old = commit(house, 1)
    old.close()
    reader = sleeper.read(10)
    reader.sleep()
    with house.client("other").replace(2 * MIB, 10) as writer:
        assert house.status().generation == reader.generation
        new = written(writer, 2, name="v")
    until(lambda: changes and changes[-1] == new.generation, "the sleeper hears of it")
    until(lambda: house.used() == 2 * MIB, "the old memory is free")
    with pytest.raises(StaleLayout, match="is gone"):
        reader.wake(10)
    fresh = sleeper.read(10)
    assert fresh.memory(0)[0] == 2


def test_a_sleeper_wakes_on_other_weights_that_are_laid_out_in_the_same_way(house: House) -> None:
    commit(house, 1).close()
    reader = house.client("sleeper").read(10)
    address, generation = reader.address(0), reader.generation
    reader.sleep()
    with house.client("other").replace(2 * MIB, 10) as writer:
        written(writer, 2).close()
    reader.wake(10)
    assert reader.generation > generation
    assert (reader.address(0), reader.memory(0)[0]) == (address, 2)


def test_a_sleeper_may_replace_what_it_slept_on(house: House) -> None:
    client = house.client()
    with client.write(10) as writer:
        first = written(writer, 1)
    first.sleep()
    with client.replace(2 * MIB, 10) as writer:
        second = written(writer, 2, name="v")
    until(lambda: house.used() == 2 * MIB, "the old memory is free")
    second.sleep()
    with pytest.raises(StaleLayout):
        first.wake(10)
    second.wake(10)
    assert second.memory(0)[0] == 2


def test_a_writers_work_is_lost_with_its_server_and_it_is_told(house: House) -> None:
    losses: list[str] = []
    client = house.client(on_lost=losses.append)
    with client.write(10) as writer:
        writer.create(2 * MIB)
        house.kill()
        until(lambda: losses, "the loss")
        with pytest.raises(Lost):
            writer.create(2 * MIB)
        with pytest.raises(Lost):
            writer.commit(plain_layout((2 * MIB,)))
        assert writer.memory(0)[0] == 0, "its memory stays until it lets go: no process crashes"
    until(lambda: house.used() == 0, "the slab is gone")
    house.start()
    with client.write(10) as writer:
        written(writer, 1)


def test_a_layout_of_many_slabs_is_read_and_handed_back_in_batches(house: House) -> None:
    with house.client().write(10) as writer:
        for _ in range(255):
            writer.create(2 * MIB)
        reader = writer.commit(plain_layout(tuple(writer.sizes)))
    other = house.client("other").read(10)
    assert other.sizes == reader.sizes
    house.kill()
    house.start()
    until(lambda: house.status().state == "RO", "it stands again")
    assert house.status().slabs == 255
    assert house.client("third").read(10).sizes == reader.sizes


def test_checksums_are_made_behind_the_commit_and_recorded(house: House) -> None:
    client = house.client(checksums=True, huge_pages=True)
    with client.write(10) as writer:
        written(writer, 1, 2)
    assert client.wait_for_background(30)
    sums = until(lambda: ask(house.run_dir, "host:0", m.AskLayout()).sums, "the server has the sums")
    reader = house.client("other").read(10)
    assert reader.sums == sums == [f"crc32:{zlib.crc32(reader.memory(slab)):08x}" for slab in range(2)]
    assert sums[0] != sums[1]


def test_closing_gives_everything_back(house: House) -> None:
    before = len(os.listdir("/proc/self/fd"))
    client = house.client()
    with client.write(10) as writer:
        written(writer, 1)
    client.close()
    client.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(GmsError, match="closed"):
        client.read(1)
    until(lambda: house.status().state == "COMMITTED", "the server has it")


LATE = """
import sys
from gms import client
let_in = client.GmsClient._writer
def noted(self, granted):
    sys.before = set(sys.modules)
    return let_in(self, granted)
client.GmsClient._writer = noted
with client.GmsClient(sys.argv[1], "host:0", "late") as writer:
    writer.write(10).abort()
print(*(name for name in set(sys.modules) - sys.before if not name.startswith("encodings")))
"""


def test_nothing_is_loaded_once_one_is_let_in_to_write(house: House) -> None:
    """A Ctrl-C in the middle of an import can get lost, or end the program in another way."""
    environment = {**os.environ, "FAILOVER_HOST_DEVICES": str(house.devices)}
    command = [sys.executable, "-c", LATE, str(house.run_dir)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr

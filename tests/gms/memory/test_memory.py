"""What device memory promises, whichever maker it has. One suite for all makers; each is added in `makers.py`.

What holds memory is a process of its own in every test, and dies by SIGKILL. The test itself holds descriptors only
where a story says so.
"""

import itertools
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gms.memory import DeviceError, Handle, OutOfMemory
from tests.gms.memory.conftest import Stage
from tests.gms.memory.remote import Died, Remote
from tests.support.waiting import until

HELLO = b"these are the weights"


@contextmanager
def exported(process: Remote, handle: Handle) -> Iterator[int]:
    """A descriptor that the test has for a while."""
    fd = process.export(handle)
    try:
        yield fd
    finally:
        os.close(fd)


def shared(giver: Remote, handle: Handle, taker: Remote, size: int) -> Handle:
    """The same memory in another process."""
    with exported(giver, handle) as fd:
        return taker.import_(fd, size)


def written(process: Remote, units: int, content: bytes = HELLO) -> Handle:
    """Memory with something in it, of which that process has nothing but the handle."""
    size = units * process.granularity
    handle = process.create(size)
    address = process.mapped(handle, size)
    process.poke(address, content)
    process.unmap(address, size)
    process.free_address(address, size)
    return handle


def content(process: Remote, handle: Handle) -> bytes:
    unit = process.granularity
    address = process.mapped(handle, unit, writable=False)
    found = process.peek(address, len(HELLO))
    process.unmap(address, unit)
    process.free_address(address, unit)
    return found


# --- how much there is


def test_what_is_created_is_missing_until_it_is_released(memory: Remote) -> None:
    unit, before = memory.granularity, memory.free()
    assert memory.capacity() >= before >= 8 * unit
    one, two = memory.create(unit), memory.create(3 * unit)
    assert memory.free() == before - 4 * unit
    memory.release(one)
    assert memory.free() == before - 3 * unit
    memory.release(two)
    assert memory.free() == before
    assert memory.capacity() >= before


def test_all_of_the_device_can_be_had_and_no_more(memory: Remote) -> None:
    unit, free = memory.granularity, memory.free()
    with pytest.raises(OutOfMemory):
        memory.create(free + unit)
    handle = memory.create(free)
    assert memory.free() == 0
    with pytest.raises(OutOfMemory) as error:
        memory.create(unit)
    assert (error.value.needed, error.value.free) == (unit, 0)
    memory.release(handle)
    assert memory.free() == free


def test_out_of_memory_is_real_across_processes(stage: Stage) -> None:
    greedy, late = stage.process(), stage.process()
    unit = late.granularity
    free = greedy.free()
    greedy.create(free - unit)
    with pytest.raises(OutOfMemory) as error:
        late.create(2 * unit)
    assert (error.value.needed, error.value.free) == (2 * unit, unit)
    late.create(unit)
    for process in (late, greedy):
        with pytest.raises(OutOfMemory):
            process.create(unit)
    greedy.kill()
    until(lambda: late.free() == free - unit, "the memory is free again")
    late.create(free - unit)


def test_a_refused_create_takes_nothing(memory: Remote) -> None:
    before, open_before = memory.free(), memory.descriptors()
    for size in (before + memory.granularity, 1, 0):
        with pytest.raises(DeviceError):
            memory.create(size)
    assert (memory.free(), memory.descriptors()) == (before, open_before)


# --- what is in it


def test_new_memory_reads_as_zeros_also_where_others_wrote(stage: Stage) -> None:
    writer, heir = stage.process(), stage.process()
    size = writer.free()
    handle = writer.create(size)
    writer.fill(writer.mapped(handle, size), size, 0xA5)
    writer.kill()
    until(lambda: heir.free() == size, "the memory is free again")
    handle = heir.create(size)
    address = heir.mapped(handle, size)
    assert heir.all_zero(address, size)
    heir.fill(address, size, 0x5A)
    heir.unmap(address, size)
    heir.release(handle)
    heir.map(address, heir.create(size), size=size, writable=False)
    assert heir.all_zero(address, size)


def test_what_one_writes_another_reads(stage: Stage) -> None:
    writer, reader = stage.process(), stage.process()
    unit = writer.granularity
    handle = writer.create(2 * unit)
    address = writer.mapped(handle, 2 * unit)
    other = reader.mapped(shared(writer, handle, reader, 2 * unit), 2 * unit, writable=False)
    writer.poke(address + unit, HELLO)
    assert reader.peek(other + unit, len(HELLO)) == HELLO


def test_one_handle_can_be_mapped_at_two_addresses(memory: Remote) -> None:
    unit = memory.granularity
    handle = memory.create(unit)
    one, two = memory.mapped(handle, unit), memory.mapped(handle, unit, writable=False)
    memory.poke(one, HELLO)
    assert memory.peek(two, len(HELLO)) == HELLO
    memory.unmap(one, unit)
    assert memory.peek(two, len(HELLO)) == HELLO


def test_a_mapping_can_begin_at_an_offset(stage: Stage) -> None:
    writer, reader = stage.process(), stage.process()
    unit = writer.granularity
    handle = writer.create(3 * unit)
    address = writer.mapped(handle, 3 * unit)
    for at in range(3):
        writer.poke(address + at * unit, bytes([at + 1]))
    imported = shared(writer, handle, reader, 3 * unit)
    for process, of in ((writer, handle), (reader, imported)):
        part = process.mapped(of, 2 * unit, offset=unit, writable=False)
        assert process.peek(part, 1) == b"\2"
        assert process.peek(part + unit, 1) == b"\3"


def test_a_reservation_takes_many_mappings_side_by_side(memory: Remote) -> None:
    unit = memory.granularity
    address = memory.reserve(4 * unit)
    handles = [written(memory, 1, bytes([at])) for at in range(1, 5)]
    for at in (2, 0, 3, 1):
        memory.map(address + at * unit, handles[at], size=unit, writable=False)
    assert [memory.peek(address + at * unit, 1) for at in range(4)] == [b"\1", b"\2", b"\3", b"\4"]
    memory.unmap(address + 1 * unit, unit)
    memory.map(address + 1 * unit, handles[3], size=unit, writable=False)
    assert [memory.peek(address + at * unit, 1) for at in range(4)] == [b"\1", b"\4", b"\3", b"\4"]


# --- how long it lives


@pytest.mark.slow
def test_memory_lives_while_a_descriptor_a_handle_or_a_mapping_does(stage: Stage) -> None:
    owner, observer = stage.process(), stage.process()
    unit, before = owner.granularity, owner.free()
    for order in itertools.permutations(["descriptor", "handle", "mapping"]):
        handle = written(owner, 2)
        address = owner.mapped(handle, 2 * unit)
        with exported(owner, handle) as fd:
            identity = observer.identity(fd)
            kept = owner.keep(fd)
        give_up: dict[str, Callable[[], None]] = {
            "descriptor": partial(owner.drop, kept),
            "handle": partial(owner.release, handle),
            "mapping": partial(owner.unmap, address, 2 * unit),
        }
        for what in order:
            assert observer.free() == before - 2 * unit, order
            assert observer.held(identity) in (True, None), order
            give_up[what]()
        until(lambda: observer.free() == before, f"the memory is free again: {order}")
        assert observer.held(identity) in (False, None), order


@pytest.mark.parametrize("exporter", ["dead", "alive without it"])
def test_memory_outlives_its_exporter_with_one_thing_in_another_process(stage: Stage, exporter: str) -> None:
    owner, heir, observer = stage.process(), stage.process(), stage.process()
    unit, before = owner.granularity, owner.free()
    pieces = [written(owner, 2) for _ in range(3)]
    with exported(owner, pieces[0]) as fd:
        kept = heir.keep(fd)
    imported = shared(owner, pieces[1], heir, 2 * unit)
    mapped = shared(owner, pieces[2], heir, 2 * unit)
    address = heir.mapped(mapped, 2 * unit, writable=False)
    heir.release(mapped)
    if exporter == "dead":
        owner.kill()
    else:
        for piece in pieces:
            owner.release(piece)

    assert observer.free() == before - 6 * unit
    for fd in (heir.give(kept), heir.export(imported)):
        handle = observer.import_(fd, 2 * unit)
        os.close(fd)
        assert content(observer, handle) == HELLO
        observer.release(handle)
    assert heir.peek(address, len(HELLO)) == HELLO
    assert observer.free() == before - 6 * unit
    heir.drop(kept)
    until(lambda: observer.free() == before - 4 * unit, "what only a descriptor held is free again")
    heir.release(imported)
    until(lambda: observer.free() == before - 2 * unit, "what only a handle held is free again")
    heir.kill()
    until(lambda: observer.free() == before, "the memory is free again")


def test_a_descriptor_forwarded_by_who_never_imported_it_is_mapped_by_a_fourth(stage: Stage) -> None:
    owner, second, third, fourth = (stage.process() for _ in range(4))
    unit, before = owner.granularity, owner.free()
    with exported(owner, written(owner, 2)) as fd:
        kept = second.keep(fd)
    owner.kill()
    fd = second.give(kept)
    kept = third.keep(fd)
    os.close(fd)
    second.kill()
    fd = third.give(kept)
    handle = fourth.import_(fd, 2 * unit)
    os.close(fd)
    third.kill()
    assert content(fourth, handle) == HELLO
    assert fourth.free() == before - 2 * unit
    fourth.release(handle)
    until(lambda: fourth.free() == before, "the memory is free again")


def test_killed_with_everything_in_hand_a_process_leaves_nothing(stage: Stage) -> None:
    owner, observer = stage.process(), stage.process()
    unit, before = owner.granularity, owner.free()
    for _ in range(3):
        handle = owner.create(unit)
        owner.mapped(handle, unit)
        with exported(owner, handle) as fd:
            owner.keep(fd)
    assert observer.free() == before - 3 * unit
    owner.kill()
    until(lambda: observer.free() == before, "the memory is free again")


def test_close_gives_back_everything_but_exported_descriptors(stage: Stage) -> None:
    owner, observer = stage.process(), stage.process()
    unit, before = owner.granularity, owner.free()
    open_before = owner.descriptors()
    owner.mapped(owner.create(unit), unit)
    owner.reserve(unit)
    with exported(owner, owner.create(2 * unit)) as fd:
        owner.close_memory()
        owner.close_memory()
        assert observer.free() == before - 2 * unit
        observer.release(observer.import_(fd, 2 * unit))
    until(lambda: observer.free() == before, "the memory is free again")
    assert owner.descriptors() <= open_before


def test_no_descriptor_leaks(stage: Stage) -> None:
    owner, other = stage.process(), stage.process()
    unit = owner.granularity

    def once() -> None:
        handle = owner.create(unit)
        imported = shared(owner, handle, other, unit)
        address = other.mapped(imported, unit)
        other.unmap(address, unit)
        other.free_address(address, unit)
        other.release(imported)
        owner.release(handle)

    once()
    before = owner.descriptors(), other.descriptors(), len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        once()
    assert (owner.descriptors(), other.descriptors(), len(os.listdir("/proc/self/fd"))) == before


# --- addresses


def test_an_address_stays_after_unmap_and_serves_again(memory: Remote) -> None:
    unit = memory.granularity
    one, two = written(memory, 1, b"one"), written(memory, 1, b"two")
    address = memory.mapped(one, unit)
    taken = [memory.reserve(unit) for _ in range(4)]
    memory.unmap(address, unit)
    taken += [memory.reserve(unit) for _ in range(4)]
    assert address not in taken
    memory.map(address, two, size=unit, writable=False)
    assert memory.peek(address, 3) == b"two"
    memory.unmap(address, unit)
    memory.map(address, one, size=unit, writable=True)
    assert memory.peek(address, 3) == b"one"


@pytest.mark.parametrize("mapped_before", [False, True], ids=["never mapped", "unmapped"])
def test_access_to_an_address_without_memory_faults(stage: Stage, mapped_before: bool) -> None:
    memory = stage.process()
    unit = memory.granularity
    address = memory.reserve(unit)
    if mapped_before:
        memory.map(address, memory.create(unit), size=unit, writable=True)
        memory.unmap(address, unit)
    with pytest.raises((Died, DeviceError)):
        memory.peek(address, 1)


def test_a_write_through_a_read_only_mapping_hurts_only_the_writer(stage: Stage) -> None:
    writer, offender, reader = stage.process(), stage.process(), stage.process()
    unit = writer.granularity
    handle = written(writer, 1)
    theirs = offender.mapped(shared(writer, handle, offender, unit), unit, writable=False)
    ours = reader.mapped(shared(writer, handle, reader, unit), unit, writable=False)
    assert offender.peek(theirs, len(HELLO)) == HELLO
    with pytest.raises((Died, DeviceError)):
        offender.poke(theirs, b"oops")
    assert reader.peek(ours, len(HELLO)) == HELLO
    assert content(writer, handle) == HELLO


# --- what is refused, and changes nothing


def test_sizes_that_are_no_multiple_of_the_granularity_are_refused(memory: Remote) -> None:
    unit = memory.granularity
    handle = memory.create(2 * unit)
    address = memory.reserve(2 * unit)
    before = memory.free(), memory.descriptors()
    for size in (0, -unit, 1, unit - 1, unit + 1, unit // 2):
        with pytest.raises(DeviceError):
            memory.create(size)
        with pytest.raises(DeviceError):
            memory.reserve(size)
        with pytest.raises(DeviceError):
            memory.map(address, handle, size=size, writable=True)
    for at in (1, -unit, unit // 2):
        with pytest.raises(DeviceError):
            memory.map(address, handle, size=unit, offset=at, writable=True)
    with pytest.raises(DeviceError):
        memory.map(address + unit // 2, handle, size=unit, writable=True)
    assert (memory.free(), memory.descriptors()) == before
    memory.map(address, handle, size=2 * unit, writable=True)


def test_a_mapping_outside_of_the_memory_is_refused(memory: Remote) -> None:
    unit = memory.granularity
    handle = memory.create(2 * unit)
    address = memory.reserve(4 * unit)
    for size, offset in ((3 * unit, 0), (2 * unit, unit), (unit, 2 * unit)):
        with pytest.raises(DeviceError):
            memory.map(address, handle, size=size, offset=offset, writable=True)
    memory.map(address, handle, size=unit, offset=unit, writable=True)


def test_a_mapping_outside_of_a_reservation_is_refused(memory: Remote) -> None:
    unit = memory.granularity
    handle = memory.create(2 * unit)
    address = memory.reserve(2 * unit)
    freed = memory.reserve(unit)
    memory.free_address(freed, unit)
    for at, size in ((address + unit, 2 * unit), (address - unit, 2 * unit), (freed, unit)):
        with pytest.raises(DeviceError):
            memory.map(at, handle, size=size, writable=True)


def test_a_mapping_over_a_mapping_is_refused(memory: Remote) -> None:
    unit = memory.granularity
    handle, other = written(memory, 3), written(memory, 3, b"other")
    address = memory.reserve(3 * unit)
    memory.map(address, handle, size=2 * unit, writable=True)
    for at, size in ((address, unit), (address + unit, unit), (address + unit, 2 * unit), (address, 3 * unit)):
        with pytest.raises(DeviceError):
            memory.map(at, other, size=size, writable=True)
    assert memory.peek(address, len(HELLO)) == HELLO
    memory.map(address + 2 * unit, other, size=unit, writable=True)


def test_unmap_takes_exactly_what_was_mapped(memory: Remote) -> None:
    unit = memory.granularity
    handle = written(memory, 2)
    address = memory.mapped(handle, 2 * unit)
    for at, size in ((address, unit), (address + unit, unit), (address, 3 * unit), (address - unit, unit), (0, unit)):
        with pytest.raises(DeviceError):
            memory.unmap(at, size)
    assert memory.peek(address, len(HELLO)) == HELLO
    memory.unmap(address, 2 * unit)
    with pytest.raises(DeviceError):
        memory.unmap(address, 2 * unit)


def test_an_address_is_given_back_whole_and_with_nothing_mapped_there(memory: Remote) -> None:
    unit = memory.granularity
    address = memory.reserve(2 * unit)
    handle = written(memory, 1)
    memory.map(address + unit, handle, size=unit, writable=True)
    with pytest.raises(DeviceError):
        memory.free_address(address, 2 * unit)
    assert memory.peek(address + unit, len(HELLO)) == HELLO
    memory.unmap(address + unit, unit)
    for at, size in ((address, unit), (address + unit, unit), (0, 2 * unit)):
        with pytest.raises(DeviceError):
            memory.free_address(at, size)
    memory.free_address(address, 2 * unit)
    with pytest.raises(DeviceError):
        memory.free_address(address, 2 * unit)


def test_a_released_handle_is_refused(memory: Remote) -> None:
    unit = memory.granularity
    address = memory.reserve(unit)
    handle = memory.create(unit)
    memory.release(handle)
    for use in (
        lambda: memory.release(handle),
        lambda: memory.map(address, handle, size=unit, writable=True),
        lambda: memory.export(handle),
    ):
        with pytest.raises(DeviceError):
            use()


# --- descriptors that come from elsewhere


def test_a_descriptor_that_is_no_memory_is_refused(memory: Remote, tmpfs: Path) -> None:
    unit = memory.granularity
    path = tmpfs / "elsewhere"
    path.write_bytes(b"")
    os.truncate(path, unit)
    near, far = socket.socketpair()
    reading, writing = os.pipe()
    fds = [near.detach(), far.detach(), reading, writing, os.open("/dev/null", os.O_RDWR), os.open("/", os.O_RDONLY)]
    fds += [
        os.open(path, os.O_RDWR),
        os.open(path, os.O_PATH),
        os.memfd_create("elsewhere"),
        os.pidfd_open(os.getpid()),
    ]
    before = memory.free(), memory.descriptors()
    for fd in fds:
        for ask in (lambda fd: memory.import_(fd, unit), lambda fd: memory.identity(fd)):
            with pytest.raises(DeviceError):
                ask(fd)
        os.close(fd)
    for number in (-1, 9999):
        with pytest.raises(DeviceError):
            memory.ask("import_number", number=number, size=unit)
    assert (memory.free(), memory.descriptors()) == before


def test_memory_of_another_size_than_announced_is_refused(stage: Stage) -> None:
    owner, other = stage.process(), stage.process()
    unit = owner.granularity
    before = other.descriptors()
    with exported(owner, owner.create(2 * unit)) as fd:
        for size in (unit, 3 * unit, 2 * unit - 1, 0, -2 * unit):
            with pytest.raises(DeviceError):
                other.import_(fd, size)
        assert other.descriptors() == before
        other.import_(fd, 2 * unit)


def test_memory_has_one_identity_in_every_process_and_no_two_have_the_same_where_that_can_be_told(stage: Stage) -> None:
    owner, other = stage.process(), stage.process()
    unit = owner.granularity
    one, two = owner.create(unit), owner.create(unit)
    with exported(owner, one) as fd, exported(owner, one) as again, exported(owner, two) as different:
        identity = owner.identity(fd)
        imported = other.import_(fd, unit)
        with exported(other, imported) as back:
            assert {owner.identity(again), other.identity(fd), other.identity(back)} == {identity}
        assert not stage.tells_memory_apart or other.identity(different) != identity


def test_an_identity_that_is_none_is_refused(memory: Remote) -> None:
    for text in ("", "nothing", "host:", "host:1:2:3", "host:1:2:3:-4", "x" * 1000):
        with pytest.raises(DeviceError):
            memory.held(text)

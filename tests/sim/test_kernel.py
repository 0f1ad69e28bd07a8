"""Promises of the simulated kernel that no real kernel can be asked about: seeds, virtual time, faults on demand."""

import errno
import os
import random
from collections.abc import Callable

import pytest

from tests.sim.files import Lock
from tests.sim.kernel import Kernel, ReleaseOrder
from tests.sim.process import Process

RUN_S = 10.0


@pytest.fixture
def kernel() -> Kernel:
    kernel = Kernel(random.Random(1))
    kernel.make_directories("/run/life")
    kernel.add_device("gpu", 100)
    return kernel


def connected(kernel: Kernel) -> tuple[Process, int, Process, int]:
    kernel.make_directories("/run")
    server, engine = kernel.spawn("server"), kernel.spawn("engine")
    door = server.listen("/run/lock.sock")
    theirs = engine.connect("/run/lock.sock")
    ours = server.accept(door)
    assert ours is not None
    return server, ours, engine, theirs


def history(seed: int, order: ReleaseOrder = ReleaseOrder.ANY) -> list[tuple[str, float]]:
    kernel = Kernel(random.Random(seed), order=order)
    server, ours, engine, _ = connected(kernel)
    seen: list[tuple[str, float]] = []
    pidfd = server.peer_pidfd(ours)
    server.on_death(pidfd, lambda _: seen.append(("death", kernel.now)))
    server.on_readable(ours, lambda _: seen.append(("end", kernel.now)))
    for number in range(3):
        server.after(0.001, lambda number=number: seen.append((f"timer {number}", kernel.now)))  # type: ignore[misc]
    kernel.kill(engine)
    kernel.run()
    return seen


def test_one_seed_gives_one_history_and_another_seed_another() -> None:
    assert history(7) == history(7)
    assert len({tuple(what for what, _ in history(seed)) for seed in range(50)}) > 5


def test_events_of_one_time_come_in_any_order() -> None:
    orders = {tuple(what for what, _ in history(seed) if what.startswith("timer")) for seed in range(50)}
    assert len(orders) == 6


def test_a_death_takes_time_and_frees_step_by_step(kernel: Kernel) -> None:
    server, ours, engine, _ = connected(kernel)
    engine.allocate_mapped("gpu", 60)
    kernel.kill(engine)
    assert not kernel.processes[engine.pid].gone
    while not server.readable(ours):
        kernel.step()
    assert kernel.read_free_bytes("gpu") == 40
    assert not engine.gone
    kernel.run()
    assert engine.gone
    assert engine.reaped
    assert kernel.read_free_bytes("gpu") == 100


def test_the_order_of_a_death_can_be_chosen(kernel: Kernel) -> None:
    engine = kernel.spawn("engine")
    first = engine.open("/run/life/1", create=True)
    engine.allocate("gpu", 60)
    engine.lock(first, Lock.READ)
    probe = kernel.spawn("server").open("/run/life/1")
    kernel.kill(engine, order=[first])
    kernel.step()
    server = next(each for each in kernel.processes.values() if each.name == "server")
    assert not server.is_locked(probe)
    assert kernel.read_free_bytes("gpu") == 40


def test_a_process_stuck_in_a_driver_dies_late(kernel: Kernel) -> None:
    engine = kernel.spawn("engine")
    engine.allocate("gpu", 60)
    kernel.kill(engine, step_s=1000.0)
    kernel.run(until=RUN_S)
    assert not engine.gone
    assert kernel.now == RUN_S
    kernel.run()
    assert engine.gone


def test_pinned_memory_is_freed_after_the_pidfd(kernel: Kernel) -> None:
    engine = kernel.spawn("engine")
    slab = engine.allocate("gpu", 60)
    engine.pin(slab, late_s=0.3)
    kernel.kill(engine)
    while not engine.gone:
        kernel.step()
    gone_at = kernel.now
    assert kernel.read_free_bytes("gpu") == 40
    kernel.run()
    assert kernel.now == gone_at + 0.3
    assert kernel.read_free_bytes("gpu") == 100


def test_a_killed_process_runs_no_more_code_in_the_middle_of_a_callback(kernel: Kernel) -> None:
    server = kernel.spawn("server")
    steps: list[str] = []

    def work() -> None:
        steps.append("one")
        kernel.kill(server)
        server.open("/run/holder.json", create=True)
        steps.append("two")

    server.after(1.0, work)
    server.after(2.0, lambda: steps.append("later"))
    kernel.run()
    assert steps == ["one"]


def test_a_stopped_process_is_told_everything_when_it_goes_on(kernel: Kernel) -> None:
    server, ours, engine, theirs = connected(kernel)
    told: list[float] = []
    server.on_readable(ours, lambda fd: told.append(len(server.receive(fd)[0])))
    server.after(1.0, lambda: told.append(-1))
    kernel.stop(server)
    engine.send(theirs, "one")
    engine.send(theirs, "two")
    kernel.run(until=RUN_S)
    assert told == []
    kernel.cont(server)
    kernel.run()
    assert sorted(told) == [-1, 2]


def test_a_watch_is_for_one_descriptor_and_ends_with_it(kernel: Kernel) -> None:
    server, ours, engine, theirs = connected(kernel)
    told: list[str] = []
    server.on_readable(ours, lambda _: told.append("old"))
    server.on_readable(ours, lambda _: told.append("new"))
    engine.send(theirs, "hello")
    kernel.run()
    assert told == ["new"]
    engine.send(theirs, "hello")
    server.close(ours)
    again = server.open("/run/life/1", create=True)
    assert again == ours
    kernel.run()
    assert told == ["new"]


def test_a_timer_can_be_cancelled_and_the_wall_clock_jumps_without_it(kernel: Kernel) -> None:
    server = kernel.spawn("server")
    fired: list[float] = []
    server.after(1.0, lambda: fired.append(kernel.now)).cancel()
    server.after(2.0, lambda: fired.append(kernel.now))
    before = kernel.wall_time_s
    kernel.jump_wall_clock(-3600.0)
    kernel.run()
    assert fired == [2.0]
    assert kernel.wall_time_s == before - 3600.0 + 2.0


def killer_at(place: str) -> Callable[[Process, str], None]:
    def fault(process: Process, where: str) -> None:
        if where == place:
            process.kernel.kill(process)

    return fault


@pytest.mark.parametrize(
    ("place", "content"),
    [("durable: half written", b"old"), ("durable: written", b"old"), ("durable: renamed", b"new")],
)
def test_a_crash_within_a_durable_write_leaves_the_old_file_or_the_new(
    kernel: Kernel, place: str, content: bytes
) -> None:
    server = kernel.spawn("server")
    server.write_durable("/run/holder.json", b"old")
    acknowledged: list[bool] = []
    kernel.fault = killer_at(place)

    def persist() -> None:
        server.write_durable("/run/holder.json", b"new")
        acknowledged.append(True)

    server.after(0.0, persist)
    kernel.run()
    assert not acknowledged
    assert kernel.spawn("next").read_file("/run/holder.json") == content


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_a_disk_that_fails_refuses_and_leaves_the_old_file(kernel: Kernel, number: int) -> None:
    server = kernel.spawn("server")
    server.write_durable("/run/holder.json", b"old")
    kernel.files.disk_errno = number
    with pytest.raises(OSError, match=os.strerror(number)):
        server.write_durable("/run/holder.json", b"new")
    assert server.read_file("/run/holder.json") == b"old"
    assert sorted(server.list_directory("/run")) == ["holder.json", "holder.json.spare", "life"]


def test_a_full_disk_takes_what_has_room_in_the_spare_and_nothing_else(kernel: Kernel) -> None:
    server = kernel.spawn("server")
    server.reserve("/run/holder.json")
    kernel.files.disk_errno = errno.ENOSPC
    server.write_durable("/run/holder.json", b"new")
    server.write_durable("/run/holder.json", b"newer")
    assert server.read_file("/run/holder.json") == b"newer"
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        server.reserve("/run/other.json")


def test_a_file_can_be_torn_or_corrupt(kernel: Kernel) -> None:
    server = kernel.spawn("server")
    server.write_durable("/run/holder.json", b"0123456789")
    kernel.corrupt("/run/holder.json")
    wrong = server.read_file("/run/holder.json")
    assert len(wrong) == 10
    assert wrong != b"0123456789"
    kernel.tear("/run/holder.json", 4)
    assert server.read_file("/run/holder.json") == wrong[:4]


def test_memory_of_another_process_counts_and_a_reader_can_fail(kernel: Kernel) -> None:
    engine = kernel.spawn("engine")
    gpu = kernel.devices["gpu"]
    gpu.foreign_bytes = 90
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        engine.allocate("gpu", 20)
    assert kernel.read_free_bytes("gpu") == 10
    gpu.reader_works = False
    assert kernel.read_free_bytes("gpu") is None
    assert gpu.free_bytes == 10


def test_a_reboot_ends_everything_and_keeps_what_is_on_disk(kernel: Kernel) -> None:
    server, ours, engine, _ = connected(kernel)
    engine.allocate("gpu", 60)
    engine.pin(engine.allocate("gpu", 20), late_s=5.0)
    kernel.make_directories("/var/lib")
    server.write_durable("/var/lib/holder.json", b"on disk")
    inode, pid, boot = server.pidfd_inode(server.peer_pidfd(ours)), engine.pid, kernel.boot_id
    told: list[int] = []
    server.on_readable(ours, told.append)
    kernel.kill(engine)
    kernel.reboot(keep=["/var/lib"])
    kernel.run()
    assert (told, kernel.processes, kernel.read_free_bytes("gpu")) == ([], {}, 100)
    assert kernel.boot_id != boot
    kernel.spawn("server")
    namesake = kernel.spawn("engine")
    own = namesake.pidfd_open(namesake.pid)
    assert (namesake.pid, namesake.pidfd_inode(own)) == (pid, inode)  # nothing tells them apart but the boot
    assert namesake.read_file("/var/lib/holder.json") == b"on disk"
    with pytest.raises(FileNotFoundError):
        namesake.stat("/run")


def test_pids_can_be_used_again_as_soon_as_they_were_reaped() -> None:
    kernel = Kernel(random.Random(1), reuses_pids=True)
    server, engine = kernel.spawn("server"), kernel.spawn("engine")
    pidfd = server.pidfd_open(engine.pid)
    kernel.kill(engine)
    kernel.run()
    victim = kernel.spawn("victim")
    assert victim.pid == engine.pid
    with pytest.raises(ProcessLookupError):
        server.pidfd_kill(pidfd)
    server.kill_pid(engine.pid)
    assert not victim.alive


def test_an_older_kernel_names_no_peers_no_inodes_and_no_reaped_ones() -> None:
    kernel = Kernel(random.Random(1), has_peer_pidfd=False, has_pidfs=False)
    server, ours, _, _ = connected(kernel)
    with pytest.raises(OSError, match=os.strerror(errno.ENOPROTOOPT)):
        server.peer_pidfd(ours)
    assert server.pidfd_inode(server.pidfd_open(server.pid)) is None
    kernel = Kernel(random.Random(1), peer_pidfd_of_reaped_errno=errno.ESRCH)
    server, ours, engine, _ = connected(kernel)
    kernel.kill(engine)
    kernel.run()
    with pytest.raises(ProcessLookupError):
        server.peer_pidfd(ours)


def test_nothing_is_left_when_every_process_is_dead(kernel: Kernel) -> None:
    server, ours, engine, theirs = connected(kernel)
    life = engine.open("/run/life/1", create=True)
    engine.lock(life, Lock.READ)
    engine.map(life)
    engine.send(theirs, "take", [life, engine.allocate("gpu", 10)])
    server.on_readable(ours, lambda fd: None)
    server.peer_pidfd(ours)
    child = engine.fork("child")
    for process in (server, engine, child):
        kernel.kill(process)
    kernel.run()
    assert kernel.processes == {}
    assert kernel.devices["gpu"].allocations == {}
    assert kernel.files.find("/run/life/1").ranges == []
    assert kernel.root_namespace.members == {}
    assert not any(process.pidfds or process.descriptors for process in (server, engine, child))

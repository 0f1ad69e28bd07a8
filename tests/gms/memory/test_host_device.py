"""Host devices are made, found and removed; and the filesystem under them is full."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gms.cleanup import remove, remove_device_unless_used
from gms.memory import DeviceError, OutOfMemory, libc
from gms.memory.host import HostMemory
from gms.memory.host_device import GRANULARITY, create_device, device_path, remove_device
from gms.rules import record
from gms.shell.device_names import take_unused
from sidecar.kernel import host_usage
from sidecar.kernel.durable import DurableFile
from tests.gms.memory.host_stage import CAPACITY, crowd, process
from tests.support.descriptors import no_descriptor_leaks
from tests.support.processes import ROOT

NO_DEVICE = r"can't be opened|not a host device"


def test_a_device_is_made_once_and_found_after(tmpfs: Path) -> None:
    directory = tmpfs / "devices"
    path = create_device("a", CAPACITY, directory)
    inode = path.stat().st_ino
    assert create_device("a", CAPACITY, directory) == path == device_path("a", directory)
    assert (path.stat().st_ino, path.stat().st_size, path.stat().st_blocks) == (inode, CAPACITY, 0)
    assert (directory.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    assert os.listdir(directory) == ["a"]


def test_of_many_that_make_a_device_all_find_the_same(tmpfs: Path) -> None:
    directory = tmpfs / "devices"

    def make(say: Callable[[str], None]) -> None:
        say(str(create_device("a", CAPACITY, directory).stat().st_ino))

    with crowd(*[make] * 8) as children:
        assert len({child.line() for child in children}) == 1
    assert os.listdir(directory) == ["a"]


def test_another_capacity_is_refused_while_a_process_has_memory(devices: Path) -> None:
    memory = HostMemory("0", devices)
    handle = memory.create(GRANULARITY)
    with pytest.raises(DeviceError, match=f"{GRANULARITY} bytes of it are in use.*--devices host:NAME.*--capacity"):
        create_device("0", 2 * CAPACITY, devices)
    assert memory.capacity() == CAPACITY
    memory.release(handle)
    create_device("0", 2 * CAPACITY, devices)
    assert (memory.capacity(), memory.free()) == (2 * CAPACITY, 2 * CAPACITY)
    memory.create(2 * CAPACITY)
    memory.close()
    create_device("0", GRANULARITY, devices)
    assert host_usage.read_devices(devices) == {"host:0": (GRANULARITY, GRANULARITY)}


@pytest.mark.parametrize("capacity", [0, -GRANULARITY, GRANULARITY + 1, 4096])
def test_a_capacity_that_is_no_multiple_of_the_granularity_is_refused(tmpfs: Path, capacity: int) -> None:
    with pytest.raises(DeviceError, match="multiple"):
        create_device("a", capacity, tmpfs / "devices")


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "a\0b"])
def test_a_name_that_is_no_files_name_is_refused(tmpfs: Path, name: str) -> None:
    for use in (
        lambda: create_device(name, CAPACITY, tmpfs),
        lambda: remove_device(name, tmpfs),
        lambda: HostMemory(name, tmpfs),
    ):
        with pytest.raises(DeviceError, match="can't be the name"):
            use()


def test_more_than_the_filesystem_holds_is_refused_with_a_way_out(devices: Path) -> None:
    room = os.statvfs(devices)
    if not room.f_blocks:
        pytest.skip("this tmpfs has no limit")
    in_all = room.f_blocks * room.f_frsize // GRANULARITY * GRANULARITY
    with pytest.raises(DeviceError, match="remount"):
        create_device("a", in_all, devices)  # with the device that is there already it is too much
    assert sorted(os.listdir(devices)) == ["0"]
    create_device("a", in_all - CAPACITY, devices)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_a_directory_that_others_may_use_is_refused(tmpfs: Path, mode: int) -> None:
    directory = tmpfs / "devices"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(DeviceError, match="yours alone"):
        create_device("a", CAPACITY, directory)


def test_what_is_no_directory_or_no_device_is_refused(tmpfs: Path, devices: Path) -> None:
    (tmpfs / "file").write_text("")
    (tmpfs / "link").symlink_to(devices)
    for wrong in ("file", "link", "file/devices"):
        with pytest.raises(DeviceError, match="directory of the host devices"):
            create_device("a", CAPACITY, tmpfs / wrong)
    (devices / "dir").mkdir()
    (devices / "link").symlink_to("0")
    os.mkfifo(devices / "fifo")
    with no_descriptor_leaks():
        for wrong in ("dir", "link", "fifo"):
            with pytest.raises(DeviceError, match=NO_DEVICE):
                create_device(wrong, CAPACITY, devices)
            with pytest.raises(DeviceError, match=NO_DEVICE):
                HostMemory(wrong, devices)
            with pytest.raises(DeviceError, match=NO_DEVICE):
                remove_device(wrong, devices)


def test_a_device_that_isnt_there_is_refused_with_who_makes_it(tmpfs: Path) -> None:
    with pytest.raises(DeviceError, match="has to be made first, as `gms` does"):
        HostMemory("a", tmpfs)


def test_a_device_goes_when_no_process_has_memory_of_it(devices: Path) -> None:
    with process(devices) as owner:
        handle = owner.create(GRANULARITY)
        address = owner.mapped(handle, GRANULARITY)
        owner.release(handle)
        with pytest.raises(DeviceError, match=f"{GRANULARITY} bytes of it are in use"):
            remove_device("0", devices)
        owner.unmap(address, GRANULARITY)
        remove_device("0", devices)
        remove_device("0", devices)
        assert os.listdir(devices) == []
        with pytest.raises(DeviceError, match="removed or made anew"):
            owner.create(GRANULARITY)


def test_a_device_that_goes_takes_its_memory_out_of_the_state_file_and_leaves_the_tokens(
    devices: Path, tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server would wait for it, and nothing could bring it back."""
    monkeypatch.setenv("FAILOVER_HOST_DEVICES", str(devices))
    here, table = tmpfs / "run" / "gms", record.Slab(4096, "table:1:2")
    here.mkdir(parents=True)
    with process(devices) as owner:
        descriptor = owner.export(handle := owner.create(GRANULARITY))
        there = record.Slab(GRANULARITY, owner.identity(descriptor))
        os.close(descriptor)
        elsewhere = record.Slab(GRANULARITY, "host:1:2:0:2097152")
        pool = record.Region("kv-0", "exclusive", 8, "shape", (there, table), token=5)
        regions = (record.Region("weights", "shared", 7, "hash", (there,)), pool)
        other = record.Region("elsewhere", "shared", 6, "hash", (elsewhere,))
        file = here / "host:0.json"
        file.write_bytes(written := record.encode(record.Record(8, (*regions, other))))
        assert "in use" in remove(tmpfs / "run", ["host:0"], 0.0)[0] and file.read_bytes() == written
        owner.release(handle)
    with monkeypatch.context() as patched:
        patched.setattr(DurableFile, "write", _fails)
        assert "host:0.json can't be changed: Input/output error" in remove(tmpfs / "run", ["host:0"], 0.0)[0]
        assert (devices / "0").exists() and file.read_bytes() == written
    with monkeypatch.context() as patched, pytest.raises(_Killed):
        patched.setattr(Path, "unlink", _kills)
        remove(tmpfs / "run", ["host:0"], 0.0)
    assert record.decode(file.read_bytes()).region("weights") is None, "killed here, it has left nothing to wait for"
    assert remove(tmpfs / "run", ["host:0"], 0.0) == [] and not (devices / "0").exists()
    left = record.decode(file.read_bytes())
    assert (left.given, left.regions) == (8, (record.Region("kv-0", "exclusive", token=5), other))


class _Killed(BaseException):
    pass


def _kills(*_: object, **__: object) -> None:
    raise _Killed


def _fails(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


# --- a filesystem that is full


def _never(*_: object) -> None:
    pytest.fail("pages were asked for: that would have taken all of the machine's memory")


def test_more_than_the_filesystem_has_is_refused_at_once_with_its_name(
    devices: Path, host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = os.statvfs(devices)
    if not room.f_blocks:
        pytest.skip("this tmpfs has no limit")
    monkeypatch.setattr(libc, "allocate", _never)
    larger = room.f_blocks * room.f_frsize // GRANULARITY * GRANULARITY + 2 * GRANULARITY
    os.truncate(devices / "0", larger)  # create_device would refuse
    with pytest.raises(DeviceError, match=f"filesystem of {devices} is full") as error:
        host.create(larger)
    assert not isinstance(error.value, OutOfMemory)
    assert host.free() == larger


def test_more_than_the_machine_has_is_refused_before_the_kernel_kills_a_process(
    devices: Path, host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libc, "allocate", _never)
    unlimited = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: unlimited)
    larger = 1 << 44
    os.truncate(devices / "0", larger)
    with pytest.raises(DeviceError, match="the machine itself has") as error:
        host.create(larger)
    assert not isinstance(error.value, OutOfMemory)
    assert host.free() == larger


def test_a_filesystem_that_fills_up_meanwhile_is_an_error_and_never_a_sigbus(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    run = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*run, "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces, which this machine doesn't let us have")
    run += [sys.executable, "-m", "tests.gms.memory.full_filesystem", str(tmp_path)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        pytest.skip(f"needs a tmpfs of its own: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_device_that_no_process_uses_is_removed_and_of_another_it_is_said_why_it_stays(devices: Path) -> None:
    memory = HostMemory("0", devices)
    handle = memory.create(GRANULARITY)
    assert f"{GRANULARITY} bytes of it are in use" in remove_device_unless_used("host:0", devices)
    memory.release(handle)
    status = (devices / "0").stat()
    gms = take_unused(f"host {status.st_dev}:{status.st_ino}")
    assert gms is not None and "another GMS has it" in remove_device_unless_used("host:0", devices)
    gms.close()
    memory.close()
    assert remove_device_unless_used("host:0", devices) == "" and not (devices / "0").exists()
    assert remove_device_unless_used("host:0", devices) == "", "there is none any more"

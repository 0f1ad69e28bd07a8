"""What an attack on the lock taught, asked of GMS and its tools: real processes, odd files, old versions, no room.

Each of these was a defect here or in the lock before. The client's share: `test_client_attacks.py`.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gms.cli import gmsctl
from gms.rules import messages as m
from gms.rules.weights import numbers_begin
from gms.shell.rundir import directory
from sidecar.wire.frames import close_all
from sidecar.wire.observer import ServerSilent
from tests.gms.container import CAPACITY, SLAB, Caller, Container, hello
from tests.support.processes import ROOT
from tests.support.waiting import DEADLINE_S, until


def file_of(container: Container) -> Path:
    return directory(container.run_dir) / "host:0.json"


# -- generations (12, 13) ----------------------------------------------------------------------------------------------


def write_and_leave(container: Container) -> int:
    """A layout is committed by a client that has gone since. Its generation."""
    writer = container.writer()
    generation = container.shows(state="RO").generation
    writer.close()
    container.shows(state="COMMITTED")
    return generation


def test_generations_begin_at_the_clock_on_the_wall_where_there_is_no_file(container: Container) -> None:
    """After a reboot with the run directory on tmpfs, the time since the boot would be less than it was."""
    before = time.time()
    container.serves()
    assert numbers_begin(before, "00000") < write_and_leave(container) <= numbers_begin(time.time(), "fffff") + 1


# -- odd files (17) ----------------------------------------------------------------------------------------------------


ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a loop": lambda path: path.symlink_to(path),
    "a terabyte": lambda path: subprocess.run(["truncate", "--size", "1T", path], check=True),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "torn": lambda path: path.write_text("{"),
}


def test_state_files_that_are_none_are_kept_aside_and_nothing_hangs(container: Container) -> None:
    here = directory(container.run_dir)
    here.mkdir(parents=True, mode=0o700)
    devices = [f"host:{number}" for number in range(len(ODD))]
    for device, make in zip(devices, ODD.values(), strict=True):
        make(here / f"{device}.json")
    gms = container.serves(devices=",".join(devices))
    assert sum("state_file_unreadable" in line for line in gms.err.said) == len(ODD)
    for device, odd in zip(devices, ODD, strict=True):
        assert any("can't be read" in alarm for alarm in container.status(device).alarms), odd
        assert [path for path in here.iterdir() if f"{device}.json.unreadable-" in path.name], odd
    assert "Traceback" not in "\n".join(gms.err.said)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["host:0.lock", "gms.lock", "devices", "host:0.sock", "host:0.json.spare"])
@pytest.mark.parametrize("odd", ["a pipe", "a directory", "a loop"])
def test_something_else_under_a_name_of_ours_is_one_clear_line_or_no_matter(
    container: Container, name: str, odd: str
) -> None:
    here = directory(container.run_dir)
    here.mkdir(parents=True, mode=0o700)
    ODD[odd](here / name)
    gms = container.gms()
    until(lambda: gms.process.poll() is not None or (here / "host:0.sock").is_socket(), "it ends, or serves")
    if gms.process.poll() is None:
        gms.send(signal.SIGTERM)
    assert gms.ends() in (0, 1)
    said = gms.err.rest()
    assert "Traceback" not in said
    if gms.ends() == 1:
        assert f"{here / name} can't be used" in said or f"{here / name} can't be read" in said


def test_names_that_are_no_text_disturb_no_client(container: Container) -> None:
    here = directory(container.run_dir)
    here.mkdir(parents=True, mode=0o700)
    for name in (b"\xff\xfe", b"host:\xff.sock", b"host:0.json.unreadable-\xff", b"\xff.lock"):
        Path(os.fsdecode(os.fsencode(here) + b"/" + name)).write_bytes(b"x")
    gms = container.serves()
    code, out, err = container.ask("status")
    assert code == 1 and "Traceback" not in err and out
    gms.kill()
    (here / "devices").unlink()
    code, out, err = container.ask("status")
    assert code == 2 and "Traceback" not in err


def test_a_list_of_devices_that_is_none_keeps_no_client_waiting(container: Container) -> None:
    container.serves()
    listed = directory(container.run_dir) / "devices"
    listed.unlink()
    for odd in ("a pipe", "a terabyte", "a device", "a directory"):
        ODD[odd](listed)
        code, out, _ = container.ask("status", "--json")
        assert code == 1 and json.loads(out)["device"] == "host:0", odd
        listed.rmdir() if listed.is_dir() else listed.unlink()


def in_small_filesystem(command: str, size: str = "64k") -> subprocess.CompletedProcess[str]:
    """A shell command in a mount namespace, in a directory of its own on a tmpfs of that size."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        mount = f"mount -t tmpfs -o size={size},mode=700 none {place} || exit 77; cd {place}; "
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", mount + command],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PY": sys.executable, "FAILOVER_HOST_DEVICES": ""},
        )
    if done.returncode == 77 or "Operation not permitted" in done.stderr:
        pytest.skip("no mount namespaces here")
    return done


DEVICES_ELSEWHERE = "D=$(mktemp -d -p /dev/shm); export FAILOVER_HOST_DEVICES=$D; trap 'rm -rf $D' EXIT; "
SERVE = "timeout 20 $PY -m gms --run-dir $PWD/run --devices host:0 --capacity 4MiB"


def test_a_full_filesystem_at_the_start_is_one_line(container: Container) -> None:
    done = in_small_filesystem(f"{DEVICES_ELSEWHERE} head -c 1000000 /dev/zero > full 2>/dev/null; {SERVE}; exit $?")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr and "No space left" in done.stderr


def test_a_read_only_filesystem_at_the_start_is_one_line(container: Container) -> None:
    done = in_small_filesystem(f"{DEVICES_ELSEWHERE} mkdir run; mount -o remount,ro $PWD; {SERVE}; exit $?")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr and "Read-only file system" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_room_for_the_state_file_is_kept(container: Container) -> None:
    """A disk that fills up afterwards keeps no client from committing."""
    script = f"""
{DEVICES_ELSEWHERE}
{SERVE} 2>log & gms=$!
$PY - <<END
import time, os, sys
from pathlib import Path
sys.path.insert(0, "{ROOT}")
from tests.gms.container import Caller, hello, document, until
from gms.cli import gmsctl
from gms.rules import messages as m
from gms.shell.rundir import connect
run = Path.cwd() / "run"
def listens():
    try:
        connect(run, "host:0").close()
    except OSError:
        return False
    return True
until(listens, "it listens")
try:
    with open("full", "wb") as file:
        while True:
            file.write(b"x" * 4096); file.flush()
except OSError:
    pass
writer = Caller(run, "host:0", hello(), m.Open(mode="rw"))
opened, _ = writer.hear(m.Opened)
writer.ask(m.Create(size=2 << 20), m.Created)
print(writer.ask(m.Commit(layout=document((2 << 20,))), m.Committed))
END
code=$?; kill $gms; wait $gms; exit $code
"""
    done = in_small_filesystem(script, "256k")
    assert done.returncode == 0, done.stdout + done.stderr


# -- who calls (6, 18) -------------------------------------------------------------------------------------------------


def test_clients_that_do_nothing_make_room_for_one_that_wants_something(container: Container) -> None:
    container.serves()
    writer = container.writer()
    idle = [Caller(container.run_dir, "host:0", hello(f"idle-{number}")) for number in range(520)]
    for each in idle[-20:]:
        each.hear(m.Welcome)
    reader = container.caller(hello("late"), m.Open(mode="ro"))
    close_all(reader.hear(m.Slabs)[1])
    status = container.status()
    assert status.clients_total <= 500 and len(status.clients) <= 100
    assert writer.ask(m.Ping(), m.Pong)
    code, out, _ = container.ask("status")
    assert code == 0 and f"of {status.clients_total}" in out, "a long list is cut, and says so"
    for each in idle:
        each.close()


def test_sums_as_long_as_a_frame_dont_end_the_server(container: Container) -> None:
    """They go with the layout in one message."""
    container.serves()
    writer = container.writer()
    generation = container.status().generation
    writer.say(m.Checksums(generation=generation, sums=["x" * (60 << 20)]))
    assert writer.hear(m.Problem)[0].why
    writer.ends()
    assert container.status().state == "COMMITTED"


# -- the device (30), directories --------------------------------------------------------------------------------------


def test_a_device_has_one_gms_at_a_time_and_the_second_is_told_who_has_it(container: Container) -> None:
    container.serves()
    first, container.run_dir = container.run_dir, container.run_dir.with_name("other")
    second = container.gms()
    assert second.ends() == 1
    said = second.err.rest()
    assert "host:0" in said and str(first) in said and "--share-devices" in said and "Traceback" not in said
    container.run_dir = first
    assert container.status().state == "EMPTY"


def test_a_device_can_be_shared_if_all_say_so(container: Container) -> None:
    container.serves("--share-devices")
    first, container.run_dir = container.run_dir, container.run_dir.with_name("other")
    container.serves("--share-devices")
    container.writer()
    third, container.run_dir = container.run_dir, container.run_dir.with_name("third")
    alone = container.gms()
    assert alone.ends() == 1 and "--share-devices" in alone.err.rest()
    for run_dir in (first, third):
        container.run_dir = run_dir
        assert container.status().free == CAPACITY - SLAB


def test_a_mount_point_as_devices_directory_gets_advice_that_can_be_followed(container: Container) -> None:
    """Under `fsGroup` a volume is root's, with mode 2777: nothing can be done about it but to go one level down."""
    done = in_small_filesystem(
        "chmod 2777 $PWD; export FAILOVER_HOST_DEVICES=$PWD; R=$(mktemp -d -p /dev/shm); "
        "timeout 20 $PY -m gms --run-dir $R/run --devices host:0 --capacity 4MiB; code=$?; rm -rf $R; exit $code",
        "16m",
    )
    assert done.returncode == 1
    assert "use a directory below it" in done.stderr and "Traceback" not in done.stderr


def test_every_directory_that_is_made_is_for_this_user_alone(container: Container) -> None:
    container.run_dir = container.run_dir / "a" / "b"
    container.host_devices = container.host_devices / "c" / "d"
    old = os.umask(0)
    try:
        container.serves()
    finally:
        os.umask(old)
    for made in (
        *container.run_dir.parents,
        container.run_dir,
        *container.host_devices.parents,
        container.host_devices,
    ):
        if made == container.run_dir.parents[2]:
            break
        assert stat.S_IMODE(made.stat().st_mode) == 0o700, made


# -- gmsctl ------------------------------------------------------------------------------------------------------------


def test_ping_asks_all_devices_at_the_same_time(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that takes longer than kubelet waits is killed, and says nothing: silent ones take no longer than one."""
    here = threading.Barrier(3, timeout=DEADLINE_S)

    def observer(*_: object) -> object:
        here.wait()
        raise ServerSilent("it does not answer")

    monkeypatch.setattr(gmsctl, "Observer", observer)
    directory(container.run_dir).mkdir(parents=True)
    (directory(container.run_dir) / "devices").write_text("host:0\nhost:1\nhost:2\n")
    code, out, err = container.ask("ping")
    assert (code, out) == (2, "") and err.count("it does not answer") == 3


def test_a_release_of_the_weights_is_a_command_of_its_own(container: Container) -> None:
    container.serves()
    code, out, _ = container.ask("clear")
    assert (code, out) == (0, "host:0: there was no layout\n")
    writer = container.writer()
    code, _, err = container.ask("clear", "--timeout-s", "0")
    assert code == 3 and "engine-a" in err, "who reads keeps it waiting, and is named"
    generation = container.status().generation
    writer.close()
    code, out, _ = container.ask("clear", "--json")
    assert code == 0 and json.loads(out) == {"device": "host:0", "cleared": generation}
    assert container.shows(state="EMPTY").free == CAPACITY


def test_files_that_a_cleaner_deletes_are_written_again_and_a_new_server_knows(container: Container) -> None:
    program = container.serves("--window-s", "5")
    container.writer((SLAB,))
    files = container.run_dir / "gms"
    before = (files / "host:0.json").read_bytes()
    for path in [path for path in files.iterdir() if path.is_file()]:
        path.unlink(missing_ok=True)  # the server changes the names of two of them when it writes
    until(lambda: (files / "host:0.json").is_file(), "the state file is there again")
    assert (files / "host:0.json").read_bytes() == before
    program.err.with_words("the state file was deleted")
    generation = container.status().generation
    program.close()
    container.serves("--window-s", "5")
    code, out, _ = container.ask("history", "--json")
    (started,) = (event for event in map(json.loads, out.splitlines()) if event["event"] == "started")
    (awaits,) = (event for event in map(json.loads, out.splitlines()) if event["event"] == "awaits")
    assert (code, started["detail"]["found"]) == (0, "1 regions")
    assert (awaits["detail"]["region"], awaits["detail"]["generation"]) == ("weights", generation)

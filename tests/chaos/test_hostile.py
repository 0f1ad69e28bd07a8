"""Callers and files that no program of ours makes. The server goes on, and says what is wrong."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockserver.rules import messages as m
from lockserver.shell.rundir import HOLDER, LIFE, connect
from tests.chaos.house import Caller, House, Observer, Waiter, patient_connect
from tests.support import tmpfs
from tests.support.root import needs_root
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


# -- answers that are too large ----


def test_a_history_that_is_too_long_is_cut_and_says_so(house: House) -> None:
    server = house.server()
    with Waiter(house.run_dir, "a") as a, Waiter(house.run_dir, "b"):
        a.next(m.Granted)
        with server.observer() as observer:
            for _ in range(800):
                observer.ask(m.Switchover(to="b", drain_timeout_s=5))
                drain = a.next(m.Drain)
                a.ask(m.Drained(round=drain.round, ok=False, why="x" * 2000))
                observer.next(m.SwitchoverStep)
                while not observer.next(m.SwitchoverStep).done:
                    continue
            observer.ask(m.AskHistory())
            history = observer.next(m.History)
        assert history.left_out > 0 and len(history.events) > 100
    assert server.status().state in ("HELD", "FENCING")


def test_a_status_with_many_waiters_is_cut_and_says_how_many(house: House, many_descriptors: int) -> None:
    server = house.server()
    needs = {f"GPU-{number:036d}": number for number in range(64)}
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(Waiter(house.run_dir, "holder"))
        holder.next(m.Granted)
        for number in range(400):
            waiter = stack.enter_context(Waiter(house.run_dir, f"w{number}"))
            waiter.ask(m.Acquire(needs=needs))
        status = server.shows(lambda s: s.waiters_total == 400)
        assert 0 < len(status.waiters) < 400
        assert json.loads(house.lockctl("status", "--json"))["waiters_total"] == 400


# -- connections ----


def test_silent_connections_lock_no_client_out(house: House, many_descriptors: int) -> None:
    from sidecar.wire.connections import MOST_CONNECTIONS

    server = house.server()
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS + 20):
            stack.enter_context(patient_connect(house.run_dir))
        a = house.engine("a")
        a.holds()
        b = house.engine("b")
        b.wants(watching=[a])
        a.kill()
        assert b.granted()["dead"] == [True]
        assert server.status().state == "HELD"


def test_observers_leave_room_for_engines_and_are_told_that_it_is_full(house: House, many_descriptors: int) -> None:
    from evidence.rules.callers import MOST_OBSERVERS

    house.server()
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_OBSERVERS):
            stack.enter_context(Observer(house.run_dir)).ask(m.Ping())
        full = stack.enter_context(Caller(house.run_dir, m.Observe(protocol=m.OLDEST, newest=m.PROTOCOL)))
        full.next(m.Busy)
        assert house.lockctl_code("status") == 75
        house.engine("a").holds()


# -- a log that no process reads


def test_a_log_that_is_not_read_stops_no_client(house: House) -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    house.run_dir.mkdir(mode=0o700)
    words = [sys.executable, "-m", "lockserver", "--run-dir", str(house.run_dir), "--memory", "none"]
    server = subprocess.Popen([*words, "--settle-s", "0.05"], stderr=writing)
    os.close(writing)
    try:
        until(lambda: (house.run_dir / "lock.sock").exists(), "it listens")
        for number in range(200):  # each is a line or more, of some hundred bytes
            with contextlib.closing(connect(house.run_dir)) as sock:
                sock.sendall(b"\xff" * 100)
                with contextlib.suppress(ConnectionError):
                    sock.recv(4096)
            if number % 50 == 0:
                with Observer(house.run_dir) as observer:
                    observer.status()
        house.engine("a").holds()
        os.set_blocking(reading, False)
        with contextlib.suppress(BlockingIOError):
            while os.read(reading, 1 << 16):
                continue
        with contextlib.closing(connect(house.run_dir)) as sock:
            sock.sendall(b"\xff" * 100)
            until(lambda: b"log_lines_dropped" in read_some(reading), "the count is told")
    finally:
        server.kill()
        server.wait()
        os.close(reading)


def read_some(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 20)
    except BlockingIOError:
        return b""


# -- files ----


def strange_files(house: House) -> None:
    life = house.run_dir / LIFE
    life.mkdir(parents=True, mode=0o700, exist_ok=True)
    (life / os.fsdecode(b"\xff\xfe.12345678")).write_text("")
    (life / "no name at all").write_text("")
    (life / "a.0123456789abcdef").mkdir()
    os.mkfifo(life / "b.0123456789abcdef")
    (life / "c.0123456789abcdef").symlink_to("/dev/zero")


def test_strange_names_among_the_life_files_disturb_no_client(house: House) -> None:
    house.run_dir.mkdir(mode=0o700)
    strange_files(house)
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants()
    assert house.lockctl_code("doctor") in (0, 1)
    server.kill()
    house.server().shows(lambda s: s.state == "HELD")
    a.kill()
    b.granted()


@pytest.mark.parametrize("kind", ["fifo", "directory", "symlink", "huge"])
def test_a_holder_file_that_is_none_is_kept_aside_and_reported(house: House, kind: str) -> None:
    house.run_dir.mkdir(mode=0o700)
    path = house.run_dir / HOLDER
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "symlink":
        path.symlink_to("/dev/zero")
    else:
        with open(path, "wb") as file:
            file.truncate(1 << 30)
    server = house.server()
    assert any("holder.json can't be read" in alarm for alarm in server.status().alarms)
    assert list(house.run_dir.glob(f"{HOLDER}.unreadable-*"))


def test_a_life_directory_that_is_removed_while_it_recovers_is_made_anew(house: House) -> None:
    server = house.server("--settle-s", "3")
    for _ in range(20):
        with contextlib.suppress(OSError):
            for path in (house.run_dir / LIFE).iterdir():
                path.unlink()
            (house.run_dir / LIFE).rmdir()
        time.sleep(0.02)
    assert server.status().state == "RECOVERING"
    house.engine("a").holds()


@pytest.fixture
def bad_place(house: House, request: pytest.FixtureRequest) -> Iterator[Path]:
    mount = house.directory / "mount"
    full = request.param == "full"
    with tmpfs.mounted(mount, "size=64k,nr_inodes=3" if full else "size=64k"):
        if full:
            with contextlib.suppress(OSError):
                for number in range(10):
                    (mount / f"{number}").write_bytes(b"x" * 8192)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        yield mount / "run"


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("bad_place", ["full", "read-only"], indirect=True)
def test_a_place_that_cant_be_written_is_a_sentence(bad_place: Path) -> None:
    said = refusal(bad_place)
    assert "can't be used" in said and ("make room" in said or "read-only" in said)


@pytest.mark.parametrize("place", ["/proc/x", "/dev/null/x"])
def test_a_place_that_cant_be_is_a_sentence_that_helps(place: str) -> None:
    said = refusal(Path(place))
    assert "can't be used" in said and "may write" not in said


@pytest.mark.parametrize(("name", "make"), [("server.lock", os.mkfifo), ("life", Path.touch), ("lock.sock", os.mkdir)])
def test_something_else_under_a_name_of_ours_is_named(
    tmp_path: Path, name: str, make: Callable[[Path], object]
) -> None:
    make(tmp_path / name)
    said = refusal(tmp_path)
    assert f"{tmp_path / name} can't be used" in said and "move it away" in said


def refusal(run_dir: Path) -> str:
    words = [sys.executable, "-m", "lockserver", "--run-dir", str(run_dir), "--memory", "none"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


@pytest.mark.root
@needs_root
def test_an_engine_that_cant_make_its_life_file_says_so_and_comes_in_when_it_can(house: House) -> None:
    with tmpfs.mounted(house.run_dir, "nr_inodes=40,mode=0700"):
        house.server()
        fillers = []
        with contextlib.suppress(OSError):
            for number in range(100):
                fillers.append(house.run_dir / f"filler{number}")
                fillers[-1].touch()
        words = [
            sys.executable,
            "-m",
            "lockserver.cli.lockctl",
            "--run-dir",
            str(house.run_dir),
            "hold",
            "--engine-id",
            "a",
        ]
        with subprocess.Popen([*words, "--", "true"], stderr=subprocess.PIPE, text=True) as hold:
            assert hold.stderr is not None
            for line in hold.stderr:
                if "can't make its file" in line and "No space left" in line:
                    break
            else:
                raise AssertionError("it never said so")
            for filler in fillers:
                filler.unlink(missing_ok=True)
            hold.stderr.read()
            assert hold.wait(40) == 0


# -- a memory reader that hangs ----


HANGS = """
import sys, time
from pathlib import Path
import evidence.shell.memory as memory
gate = Path(sys.argv.pop(1))
def read():
    while gate.exists():
        time.sleep(0.01)
    return {"GPU-1": (100, 100)}
memory.reader = lambda kind, directory: (read, "")
from lockserver.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_reader_that_hangs_stops_no_client_and_says_so(house: House) -> None:
    gate = house.directory / "gate"
    words = [sys.executable, "-c", HANGS, str(gate), "--run-dir", str(house.run_dir), "--settle-s", "0.05"]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        until(lambda: (house.run_dir / "lock.sock").exists(), "it listens")
        a, b = house.engine("a"), house.engine("b")
        a.holds(needs={"GPU-1": 10})
        gate.touch()
        b.wants(needs={"GPU-1": 10})
        a.kill()
        with Observer(house.run_dir) as observer:
            until(lambda: any("can't be read" in alarm for alarm in observer.status().alarms), "it says so")
            assert observer.status().state == "FENCING"
        assert not b.heard("granted")
        gate.unlink()
        b.granted()
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


# -- names ----


def test_a_name_that_the_wire_doesnt_take_is_refused_and_not_tried_for_ever(house: House) -> None:
    house.server()
    a = house.engine()
    a.order("start", run_dir=str(house.run_dir), engine_id="_a")
    until(a.heard_answer, "it is told no")
    (failed,) = [event for event in a._events if "failed" in event]
    assert failed["type"] == "Refused" and "engine_id" in failed["why"]

"""What people and cleaners do to a pair that runs: files are removed, ports are taken, two engines are started with
different arguments. Real processes; after each the pair is as good as before, or says what it isn't any more.
"""

import contextlib
import itertools
import os
import socket
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engine_shim.cli import pair_doctor, pair_look
from engine_shim.cli.failover import main as failover
from engine_shim.cli.pair_process import UP_LOCK, up_pid
from engine_shim.cli.pair_status import AT_REST, redundancy, serving, waits_for
from engine_shim.cli.tree import TreeLock
from engine_shim.shell import paths, scratch
from sidecar.kernel.durable import AlreadyLocked, DirectoryLock
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.findings import Level
from tests.engine.kinds import REFERENCE, TOY, there
from tests.engine.shims import House, Shim
from tests.engine.test_scenarios import settled
from tests.engine.test_up import TOY as TOY_PAIR
from tests.engine.test_up import running, said, status, whole
from tests.support.ports import free_port
from tests.support.waiting import until

chaos = pytest.mark.chaos


def found_by_clients(house: House, shim: Shim) -> None:
    """The engine never ended, and clients come to it again."""
    house.until_announced(shim)
    assert house.served(TOY)
    assert shim.state()["deaths"] == 0


@chaos
def test_a_socket_that_is_removed_under_an_engine_is_bound_again(house: House) -> None:
    a, b = house.pair(TOY)
    path = Path(house.endpoint().removeprefix("unix:"))
    for number in (1, 2):
        path.unlink()
        until(path.exists, "it is bound again")
        until(lambda number=number: a.said().count("was removed: bound again") == number, "it is said")  # type: ignore[misc]
        found_by_clients(house, a)
    a.main().kill()
    settled(house, TOY, b, a)


@chaos
def test_until_a_door_is_there_again_the_engine_is_not_ready_and_no_client_is_sent_to_it(house: House) -> None:
    """Its directory can't be made again: there is a file in its place."""
    a, b = house.pair(TOY)
    engines = house.run_dir / paths.ENGINES
    aside = (house.run_dir / f"aside{number}" for number in itertools.count())

    def in_its_place() -> bool:
        """The shims make the directory again as fast as they can."""
        with contextlib.suppress(OSError):
            engines.rename(next(aside))
            engines.write_text("in the way")
            return True
        return False

    until(in_its_place, "there is a file in its place")
    until(lambda: a.get("/ready")[0] == 503, "it isn't ready")
    assert "no client can connect" in a.get("/ready")[1] and a.get("/live")[0] == 200
    until(lambda: house.endpoint() == "", "the endpoint is withdrawn")
    engines.unlink()
    found_by_clients(house, a)
    until(lambda: a.get("/ready")[0] == 200, "and it is ready again")
    assert stat.S_IMODE(engines.stat().st_mode) == 0o700
    for shim in (a, b):
        until(lambda shim=shim: " made_again " in shim.said(), "its files are made again, and it is said")  # type: ignore[misc]
    a.main().kill()
    settled(house, TOY, b, a)


@chaos
def test_a_run_directory_whose_files_were_cleaned_away_is_as_before(house: House) -> None:
    """`find RUN -type f -delete`, as a cleaner of /tmp does it."""
    up = running(house, *TOY_PAIR)
    pid = up.pid
    first = house.holder()
    for directory, _, names in os.walk(house.run_dir):
        for name in names:
            path = Path(directory) / name
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(path.lstat().st_mode):
                    path.unlink()
    assert {one["engine_id"] for one in status(house, "at-once")["engines"]} == {"a", "b"}  # type: ignore[attr-defined]
    until(lambda: whole(house), "it is as before, once what was removed is made again")
    shown = said(house, "kill", "kill", "active")
    assert f"{first} (process" in shown
    until(lambda: status(house)["redundant"], "the killed one is back")
    until(lambda: up_pid(house.run_dir) == pid, "failover up can be found again")
    assert "was removed: made again" in up.said()
    said(house, "down", "down")
    assert up.code() == 0


@chaos
def test_the_run_directory_is_for_its_user_alone_whichever_process_makes_it(house: House) -> None:
    house.run_dir = house.run_dir / "further" / "down"
    a = house.shim(TOY, "a")
    until(lambda: a.state()["processes"] == 1, "it is there, and no lock server is")
    for directory in (house.run_dir, house.run_dir.parent, house.run_dir / paths.ENGINES):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_looking_takes_nothing(tmp_path: Path) -> None:
    """A process that looks for `failover up` in a loop keeps none from starting one."""
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            assert up_pid(tmp_path) in (None, os.getpid())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(300):
            try:
                DirectoryLock(tmp_path, UP_LOCK).acquire().close()
            except AlreadyLocked:
                pytest.fail("a process that only looks has the lock")
    finally:
        over.set()
        looking.join()
    with DirectoryLock(tmp_path, UP_LOCK):
        assert up_pid(tmp_path) == os.getpid()
    assert up_pid(tmp_path) is None


OF_A_KILLED_PAIR = {
    "up.lock": "", "up.json": '{"devices": []}', "holder.json": "{}", "server.lock": "", "gms/devices": "",
    "gms/gms.lock": "", "engine/a.shim.sock": "", "engine/a.lock": "", "engine/a.shm_files": "",
    "engine/a.scratch/elsewhere": "",
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", OF_A_KILLED_PAIR)
def test_no_command_waits_for_a_fifo_in_place_of_a_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scratch, "directory", lambda run_dir, engine_id: run_dir / "engine" / f"{engine_id}.scratch")
    for file, text in OF_A_KILLED_PAIR.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    codes = {
        words[0]: failover([*words, "--run-dir", str(tmp_path)])
        for words in (["status"], ["doctor"], ["kill", "active"], ["top", "--once", "--door", "127.0.0.1:1"], ["down"])
    }
    said = capsys.readouterr()
    if name == UP_LOCK:
        assert set(codes.values()) == {1} and f"{tmp_path / name} is no regular file: move it away" in said.err
        with pytest.raises(CannotStart, match=r"up\.lock can't be used: it is no regular file"):
            TreeLock(tmp_path)
    else:
        assert codes == {"status": 3, "doctor": 1, "kill": 1, "top": 1, "down": 0}, said


def test_no_tree_starts_where_any_user_may_take_its_files_away(tmp_path: Path) -> None:
    """`failover doctor` calls such a directory a FAIL. A group may be meant, as with `--socket-mode 660`."""
    tmp_path.chmod(0o777)
    with pytest.raises(CannotStart, match=f"any user may replace .* in {tmp_path}: give --run-dir {tmp_path}/failover"):
        TreeLock(tmp_path)
    assert not (tmp_path / UP_LOCK).exists()
    tmp_path.chmod(0o770)
    TreeLock(tmp_path).close()


# -- what another start doesn't mend -----------------------------------------------------------------------------------


@chaos
def test_an_init_that_waits_for_memory_is_tried_again_and_again(house: House) -> None:
    house.start_lock()
    (house.faults("a") / "no_memory").touch()
    a = house.shim(TOY, "a")
    until(lambda: a.state()["starts"] >= 4, "it goes on trying")
    (house.faults("a") / "no_memory").unlink()
    a.until("Active")


@chaos
@pytest.mark.skipif(REFERENCE not in there(), reason="there is no reference engine")
def test_a_kv_cache_that_can_never_fit_is_refused_with_a_sentence(house: House) -> None:
    house.start_lock(*REFERENCE.lock)
    house.start_gms(REFERENCE)
    a = house.shim(REFERENCE, "a", arguments=("--kv-bytes", "1GiB"))
    assert a.code() == 64
    assert "Traceback" not in a.said() and "KV cache" in a.said()


# -- a standby that could not serve the same ---------------------------------------------------------------------------


@chaos
def test_a_standby_that_takes_other_requests_is_ready_and_no_redundancy(house: House) -> None:
    a = house.one(TOY, arguments=("--model-len", "4096"))
    b = house.shim(TOY, "b", arguments=("--model-len", "1024"))
    b.until("Standby", ready=True, redundant=False, differences=["--model-len: 1024 here, 4096 in a"])
    a.until("Active", ready=True, redundant=False, differences=["--model-len: 4096 here, 1024 in b"])
    assert " alarm shim takes_other_requests " in b.said()
    shown = said(house, "shown", "status", "--door", "none")
    assert "redundancy     none: b is ready and takes other requests (--model-len: 1024 here, 4096 in a)" in shown
    assert "failover_engine_redundant 0.0" in a.get("/metrics")[1]
    b.signal(15)
    assert b.code() == 0
    b = house.shim(TOY, "b", arguments=("--model-len", "4096"))
    b.until("Standby", ready=True, redundant=True, differences=[])
    a.until("Active", redundant=True, differences=[], takes_digest=b.state()["takes_digest"])


LOCK: dict[str, object] = {
    "state": "HELD",
    "holder": {"engine_id": "a", "endpoint": "unix:/x"},
    "alarms": [],
    "fencing": None,
}
READY = {"engine_id": "b", "state": "Standby", "ready": True, "takes": {"x": "1"}}
SERVING = {"engine_id": "a", "state": "Active", "ready": True, "takes": {"x": "1"}}


@pytest.mark.parametrize(
    ("lock", "engines", "expected"),
    [
        (LOCK, [SERVING, READY], (True, "yes: b would take over")),
        (LOCK, [SERVING, {**READY, "ready": False}], (False, "none: no engine is ready to take over")),
        (
            LOCK,
            [SERVING, {**READY, "ready": False, "state": "Init", "for_s": 13.2}],
            (False, "none yet: b has been starting for 13 s"),
        ),
        (
            LOCK,
            [SERVING, {**READY, "ready": False, "state": "Dead", "next_start_in_s": 4.2}],
            (False, "none yet: b starts again in 4 s"),
        ),
        (
            None,
            [SERVING, READY],
            (False, "none: no lock server answers, and without one no engine takes over; b is ready"),
        ),
        (
            {**LOCK, "state": "FENCING", "holder": None},
            [READY],
            (False, "none: no engine serves, the lock is FENCING; b is ready"),
        ),
        (
            {**LOCK, "state": "FREE", "holder": None, "resting": True},
            [{**READY, "engine_id": "a"}, READY],
            (False, f"none: {AT_REST}; a, b are ready"),
        ),
        (
            {**LOCK, "alarms": ["holder.json can't be written"]},
            [SERVING, READY],
            (False, "in doubt: b is ready, and the lock server has an alarm"),
        ),
        (
            LOCK,
            [SERVING, {**READY, "takes": {"x": "2"}}],
            (False, "none: b is ready and takes other requests (x: 2 here, 1 in a)"),
        ),
        (LOCK, [SERVING, {**READY, "takes": {}}], (True, "yes: b would take over")),
        (
            {**LOCK, "waiters": [{"engine_id": "b"}]},
            [{**SERVING, "state": None, "ready": False}, {**READY, "state": None, "ready": False}],
            (False, "unknown: b's shim doesn't answer"),
        ),
        (
            LOCK,
            [{**SERVING, "state": None, "ready": False}, READY],
            (False, "in doubt: b is ready, and a's shim, which knows what requests it takes, is silent"),
        ),
        (
            {**LOCK, "state": "RECOVERING", "holder": None},
            [SERVING, READY],
            (False, "none: no engine takes over while the lock is RECOVERING; a serves on; b is ready"),
        ),
    ],
)
def test_what_is_called_redundancy(lock: object, engines: list[object], expected: tuple[bool, str]) -> None:
    assert redundancy(lock, engines) == expected  # type: ignore[arg-type]


def test_no_person_is_told_to_start_by_hand_what_failover_up_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second server by hand has other options than the pair's own, and keeps that one out."""
    pair_look.UpFacts("http://127.0.0.1:1", ("host:0",)).write(tmp_path)
    for up, expected in ((None, False), (os.getpid(), True)):
        monkeypatch.setattr(pair_look, "up_pid", lambda run_dir, up=up: up)
        seen = pair_look.look(tmp_path)
        said = [seen.lock_why, *(one["why"] for one in seen.gms), *(door["why"] for door in [seen.door] if door)]
        assert [pair_look.BY_ITSELF in why for why in said] == [expected] * (3 if up else 1), said
        assert [f"lockserver --run-dir {tmp_path}" in why for why in said[:1]] == [not expected]


def test_a_pool_that_failover_models_up_starts_is_not_to_be_started_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for facts, why in (
        (pair_look.UpFacts(starting=True, models=True), "no pool listens; failover models up is starting it"),
        (pair_look.UpFacts(models=True), "no pool listens; failover models up starts it again by itself, and its"),
        (pair_look.UpFacts(models=True, ending=True), "no pool listens; failover models up ends them all"),
        (pair_look.UpFacts(), f"{tmp_path} has a pair and no pool: failover status shows it"),
    ):
        facts.write(tmp_path)
        with contextlib.closing(TreeLock(tmp_path)):
            codes = [failover(["models", *words, "--run-dir", str(tmp_path)]) for words in ([], ["wake", "chat"])]
        said = capsys.readouterr().err
        assert codes == [2, 2] and said.count(f"failover: {why}") == 2, said
    pair_look.UpFacts.remove(tmp_path)
    assert failover(["models", "--run-dir", str(tmp_path)]) == 2
    assert "start one (failover models up models.yaml)" in capsys.readouterr().err


def test_a_lock_at_rest_is_no_failure() -> None:
    """Of many models all but a few sleep."""
    lock = {**LOCK, "state": "FREE", "holder": None, "resting": True}
    found = [*pair_doctor.of_the_parts(pair_look.Seen("/x", None, lock, "", [], [READY], None))]
    assert [one.level for one in found if one.check == "redundancy"] == [Level.WARN], found


def test_of_a_host_that_ends_the_doctor_sends_nobody_to_start_its_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair_look.UpFacts("http://127.0.0.1:1", ("host:0",), models=True, ending=True).write(tmp_path)
    with contextlib.closing(TreeLock(tmp_path)):
        assert failover(["doctor", "--run-dir", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert said.count("failover models up ends them all") == 4 and "start one (failover models up" not in said, said
    assert "its log says why" not in said, said


def test_only_a_process_that_is_there_and_silent_is_to_be_continued() -> None:
    refused = "no program listens there; failover up starts it again by itself"
    gms = {"device": "host:0", "answers": False, "state": None, "why": refused}
    engine = {"engine_id": "b", "state": None, "ready": False, "why": refused}
    door = {"url": "http://127.0.0.1:1", "answers": False, "why": refused}
    for why, silent in ((refused, False), ("says nothing for 2 s: is its process stopped (state T in ps)?", True)):
        parts = [[{**gms, "why": why}], [{**engine, "why": why}], {**door, "why": why}]
        found = [*pair_doctor.of_the_parts(pair_look.Seen("/x", 1, None, "", *parts))]  # type: ignore[arg-type]
        assert ["kill -CONT" in one.do for one in found if why in one.found] == [silent] * 3


def test_without_gms_there_is_no_redundancy() -> None:
    gms = [{"device": "host:0", "answers": False}, {"device": "host:1", "answers": True}]
    assert redundancy(LOCK, [SERVING, READY], gms) == (
        False,
        "none: GMS of host:0 doesn't answer, and no engine wakes without it; b is ready",
    )
    assert redundancy(LOCK, [SERVING, READY], gms[1:]) == (True, "yes: b would take over")


def test_who_waits_for_weights_that_no_engine_will_write_says_the_way_out() -> None:
    """The run directory was removed: the engine that serves has weights of which the next GMS knows nothing."""
    lock = {**LOCK, "permits": {"init": {"holder": None, "waiters": [], "waiting_for": []}}}
    gms = {"device": "host:0", "answers": True, "clients": [{"engine_id": "b", "region": "weights"}]}
    weights = {"key": "weights", "policy": "shared", "state": "EMPTY", "generation": 0}
    gms |= {"state": "EMPTY", "generation": 0, "regions": [weights]}
    starts = {**READY, "state": "Init", "ready": False}
    seen = pair_look.Seen("/x", None, lock, "", [gms], [SERVING, starts], None)
    assert "failover kill active --anyway" in waits_for(starts, seen)
    free = replace(seen, lock={**lock, "state": "FREE", "holder": None}, engines=[starts])
    assert waits_for(starts, free).endswith("a primary to write them (host:0 is EMPTY)")
    other = {**weights, "key": "m1"}  # of the same GMS, whose state is the worse of both
    gms["regions"] = [{**weights, "state": "RO", "generation": 7}, other]
    assert waits_for(starts, seen) == "", "it isn't its model that is missing"
    gms["regions"] = [weights, other]
    assert "weights of host:0 is EMPTY, and a, which serves" in waits_for(starts, seen)


@pytest.mark.parametrize(
    ("lock", "shims", "expected"),
    [
        (LOCK, [SERVING, READY], "a"),
        (LOCK, [{**SERVING, "state": None, "ready": False}], "a"),
        ({**LOCK, "holder": {"engine_id": "a", "endpoint": None}}, [SERVING], None),
        ({**LOCK, "state": "FENCING"}, [SERVING], None),
        ({**LOCK, "state": "RECOVERING", "holder": None}, [SERVING, READY], "a"),
        ({**LOCK, "state": "RECOVERING", "holder": None}, [READY], None),
        (None, [SERVING, READY], "a"),
        (None, [READY], None),
    ],
)
def test_who_serves_is_the_locks_to_say_and_the_shims_where_it_does_not_know(
    lock: object, shims: list[object], expected: str | None
) -> None:
    assert serving(lock, shims) == expected  # type: ignore[arg-type]


# -- a port that another process has -----------------------------------------------------------------------------------


@chaos
def test_a_port_that_another_program_has_is_seen_before_the_wake(house: House) -> None:
    house.start_lock()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        listen = ("--listen", f"127.0.0.1:{stranger.getsockname()[1]}")
        a = house.shim(TOY, "a", *listen)
        assert a.code() == 78
        assert "Traceback" not in a.said() and "can't listen on 127.0.0.1" in a.said() and "Address already" in a.said()
        assert "state=Waking" not in a.said()
    a = house.shim(TOY, "a", *listen)
    house.until_announced(a)
    b = house.shim(TOY, "b", *listen)  # the other engine's port is no stranger's
    b.until("Standby", ready=True)
    a.main().kill()
    house.until_announced(b)


@chaos
def test_a_standby_whose_port_is_taken_is_not_ready_until_it_is_free(house: House) -> None:
    a = house.pair(TOY)[0]
    port = free_port()
    c = house.shim(TOY, "c", "--listen", f"127.0.0.1:{port}")
    c.until("Standby", ready=True)
    with socket.create_server(("127.0.0.1", port)):
        c.until("Standby", ready=False)
        assert "Address already in use" in c.get("/ready")[1]
        until(lambda: not _ready(house, "c"), "the lock server knows")
    c.until("Standby", ready=True)
    assert c.state()["deaths"] == a.state()["deaths"] == 0


def _ready(house: House, engine_id: str) -> bool:
    status = house.status()
    return status is not None and any(w.ready for w in status.waiters if w.engine_id == engine_id)


# -- what an engine leaves ---------------------------------------------------------------------------------------------


@chaos
def test_an_engines_scratch_is_outside_the_run_directory_and_goes_with_the_engine(house: House) -> None:
    kind = replace(TOY, arguments=(*TOY.arguments, "--scratch"))
    a = house.one(kind)
    here = scratch.directory(house.run_dir, "a")
    elsewhere = house.directory / "vllm_dist_1"
    assert house.run_dir not in here.parents and sorted(os.listdir(here)) == ["elsewhere", "socket"]
    assert elsewhere.exists() and stat.S_IMODE(here.stat().st_mode) == 0o700
    a.kill()
    assert here.exists()
    a = house.shim(kind, "a")
    a.until("Active")
    a.signal(15)
    assert a.code() == 0
    assert not here.exists() and not elsewhere.exists()

"""What the holder file doesn't tell: it is an older copy, or lost, or says more than any engine was told."""

import shutil
import sys
import time
from pathlib import Path

import pytest

from lockserver.rules import record
from tests.chaos import dies_after_writing
from tests.chaos.house import Engine, House, Server
from tests.support.waiting import until

pytestmark = pytest.mark.chaos
SETTLE_S = 2.0
SLOW = ("--settle-s", str(SETTLE_S), "--memory", "none")


def file_from_before_the_first_grant(house: House, engine: Engine) -> bytes:
    """There is one as soon as an engine has had the permit."""
    engine.do("permit")
    engine.hears("permit")
    engine.do("end_permit")
    engine.hears("permit_over")
    path = house.run_dir / "holder.json"
    until(lambda: path.exists() and not record.decode(path.read_bytes()).permits, "the permit is given back")
    return path.read_bytes()


def restore(house: House, older: bytes) -> Server:
    (house.run_dir / "holder.json").write_bytes(older)
    return house.server()


def test_without_a_file_a_holder_that_was_stopped_is_taken_back_whatever_a_standby_knew(house: House) -> None:
    house.defaults = SLOW
    server = house.server()
    holder = house.engine("a")
    token = holder.holds()
    standby = house.engine("b")
    standby.child("exec").joins().joined()
    holder.stop()
    server.kill()
    shutil.rmtree(house.run_dir)
    server = house.server()
    standby.wants()
    server.shows(lambda status: bool(status.waiters) and any("has the path" in alarm for alarm in status.alarms))
    holder.go_on()
    held = server.shows(lambda status: status.state == "HELD")
    assert held.holder is not None and (held.holder.engine_id, held.holder.token) == ("a", token)
    assert not holder.heard("lost") and not standby.heard("granted")


def test_a_worker_that_lives_is_waited_for_where_the_file_names_no_holder(house: House) -> None:
    house.defaults = ("--window-s", "0.5", *SLOW)
    server = house.server()
    holder = house.engine("a")
    older = file_from_before_the_first_grant(house, holder)
    holder.holds()
    worker = holder.child("exec").joins().joined()
    server.kill()
    holder.kill()
    server = restore(house, older)
    standby = house.engine("b")
    standby.wants(watching=[worker])
    why = "a process of a is alive, and its main process isn't back"
    server.shows(lambda status: f"no engine is granted: {why}" in status.alarms)
    time.sleep(SETTLE_S)  # whatever else there is to wait for is over
    assert not standby.heard("granted")
    worker.kill()
    assert standby.hears("granted")["dead"] == [True]
    assert not server.status().alarms


def test_a_grant_that_no_engine_was_told_is_made_anew_and_not_beside_another_pair(house: House) -> None:
    """The names went with the server: another pair took the device meanwhile."""
    device = house.device("gpu", 1 << 20)
    house.defaults = ("--settle-s", "0.2", *house.with_memory())
    argv = [sys.executable, str(Path(dies_after_writing.__file__)), "--run-dir", str(house.run_dir), *house.defaults]
    started = house.run({"do": "exec", "argv": argv})
    server = house.grow(Server(started.pid, started.pidfd, house.run_dir)).ready()
    first = house.engine("a")
    first.wants(needs={device: 1000})
    server.wait()
    written = record.decode((house.run_dir / "holder.json").read_bytes()).active
    assert written is not None and written.engine_id == "a"
    here, house.run_dir = house.run_dir, house.directory / "other"
    others = house.server()
    other = house.engine("e")
    other.wants(needs={device: 1000})
    other.hears("granted")
    house.run_dir = here
    server = house.server()
    server.shows(lambda status: any("has the device" in alarm for alarm in status.alarms))
    assert not first.heard("granted")
    others.kill()
    other.kill()
    assert first.hears("granted")["token"] > written.token


def test_what_one_process_shows_of_its_old_life_files_does_not_replace_what_another_has_shown(house: House) -> None:
    house.defaults = SLOW
    server = house.server()
    holder = house.engine("a")
    holder.holds()
    fork = holder.child("fork", keep=False)  # lives in the first life file alone
    shutil.rmtree(house.run_dir / "life")
    server.kill()
    server = house.server()
    server.has_back(holder)
    worker = holder.child("exec").joins().joined()  # has the second one
    shutil.rmtree(house.run_dir / "life")
    worker.stop()
    server.kill()
    server = house.server()
    server.has_back(holder)
    worker.go_on()
    server.has_back(worker)
    standby = house.engine("b")
    standby.wants(watching=[fork])
    server.shows(lambda status: bool(status.waiters))
    holder.kill()
    worker.kill()
    time.sleep(2 * SETTLE_S)
    assert not standby.heard("granted")
    fork.kill()
    assert standby.hears("granted")["dead"] == [True]

"""What a server that has restarted knows: of members that ended while none looked, of files that were restored, and
tokens that never come twice."""

import shutil

import pytest

from lockserver.shell.rundir import HOLDER, LIFE
from tests.chaos.house import LONG_WINDOW, House


def test_what_died_without_a_server_is_proven_gone_without_help_and_what_outlived_it_is_killed(house: House) -> None:
    """No waiter kept copies, no memory is read: the file names the processes, and the kernel knows them."""
    server = house.server(*LONG_WINDOW)
    a = house.engine("a")
    a.holds()
    worker = a.child("exec").joins(a.tree).joined()
    server.kill()
    a.kill()
    house.server(*LONG_WINDOW)
    b = house.engine("b")
    b.wants(watching=[a, worker])
    assert b.granted()["dead"] == [True, True]


def test_children_that_come_and_go_with_restarts_in_between_never_cost_the_lock(house: House) -> None:
    server = house.server(*LONG_WINDOW)
    a = house.engine("a")
    token = a.holds()
    for _ in range(2):
        child = a.child("exec").joins(a.tree).joined()
        child.kill()
        server.kill()
        server = house.server(*LONG_WINDOW)
        status = server.shows(lambda s: s.state == "HELD")
        assert status.holder is not None and status.holder.token == token
    b = house.engine("b")
    b.wants(watching=[a])
    a.kill()
    b.granted()


def test_an_older_holder_file_ends_no_engine_and_no_token_comes_twice(house: House) -> None:
    server = house.server()
    a = house.engine("a")
    a.holds()
    older = house.directory / "backup"
    shutil.copy(house.run_dir / HOLDER, older)
    b = house.engine("b")
    b.wants()
    a.kill()
    token = b.granted()["token"]
    server.kill()
    shutil.copy(older, house.run_dir / HOLDER)
    server = house.server()
    status = server.shows(lambda s: s.state == "HELD")
    assert status.holder is not None and (status.holder.engine_id, status.holder.token) == ("b", token)
    b.never_hears("lost", for_s=0)
    c = house.engine("c")
    c.wants(watching=[b])
    b.kill()
    grant = c.granted()
    assert grant["dead"] == [True] and grant["token"] > token


def test_a_full_disk_keeps_no_grant_from_being_written(house: House, small_tmpfs: None) -> None:
    server = house.server()
    a = house.engine("a")
    a.holds()
    b = house.engine("b")
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    with open(house.run_dir / "fill", "wb", buffering=0) as fill, pytest.raises(OSError, match="No space left"):
        while True:
            fill.write(b"x" * 4096)
    a.kill()
    grant = b.granted()
    b.do("serving", url="http://there")
    server.shows(lambda s: s.holder is not None and s.holder.endpoint == "http://there")
    assert not server.status().alarms
    server.kill()
    status = house.server().shows(lambda s: s.state == "HELD")
    assert status.holder is not None and status.holder.token == grant["token"]


def test_a_forked_child_is_waited_for_though_life_was_removed_and_the_server_is_another(
    house: House,
) -> None:
    """It never joined; its lock is on a file that has no name any more, which the holder shows to the server."""
    server = house.server(*LONG_WINDOW)
    a = house.engine("a")
    a.holds()
    child = a.child("fork")
    shutil.rmtree(house.run_dir / LIFE)
    server.kill()
    server = house.server(*LONG_WINDOW)
    server.has_back(a)
    b = house.engine("b")
    b.wants(watching=[a, child])
    a.kill()
    server.fences("held by a process that did not join")
    b.never_hears("granted")
    child.kill()
    assert b.granted()["dead"] == [True, True]


def test_life_files_that_cannot_be_read_are_no_proof_that_there_are_none(house: House) -> None:
    """No file names the holder, it is stopped, and where the life files are something else is in their place."""
    server = house.server()
    a = house.engine("a")
    a.holds()
    a.stop()
    server.kill()
    (house.run_dir / HOLDER).unlink()
    server = house.server()
    server.fences("held by a process that has not registered")
    b = house.engine("b")
    b.wants(watching=[a])
    server.shows(lambda s: any(waiter.engine_id == "b" for waiter in s.waiters))
    (house.run_dir / LIFE).rename(house.run_dir / "aside")
    (house.run_dir / LIFE).write_text("")
    server.fences("the life files can't be read: Not a directory")
    server.shows(lambda s: any("the life files can't be read" in alarm for alarm in s.alarms))
    b.never_hears("granted")
    (house.run_dir / LIFE).unlink()
    (house.run_dir / "aside").rename(house.run_dir / LIFE)
    server.fences("held by a process that has not registered")
    a.kill()
    assert b.granted()["dead"] == [True]

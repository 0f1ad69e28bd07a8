"""`lockserver --locks DIR`: one process, a lock for each directory; what ends one of them is nothing to the others."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockserver.observer import NoServer, Observer
from lockserver.rules import messages as m
from tests.lockctl.programs import House
from tests.lockctl.test_metrics import page, scrape
from tests.lockctl.test_switchover import engine
from tests.support import tmpfs
from tests.support.processes import Process, Program, run_to_end
from tests.support.root import needs_root
from tests.support.waiting import until


class Many:
    """A directory of locks, and a house for each."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir()
        self.all = House(directory)
        self._houses: dict[str, House] = {}

    def serve(self, *settings: str) -> Program:
        locks = ("--locks", str(self.directory), "--settle-s", "0.05", "--memory", "none")
        return self.all.run(sys.executable, "-m", "lockserver", *locks, *settings)

    def lock(self, name: str) -> House:
        (self.directory / name).mkdir(exist_ok=True)
        return self._houses.setdefault(name, House(self.directory / name))

    def close(self) -> None:
        for house in (*self._houses.values(), self.all):
            house.close()


@pytest.fixture
def many() -> Iterator[Many]:
    with tmpfs.directory("locks") as directory, contextlib.closing(Many(directory / "lock")) as many:
        yield many


def awake(house: House, engine_id: str) -> Program:
    """Its engine holds: a new lock has to be waked for that."""
    house.until(lambda status: status.resting and status.state == "FREE", "the new lock is at rest")
    assert house.ask("wake")[0] == 0
    return engine(house, engine_id)


def removed(directory: Path) -> None:
    """In one step, as `failover models` does it: a server that sees the half of it says that it was replaced."""
    directory.rename(directory.parent.parent / f"{directory.name}.gone")


def test_each_directory_is_a_lock_of_its_own_that_comes_and_goes_with_it(many: Many) -> None:
    chat, code = many.lock("chat"), many.lock("code")
    server = many.serve()
    holder = awake(chat, "a")
    token = holder.out.with_words("granted")
    assert code.status().resting and code.status().server_pid == chat.status().server_pid == server.pid
    awake(code, "a")
    later = awake(many.lock("later"), "a")
    (many.directory / "a file").write_text("no lock")
    removed(code.run_dir)

    def gone() -> bool:
        with contextlib.suppress(NoServer), Observer(code.run_dir) as observer:
            observer.ask(m.AskStatus(), m.Status)
            return False
        return True

    until(gone, "the lock has gone with its directory")
    code.close()
    awake(many.lock("code"), "b")
    assert chat.status().server_incarnation and server.process.poll() is None
    assert (later.process.poll(), holder.process.poll()) == (None, None)
    assert f"granted {many.lock('chat').status().token}" == token


def test_a_lock_that_is_removed_while_no_engine_has_it_is_no_alarm_and_one_that_an_engine_holds_is(many: Many) -> None:
    chat, code = many.lock("chat"), many.lock("code")
    server = many.serve()
    awake(chat, "a")
    code.until(lambda status: status.resting, "it is at rest")
    removed(code.run_dir)
    said = server.err.with_words("its directory was removed")
    assert " info " in said and "/code" in said
    removed(chat.run_dir)
    assert "/chat" in server.err.with_words(" alarm ")
    assert not any(" alarm " in line and "/code" in line for line in server.err.said)


def test_all_of_them_are_back_with_their_server_and_no_holder_notices(many: Many) -> None:
    houses = [many.lock(f"model-{number}") for number in range(3)]
    server = many.serve()
    holders = [awake(house, "a") for house in houses[:2]]
    before = [house.status().token for house in houses]
    server.kill()
    many.serve()
    for house in houses[:2]:
        house.until(lambda status: status.state == "HELD", "the holder is back")
    houses[2].until(lambda status: status.resting, "at rest as before")
    assert [house.status().token for house in houses[:2]] == before[:2]
    assert all(holder.process.poll() is None for holder in holders)


def test_one_that_cant_be_served_is_said_once_and_served_when_it_can_be(many: Many) -> None:
    bad = many.directory / "bad"
    bad.mkdir()
    (bad / "life").write_text("in the way")
    chat = many.lock("chat")
    server = many.serve()
    awake(chat, "a")
    assert "bad" in server.err.with_words("not_served")
    (bad / "life").unlink()
    awake(many.lock("bad"), "a")
    server.send(signal.SIGTERM)
    assert server.ends() == 0
    assert "not_served" not in server.err.rest()


def test_a_lock_that_another_server_has_is_left_to_it(many: Many) -> None:
    chat = many.lock("chat")
    alone = chat.serve()
    server = many.serve()
    server.err.with_words("not_served")
    alone.kill()
    chat.until(lambda status: status.server_pid == server.pid, "it is this server's now")


def test_a_second_process_for_the_same_locks_is_told_so(many: Many) -> None:
    first = many.serve()
    first.err.with_words("serves")
    second = many.serve()
    assert second.ends() == 1 and f"is locked by process {first.pid}; stop it first" in second.err.rest()


@pytest.mark.parametrize("words", [(), ("--run-dir", "/tmp/x", "--locks", "/tmp/y")], ids=["neither", "both"])
def test_it_serves_one_directory_or_many(words: tuple[str, ...]) -> None:
    code, _, err = run_to_end(sys.executable, "-m", "lockserver", *words)
    assert code == 64 and "--run-dir" in err and "--locks" in err


def test_above_the_locks_a_question_is_told_where_they_are_and_a_scrape_tells_them_apart(many: Many) -> None:
    chat, code = many.lock("chat"), many.lock("code")
    server = many.serve("--metrics", "127.0.0.1:0")
    awake(chat, "a")
    code.until(lambda status: status.state == "FREE", "it is there")
    exit_code, _, err = House(many.directory.parent).ask("status")
    assert exit_code == 2 and err.endswith(f"--run-dir {many.directory}/NAME is one's; there are chat, code\n")
    assert "start one" not in err

    address = _listening(server.pid)
    held = {name: value for name, value in scrape(address).items() if "state=HELD" in name}
    assert held == {
        f"failover_lock_state{{run_dir={many.directory / name},state=HELD}}": value
        for name, value in (("chat", 1.0), ("code", 0.0))
    }
    assert page(address, "/live")


def _listening(pid: int) -> tuple[str, int]:
    """The one port that this process has."""
    links = Process(pid).descriptors().values()
    inodes = {int(link[8:-1]) for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    (port,) = [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and int(row[9]) in inodes]
    return "127.0.0.1", port


@needs_root
@pytest.mark.root
def test_something_mounted_over_one_of_them_ends_that_one(many: Many) -> None:
    chat, code = many.lock("chat"), many.lock("code")
    many.serve()
    for house in (chat, code):
        house.until(lambda status: status.resting, "at rest")
    before = [house.status().server_incarnation for house in (chat, code)]
    subprocess.run(["mount", "-t", "tmpfs", "none", str(code.run_dir)], check=True)
    try:
        code.until(lambda status: status.server_incarnation != before[1], "the lock of what is there now")
        assert chat.status().server_incarnation == before[0]
    finally:
        subprocess.run(["umount", "--lazy", str(code.run_dir)], check=True)

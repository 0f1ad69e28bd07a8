"""`lockctl status`: what it says, in words and for scripts, and its exit codes."""

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_shim.cli import failover
from gms.cli import gmsctl
from lockserver.cli import lockctl
from tests.lockctl.programs import LOCKCTL, House
from tests.support.children import Child
from tests.support.processes import ROOT, when_its_reader_leaves
from tests.support.waiting import DEADLINE_S

NAMED = ["state", "holder", "waiters", "fencing", "memory", "server_incarnation", "server_pid"]
OURS = ["evidence", "permits", "switchover", "plan", "alarms", "token", "waiters_total", "memory_why"]
OURS += ["resting", "resting_why"]
HOLDER = ["engine_id", "incarnation", "token", "granted_at", "pid", "members", "endpoint"]


def test_each_state_has_its_exit_code_and_no_server_is_no_free_lock(house: House) -> None:
    code, out, err = house.ask("status")
    assert (code, out) == (2, "")
    assert f"no lock server: there is no directory {house.run_dir}" in err
    code, out, _ = house.ask("status", "--json")
    assert (code, json.loads(out)["state"], set(json.loads(out))) == (2, "NO_SERVER", {"state", "error"})

    server = house.serve(settle_s="3600")
    code, out, _ = house.ask("status", "--json")
    assert (code, json.loads(out)["state"]) == (3, "RECOVERING") and json.loads(out)["fencing"]["waiting_for"]
    code, out, _ = house.ask("status")
    assert code == 3 and out.startswith("RECOVERING  ") and "waits for\n  - " in out

    server.kill()
    code, _, err = house.ask("status")
    assert code == 2 and "start it again by themselves; where neither does: lockserver --run-dir" in err

    house.serve()
    house.until(lambda status: status.state == "FREE", "free")
    code, out, _ = house.ask("status", "--json")
    status = json.loads(out)
    assert (code, status["state"]) == (1, "FREE")
    assert (status["holder"], status["waiters"], status["fencing"]) == (None, [], None)
    code, out, _ = house.ask("status")
    assert code == 1 and out.startswith("FREE  ")


def test_the_run_directory_comes_from_the_environment_or_stands_behind_the_command_and_the_flag_counts(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.serve(settle_s="3600")
    monkeypatch.setenv("FAILOVER_RUN_DIR", str(house.run_dir))
    assert lockctl.main(["status"]) == 3
    monkeypatch.setenv("FAILOVER_RUN_DIR", "/nowhere")
    assert lockctl.main(["status", "--run-dir", str(house.run_dir)]) == 3 == house.ask("status")[0]


def test_held_is_0_with_exactly_the_fields_that_scripts_rely_on(house: House) -> None:
    server = house.serve()
    holder, _ = house.holds("engine-a", "--serving", "http://10.0.0.7:8000")
    waiter = house.hold("engine-b", "--needs", "gpu0=40GiB")
    house.until(lambda s: len(s.waiters) == 1 and bool(s.holder and s.holder.endpoint), "one serves, one waits")
    code, out, err = house.ask("status", "--json")
    assert (code, err) == (0, "")
    status = json.loads(out)
    assert sorted(status) == sorted(NAMED + OURS)
    assert sorted(status["holder"]) == sorted(HOLDER)
    assert status["holder"]["engine_id"] == "engine-a"
    assert status["holder"]["pid"] == holder.pid
    assert status["holder"]["endpoint"] == "http://10.0.0.7:8000"
    assert status["holder"]["members"][0]["pid"] == holder.pid
    assert len(status["holder"]["members"]) == 2
    assert status["holder"]["token"] == status["token"]
    first = status["waiters"][0]
    assert (first["engine_id"], first["ready"], first["needs"]) == ("engine-b", True, {"gpu0": 40 << 30})
    assert status["memory"] == "unverified"
    assert status["server_pid"] == server.pid

    code, out, _ = house.ask("status")
    assert code == 0
    assert out.startswith("HELD  engine-a is awake, granted ")
    assert " ago (20" in out
    assert "http://10.0.0.7:8000" in out
    assert f"process {waiter.pid}  needs 40 GiB of gpu0" in out
    assert "\x1b" not in out, "colours in what is no terminal"


def test_fencing_is_3_and_says_what_for_and_what_to_do(house: House) -> None:
    house.serve()
    holder = house.hold("engine-a", command=("sh", "-c", "sleep 1000 & echo started $!; wait"))
    holder.out.with_words("started")
    house.hold("engine-b")
    house.until(lambda status: len(status.waiters) == 1, "engine-b waits")
    with house.stray(holder):
        holder.kill()
        house.until(
            lambda s: bool(s.fencing and any("did not join" in reason for reason in s.fencing.waiting_for)),
            "a process that did not join keeps the life lock",
        )
        code, out, _ = house.ask("status", "--json")
        assert code == 3
        assert json.loads(out)["state"] == "FENCING"
        code, out, _ = house.ask("status")
        assert code == 3
        assert out.startswith("FENCING  no engine is granted yet")
        assert "life lock of engine-a." in out
        assert "what to do\n  - `lockctl doctor` names the processes" in out
    house.until(lambda s: bool(s.holder and s.holder.engine_id == "engine-b"), "engine-b is granted")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user")
@pytest.mark.parametrize(
    ("mode", "words"), [(0o700, "--allow-uid and --socket-mode"), (0o755, "user 65534 is not allowed here")]
)
def test_another_user_is_refused_with_the_way_out(house: House, mode: int, words: str) -> None:
    house.serve("--socket-mode", "666")
    house.run_dir.parent.chmod(0o755)
    house.run_dir.chmod(mode)
    reading, writing = os.pipe()

    def look(say: Callable[[str], None]) -> None:
        os.setuid(65534)
        with open(writing, "w") as err, contextlib.redirect_stderr(err):
            code = lockctl.main(["--run-dir", str(house.run_dir), "status"])
        say(f"exit code {code}")

    with Child(look) as child:
        assert child.line() == "exit code 77"
    os.close(writing)
    with open(reading) as err:
        assert words in err.read()


def test_usage_errors_are_64_and_say_where_help_is(house: House) -> None:
    for words in (
        ("bogus",),
        ("status", "--bogus"),
        ("history", "--last", "0"),
        ("ping", "--interval", "x"),
        ("status", "--", "x"),
        (),
    ):
        code, out, err = house.ask(*words)
        assert (code, out) == (64, "")
        assert "--help" in err


@pytest.mark.parametrize("command", [lockctl.main, gmsctl.main, failover.main], ids=["lockctl", "gmsctl", "failover"])
def test_a_socket_in_place_of_its_directory_is_named_as_one(
    command: Callable[[list[str]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lock.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    with pytest.raises(SystemExit) as end:
        command(["--run-dir", str(path), "status"])
    assert end.value.code == 64 and f"'{path}' is a socket: give its directory" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "watch", "history", "switchover", "ping", "doctor", "hold"])
def test_every_command_explains_itself_with_examples_and_exit_codes(house: House, command: str) -> None:
    code, out, _ = house.ask(command, "--help")
    assert code == 0
    assert f"examples:\n  lockctl {command}" in out
    if command not in ("watch", "history"):
        assert "exit codes" in out


def test_a_reader_that_leaves_and_a_full_disk_are_no_tracebacks(house: House) -> None:
    house.serve()
    house.until(lambda status: status.state == "FREE", "free")
    command = [*LOCKCTL, "--run-dir", str(house.run_dir), "history"]
    reading, writing = os.pipe()
    os.close(reading)
    left = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=DEADLINE_S)
    os.close(writing)
    assert (left.returncode, left.stderr) == (141, b"")
    with open("/dev/full", "wb") as full:
        lost = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=DEADLINE_S)
    assert lost.returncode == 74
    assert lost.stderr == b"lockctl: can't write to the standard output: No space left on device\n"


def test_watch_ends_when_its_reader_has_left_though_nothing_changes(house: House) -> None:
    house.serve()
    house.until(lambda status: status.state == "FREE", "free")
    command = [*LOCKCTL, "--run-dir", str(house.run_dir), "watch"]
    assert when_its_reader_leaves(command) == (141, b"")

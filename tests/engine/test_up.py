"""`failover up` and its fellows, as a person has them: real processes, one Ctrl-C."""

import contextlib
import io
import json
import os
import re
import shlex
import signal
import socket
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from engine_shim import __main__ as shim_command
from engine_shim.cli import failover as failover_command
from engine_shim.cli import pair_look, pair_status, part_environment
from engine_shim.cli.door_address import choose_address, free_address
from engine_shim.cli.failover import main, parser
from engine_shim.cli.pair_commands import down
from engine_shim.cli.pair_look import UP_FACTS, Seen, UpFacts
from engine_shim.cli.pair_parts import Options, children
from engine_shim.cli.pair_process import PairError
from engine_shim.cli.pair_status import NO_LOCK, reached
from engine_shim.cli.tree import Tree
from engine_shim.cli.up import Up
from engine_shim.rules.hopeless_parts import EndAll, GiveUp, HopelessParts, TryAgain
from gateway import __main__ as door_command
from gms import __main__ as gms_command
from gms.cli import gmsctl
from lockserver import __main__ as lock_command
from lockserver.cli import lockctl
from sidecar.kernel import process_tree
from sidecar.machine import supervisor
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.settings import Parser, default_run_dir
from tests.engine.kinds import REFERENCE as REFERENCE_KIND
from tests.engine.kinds import TOY as KIND
from tests.engine.kinds import there
from tests.engine.shims import House, Program, Shim
from tests.support.children import Child
from tests.support.ports import free_port
from tests.support.processes import ROOT, Process, cmdline
from tests.support.root import needs_root
from tests.support.waiting import DEADLINE_S, until

chaos = pytest.mark.chaos
REFERENCE = pytest.mark.skipif(len(there()) < 2, reason="there is no reference engine")
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
NO_OBJECTS = ['{"event": "cut o', "{'a': 1}", "7", '{"a":' * 10_000]
TOY = ("--engine", "tests.engine.toy:Toy", "--devices", "none")


def failover(house: House, name: str, *words: str, through: tuple[str, ...] = ()) -> Program:
    command, *rest = words
    line = ("engine_shim.cli.failover", command, "--run-dir", str(house.run_dir), *rest)
    program = Program(house, name, *line, through=through)
    house.add(program)
    return program


def said(house: House, name: str, *words: str, code: int = 0) -> str:
    program = failover(house, name, *words)
    assert program.code() == code, program.said()
    return program.said()


def status(house: House, name: str = "status", code: int | None = None) -> dict[str, object]:
    program = failover(house, name, "status", "--json")
    found = program.code()
    assert code is None or found == code, program.said()
    words = program.said().splitlines()[-1]
    return dict(json.loads(words))


def running(house: House, *words: str) -> Program:
    """A pair of which one serves and the other is ready."""
    up = failover(house, "up", "up", *words)
    try:
        until(lambda: whole(house), "one serves, one is ready")
    except AssertionError as error:
        raise AssertionError(f"{error}: {up.said()}\n{_shown(house)}") from None
    return up


def whole(house: House) -> bool:
    """As `failover status` says it, which takes a process."""
    seen = pair_look.look(house.run_dir, "")
    return pair_status.redundancy(seen.lock, seen.engines, seen.gms)[0]


def _shown(house: House) -> str:
    program = failover(house, "shown", "status")
    program.code()
    words = program.said()
    program.log.unlink()
    return words


def children_of(up: Program) -> list[Process]:
    return [Process(pid) for pid in process_tree.descendants(up.pid)]


def test_two_that_start_at_once_never_choose_the_same_address_for_their_doors() -> None:
    port = free_port()
    assert free_address("127.0.0.1", port, 0) == ("127.0.0.1", port)
    other = free_address("127.0.0.1", port, 0)
    assert other[1] != port, "though no process listens yet"
    with pytest.raises(CannotStart, match="another failover up"):
        free_address("127.0.0.1", port)


@chaos
@REFERENCE
def test_one_command_is_a_pair_and_a_kill_is_a_handoff(house: House) -> None:
    up = running(house, "--capacity", "128MiB", "--devices", "host:left,host:right", "--", "--workers", "1")
    devices = sorted(path.name for path in house.devices.iterdir() if not path.name.startswith("."))
    assert devices == ["left", "right"], "they have the names that up was given"
    first = house.holder()
    other = "b" if first == "a" else "a"
    refused = said(house, "not-it", "kill", other, code=1)
    assert f"{other} doesn't serve, {first} does, and only the engine that serves can be killed" in refused
    shown = said(house, "kill", "kill", first)
    assert "SIGKILL" in shown and re.search(r"ms  [ab] serves at unix:", shown)
    assert house.holder() == other
    until(lambda: whole(house), "the killed one is back as the other's standby")
    assert re.search(r"^up   \| [ab] serves at unix:", up.said(), re.MULTILINE)
    names = {line.partition("|")[0].strip() for line in up.said().splitlines() if "|" in line}
    assert names >= {"up", "lock", "gms", "a", "b"}
    assert "runs already" in said(house, "second", "up", code=1)
    place = ("--run-dir", f"{house.run_dir}.other", "--listen", "none", "--devices", "host:left")
    its_device = Program(house, "its-device", "engine_shim.cli.failover", "up", *place, "--capacity", "128MiB")
    house.add(its_device)
    assert its_device.code() == 1 and its_device.said().count("has this device") == 2, (
        "it is tried twice; GMS says it once, and the last line why all ended"
    )
    (stays,) = said(house, "down", "down").splitlines()
    assert stays.startswith(f"stays: {house.run_dir}, where the newest token is, for the next start")
    assert not house.devices.exists(), "their memory is the machine's again"
    assert up.code() == 0
    assert "nothing runs in" in said(house, "after", "status", code=3)


@chaos
def test_what_lies_in_the_working_directory_is_no_part_of_the_pair_but_an_engine_of_ones_own_is(house: House) -> None:
    for name in ("gms", "lockserver", "gateway", "engine_shim", "sidecar"):
        (house.directory / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (house.directory / name / file).write_text("raise SystemExit('this is another one')")
    (house.directory / "mine.py").write_text("from tests.engine.toy import Toy\n")
    house.environment["PYTHONPATH"] = str(ROOT)
    # -P is as the installed command `failover`: it has the directory of its own file in the path, and not this one.
    through = ("sh", "-c", f'cd {shlex.quote(str(house.directory))} && exec "$0" -P "$@"')
    place = ("--run-dir", str(house.run_dir), "--listen", "127.0.0.1:0")
    words = ("engine_shim.cli.failover", "up", *place, "--engine", "mine:Toy", "--capacity", "64MiB")
    up = Program(house, "up", *words, through=through)
    house.add(up)
    try:
        until(lambda: up.dead or whole(house), "the pair is whole")
    finally:
        assert not up.dead and " ended (" not in up.said(), up.said()


@chaos
def test_what_is_killed_of_it_is_started_again_and_ctrl_c_ends_everything_after_a_drain(house: House) -> None:
    up = running(house, *TOY)
    for number, victim in enumerate((b"-m\0lockserver\0", b"-m\0engine_shim\0"), 1):
        next(process for process in children_of(up) if victim in cmdline(process.pid)).kill()
        until(lambda number=number: up.said().count("started again") == number, "it says so")  # type: ignore[misc]
        until(lambda: whole(house), "and the pair is whole again")
    everything = children_of(up)
    assert len(everything) >= 5
    up.signal(signal.SIGINT)
    assert up.code() == 0
    for process in everything:
        process.wait()
    assert "state=Draining" in up.said() and "Traceback" not in up.said()
    assert up.said().splitlines()[-1].endswith("everything has ended")


@chaos
def test_what_nohup_has_started_outlives_its_terminal(house: House) -> None:
    up = failover(house, "up", "up", *TOY, through=("nohup",))
    shim = Shim(house, KIND, "x", "--run-dir", str(house.directory / "other"), through=("nohup",))
    house.add(shim)
    for program, begun, ends in ((up, "run directory", "SIGTERM: the engine"), (shim, "shim probes", "(SIGTERM)")):
        until(lambda program=program, begun=begun: begun in program.said(), "it has begun")  # type: ignore[misc]
        program.signal(signal.SIGHUP)
        status = Path(f"/proc/{program.pid}/status")
        until(lambda status=status: "ShdPnd:\t0000000000000000" in status.read_text(), "it has come")  # type: ignore[misc]
        program.signal(signal.SIGTERM)
        assert program.code() == 0 and ends in program.said() and "SIGHUP" not in program.said(), program.said()


@chaos
def test_an_output_that_isnt_read_stops_nothing_and_is_told_later_how_much_it_misses(house: House) -> None:
    """The one thread of `failover up` waited for a pager: what died was started no more, and Ctrl-C did nothing."""
    os.mkfifo(fifo := house.directory / "fifo")
    full = f'exec 3<>{fifo}; head -c 65536 /dev/zero >&3; exec "$@" >&3 2>&3 3>&-'
    up = failover(house, "up", "up", *TOY, through=("sh", "-c", full, "sh"))
    until(lambda: whole(house), "the pair is whole")
    with open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reader:
        assert reader.read(65536) == bytes(65536)
        next(process for process in children_of(up) if b"-m\0lockserver\0" in cmdline(process.pid)).kill()
        said = until(lambda: reader.read(65536), "there is room again")
    assert re.match(rb"up   \| [0-9]+ lines are missing: this output was not read\n", said), said
    until(lambda: whole(house), "the lock server was started again")
    up.signal(signal.SIGINT)
    assert up.code() == 0


@chaos
def test_told_to_end_twice_everything_ends_at_once_and_ctrl_c_at_a_command_that_waits_is_no_traceback(
    house: House,
) -> None:
    for engine_id in ("a", "b"):
        (house.faults(engine_id) / "hang_drain").touch()
    up = running(house, *TOY, "--drain-s", "3600", "--", "--faults", str(house.faults("a")))
    everything = children_of(up)
    waits = failover(house, "down", "down")
    until(lambda: "state=Draining" in up.said(), "it drains")
    waits.signal(signal.SIGINT)
    assert waits.code() == 130 and waits.said() == ""
    until(lambda: "which ends everything)" in _shown(house), "status says that nothing starts again")
    up.signal(signal.SIGINT)
    assert up.code() == 128 + signal.SIGINT, "what was under way was not finished"
    for process in everything:
        process.wait()
    assert not list(house.run_dir.rglob("*.sock")), up.said()


@chaos
def test_a_kill_of_up_itself_leaves_nothing_behind_and_down_kills_no_process_that_a_stale_file_names(
    house: House,
) -> None:
    up = running(house, *TOY)
    everything = children_of(up)
    up.kill()
    for process in everything:
        process.wait()
    assert status(house, code=3)["up"] is None
    assert "the lock server has --grant-unproven" in up.said()
    cleaned = said(house, "down", "down")
    assert "was killed: what it has left" in cleaned and f"removed: {house.run_dir}/lock.sock\n" in cleaned
    assert not list(house.run_dir.rglob("*.sock")), cleaned
    assert "no failover up runs in" in said(house, "down-again", "down", code=1)
    up = running(house, *TOY)
    bystander = Program(house, "bystander", "http.server", "--bind", "127.0.0.1", "0")
    house.add(bystander)
    for runs in (True, False):
        (house.run_dir / "up.lock").write_text(f"{bystander.pid}\n")
        shown = said(house, f"down-{runs}", "down", code=0 if runs else 1)
        assert not bystander.dead and up.code() == 0
        assert runs or "no failover up runs in" in shown


@chaos
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--capacity", "100TiB"), "100TiB|has room for|bytes"),
        (("--engine", "tests.engine.toy:Toy", "--devices", "cuda"), "--devices cuda:"),
        ((*TOY, "--", "--refuse"), "told to refuse"),
    ],
    ids=["more than there is", "no GPU", "the engine's own"],
)
def test_a_mistake_that_a_part_finds_is_answered_with_a_sentence(
    house: House, words: tuple[str, ...], expected: str
) -> None:
    up = failover(house, "up", "up", *words)
    assert up.code() != 0
    assert re.search(expected, up.said()) and "Traceback" not in up.said(), up.said()


def test_to_a_collector_of_logs_each_line_is_an_object(house: House) -> None:
    house.environment["FAILOVER_LOG_FORMAT"] = "json"
    up = failover(house, "up", "up", "--capacity", "100TiB")
    assert up.code() != 0
    lines = [json.loads(line) for line in up.said().splitlines()]
    assert {"up", "gms"} <= {line["program"] for line in lines}, "the lock server may be ended before its first word"
    assert any("gms can't be started" in line.get("text", "") for line in lines)


def test_what_a_part_has_said_as_an_object_is_told_as_a_sentence() -> None:
    tree = Tree([child := supervisor.Child("door", ("gateway",))], ())
    for line, said in (
        ('{"event": "cannot_start", "why": "the port is taken"}', "the port is taken"),
        ('warning gateway cannot_start why="the port is taken"', "the port is taken"),
        *((line, line) for line in NO_OBJECTS),
    ):
        tree.last_words[child.name] = line
        assert tree.why(child).endswith(f": {said}")


def test_what_a_part_prints_that_is_no_object_is_put_into_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAILOVER_LOG_FORMAT", "json")
    tree = Tree([supervisor.Child("door", ("gateway",))], ())
    for line in (whole := '{"event": "ready"}', *NO_OBJECTS):
        tree.say("door", line)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == whole and [json.loads(line)["text"] for line in rest] == NO_OBJECTS


def main_of(up: Program, engine_id: str) -> Process:
    words = b"engine_shim.shell.main_process", b"\0--engine-id\0" + engine_id.encode() + b"\0"
    found = until(
        lambda: [p for p in children_of(up) if all(word in cmdline(p.pid) for word in words)],
        f"there is a main process of {engine_id}",
    )
    return found[0]


@chaos
def test_a_standby_that_another_start_wont_mend_is_given_up_and_the_one_that_serves_goes_on(house: House) -> None:
    up = running(house, *TOY, "--", "--faults", str(house.faults("a")))
    active = house.holder()
    standby = "b" if active == "a" else "a"
    serving = main_of(up, active)
    (house.faults("a") / "fail_init").touch()
    main_of(up, standby).kill()
    until(lambda: f"ALARM: {standby} is given up by failover up (exit code 78: Init failed" in up.said(), "it is said")
    assert not up.dead and not serving.dead and house.served(KIND)
    shown = _shown(house)
    assert f"redundancy     none: no engine is ready to take over; {standby} is given up by failover up" in shown, shown
    assert "a fault in init" in shown and f"kill -USR1 {up.pid}" in shown
    assert status(house, code=0)["redundant"] is False
    (house.faults("a") / "fail_init").unlink()
    up.signal(signal.SIGUSR1)
    until(lambda: whole(house), "the pair is whole again")
    assert not serving.dead
    (house.faults("a") / "fail_init").touch()
    main_of(up, standby).kill()
    until(lambda: up.said().count(f"ALARM: {standby} is given up") == 2, "again")
    serving.kill()
    assert up.code() == 78
    assert f"no engine is left: {active} can't be started" in up.said()
    assert not UpFacts.read(house.run_dir).given_up


def test_a_program_that_another_start_wont_mend_never_takes_an_engine_that_serves_with_it() -> None:
    for name in ("lock", "gms", "door", "a", "b"):
        assert HopelessParts(("a", "b")).met(name, served=False, steady=False) == EndAll(), "a person is there"
    pair = HopelessParts(("a", "b"))
    pauses = [pair.met("gms", served=True, steady=steady) for steady in (False, False, *[False] * 4, True)]
    assert [one.pause_s for one in pauses if isinstance(one, TryAgain)] == [5, 10, 20, 40, 60, 60, 5]
    assert pair.met("a", served=True, steady=False) == GiveUp(("b",)) and pair.given_up == {"a"}
    assert pair.met("b", served=True, steady=False) == EndAll(), "no engine is left"
    assert pair.put_right() == {"a", "b"} and not pair.given_up
    assert pair.met("a", served=True, steady=True) == GiveUp(("b",))
    assert pair.met("lock", served=True, steady=True) == EndAll()


def test_what_ends_because_of_a_part_that_cant_be_started_is_known_to_end(tmp_path: Path) -> None:
    up = Up(Options(tmp_path, "reference", (), "1GiB", ("a", "b"), (), ()))
    facts = [UpFacts.read(tmp_path).ending]
    up.base[0].hopeless, up.base[0].code = True, 64
    up.mind()
    facts += [UpFacts.read(tmp_path).ending]
    assert facts == [False, True] and not up.told
    up.cleaned()


@chaos
def test_a_door_that_cant_be_opened_is_tried_again_and_the_one_that_serves_goes_on(house: House) -> None:
    program = "import sys; from engine_shim.cli import failover, pair_parts\n"
    program += "from engine_shim.rules import hopeless_parts\n"
    program += "pair_parts.DOOR_MODULE = 'tests.engine.wrong_door'; hopeless_parts.AGAIN_FIRST_S = 0.05; "
    program += "sys.exit(failover.main(sys.argv[1:]))"
    (house.directory / "with_a_wrong_door.py").write_text(program)
    house.environment["PYTHONPATH"] = f"{house.directory}:{ROOT}"
    words = ("up", "--run-dir", str(house.run_dir), *TOY, "--listen", "127.0.0.1:0")
    up = Program(house, "up", "with_a_wrong_door", *words)
    house.add(up)
    until(
        lambda: up.said().count("ALARM: door can't be started (exit code 64: this door can't be opened)") >= 3, "tried"
    )
    assert "it is tried again in 0.2 s" in up.said()
    until(lambda: whole(house), "the pair is whole")
    assert house.served(KIND) and not up.dead


@pytest.mark.root
@needs_root
def test_another_user_is_not_told_that_nothing_runs(house: House) -> None:
    house.start_lock()
    for directory in (house.directory, house.run_dir):
        directory.chmod(0o755)
    reading, writing = os.pipe()

    def look(say: Callable[[str], None]) -> None:
        os.setuid(65534)
        with open(writing, "w") as err, contextlib.redirect_stdout(err), contextlib.redirect_stderr(err):
            code = main(["status", "--run-dir", str(house.run_dir), "--door", "none"])
        say(f"exit code {code}")

    with Child(look) as child:
        assert child.line() == "exit code 1"
    os.close(writing)
    with open(reading) as err:
        assert err.read().startswith(f"failover: user 65534 may not connect to {house.run_dir}/lock.sock: be the user ")


@chaos
def test_kill_active_without_a_successor_is_refused_unless_told_so(house: House) -> None:
    a = house.one(KIND)
    assert "no engine is ready to take over (failover status says more); --anyway kills a" in said(
        house, "kill", "kill", "active", code=1
    )
    assert a.state()["deaths"] == 0
    assert "a serves at" in said(house, "again", "kill", "active", "--anyway")


@chaos
def test_what_is_stopped_is_taken_for_no_redundancy_and_who_serves_is_known_all_the_same(house: House) -> None:
    """The lock goes by what a standby said last, and a stopped one takes nothing back."""
    up = running(house, *TOY, "--listen", "none")
    holder = house.holder()
    other = {"a": "b", "b": "a"}[holder]
    standby = next(one for one in children_of(up) if f"--engine-id\0{other}\0".encode() in cmdline(one.pid))
    everything = [standby, *(Process(pid) for pid in process_tree.descendants(standby.pid))]
    for process in everything:
        process.signal(signal.SIGSTOP)
    found = status(house, "standby-stopped")
    refused = said(house, "kill", "kill", "active", code=1)
    assert found["redundant"] is False and refused.startswith(f"failover: redundancy {found['redundancy']} (failover ")
    assert house.holder() == holder
    for process in everything:
        process.signal(signal.SIGCONT)
    shims = [one for one in children_of(up) if b"-m\0engine_shim\0" in cmdline(one.pid)]
    for shim in shims:
        shim.signal(signal.SIGSTOP)
    found = status(house, "stopped", code=2)
    assert (found["serving"], found["redundancy"]) == (holder, f"unknown: {other}'s shim doesn't answer")
    for shim in shims:
        shim.signal(signal.SIGCONT)
    stopped = main_of(up, holder)
    stopped.signal(signal.SIGSTOP)
    alarm = f"alarm          main process {stopped.pid} of {holder} has said nothing for "
    until(lambda: alarm in _shown(house), "an engine that is stopped is told from one that serves, before it is ended")
    stopped.signal(signal.SIGCONT)
    until(lambda: alarm not in _shown(house), "it speaks again")
    lock = next(one for one in children_of(up) if b"-m\0lockserver\0" in cmdline(one.pid))
    lock.signal(signal.SIGSTOP)
    assert re.search(f"^alarm +{NO_LOCK}", said(house, "no-lock", "status", code=2), re.MULTILINE)
    lock.signal(signal.SIGCONT)


def test_clients_reach_an_engine_if_the_door_and_the_engine_answer() -> None:
    lock = {"state": "HELD", "holder": {"engine_id": "a", "endpoint": "unix:/x"}}
    engine = {"engine_id": "a", "state": "Active", "ready": True, "silent_s": 0.0}
    door = {"url": "http://x", "answers": True, "why": ""}
    seen = Seen("/x", 1, lock, "", [], [engine], door)
    assert reached(seen) and reached(replace(seen, door=None))
    assert reached(replace(seen, engines=[])) and reached(replace(seen, engines=[{**engine, "state": None}]))
    assert not reached(replace(seen, door={**door, "answers": False}))
    assert not reached(replace(seen, engines=[{**engine, "silent_s": 6.0}]))
    assert not reached(replace(seen, engines=[{**engine, "ready": False}]))
    assert not reached(replace(seen, lock={**lock, "state": "FENCING"}))


def test_an_alarm_stands_there_once_and_work_without_a_step_is_one() -> None:
    alarm = "a is not proven gone after 10 s, and no engine is granted: process 12 of a is frozen by its cgroup"
    lock = {"state": "FENCING", "holder": None, "alarms": [alarm], "fencing": {"waiting_for": ["process 12", alarm]}}
    engine = {"engine_id": "a", "role": "primary", "state": "Active", "ready": True, "for_s": 9.0, "url": ""}
    stuck = {**engine, "silent_s": 0.0, "no_step_s": 16.0, "stall_s": 60.0}
    shown = "\n".join(pair_status._lines(Seen("/x", 1, lock, "", [], [stuck], None), "none", NOW))
    assert shown.count(alarm) == 1 and re.search("^waits for +process 12$", shown, re.MULTILINE)
    assert re.search("^alarm +a has had work queued for 16 s and finished no step", shown, re.MULTILINE)


@chaos
def test_what_failover_up_starts_for_the_first_time_is_no_alarm(house: House) -> None:
    """And its facts, which status reads, are made again where they are removed."""
    (house.faults("a") / "hang_init").touch()
    up = failover(house, "up", "up", *TOY, "--listen", "127.0.0.1:0", "--", "--faults", str(house.faults("a")))
    answers = r"^door +\S+  \(answers\)$"
    until(lambda: re.search(answers, _shown(house), re.MULTILINE), "the door is there")
    facts = UpFacts.read(house.run_dir)
    assert facts.starting
    (house.faults("a") / "hang_init").unlink()
    until(lambda: whole(house), "the pair is whole")
    until(lambda: UpFacts.read(house.run_dir) == replace(facts, starting=False), "up has seen it, too")
    (house.run_dir / UP_FACTS).unlink()
    until(lambda: re.search(answers, _shown(house), re.MULTILINE), "status knows of the door again")
    assert not up.dead


def test_while_a_pair_starts_or_ends_what_isnt_there_is_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pair_look, "up_pid", lambda run_dir: os.getpid())
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "b.lock").touch()
    for who, facts, alarms in (
        (pair_look.STARTING, UpFacts("http://127.0.0.1:1", (), True), 0),
        (pair_look.BY_ITSELF, UpFacts("http://127.0.0.1:1", ()), 2),
        (pair_look.ENDS, UpFacts("http://127.0.0.1:1", (), ending=True), 0),
    ):
        facts.write(tmp_path)
        assert main(["status", "--run-dir", str(tmp_path)]) == 1
        shown = capsys.readouterr().out
        assert shown.count(f"; failover up {who}") == 3 and shown.count("\nalarm ") == alarms, shown
        assert ("which ends everything" in shown) == facts.ending, shown


def test_what_starts_or_ends_one_model_of_many_is_its_hosts_failover_models_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pair_look, "up_pid", lambda run_dir: os.getpid() if run_dir == tmp_path else None)
    (run_dir := tmp_path / "lock" / "chat" / "engine").mkdir(parents=True)
    (run_dir / "a.lock").touch()
    for who, ending, alarms in ((pair_look.BY_ITSELF, False, 2), (pair_look.ENDS, True, 0)):
        UpFacts("http://127.0.0.1:1", ("host:0",), models=True, ending=ending).write(tmp_path)
        assert main(["status", "--run-dir", str(run_dir.parent)]) == 1
        shown = capsys.readouterr().out
        said = f"(failover models up: process {os.getpid()}{', which ends everything' * ending})"
        assert said in shown and "gms" not in shown and "lockserver" not in shown, shown
        assert shown.count(f"; failover models up {who}") == 2 + ending and shown.count("\nalarm ") == alarms, shown


@chaos
@REFERENCE
def test_status_says_what_an_engine_waits_for_and_how_it_ended_last(house: House) -> None:
    house.start_lock(*REFERENCE_KIND.lock)
    b = house.shim(REFERENCE_KIND, "b")
    waits = "waits for the weights: GMS has to run, and a primary to write them"
    house.start_gms(REFERENCE_KIND)
    until(lambda: f"{waits} (host:0 is EMPTY)" in _shown(house), "it says so")
    b.main().kill()
    until(lambda: "its last end: its main process ended by signal 9" in _shown(house), "and how it ended")
    assert house.gms is not None
    house.gms.kill()
    until(lambda: f"{waits} (GMS of host:0 doesn't answer)" in _shown(house), "and that GMS is away")


def test_a_directory_that_cant_be_looked_at_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["status"], ["down"]):
        assert main([*words, "--run-dir", str(tmp_path / ("x" * 300))]) == 1
        assert "can't be looked at: File name too long" in capsys.readouterr().err


def test_where_no_pair_ever_ran_all_commands_say_so_and_touch_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkout, say: its lock files are another program's."""
    for words, code, expected in (
        (("down",), 1, "no failover up runs in"),
        (("kill", "active"), 1, "nothing runs in"),
        (("status",), 3, "nothing runs in"),
        (("doctor", "--json"), 1, "nothing runs in"),
    ):
        assert main([*words, "--run-dir", str(tmp_path)]) == code
        printed = capsys.readouterr()
        assert expected in printed.out + printed.err
    checks = json.loads(printed.out)["checks"]
    assert [one["check"] for one in checks if one["level"] == "FAIL"] == ["pair"], "one cause is said once"
    strange = tmp_path / "engine" / "Cargo.lock"
    strange.parent.mkdir()
    strange.write_text("theirs")
    with pytest.raises(PairError, match="no failover up runs"):
        down(tmp_path)
    assert strange.read_text() == "theirs" and capsys.readouterr().out == ""


def test_the_run_directory_is_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_run_dir() == tmp_path / "gpu-failover"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    uid = os.getuid()
    there = [place for place in (f"/run/user/{uid}", *(["/run"] if uid == 0 else [])) if os.access(place, os.W_OK)]
    assert default_run_dir() == (Path(there[0]) / "gpu-failover" if there else Path(f"/tmp/gpu-failover-{uid}"))


@pytest.mark.parametrize("parser", [parser, lockctl.parser, gmsctl.parser])
def test_all_commands_look_where_failover_up_puts_its_pair(
    parser: Callable[[], Parser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FAILOVER_RUN_DIR", raising=False)
    assert parser().parse_args(["status"]).run_dir == default_run_dir()
    monkeypatch.setenv("FAILOVER_RUN_DIR", "/run/told")
    assert parser().parse_args(["status"]).run_dir == Path("/run/told")
    for words in (["--run-dir", "/run/mine", "status"], ["status", "--run-dir", "/run/mine"]):
        assert parser().parse_args(words).run_dir == Path("/run/mine")


def test_while_no_engine_serves_status_says_since_when_what_ended_and_what_is_tried_next() -> None:
    lock: dict[str, object] = {"state": "FREE", "holder": None, "alarms": [], "fencing": None, "permits": {}}
    a = {"engine_id": "a", "role": "primary", "state": "Dead", "ready": False, "why": "Dead", "for_s": 3.0, "url": ""}
    a |= {"last_end": "its main process ended by signal 9", "next_start_in_s": 4.2}
    b = {**a, "engine_id": "b", "role": "shadow", "state": "Standby", "why": "it does not look", "last_end": ""}
    b |= {"next_start_in_s": None}
    last = {"engine_id": "a", "until": "2026-11-23T11:59:48.000Z"}
    seen = Seen("/x", 1, lock, "", [], [a, b], None, last_served=last)
    shown = "\n".join(pair_status._lines(seen, "none", NOW))
    assert "none serves    for 12s, since 2026-11-23T11:59:48.000Z; the last was a: its main process ended by" in shown
    assert "signal 9. Next: a starts again in 4 s; b gets ready" in shown
    unknown = replace(seen, last_served=None, engines=[{**b, "state": None, "why": "given up"}])
    shown = "\n".join(pair_status._lines(unknown, "none", NOW))
    assert "the lock server knows of none that did. Next: nothing, no engine is left to try" in shown
    assert "none serves" not in "\n".join(pair_status._lines(replace(unknown, starting=True), "none", NOW))


def test_a_role_is_said_in_words_while_an_engine_starts_and_a_state_of_gms_with_its_meaning() -> None:
    engine = {"engine_id": "a", "role": "primary", "state": "Active", "ready": True, "for_s": 1.0, "url": ""}
    assert pair_status._engine(engine) == "Active  ready  for 1 s"
    assert pair_status._engine({**engine, "role": "shadow"}) == "Active  ready  for 1 s"
    starts = {**engine, "state": "Init", "ready": False}
    assert pair_status._engine(starts) == "Init  loads the weights if no engine has  not ready  for 1 s"
    assert pair_status._engine({**starts, "role": "shadow"}) == "Init  reads the weights  not ready  for 1 s"
    gms = {"device": "host:0", "state": "RO", "answers": True}
    assert "  starting (the weights are already there)  " in pair_status._engine(starts, [gms])
    assert "if no engine has" in pair_status._engine(starts, [gms, {**gms, "state": "RW"}])
    seen = Seen("/x", 1, None, "", [gms], [], None)
    assert "RO: there are weights, and engines read them" in "\n".join(pair_status._lines(seen, "none", NOW))
    of = [{"key": key, "policy": "shared", "state": state} for key, state in (("weights", "RO"), ("m1", "COMMITTED"))]
    several = {**gms, "state": "COMMITTED", "regions": [*of, {"key": "kv-0", "policy": "exclusive", "state": "OWNED"}]}
    assert pair_status._weights(several) == "weights RO, m1 COMMITTED", "one that is read is never said not to be"


def test_an_engine_that_has_ended_more_than_once_says_how_often_and_how_last() -> None:
    engine = {"engine_id": "a", "role": "primary", "state": "Active", "ready": True, "for_s": 1.0, "url": ""}
    engine |= {"deaths": 1, "last_end": "its main process ended by signal 9"}
    assert pair_status._engine(engine) == "Active  ready  for 1 s"
    often = {**engine, "deaths": 5}
    assert pair_status._engine(often).endswith("for 1 s  ended 5 times, last: its main process ended by signal 9")
    waits = {**often, "state": "Standby", "ready": False}
    assert pair_status._engine(waits) == "Standby  not ready  for 1 s  ended 5 times", "the last end has its own row"


def test_the_first_engine_is_the_primary_and_the_second_its_shadow() -> None:
    options = Options(Path("/run"), "reference", ("host:0", "host:1"), "1GiB", ("x", "y"), (), ("--seed", "7"))
    lock, gms, first, second = children(options)
    assert lock.command[:3] == ("lockserver", "--run-dir", "/run") and "host" in lock.command
    assert "host:0,host:1" in gms.command and "1GiB" in gms.command
    assert "primary" in first.command and "shadow" in second.command
    assert first.command[-3:] == second.command[-3:] == ("--", "--seed", "7")


@pytest.mark.parametrize(
    ("engine", "devices", "told"),
    [
        ("reference", "host:x,host:y", {"REFERENCE_DEVICES": "host:x,host:y"}),
        ("vllm", "host:x,host:y", {"FAILOVER_VLLM_DEVICES": "host:x,host:y"}),
        ("vllm", "GPU-1,GPU-2", {"FAILOVER_VLLM_DEVICES": "GPU-1,GPU-2"}),
        ("vllm", "cuda", {}),  # as many as an engine has ranks
        ("my.module:Engine", "host:x,host:y", {}),
    ],
)
def test_up_tells_the_engines_which_devices_there_are(engine: str, devices: str, told: dict[str, str]) -> None:
    options = Options(Path("/run"), engine, tuple(devices.split(",")), "1GiB", ("a", "b"), (), ())
    assert [dict(child.environment) for child in children(options)] == [{}, {}, told, told]


def test_what_is_set_for_up_reaches_the_part_that_is_meant() -> None:
    environment = {
        "FAILOVER_LISTEN": ":1",
        "FAILOVER_DOOR_METRICS": ":2",
        "FAILOVER_ENGINES_LISTEN": ":3",
        "HOME": "/x",
    }
    options = Options(
        Path("/run"), "my.module:Engine", (), "1GiB", ("a", "b"), (), (), ("", 80), environment=environment
    )
    found = {child.name: child for child in children(options)}
    assert {name: dict(child.environment) for name, child in found.items()} == {
        "lock": {},
        "a": {"FAILOVER_LISTEN": ":3"},
        "b": {"FAILOVER_LISTEN": ":3"},
        "door": {"FAILOVER_METRICS": ":2"},
    }
    assert {child.without for child in found.values()} == {frozenset(environment) - {"HOME"}}
    assert part_environment.unused({"FAILOVER_METRICS": ":1", "FAILOVER_LISTEN": ":2", "FAILOVER_RESTART": ""}) == [
        "FAILOVER_METRICS is passed on to no part: it would be another thing in each; FAILOVER_LOCK_METRICS, "
        "FAILOVER_GMS_METRICS, FAILOVER_DOOR_METRICS are for one part each"
    ]


def test_of_each_setting_that_several_parts_have_it_is_known_whether_they_share_it() -> None:
    shared = ("ALLOW_UID", "HOST_DEVICES", "LOG_FORMAT", "PIDFDS", "RUN_DIR", "SOCKET_MODE", "WINDOW_S")
    programs = (lock_command, gms_command, shim_command, door_command)
    named = [set(re.findall(r"\[FAILOVER_(\w+)", program.parser().format_help())) for program in programs]
    several = {word for words in named for word in words if sum(word in each for each in named) > 1}
    assert several == {*part_environment.ONE_EACH, *shared}
    own = set(re.findall(r"\[FAILOVER_(\w+)", up_help()))
    assert own & set(part_environment.ONE_EACH) == set(part_environment.OWN)


def up_help() -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        failover_command.main(["up", "--help"])
    return out.getvalue()


@pytest.mark.parametrize("there_are_gpus", [True, False])
def test_vllm_is_on_gpus_where_there_are_some_and_the_reference_engine_never(
    there_are_gpus: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(failover_command, "GPUS", tmp_path if there_are_gpus else tmp_path / "none")
    here = default_run_dir()
    assert failover_command.default_devices("reference", here) == ("host:0",)
    two = [failover_command.default_devices("reference", tmp_path / name) for name in ("one", "two")]
    assert two[0] != two[1] and ("host:0",) not in two, "pairs in two run directories don't want the same device"
    assert failover_command.default_devices("vllm", here) == (("cuda",) if there_are_gpus else ("host:0",))


@chaos
@REFERENCE
def test_clients_have_one_address_told_in_a_box_with_a_command_to_paste(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        metrics = f"127.0.0.1:{sock.getsockname()[1]}"
    house.environment |= {
        "FAILOVER_LISTEN": "127.0.0.1:0",
        "FAILOVER_METRICS": metrics,
        "FAILOVER_GMS_METRICS": metrics,
    }
    up = running(house, "--capacity", "128MiB")
    assert "FAILOVER_METRICS is passed on to no part" in up.said() and "ended (" not in up.said()
    until(lambda: "| curl http://" in up.said(), "it says so")
    assert b"gms_" in urllib.request.urlopen(f"http://{metrics}/metrics", timeout=60).read(), "GMS alone has that port"
    lines = [line.partition(" | ")[2] for line in up.said().splitlines() if line.startswith("up ")]
    at = next(place for place, line in enumerate(lines) if line.startswith("| OpenAI-compatible: "))
    assert lines[at - 1] == lines[at + 1] == f"+{'-' * (len(lines[at]) - 2)}+"
    answer = json.loads(_pasted(lines[at + 2]))
    assert answer["usage"]["completion_tokens"] == 32
    door = next(process for process in children_of(up) if b"-m\0gateway\0" in cmdline(process.pid))
    door.signal(signal.SIGSTOP)
    shown = said(house, "stopped", "status", code=1)
    assert f"(doesn't answer: says nothing for 2 s: is process {door.pid} (" in shown
    assert re.search(r"^alarm +the door doesn't answer", shown, re.MULTILINE)
    door.kill()
    until(lambda: "door ended (SIGKILL)" in up.said(), "it says so")
    until(lambda: _pasted(lines[at + 2]), "another is there, at the same address")


def test_a_port_that_isnt_the_usual_one_is_said_with_what_has_that() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        (_, chosen), said = choose_address(port)
        assert chosen != port
        assert said.startswith(f"port {port} is taken by process {os.getpid()} (")
        assert f": clients come to port {chosen}; " in said
    assert choose_address(port) == (("127.0.0.1", port), "")


@chaos
def test_an_address_that_is_taken_is_said(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        up = failover(house, "up", "up", *TOY, "--listen", f"127.0.0.1:{sock.getsockname()[1]}")
        assert up.code() == 1
    assert f"Address already in use by process {os.getpid()} (" in up.said()
    assert "); give another HOST:PORT" in up.said()


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        (("", 8000), "http://localhost:8000"),
        (("::1", 80), "http://[::1]:80"),
        (("10.0.0.7", 8000), "http://10.0.0.7:8000"),
    ],
)
def test_the_doors_address_is_one_that_a_client_here_can_use(listen: tuple[str, int], address: str) -> None:
    options = Options(Path("/run"), "reference", ("host:0",), "1GiB", ("a", "b"), (), (), listen)
    assert options.address == address
    assert children(options)[-1].command[0] == "gateway"


def _pasted(command: str) -> str:
    """What it says, if a shell's words of it are what curl takes; nothing if it failed."""
    curl, url, header, content_type, data, body = shlex.split(command)
    assert (curl, header, data) == ("curl", "-H", "-d")
    name, _, value = content_type.partition(": ")
    request = urllib.request.Request(url, body.encode(), {name: value})
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return str(answer.read().decode())
    return ""

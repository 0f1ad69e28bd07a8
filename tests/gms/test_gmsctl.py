"""`gmsctl`: what it says, in words and for scripts, and its exit codes."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from gms.cli import gmsctl, gmsctl_help, status_text
from gms.rules import messages as m
from gms.shell.rundir import directory
from sidecar.terminal.formatting import Paint, Tone
from tests.gms.container import CAPACITY, GMSCTL, SLAB, Caller, Container, containers, dead, document, hello, kill
from tests.support.children import Child
from tests.support.processes import ROOT, when_its_reader_leaves
from tests.support.waiting import DEADLINE_S, until

FIELDS = ["state", "device", "clients", "generation", "hash", "bytes", "slabs", "tensors", "free", "capacity"]
FIELDS += ["parked", "host_memory", "clients_total", "waiting_for", "pending_drops", "alarms", "events"]
FIELDS += ["server_incarnation", "server_pid", "since", "regions"]
CLIENT = ["engine_id", "pid", "region", "doing", "since", "wants", "holds"]
TWO = "host:0,host:1"


@pytest.fixture(scope="module")
def looked_at() -> Iterator[Container]:
    """Two devices: nothing is on the first, and an engine reads what it has written to the second."""
    for container in containers():
        container.serves(devices=TWO)
        container.writer((SLAB, 2 * SLAB), "host:1")
        yield container


# -- status ------------------------------------------------------------------------------------------------------------


def test_without_a_server_it_is_2_and_no_state_that_could_be_taken_for_an_empty_device(container: Container) -> None:
    code, out, err = container.ask("status")
    assert (code, out) == (2, "")
    assert f"no GMS: there is no directory {container.run_dir}" in err
    for words, more in ((("--device", "host:0"), {"device"}), ((), set[str]())):
        code, out, _ = container.ask("status", *words, "--json")
        assert code == 2 and set(json.loads(out)) == {"state", "error"} | more
        assert json.loads(out)["state"] == "NO_SERVER"


def test_a_directory_without_gms_says_how_to_start_it(container: Container) -> None:
    container.run_dir.mkdir()
    code, _, err = container.ask("status")
    assert code == 2
    assert f"gms --run-dir {container.run_dir} --devices" in err
    too_long = container.run_dir / ("x" * 300)
    assert f"no directory {too_long}" in str(gmsctl._nothing_there(too_long))


def test_a_server_that_is_missing_is_told_from_none(container: Container) -> None:
    """The list of devices is the supervisor's, so that one that hasn't come up yet is missed."""
    gms = container.serves()
    (directory(container.run_dir) / "devices").write_text("host:0\nhost:1\n")
    code, out, err = container.ask("ping")
    assert code == 2
    assert out.startswith("host:0: answer") and "no GMS of host:1" in err
    server = container.server_pid()
    gms.kill()
    until(lambda: dead(server), "its server has died with it")
    code, _, err = container.ask("status")
    assert code == 2
    assert "start it again by themselves; where neither does: gms --run-dir" in err
    code, out, err = container.ask("ping")
    assert (code, out, len(err.splitlines())) == (2, "", 2)


def test_empty_is_1_and_says_what_to_do(looked_at: Container) -> None:
    code, out, err = looked_at.ask("status", "--device", "host:0")
    assert (code, err) == (1, "")
    assert out.startswith("EMPTY  host:0: no weights are committed")
    assert "what to do\n  - start an engine" in out
    assert "64 MiB free of 64 MiB" in out
    assert "\x1b" not in out, "colours in what is no terminal"
    code, out, err = looked_at.ask("layout", "--device", "host:0")
    assert (code, out) == (1, "")
    assert "host:0 has no layout" in err


def test_committed_is_0_with_exactly_the_fields_that_scripts_rely_on(looked_at: Container) -> None:
    waiting = looked_at.caller(hello("engine-w"), m.Open(mode="rw"), device="host:1")
    reading = looked_at.caller(hello("engine-b"), m.Open(mode="ro"), device="host:1")
    reading.hear(m.Opened)
    code, out, err = looked_at.ask("status", "--json", "--device", "host:1")
    assert (code, err) == (0, "")
    status = json.loads(out)
    assert sorted(status) == sorted(FIELDS)
    assert (status["state"], status["device"]) == ("RO", "host:1")
    assert (status["bytes"], status["slabs"], status["tensors"]) == (3 * SLAB, 2, 1)
    assert (status["free"], status["capacity"]) == (CAPACITY - 3 * SLAB, CAPACITY)
    assert len(status["hash"]) == 64 and status["generation"] > 0
    assert all(sorted(client) == sorted(CLIENT) for client in status["clients"])
    doing = {client["engine_id"]: client["doing"] for client in status["clients"]}
    assert doing == {"engine-a": "reading", "engine-b": "reading", "engine-w": "waiting"}
    assert {client["pid"] for client in status["clients"]} == {os.getpid()}
    assert status["server_pid"] == looked_at.server_pid("host:1")
    assert status["events"]["committed"] == 1
    assert all(name in gmsctl_help.STATUS for name in [*FIELDS, *CLIENT])

    code, out, _ = looked_at.ask("status", "--device", "host:1")
    assert code == 0
    assert out.startswith("RO  host:1: weights are committed (generation ")
    assert "read by 2 processes" in out
    assert "waits for\n  - engine-w" in out
    assert f"process {os.getpid()}" in out
    assert status["hash"] in out
    waiting.close()
    reading.close()


def test_while_a_layout_is_to_be_handed_back_it_is_3(container: Container) -> None:
    container.serves()
    container.writer()
    caller = container.caller(hello("keeper"), m.Open(mode="ro"))
    kept = caller.hear(m.Slabs)[1]
    kill(container.server_pid())
    container.serves()
    code, out, _ = container.ask("status")
    assert code == 3
    assert out.startswith("RECOVERING  host:0: the server is new")
    assert "what to do" in out
    for fd in kept:
        os.close(fd)


def test_of_several_devices_the_worst_counts_and_each_is_shown(looked_at: Container) -> None:
    code, out, _ = looked_at.ask("status", "--json")
    assert code == 1
    assert [(s["device"], s["state"]) for s in map(json.loads, out.splitlines())] == [
        ("host:0", "EMPTY"),
        ("host:1", "RO"),
    ]
    with Caller(looked_at.run_dir, "host:0", hello("a"), m.Open(mode="rw")) as writer:
        writer.hear(m.Opened)
        code, out, _ = looked_at.ask("status")
        assert code == 3
        assert out.startswith("RW  host:0: a process writes")
        assert "writes      a  process" in out
    looked_at.shows(state="EMPTY")
    assert [gmsctl.worst(codes) for codes in ([0, 1], [1, 3], [3, 2, 0], [0])] == [1, 3, 2, 0]


def test_the_run_directory_comes_from_the_environment_or_stands_behind_the_command(looked_at: Container) -> None:
    here = str(looked_at.run_dir)
    for words, variable in ((("status",), here), (("status", "--run-dir", here), "/nowhere")):
        environment = {**os.environ, "FAILOVER_RUN_DIR": variable}
        done = subprocess.run([*GMSCTL, *words], cwd=ROOT, env=environment, capture_output=True, timeout=DEADLINE_S)
        assert done.returncode == 1


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user")
@pytest.mark.parametrize(
    ("mode", "said"), [(0o755, "user 65534 is not allowed here"), (0o700, "may not look into {}: be the user that GMS")]
)
def test_another_user_is_refused_with_the_way_out(container: Container, mode: int, said: str) -> None:
    """Also where its directory is closed: that isn't one in which no GMS was ever started."""
    container.serves("--socket-mode", "666")
    for path in (container.run_dir.parent, container.run_dir, directory(container.run_dir)):
        path.chmod(mode if path == container.run_dir else 0o755)
    reading, writing = os.pipe()

    def look(say: Callable[[str], None]) -> None:
        os.setuid(65534)
        with open(writing, "w") as err, contextlib.redirect_stderr(err):
            code = gmsctl.main(["--run-dir", str(container.run_dir), "status"])
        say(f"exit code {code}")

    with Child(look) as child:
        assert child.line() == "exit code 77"
    os.close(writing)
    with open(reading) as err:
        assert said.format(container.run_dir) in err.read()


# -- layout ------------------------------------------------------------------------------------------------------------


def test_layout_lists_every_tensor_and_where_it_lies(looked_at: Container) -> None:
    code, out, err = looked_at.ask("layout", "--device", "host:1")
    assert (code, err) == (0, "")
    heading, line = out.splitlines()
    assert heading.split() == ["slab", "offset", "bytes", "dtype", "shape", "name"]
    assert line.split() == ["0", "0", "16", "bfloat16", "2x4", "w"]
    code, out, _ = looked_at.ask("layout", "--device", "host:1", "--json")
    assert code == 0
    assert json.loads(out) == {
        "device": "host:1",
        "name": "w",
        "dtype": "bfloat16",
        "shape": [2, 4],
        "slab": 0,
        "offset": 0,
        "bytes": 16,
        "stride": [4, 1],
        "kind": "parameter",
    }


def test_a_long_layout_works_through_pipes(container: Container) -> None:
    container.serves()
    writer = container.caller(hello(), m.Open(mode="rw"))
    writer.hear(m.Opened)
    writer.ask(m.Create(size=SLAB), m.Created)
    writer.ask(m.Commit(layout=document((SLAB,), [f"t{n}" for n in range(5_000)])), m.Committed)
    command = " ".join([*GMSCTL, "--run-dir", str(container.run_dir), "layout"])
    for pipe, lines in ((f"{command} | head -3", 3), (f"{command} | wc -l", 1)):
        done = subprocess.run(["bash", "-c", pipe], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
        assert (len(done.stdout.splitlines()), done.stderr) == (lines, "")
    assert int(done.stdout) == 5_001


def test_a_device_without_a_server_is_told_from_one_whose_server_is_away(looked_at: Container) -> None:
    for command in ("status", "ping", "history"):
        code, out, err = looked_at.ask(command, "--device", "host:9")
        assert (code, out) == (2, "")
        assert "no GMS for host:9" in err and "there are: host:0, host:1" in err


# -- ping, history, watch --------------------------------------------------------------------------------------------


def test_ping_is_a_probe_of_all_devices_or_of_one(looked_at: Container) -> None:
    code, out, _ = looked_at.ask("ping")
    assert code == 0
    assert [line.split(":")[1] for line in out.splitlines()] == ["0", "1"]
    code, out, _ = looked_at.ask("ping", "--device", "host:1", "--json", "--count", "2", "--interval", "0.01")
    assert code == 0
    assert [set(json.loads(line)) for line in out.splitlines()] == [{"device", "time_ms", "server_incarnation"}] * 2
    code, out, _ = looked_at.ask("--device", "host:1", "ping")
    assert code == 0 and out.startswith("host:1: ") and len(out.splitlines()) == 1, "in both orders, as --run-dir"


def test_history_tells_what_happened_in_order(looked_at: Container) -> None:
    code, out, _ = looked_at.ask("history", "--json")
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    of_one = [event["event"] for event in events if event["device"] == "host:1"]
    assert of_one[:4] == ["started", "writing", "committed", "reading"]
    code, out, _ = looked_at.ask("history", "--device", "host:1", "--last", "1")
    assert code == 0
    assert len(out.splitlines()) == 1 and "host:1" in out


def test_watch_has_a_line_for_every_change_and_says_when_a_server_is_away_and_back(container: Container) -> None:
    gms = container.serves()
    watch = container.run(*GMSCTL, "--run-dir", str(container.run_dir), "watch")
    watch.out.with_words("EMPTY")
    as_json = container.run(*GMSCTL, "--run-dir", str(container.run_dir), "watch", "--json")
    assert json.loads(as_json.out.next())["state"] == "EMPTY"
    writer = container.writer()
    watch.out.with_words("RO")
    writer.close()
    gms.kill()
    watch.out.with_words("NO SERVER")
    away = json.loads(as_json.out.with_words("NO_SERVER"))
    assert (away["device"], "at" in away) == ("host:0", True)
    container.serves()
    watch.out.with_words("EMPTY")
    watch.send(signal.SIGINT)
    assert watch.ends() == 130


def test_watch_ends_when_its_reader_has_left_though_nothing_changes(looked_at: Container) -> None:
    command = [*GMSCTL, "--run-dir", str(looked_at.run_dir), "watch"]
    assert when_its_reader_leaves(command) == (141, b"")


# -- usage -------------------------------------------------------------------------------------------------------------


def test_usage_errors_are_64_and_say_where_help_is(container: Container) -> None:
    for words in (
        ("bogus",),
        ("status", "--bogus"),
        ("status", "--device", "../x"),
        ("history", "--last", "0"),
        ("ping", "--interval", "x"),
        ("--answer-timeout-s", "0", "status"),
        (),
    ):
        code, out, err = container.ask(*words)
        assert (code, out) == (64, ""), words
        assert "--help" in err and "Traceback" not in err


def test_every_command_has_help_with_examples(container: Container) -> None:
    for command in ((), ("status",), ("layout",), ("ping",), ("history",), ("watch",)):
        code, out, _ = container.ask(*command, "--help")
        assert code == 0
        assert "examples:" in out


# -- the words ---------------------------------------------------------------------------------------------------------

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


def test_of_several_models_the_headline_names_the_one_it_is_about_and_counts_its_readers() -> None:
    models = [
        m.RegionStatus(key="weights", policy="shared", state="RO", generation=7),
        m.RegionStatus(key="m1", policy="shared", state="COMMITTED", generation=8),
    ]
    reader = m.Client(engine_id="a", pid=7, region="weights", doing="reading", since="2026-11-20T10:00:00Z", holds=[7])
    since = "2026-11-20T11:00:00Z"
    status = m.Status(state="COMMITTED", device="host:0", generation=8, since=since, clients=[reader], regions=models)
    headline = status_text.status_lines(status, NOW)[0]
    assert "host:0: m1: weights are committed (generation 8), no process reads them at the moment" in headline
    models[1] = m.RegionStatus(key="m1", policy="shared", state="RW", generation=8, bytes=SLAB, slabs=1)
    status = m.Status(state="RW", device="host:0", generation=8, since=since, bytes=9 * SLAB, slabs=9, regions=models)
    assert "host:0: m1: a process writes (2 MiB in 1 slab; layout 8" in status_text.status_lines(status, NOW)[0]
    one = m.Status(state="RO", device="host:0", generation=7, since=since, clients=[reader], regions=models[:1])
    assert "host:0: weights are committed (generation 7), read by 1 process" in status_text.status_lines(one, NOW)[0]


def test_what_is_wrong_and_who_has_still_to_drop_memory_stand_before_everything_else() -> None:
    status = m.Status(
        state="COMMITTED",
        device="host:0",
        generation=8,
        hash="ab" * 32,
        bytes=SLAB,
        slabs=1,
        tensors=1,
        pending_drops=["engine-b (pid 7) has memory of layout 7, and was asked to drop it at 2026-11-20T11:00:00.000Z"],
        alarms=["engine-b (pid 7) still has memory of layout 7, which is gone, and does not answer"],
        clients=[m.Client(engine_id="engine-b", pid=7, doing="asleep", since="2026-11-20T10:00:00Z", holds=[7])],
        since="2026-11-20T11:00:00Z",
    )
    text = "\n".join(status_text.status_lines(status, NOW))
    places = [
        text.index(words)
        for words in ("COMMITTED", "ALARM  engine-b", "has still to drop", "asleep      ", "what to do")
    ]
    assert places == sorted(places)
    assert "for 2h" in text and "has memory 7" in text and "kill -CONT" in text
    coloured = status_text.status_lines(status, NOW, Paint(True))
    assert "\x1b[1;32mCOMMITTED\x1b[0m" in coloured[0]
    for plain, painted in zip(text.split("\n"), coloured, strict=True):
        bare = painted
        for tone in Tone:
            bare = bare.replace(f"\x1b[{tone.value}m", "")
        assert bare.replace("\x1b[0m", "") == plain

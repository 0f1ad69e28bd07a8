"""What a person reads at 3 a.m.: first what is wrong, then who, then what to do."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from lockserver import doctor
from lockserver.advice import OVERDUE, TO_DO
from lockserver.cli import status_text
from lockserver.rules import messages as m

NOW = datetime(2026, 11, 20, 3, 0, 0, tzinfo=UTC)
HOLDER = m.HolderState(
    engine_id="engine-a",
    incarnation="0123456789abcdef",
    token=7,
    granted_at="2026-11-20T02:56:48.000Z",
    pid=11,
    members=[m.MemberState(11, True), m.MemberState(12, True)],
    endpoint="http://a:1",
)
WAITER = m.WaiterState("engine-b", "fedcba9876543210", 21, True, {"host:0": 600 << 20}, "2026-11-20T02:59:57.000Z")
HELD = m.Status(
    state="HELD",
    holder=HOLDER,
    waiters=[WAITER],
    fencing=None,
    memory="verified",
    evidence="peer pidfd",
    permits={"init": m.PermitState(None, [], [])},
    switchover=None,
    alarms=[],
    token=7,
    server_incarnation="aa",
    server_pid=99,
    waiters_total=1,
)
FENCING = msgspec.structs.replace(
    HELD,
    state="FENCING",
    holder=msgspec.structs.replace(HOLDER, members=[m.MemberState(11, False), m.MemberState(12, True)]),
    fencing=m.FencingState("2026-11-20T02:59:59.000Z", ["process 12 of engine-a is alive"]),
)


def text(status: m.Status) -> str:
    return "\n".join(status_text.status_lines(status, NOW))


def test_who_serves_who_waits_and_nothing_to_do() -> None:
    said = text(HELD)
    assert said.startswith("HELD  engine-a is awake, granted 3m12s ago\n")
    assert "serves      engine-a  http://a:1" in said
    assert "token 7, granted 3m12s ago (2026-11-20T02:56:48.000Z)" in said
    assert "waits       1.  engine-b  ready  asked 3s ago  process 21  needs 600 MiB of host:0" in said
    assert "what to do" not in said


def test_alarms_come_before_every_engine_and_with_what_to_do() -> None:
    alarm = "holder.json can't be written (No space left on device): no engine is granted"
    said = text(msgspec.structs.replace(HELD, alarms=[alarm]))
    assert said.index(f"ALARM  {alarm}") < said.index("serves")
    assert "what to do\n  - make room or mend the permissions" in said


def test_what_is_waited_for_stands_above_the_rest() -> None:
    said = text(FENCING)
    assert said.startswith("FENCING  no engine is granted yet (began 1s ago, 2026-11-20T02:59:59.000Z)")
    assert "waits for\n  - process 12 of engine-a is alive" in said
    assert "held by     engine-a" in said
    assert "processes: 11 dead, 12 alive" in said
    assert "what to do\n  - a stopped or stuck process" in said


def test_an_alarm_that_has_looked_at_what_lives_is_all_the_advice_there_is() -> None:
    alarm = "engine-a is not proven gone after 10 s, and no engine is granted: process 12 of engine-a is stopped (T)"
    said = text(msgspec.structs.replace(FENCING, alarms=[alarm]))
    assert alarm in said and "can't be told from a busy one" not in said and "kill -9" not in said


def test_an_alarm_is_not_said_twice() -> None:
    fencing = m.FencingState("2026-11-20T02:59:59.000Z", ["the reader is broken"])
    said = text(msgspec.structs.replace(FENCING, alarms=["the reader is broken"], fencing=fencing))
    assert said.count("the reader is broken") == 1


def test_a_grant_whose_time_is_lost_is_not_said_to_be_new() -> None:
    claimed = msgspec.structs.replace(HELD, holder=msgspec.structs.replace(HOLDER, granted_at=""), memory="unverified")
    said = text(claimed)
    assert said.startswith("HELD  engine-a is awake, granted before this server began\n")
    assert "token 7, granted before this server began\n" in said and "ago" not in said.split("waits")[0]
    assert "granted before this server began" in status_text.waiting_line(claimed, WAITER.incarnation)


def test_memory_that_is_unverified_is_explained_also_where_there_is_a_reader(tmp_path: Path) -> None:
    lost = msgspec.structs.replace(HOLDER, granted_at="")
    for holder, memory_why, said, do in (
        (
            HOLDER,
            "the server doesn't read it (--memory none)",
            "the server doesn't read it (--memory none)",
            "give the server a reader",
        ),
        (HOLDER, "", "at the grant it wasn't seen that what the holder needs was free", "the server has a reader"),
        (lost, "", "an earlier server granted it", "the server has a reader"),
    ):
        seen = msgspec.structs.replace(HELD, memory="unverified", memory_why=memory_why, holder=holder)
        assert f"memory      unverified: {said}" in text(seen)
        checks = doctor.server_findings(doctor.Patient(tmp_path, seen, None))
        (memory,) = [finding for finding in checks if finding.check == "memory"]
        assert memory.found.startswith(f"unverified: {said}") and do in memory.do


def test_a_holder_without_a_successor_is_pointed_at() -> None:
    for waiters in ([], [msgspec.structs.replace(WAITER, ready=False)]):
        assert "no engine is ready to take over yet: if it" in text(msgspec.structs.replace(HELD, waiters=waiters))


def test_permits_and_a_switchover_are_shown_while_there_are_any() -> None:
    assert "init" not in text(HELD)
    permit = m.PermitState("engine-c", ["engine-d"], ["engine-a is waking"])
    said = text(msgspec.structs.replace(HELD, permits={"init": permit}, switchover="draining: a -> b"))
    assert "init        engine-c has the permit; waits: engine-d (engine-a is waking)" in said
    assert "switchover  draining: a -> b" in said


def test_an_engine_that_starts_is_no_reason_to_start_another() -> None:
    free = msgspec.structs.replace(HELD, state="FREE", holder=None, waiters=[], waiters_total=0)
    assert "what to do\n  - no engine serves: start an engine" in text(free)
    said = text(msgspec.structs.replace(free, permits={"init": m.PermitState("engine-a", [], [])}))
    assert "what to do\n  - no engine serves yet: engine-a starts" in said and "start an engine" not in said


def test_every_advice_is_for_words_that_the_server_says() -> None:
    house = Path(status_text.__file__).parents[2]
    files = [path for package in ("lockserver", "evidence") for path in (house / package).rglob("*.py")]
    source = "".join(path.read_text() for path in files if path.name != "advice.py")
    assert OVERDUE in source
    for words, advice in TO_DO:
        assert words in source, f"the server says {words!r} no more; so no person is told: {advice}"


def test_colours_only_when_asked_for() -> None:
    assert "\x1b" not in text(HELD)
    assert "\x1b[1;32mHELD\x1b[0m" in status_text.status_lines(HELD, NOW, status_text.Paint(True))[0]


def test_a_change_is_one_line() -> None:
    assert status_text.change_line(HELD) == "HELD       engine-a (token 7) at http://a:1; waiting: engine-b"
    line = status_text.change_line(msgspec.structs.replace(FENCING, alarms=["no space"]))
    assert line.startswith("FENCING    engine-a (token 7) is to be proven gone")
    assert "waits for: process 12 of engine-a is alive" in line
    assert line.endswith("ALARM no space")


def test_waiting_is_said_to_those_who_are_in_the_queue() -> None:
    assert status_text.waiting_line(HELD, "unknown") == ""
    assert status_text.waiting_line(HELD, WAITER.incarnation) == (
        "engine-a holds the lock (process 11, token 7, granted 2026-11-20T02:56:48.000Z); we are next"
    )
    behind = msgspec.structs.replace(HELD, waiters=[WAITER, msgspec.structs.replace(WAITER, incarnation="11111111")])
    assert status_text.waiting_line(behind, "11111111").endswith("; 1 before us")
    assert "process 12 of engine-a is alive" in status_text.waiting_line(FENCING, WAITER.incarnation)


@pytest.mark.parametrize(
    ("stamp", "words"),
    [
        ("2026-11-20T03:00:00.000Z", "0s ago"),
        ("2026-11-20T02:59:01.500Z", "58s ago"),
        ("2026-11-20T02:00:00.000Z", "1h ago"),
        ("2026-11-18T01:00:00.000Z", "2d2h ago"),
        ("2026-11-20T03:00:09.000Z", "2026-11-20T03:00:09.000Z (in the future: a clock is wrong)"),
        ("yesterday", "yesterday"),
    ],
)
def test_times_read_as_how_long_ago(stamp: str, words: str) -> None:
    assert status_text.ago(stamp, NOW) == words


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 bytes"), (1023, "1023 bytes"), (40 << 30, "40 GiB"), (1536 << 10, "1.5 MiB")]
)
def test_sizes_read_as_a_person_writes_them(count: int, words: str) -> None:
    assert status_text.size(count) == words

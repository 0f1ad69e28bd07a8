"""What there is to see of a pair: the document, its routes, and those that watch it. No engine and no lock server: the
lock's words are played.
"""

import asyncio
import io
import json
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from gateway.rules import events as e
from gateway.rules import handoffs as h
from gateway.rules import view
from gateway.shell import view as shell
from gateway.shell.keys import Keys
from gateway.shell.server import Gateway, Settings
from lockserver.rules import messages as m
from sidecar.http.http_server import Limits
from sidecar.terminal.logs import Log
from tests.gateway.door import request_bytes
from tests.support.waiting import DEADLINE_S

AT = "2026-11-23T17:00:00.000Z"
WALL = 1795453200.0


def holder(name: str, token: int, endpoint: str | None = "unix:/x", alive: int = 2, dead: int = 0) -> m.HolderState:
    members = [m.MemberState(10 + pid, pid >= dead) for pid in range(alive + dead)]
    return m.HolderState(name, "0123456789abcdef", token, AT, 10, members, endpoint)


def waiter(name: str, ready: bool = True) -> m.WaiterState:
    return m.WaiterState(name, "0123456789abcdef", 30, ready, {"host:0": 1 << 20}, AT)


def status(state: str, who: m.HolderState | None, *waiters: m.WaiterState, **more: Any) -> m.Status:
    init = m.PermitState(None, [], [])
    fields: dict[str, Any] = {
        "memory": "verified",
        "evidence": "peer pidfd",
        "permits": {"init": init},
        "switchover": None,
    }
    fields |= {"alarms": [], "token": 1, "server_incarnation": "x", "server_pid": 9, "fencing": None, **more}
    return m.Status(state=state, holder=who, waiters=list(waiters), **fields)


def fencing(life_lock: str, *reasons: str) -> m.FencingState:
    return m.FencingState(AT, list(reasons), life_lock)


WELL = status("HELD", holder("a", 1), waiter("b"))
PROVING = status("FENCING", holder("a", 1, alive=1, dead=1), waiter("b"), fencing=fencing("held", "process 11 lives"))
LIFE = status("FENCING", holder("a", 1, alive=0, dead=2), waiter("b"), fencing=fencing("held", "life lock of a: held"))
GONE = status("FENCING", None, waiter("b"), fencing=fencing("", "memory: b needs 9 bytes of host:0, and less is free"))
GRANTING = status("FENCING", None, fencing=fencing("", "holder.json: the grant to b is being written"))
WAKES = status("HELD", holder("b", 2, None))
SERVES = status("HELD", holder("b", 2))
COUNTS = dict.fromkeys(("continued", "compared", "restarted", "ended", "refused"), 0)
STORY = (WELL, PROVING, LIFE, GONE, GRANTING, WAKES, SERVES)


def told(
    *states: m.Status, away_since: float | None = None, handoffs: h.Handoffs | None = None, silent: int = 0
) -> dict[str, Any]:
    """What the door shows after these, which came 10 ms one after the other."""
    handoffs = handoffs or h.Handoffs()
    for place, state in enumerate(states):
        handoffs.see(state, 100 + place / 100, WALL + place / 100)
    requests = {"in_flight": 3, "silent": silent}
    pair = view.PairSeen("/run/p", ("m",), states[-1] if states else None, away_since, handoffs, requests)
    door = view.DoorSeen(WALL, "", COUNTS, {"broken_rule": 2})
    found: dict[str, Any] = json.loads(msgspec.json.encode(view.document(door, [pair], 101.0, WALL + 9)))
    assert found["says"] == found["pairs"][0]["says"] and found["tone"] == found["pairs"][0]["tone"]
    return found


def seen(*states: m.Status, **more: Any) -> dict[str, Any]:
    """The pair of it."""
    return dict(told(*states, **more)["pairs"][0])


def engines(pair: dict[str, Any]) -> dict[str, str]:
    return {engine["engine_id"]: engine["state"] for engine in pair["engines"]}


def test_who_serves_and_who_is_ready() -> None:
    pair = seen(WELL)
    assert (pair["tone"], pair["says"]) == ("good", "a serves; b is ready to take over.")
    assert engines(pair) == {"a": "serves", "b": "ready"} and pair["handoff"] is None and pair["todo"] == []


def test_answers_that_stand_still_are_no_good_news_whatever_the_lock_says() -> None:
    """The engine that serves is stopped: its lock is held, and the standby is ready, until its shim ends it."""
    well = "a serves; b is ready to take over."
    for silent, more in ((1, "1 answer stands still"), (2, "2 answers stand still")):
        pair = seen(WELL, silent=silent)
        assert (pair["tone"], pair["says"]) == ("care", f"{well} {more}: `failover status` names what hangs.")
    assert seen(GONE, silent=1)["tone"] == seen(GONE)["tone"] == "bad"


def test_the_three_proofs_come_in_one_after_the_other() -> None:
    shown = [seen(*STORY[:count])["handoff"] for count in range(2, 7)]
    proven = [[proof["ms"] for proof in one["proofs"]] for one in shown]
    assert proven[0] == [None, None, None]
    assert proven[1] == [10, None, None]
    assert proven[2:4] == [[10, 20, None]] * 2
    assert proven[4] == [10, 20, 40]
    said = [[proof["says"] for proof in one["proofs"]] for one in shown]
    assert said[0][0] == "1 of 2 live: 11" and said[0][1] == "a process holds it"
    assert said[1][0] == "all 2 have ended" and said[2][2] == "b needs 9 bytes of host:0, and less is free"


def test_each_step_of_a_failover_is_said_and_its_engines_are_where_they_are() -> None:
    pairs = [seen(*STORY[: place + 1]) for place in range(len(STORY))]
    assert [pair["says"] for pair in pairs[1:]] == [
        "a is lost, and its end is being proven; b is next.",
        "a is lost, and its end is being proven; b is next.",
        "No engine serves: the last one is gone; b is next.",
        "No engine serves: the last one is gone, and no engine is ready to follow.",
        "b has the lock and wakes.",
        "b serves, and no engine is ready to take over: its death would be an outage.",
    ]
    assert [engines(pair) for pair in pairs[1:]] == [
        {"a": "lost", "b": "ready"},
        {"a": "lost", "b": "ready"},
        {"a": "gone", "b": "ready"},
        {"a": "gone", "b": "wakes"},
        {"a": "gone", "b": "wakes"},
        {"a": "gone", "b": "serves"},
    ]
    assert pairs[-1]["todo"][0].startswith("no engine is ready to take over yet: if it stays so, failover status says")


def test_a_failover_is_told_with_its_phases_and_with_what_clients_felt() -> None:
    handoffs = h.Handoffs()
    seen(*STORY, handoffs=handoffs)
    for total_s in (0.2, 0.5, 0.3):
        handoffs.resumed(e.Gap(total_s, 0.1, 0.05, 0.0, total_s - 0.15, 0.0), 100.08)
    pair = seen(handoffs=handoffs)
    (one,) = pair["failovers"]
    assert (one["from"], one["to"], one["planned"], one["ms"], pair["count"]) == ("a", "b", False, 50, 1)
    assert [(phase["name"], phase["from_ms"], phase["ms"]) for phase in one["phases"]] == [
        ("proof", 0, 20),
        ("granted", 20, 20),
        ("serves", 40, 10),
        ("goes_on", 50, 20),
    ]
    assert (one["clients"]["clients"], one["clients"]["p50"], one["clients"]["max"]) == (3, 300, 500)


def test_a_holder_that_comes_back_was_no_failover_and_a_new_server_proves_nothing() -> None:
    assert seen(WELL, PROVING, WELL)["handoff"] is None
    back = [status("RECOVERING", holder("a", 1), waiter("b"), fencing=fencing("unknown", "main process 10")), WELL]
    assert seen(WELL, *back)["handoff"] is None and seen(WELL, *back)["count"] == 0
    lost_its_file = status("FENCING", None, waiter("b"), fencing=fencing("unknown", "an unknown holder may come back"))
    found = seen(WELL, lost_its_file)
    assert [proof["ms"] for proof in found["handoff"]["proofs"]] == [None] * 3


def test_a_switchover_is_planned() -> None:
    plan = m.PlanState("exiting", "a", 1, "b", 30.0)
    draining = status("HELD", holder("a", 1), waiter("b"), plan=plan, switchover="exiting: a -> b")
    pair = seen(WELL, draining)
    assert pair["says"] == "a serves, and hands over to b (exiting)." and engines(pair)["a"] == "drains"
    assert seen(WELL, draining, PROVING, GONE, SERVES)["failovers"][0]["planned"] is True


def test_while_no_lock_server_answers_its_last_words_are_shown_as_such_and_since_when() -> None:
    pair = seen(WELL, away_since=WALL)
    assert pair["says"].startswith("No lock server has answered since 17:00:00 UTC: a serves on") and pair["todo"]
    assert pair["lock"] == {"answers": False, "since": AT, "state": "HELD", "switchover": None}
    assert [engine["why"] for engine in pair["engines"]] == ["as the lock said last", ""]
    never = seen(away_since=WALL)
    assert never["says"] == "No lock server has answered since 17:00:00 UTC: which engine serves isn't known."
    assert never["engines"] == [] and never["lock"]["state"] is None


def test_who_isnt_ready_has_a_reason() -> None:
    init = {"init": m.PermitState("b", ["c"], ["b has it"])}
    pair = seen(status("HELD", holder("a", 1), waiter("d", ready=False), permits=init))
    assert engines(pair) == {"a": "serves", "b": "starts", "c": "starts", "d": "not ready"}
    assert all(engine["why"] for engine in pair["engines"] if engine["engine_id"] != "a")


def test_whatever_comes_from_outside_is_bounded() -> None:
    many = [waiter(f"w{number}" * 9) for number in range(64)]
    reasons = [f"{number}" + "x" * 9000 for number in range(32)]
    members = msgspec.structs.replace(holder("a", 1), members=[m.MemberState(n, True) for n in range(5000)])
    worst = status("FENCING", members, *many, fencing=fencing("held", *reasons), alarms=reasons)
    handoffs = h.Handoffs()
    for number in range(40):
        handoffs.see(status("HELD", holder(f"e{number}", 2 * number + 1)), number, number)
    pair = view.PairSeen("/r\udcff" * 999, ("m" * 9999,) * 99, worst, None, handoffs)
    said = msgspec.json.encode(view.document(view.DoorSeen(0, "x" * 9999, {}, {}), [pair], 0, 0))
    assert len(said) < 64 << 10 and len(handoffs.engines) == h.ENGINES_MOST and len(handoffs.past) == h.MOST


# -- the routes ----------------------------------------------------------------------------------------------------

Story = Callable[[Gateway, int], Awaitable[None]]


def at_a_door(directory: Path, story: Story, keys: Keys | None = None) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        settings = Settings((directory,), e.Bounds(), Limits(), keys, access_log=False)
        gateway = Gateway(loop, settings, Log("gateway", stream=io.StringIO()))
        gateway.pairs[0].on_changed = gateway.view.changed
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        await gateway.http.listen(listener)
        try:
            await story(gateway, listener.getsockname()[1])
        finally:
            gateway.close()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


async def asked(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes(path, **headers).replace(b"GET", method.encode(), 1))
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), head.decode().lower(), body


async def watching(port: int) -> asyncio.StreamReader:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes("/failover/events"))
    reader._kept = writer  # type: ignore[attr-defined]  # the connection lives as long as its reader
    return reader


async def until_said(reader: asyncio.StreamReader, words: str) -> dict[str, Any]:
    while True:
        line = await reader.readuntil(b"\n")
        if line.startswith(b"data: ") and words in (document := json.loads(line[6:]))["says"]:
            return dict(document)


def test_page_state_and_events_need_no_key_as_metrics_needs_none(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret\n")

    async def story(gateway: Gateway, port: int) -> None:
        assert (await asked(port, "/v1/models"))[0] == 401
        assert (await asked(port, "/metrics"))[0] == 200
        for path, kind in (("", "text/html"), ("state", "application/json"), ("events", "text/event-stream")):
            status, head, _ = await asked(port, f"/failover/{path}", "HEAD")
            assert status == 200 and f"content-type: {kind}" in head
            status, head, _ = await asked(port, f"/failover/{path}", "POST")
            assert status == 405 and "allow: get, head" in head
        assert (await asked(port, "/failover/else", authorization="Bearer secret"))[0] == 404
        state = json.loads((await asked(port, "/failover/state"))[2])
        assert state["tone"] == "bad" and "isn't known" in state["says"]

    at_a_door(tmp_path, story, Keys(tmp_path / "keys"))


def test_what_isnt_there_is_404_and_the_old_page_stays(tmp_path: Path) -> None:
    async def story(gateway: Gateway, port: int) -> None:
        for path in ("/failover/x", "/failover/state/", "/failover//", "/failover/../metrics"):
            assert (await asked(port, path))[0] == 404, path
        assert b'"pairs"' in (await asked(port, "/failover"))[2]

    at_a_door(tmp_path, story)


def test_the_page_may_run_what_stands_in_it_and_ask_this_door_and_nothing_else(tmp_path: Path) -> None:
    async def story(gateway: Gateway, port: int) -> None:
        _, head, body = await asked(port, "/failover/")
        (rules,) = re.findall(r"content-security-policy: (.*)\r\n", head)
        assert rules.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in rules
        assert "connect-src 'self'" in rules and "frame-ancestors 'none'" in rules
        assert not re.search(
            rb"(?:src|href)=\"(?:https?:)?//|@import|url\(|innerHTML|<[a-z][^>]* (?:on\w+|style)=", body
        )

    at_a_door(tmp_path, story)


def test_those_that_watch_are_told_each_change_and_the_end(tmp_path: Path) -> None:
    async def story(gateway: Gateway, port: int) -> None:
        readers = [await watching(port) for _ in range(3)]
        for reader in readers:
            await until_said(reader, "isn't known")
        for state, words in ((WELL, "a serves; b"), (PROVING, "is being proven"), (SERVES, "b serves")):
            gateway.pairs[0]._lock_said(state)
            for reader in readers:
                await until_said(reader, words)
        gateway.pairs[0]._lock_said(None)
        assert "serves on" in (await until_said(readers[0], "No lock server"))["says"]
        await gateway.drain(delay_s=0, within_s=0)
        for reader in readers:
            assert (await reader.read()).endswith(b"0\r\n\r\n"), "it was told the end, and wasn't cut"

    at_a_door(tmp_path, story)


def test_only_so_many_watch_and_one_that_leaves_makes_room(tmp_path: Path) -> None:
    async def story(gateway: Gateway, port: int) -> None:
        readers = [await watching(port) for _ in range(shell.WATCHERS_MOST)]
        for reader in readers:
            await until_said(reader, "")
        status, head, body = await asked(port, "/failover/events")
        assert status == 503 and "retry-after" in head and b"/failover/state" in body
        readers.pop()._kept.close()  # type: ignore[attr-defined]
        while len(gateway.view._watchers) == shell.WATCHERS_MOST:
            await asyncio.sleep(0.002)
        await until_said(await watching(port), "")

    at_a_door(tmp_path, story)


def test_many_changes_are_few_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "LEAST_S", 1e6)

    async def story(gateway: Gateway, port: int) -> None:
        made = []
        look = gateway.view._look
        gateway.view._look = lambda: made.append(1) or look()  # type: ignore[func-returns-value]
        reader = await watching(port)
        await until_said(reader, "")
        for _ in range(1000):
            gateway.pairs[0]._lock_said(WELL)
        assert len([await asked(port, "/failover/state") for _ in range(5)]) == 5
        assert len(made) == 1

    at_a_door(tmp_path, story)


class Clock:
    """A loop that runs its timers when the time is moved."""

    def __init__(self, early: float = 0.0) -> None:
        self.now, self.timers = 0.0, list[tuple[float, Callable[[], None]]]()
        self.early = early
        """By how much too early it runs a timer, as one does that counts in milliseconds."""

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, what: Callable[[], None]) -> Any:
        timer = at, what
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def move(self, until: float) -> None:
        for _ in range(100):
            if not (due := [timer for timer in self.timers if timer[0] <= until]):
                break
            self.timers.remove(timer := min(due))
            self.now = timer[0] - self.early
            timer[1]()
        else:
            raise AssertionError("it runs a timer again and again")
        self.now = until


@pytest.mark.parametrize("early", [0.0, 1e-9])
def test_a_change_just_before_the_beat_and_after_another_one_asked_is_told_within_its_pause(early: float) -> None:
    """A pool's list was told a second late, and a list that had not changed was told dozens of times at once."""
    clock, says, told = Clock(early), ["before"], list[bytes]()
    loop: Any = clock
    live = shell.Live(loop, lambda: says[0], "/x")
    request: Any = SimpleNamespace(method="GET")
    watcher: Any = Mock(stream=told.append)
    live.events(request, watcher)
    clock.move(0.95)
    once: Any = Mock()
    live.state(request, once)
    says[0] = "after"
    live.changed()
    clock.move(0.95 + shell.LEAST_S)
    assert told[-1] == b'data: "after"\n\n'
    clock.move(5.0)
    assert len(told) == 6, "and at rest each beat is told once"


def test_one_that_doesnt_read_costs_no_memory_and_no_other_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "LEAST_S", 0.0)

    async def story(gateway: Gateway, port: int) -> None:
        large = msgspec.structs.replace(WELL, alarms=["x" * 400] * 16)
        deaf = socket.create_connection(("127.0.0.1", port))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(request_bytes("/failover/events"))
        reader = await watching(port)
        await until_said(reader, "")
        watchers = gateway.view._watchers
        while all(watchers.values()):
            gateway.pairs[0]._lock_said(large)
            await until_said(reader, "a serves")
        (stuck,) = [reply for reply, room in watchers.items() if not room]
        most = stuck.unsent
        for _ in range(50):
            gateway.pairs[0]._lock_said(large)
            await until_said(reader, "a serves")
        assert stuck.unsent <= most < 1 << 20
        deaf.close()

    at_a_door(tmp_path, story)

"""Real engines killed behind a real door, while 64 clients read: no request fails, and every byte is the undisturbed
answer's.
"""

import asyncio
import ctypes
import json
import os
import random
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine import kinds
from tests.engine.shims import House, Shim
from tests.gateway.door import GatewayProgram, Stream
from tests.support.waiting import until

PIDFD_GETFD = 438
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

STREAMS = int(os.environ.get("FAILOVER_DOOR_STREAMS", "64"))
STALL_S = 10.0
"""Longer than any engine is silent on a busy machine: a third death within one answer is the end of a request."""
PACE = ("--tokens-per-s", "100", "--max-batch", "64", "--kv-bytes", "16MiB", "--layers", "2", "--width", "64")


@pytest.fixture
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    here = House(Path(tmp_path_factory.mktemp("door", numbered=True)))
    here.devices.mkdir(mode=0o700)
    yield here
    here.close()


def pair(house: House, *arguments: str) -> list[Shim]:
    kind = kinds.REFERENCE
    house.start_lock(*kind.lock)
    house.start_gms(kind)
    return [shim(house, name, *arguments) for name in "ab"]


def shim(house: House, name: str, *arguments: str) -> Shim:
    return house.shim(kinds.REFERENCE, name, "--stall-s", f"{STALL_S:g}", arguments=(*PACE, *arguments))


def whole(shims: list[Shim]) -> tuple[Shim, Shim]:
    """Who serves, and who is ready to."""

    def look() -> tuple[Shim, Shim] | None:
        states = {shim.state()["state"]: shim for shim in shims if shim.state()["ready"]}
        return (states["Active"], states["Standby"]) if set(states) >= {"Active", "Standby"} else None

    found = until(look, "one serves and the other is ready")
    assert found is not None
    return found


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
MORE: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 11},
    {"logprobs": 1},
    {"n": 2},
    {"presence_penalty": 0.7},
    {"chat": True},
    {"chat": True, "response_format": {"type": "json_object"}, "ignore_eos": False},
    {"chat": True, "tools": [TOOL], "ignore_eos": False},
    {"stop": ["ka", "su"], "ignore_eos": False},
    {"whole": True},
    {"chat": True, "whole": True},
)
"""What the questions ask for beside the plain; `chat` and `whole` (not streaming) are ours."""


def questions(count: int, dice: random.Random, most_tokens: int = 160) -> list[Stream]:
    found = []
    for number in range(count):
        body: dict[str, Any] = {"max_tokens": dice.randrange(10, most_tokens), "temperature": 0, "ignore_eos": True}
        body |= MORE[number % len(MORE)]
        chat, streams = body.pop("chat", False), not body.pop("whole", False)
        said = f"question {number}"
        body |= {"messages": [{"role": "user", "content": said}]} if chat else {"prompt": said}
        if streams:
            body["stream_options"] = {"include_usage": True}
        found.append(Stream(body, "/v1/chat/completions" if chat else "/v1/completions", streams))
    return found


async def all_of(port: int, asked: list[Stream], meanwhile: Callable[[], None] | None = None) -> list[Stream]:
    streams = [Stream(one.body, one.path, one.streams) for one in asked]
    tasks = [asyncio.create_task(stream.run(port, f"q{place}")) for place, stream in enumerate(streams)]
    if meanwhile is not None:
        await asyncio.to_thread(meanwhile)
    await asyncio.gather(*tasks)
    return streams


def check(streams: list[Stream], like: list[Stream]) -> None:
    for stream, other in zip(streams, like, strict=True):
        assert (stream.status, stream.whole, stream.error) == (200, True, ""), (stream.raw[-300:], stream.body)
        assert stream.alike == other.alike, f"{stream.body}: {differing(stream.alike, other.alike)}"


def differing(one: dict[int, list[Any]], other: dict[int, list[Any]]) -> str:
    """Where two answers part."""
    for index in sorted({*one, *other}):
        a, b = one.get(index, []), other.get(index, [])
        at = next((place for place, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), len(b))
        if a != b:
            near = slice(max(0, at - 1), at + 3)
            return f"choice {index}, event {at} of {len(a)} and {len(b)}:\n{a[near]}\n{b[near]}"
    return "nowhere"


class Stage:
    """A pair, its door, and what the answers are when nothing happens."""

    def __init__(self, house: House, dice: random.Random) -> None:
        self.house = house
        self.dice = dice
        self.shims = pair(house)
        whole(self.shims)
        self.door = GatewayProgram(house).serving()
        self.asked = questions(STREAMS, dice)
        self.like = asyncio.run(all_of(self.door.port, self.asked))
        check(self.like, self.like)

    def kill_main(self) -> None:
        whole(self.shims)[0].main().signal(signal.SIGKILL)

    def kill_worker(self) -> None:
        whole(self.shims)[0].workers()[0].signal(signal.SIGKILL)

    def kill_group(self) -> None:
        os.killpg(whole(self.shims)[0].main().pid, signal.SIGKILL)

    def kill_shim(self) -> None:
        active = whole(self.shims)[0]
        active.kill()
        active.child.wait()
        self.shims[self.shims.index(active)] = shim(self.house, active.engine_id)

    def kill_twice(self) -> None:
        _, second = whole(self.shims)
        self.kill_main()
        second.until("Active", ready=True)
        self.kill_main()  # when both are there again, and the same answers still go on

    def stop_it(self) -> None:
        for process in (active := whole(self.shims)[0]).tree():
            process.signal(signal.SIGSTOP)
        until(lambda: active.state()["state"] != "Active", "its shim has seen that it is silent")

    def cut_the_doors_lock_connection_and_kill(self) -> None:
        cut_connection(self.door.pid, "lock.sock")
        self.kill_main()

    def kill_the_lock_server_and_main(self) -> None:
        active = whole(self.shims)[0]
        self.house.restart("lock", kinds.REFERENCE)
        active.main().signal(signal.SIGKILL)

    def kill_gms_and_main(self) -> None:
        active = whole(self.shims)[0]
        self.house.restart("gms", kinds.REFERENCE)
        active.main().signal(signal.SIGKILL)


DEEDS: list[Callable[[Stage], None]] = [
    Stage.kill_main,
    Stage.kill_worker,
    Stage.kill_group,
    Stage.kill_shim,
    Stage.kill_twice,
    Stage.stop_it,
    Stage.cut_the_doors_lock_connection_and_kill,
    Stage.kill_the_lock_server_and_main,
    Stage.kill_gms_and_main,
]
ROUNDS = int(os.environ.get("FAILOVER_DOOR_ROUNDS", len(DEEDS)))


def cut_connection(pid: int, name: str) -> None:
    """Ends a connection of another process's to the socket of this name, as if its other side had gone."""
    pidfd = os.pidfd_open(pid)
    try:
        for number in map(int, os.listdir(f"/proc/{pid}/fd")):
            fd = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, number, 0)
            if fd < 0:
                continue
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.close(fd)
                continue
            with socket.socket(fileno=fd) as sock:
                if sock.family == socket.AF_UNIX and name in os.path.basename(str(sock.getpeername())):
                    sock.shutdown(socket.SHUT_RDWR)
                    return
    finally:
        os.close(pidfd)
    raise AssertionError(f"process {pid} has no connection to {name}")


def test_what_dies_under_load_is_not_in_the_answers(house: House) -> None:
    seed = int(os.environ.get("FAILOVER_DOOR_SEED", "0")) or random.randrange(1 << 30)
    print(f"FAILOVER_DOOR_SEED={seed}")
    dice = random.Random(seed)
    stage = Stage(house, dice)
    deeds = [*DEEDS, *(dice.choice(DEEDS) for _ in range(ROUNDS))][:ROUNDS]
    dice.shuffle(deeds)
    gaps: list[float] = []
    for number, deed in enumerate(deeds, 1):
        whole(stage.shims)
        wait_s = dice.uniform(0.0, 1.0)

        def strike(deed: Callable[[Stage], None] = deed, wait_s: float = wait_s) -> None:
            signal.sigtimedwait([], wait_s)
            deed(stage)

        streams = asyncio.run(all_of(stage.door.port, stage.asked, strike))
        check(streams, stage.like)
        gaps += [stream.gap_s for stream in streams]
        longest = sorted(round(stream.gap_s * 1000) for stream in streams)
        print(f"{number} {deed.__name__}: each stream's longest gap in ms: {longest}")
    state = stage.door.state()
    assert (state["ended"], state["refused"]) == (0, 0), json.dumps(state)
    assert state["continued"] and state["compared"] and state["restarted"]
    print(
        f"{len(deeds)} rounds, {len(gaps)} answers; longest gaps p50 {sorted(gaps)[len(gaps) // 2] * 1000:.0f} ms, max "
        f"{max(gaps) * 1000:.0f} ms; {state['continued']} continued, {state['compared']} compared, "
        f"{state['restarted']} restarted"
    )


def test_contexts_that_are_kept_take_no_turns(house: House) -> None:
    """With turns all but the first would wait for others' first tokens, which the door counts as time. Here they are
    admitted in the very event in which the door hears of the successor, and that takes no time.
    """
    clients, reread = 10, 160
    shims = pair(house, "--tokens-per-s", "4")
    whole(shims)
    door = GatewayProgram(house, "--reread-tokens", str(reread)).serving()
    body = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    asked = [Stream({**body, "prompt": f"{number} of those who have said much: " * 10}) for number in range(clients)]

    async def broken() -> list[Stream]:
        streams = [Stream(one.body) for one in asked]
        tasks = [asyncio.create_task(stream.run(door.port, f"q{place}")) for place, stream in enumerate(streams)]
        while any(len(stream.at) < 4 for stream in streams):
            await asyncio.sleep(0.01)
        shims[0].main().kill() if house.holder() == "a" else shims[1].main().kill()
        await asyncio.gather(*tasks)
        return streams

    streams = asyncio.run(broken())
    check(streams, asyncio.run(all_of(door.port, asked)))
    page = f"\n{door.get('/metrics')[1]}"
    names = ("failover_door_gap_seconds_count", 'failover_door_gap_part_seconds_total{part="turn"}')
    paused, turns_s = (float(page.partition(f"\n{name} ")[2].partition("\n")[0]) for name in names)
    assert (paused, turns_s) == (clients, 0.0), door.state()

"""A pair behind its door under load: what clients ask, what dies meanwhile, and what every answer has to be.

The one place for both. `test_failover.py` plays each death once, `tests/tools/soak.py` for an hour.
"""

import asyncio
import ctypes
import os
import random
import signal
import socket
import stat
from collections.abc import Callable, Sequence
from typing import Any

from tests.engine import kinds
from tests.engine.shims import House, Shim
from tests.gateway.door import GatewayProgram, Stream
from tests.support.waiting import until

PIDFD_GETFD = 438
STREAMS = int(os.environ.get("FAILOVER_DOOR_STREAMS", "64"))
STALL_S = 10.0
"""Longer than any engine is silent on a busy machine: a third death within one answer is the end of a request."""
PACE = ("--tokens-per-s", "100", "--max-batch", "64", "--kv-bytes", "16MiB", "--layers", "2", "--width", "64")


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


async def all_of(
    port: int, asked: list[Stream], meanwhile: Callable[[], None] | None = None, places: Sequence[int] | None = None
) -> list[Stream]:
    """`places`: of only these. Each has the name of its place, which is in its answer."""
    places = range(len(asked)) if places is None else places
    streams = [Stream(asked[place].body, asked[place].path, asked[place].streams) for place in places]
    tasks = [asyncio.create_task(stream.run(port, f"q{place}")) for place, stream in zip(places, streams, strict=True)]
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
        self.shims = self.start()
        whole(self.shims)
        self.door = GatewayProgram(house).serving()
        self.asked = self.questions()
        self.like = asyncio.run(all_of(self.door.port, self.asked))
        self.check(self.like, self.like)

    # What another engine's stage has otherwise (`tests/tools/soak.py`).
    kind = kinds.REFERENCE

    def start(self) -> list[Shim]:
        return pair(self.house)

    def shim(self, name: str) -> Shim:
        return shim(self.house, name)

    def questions(self) -> list[Stream]:
        return questions(STREAMS, self.dice)

    def check(self, streams: list[Stream], like: list[Stream]) -> None:
        check(streams, like)

    def whole(self) -> tuple[Shim, Shim]:
        return whole(self.shims)

    def kill_main(self) -> None:
        active = whole(self.shims)[0]
        active.main().signal(signal.SIGKILL)
        _until_seen(active)

    def kill_worker(self) -> None:
        active = whole(self.shims)[0]
        active.workers()[0].signal(signal.SIGKILL)
        _until_seen(active)

    def kill_group(self) -> None:
        active = whole(self.shims)[0]
        os.killpg(active.main().pid, signal.SIGKILL)
        _until_seen(active)

    def kill_shim(self) -> None:
        active = whole(self.shims)[0]
        active.kill()
        self.shims[self.shims.index(active)] = self.shim(active.engine_id)

    def kill_twice(self) -> None:
        _, second = whole(self.shims)
        self.kill_main()
        second.until("Active", ready=True)
        self.kill_main()  # when both are there again, and the same answers still go on

    def stop_it(self) -> None:
        for process in (active := whole(self.shims)[0]).tree():
            process.signal(signal.SIGSTOP)
        _until_seen(active)

    def cut_the_doors_lock_connection_and_kill(self) -> None:
        cut_connection(self.door.pid, "lock.sock")
        self.kill_main()

    def kill_the_lock_server_and_main(self) -> None:
        active = whole(self.shims)[0]
        self.house.restart("lock", self.kind)
        active.main().signal(signal.SIGKILL)
        _until_seen(active)

    def kill_gms_and_main(self) -> None:
        active = whole(self.shims)[0]
        self.house.restart("gms", self.kind)
        active.main().signal(signal.SIGKILL)
        _until_seen(active)


def _until_seen(active: Shim) -> None:
    """The next deed must not find it serving still: answers may be over before its shim has seen the death."""
    until(lambda: active.state()["state"] != "Active", f"{active.engine_id}'s shim has seen the death")


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

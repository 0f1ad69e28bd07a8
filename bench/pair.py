"""A pair of engines on the stage, or one alone: real servers, shims and engines, and one takeover played and timed.

The processes are those of the tests (`tests/engine/shims.py`). What plays here is nothing but the killer and the
client: one process, asleep in `poll` between the kill and the word that the other serves. It has a pidfd of every
process that is to die and a watch on the lock; both tell the time by the machine's one monotonic clock. How long the
parts of a wake took is the engine's own word, asked for when the round is over (`/state`).

What this file may not do: know which engine it is, or what is a good time. `failover.py` has the rounds of the
reference engine, `vllm.py` those of vLLM.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.stage import Broken
from lockserver.observer import Observer, ObserverError, ServerSilent
from lockserver.rules import messages as m
from sidecar.wire.sockets import address_of
from tests.engine.kinds import Kind
from tests.engine.shims import House, Shim
from tests.support.processes import Process

REST_S = 0.02
"""Between the last question to an engine and the kill."""
TOKENS = 8
_LOOK_EVERY_S = 0.01
_END_S = 30.0
TOKEN_IDS = re.compile(rb'"token_ids": ?\[([0-9][0-9, ]*)\]')
"""In any of an answer's pieces; `prompt_token_ids` has another word in front."""
_SECOND_DEATHS = re.compile(r'failover_engine_kv_wakes_total\{why="second_death"\} ([0-9.]+)')

T = TypeVar("T")
Strike = Callable[[], None]
PHASES = (
    "processes dead",
    "lock granted",
    "weights mapped",
    "KV cache created",
    "awake",
    "bound",
    "announced",
    "first token",
)
"""What a takeover is made of, in order. Together they are all of it."""


@dataclass(frozen=True)
class Takeover:
    phases: dict[str, int]
    """Nanoseconds."""
    beside: int
    """The first token of an answer by the engine that was about to be killed: awake, and nothing happens."""
    whole: int
    """From the kill until one serves and the other is ready again."""
    after_a_second_death: bool = False
    """The one before had adopted a KV cache and died within 30 s, as here each second one: nothing of it is adopted."""

    @property
    def total(self) -> int:
        return sum(self.phases.values())


@dataclass(frozen=True)
class Victim:
    """Which process gets the signal: found before the clock runs."""

    name: str
    aim: Callable[[Shim], Strike]


def signalled(find: Callable[[Shim], Process], number: int = signal.SIGKILL) -> Callable[[Shim], Strike]:
    def aim(shim: Shim) -> Strike:
        process = find(shim)
        return lambda: process.signal(number)

    return aim


def _group(shim: Shim) -> Strike:
    group = shim.main().pid  # its main process has a session of its own
    return lambda: os.killpg(group, signal.SIGKILL)


MAIN = Victim("the main process", signalled(Shim.main))
WORKER = Victim("a worker", signalled(lambda shim: shim.workers()[0]))
GROUP = Victim("the whole group", _group)
STOPPED = Victim("the main process", signalled(Shim.main, signal.SIGSTOP))


def question(model: str, prompt: str | list[int], tokens: int) -> bytes:
    """The body of a request for an answer that is always the same, streamed."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    return json.dumps({**body, "ignore_eos": True, "stream": True, "return_token_ids": True}).encode()


class Pair:
    """Two engines of one kind; or only the first of them, without a successor."""

    def __init__(
        self,
        house: House,
        kind: Kind,
        model: str,
        names: str = "ab",
        more: Sequence[str] = (),
        deadline_s: float = 60.0,
        lock: Sequence[str] = (),
    ) -> None:
        self.house = house
        self.deadline_s = deadline_s
        self.model = model
        self._body = question(model, "the other one is awake", TOKENS)
        house.start_lock(*lock)
        house.start_gms(kind)
        began = time.monotonic_ns()
        self.shims = [house.shim(kind, names[0], *more)]
        self.whole()
        self.ask()
        self.cold_start_ns = time.monotonic_ns() - began
        """From nothing to the first token of the first engine, which also makes the weights."""
        self.shims += [house.shim(kind, name, *more) for name in names[1:]]
        self.whole()

    def whole(self) -> list[Shim]:
        """Waits until one serves and all others are ready to. The one that serves comes first."""
        return self.until(self._settled, "an engine that serves, and one that is ready")

    def _settled(self) -> list[Shim]:
        holder, url = self.house.holder(), self.house.endpoint()
        shims = sorted(self.shims, key=lambda shim: shim.engine_id != holder)
        wanted = ["Active", *("Standby" for _ in shims[1:])]
        states = [shim.state() for shim in shims] if holder and url else []
        return shims if [state["state"] for state in states if state["ready"]] == wanted else []

    def until(self, look: Callable[[], T], what: str) -> T:
        """Between the measurements, not in one."""
        end = time.monotonic() + self.deadline_s
        while not (value := look()):
            if time.monotonic() > end:
                said = "\n".join(shim.said()[-1500:] for shim in self.shims)
                raise Broken(f"waited {self.deadline_s:g} s for {what}; the engines said:\n{said}")
            time.sleep(_LOOK_EVERY_S)
        return value

    def asks(self, prompt: Sequence[int]) -> None:
        """This, from now on."""
        self._body = question(self.model, list(prompt), TOKENS)

    def ask(self, url: str = "") -> tuple[int, list[int]]:
        """When the first token came, and all of them."""
        return answer(url or self.house.endpoint(), self._body, self.deadline_s)

    def end_of(self, victim: Victim) -> int:
        """From the signal to the end of the last process of the engine that serves."""
        active = self.whole()[0]
        members = [active.main(), *active.workers()]
        strike = victim.aim(active)
        time.sleep(REST_S)
        with _watched(members) as (poll, left):
            began = ended = time.monotonic_ns()
            strike()
            while left:
                ready = poll.poll(self.deadline_s * 1000)
                ended = time.monotonic_ns()
                if not ready:
                    raise Broken("a killed engine does not end")
                for fd, _ in ready:
                    left.remove(fd)
                    poll.unregister(fd)
        return ended - began

    def takeover(self, victim: Victim) -> Takeover:
        """One round. Begins when the pair is whole, and ends when it is whole again."""
        active, standby = self.whole()
        second_deaths = _second_deaths(standby)
        members = [active.main(), *active.workers()]
        strike = victim.aim(active)
        asked = time.monotonic_ns()
        first, expected = self.ask()
        beside, old = first - asked, self.house.endpoint()
        time.sleep(REST_S)
        with Observer(self.house.run_dir, self.deadline_s) as observer, _watched(members) as (poll, left):
            observer.ask(m.Watch(), m.Status)
            poll.register(observer.fileno(), select.POLLIN)
            killed = dead = granted = time.monotonic_ns()
            url = ""
            strike()
            while not url:
                ready = poll.poll(self.deadline_s * 1000)
                now = time.monotonic_ns()
                if not ready:
                    raise Broken(f"no engine took over from {active.engine_id} within {self.deadline_s:g} s")
                for fd, _ in ready:
                    if fd in left:
                        dead = now
                        left.remove(fd)
                        poll.unregister(fd)
                    elif fd == observer.fileno():
                        holder = _latest(observer).holder
                        if holder is not None and holder.engine_id == standby.engine_id:
                            granted = granted if granted > killed else now
                            url = holder.endpoint or ""
        announced = now
        first, tokens = self.ask(url)
        if tokens != expected or url == old:
            raise Broken(f"{standby.engine_id} answers {tokens} where {active.engine_id} answered {expected}")
        self.until(lambda: standby.state()["state"] == "Active", "all that the engine has said of its wake")
        took = {name: round(spent * 1e9) for name, spent in standby.state()["phases_s"].items()}
        self.until(lambda: active.state()["state"] != "Active", "the killed engine's shim to notice")
        self.whole()
        whole = time.monotonic_ns() - killed
        awake_and_bound = took["wake"] + took["serve"]
        granted = min(granted, announced - awake_and_bound)  # an observer may hear of it late
        dead = min(dead, granted)
        cache = min(took["kv"], took["wake"] - took["remap"])  # the slowest at the one needn't be that at the other
        parts = (
            dead - killed,
            granted - dead,
            took["remap"],
            cache,
            took["wake"] - took["remap"] - cache,
            took["serve"],
            announced - granted - awake_and_bound,
            first - announced,
        )
        phases = dict(zip(PHASES, parts, strict=True))
        return Takeover(phases, beside, whole, _second_deaths(standby) > second_deaths)


@contextlib.contextmanager
def house(parent: Path, environment: dict[str, str] | None = None) -> Iterator[House]:
    """Servers and engines that are gone afterwards, with their directory."""
    directory = Path(tempfile.mkdtemp(prefix="failover-bench-", dir=parent))
    here = House(directory)
    here.environment.update(environment or {})
    try:
        yield here
    except (AssertionError, ObserverError) as error:  # the house's own words for what didn't come to pass
        raise Broken(str(error)) from None
    finally:
        shims = [program for program in here.programs if isinstance(program, Shim)]
        for shim in shims:  # told to end they remove what their engines leave in /dev/shm; killed ones can't
            shim.signal(signal.SIGTERM)
        for shim in shims:
            select.select([shim.pidfd], [], [], _END_S)
        here.close()
        shutil.rmtree(directory, ignore_errors=True)


def _second_deaths(shim: Shim) -> float:
    """After how many of them it woke."""
    found = _SECOND_DEATHS.search(shim.get("/metrics")[1])
    return float(found[1]) if found else 0.0


@contextlib.contextmanager
def _watched(members: list[Process]) -> Iterator[tuple[select.poll, set[int]]]:
    poll, left = select.poll(), {member.pidfd for member in members}
    for fd in left:
        poll.register(fd, select.POLLIN)
    yield poll, left


def _latest(observer: Observer) -> m.Status:
    status = observer.hear(m.Status, 0.0)
    with contextlib.suppress(ServerSilent):
        while True:  # what came with it
            status = observer.hear(m.Status, 0.0)
    return status


def answer(url: str, body: bytes, deadline_s: float) -> tuple[int, list[int]]:
    """A client of the least: what it does itself is part of every time here."""
    with socket.socket(socket.AF_UNIX) as sock, address_of(Path(url.removeprefix("unix:"))) as address:
        sock.settimeout(deadline_s)
        sock.connect(address)
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        data, first = b"", 0
        while more := sock.recv(65536):
            data += more
            if not first and TOKEN_IDS.search(data):
                first = time.monotonic_ns()
    tokens = [int(token) for ids in TOKEN_IDS.findall(data) for token in ids.split(b",")]
    if len(tokens) != TOKENS:
        raise Broken(f"an engine answered {len(tokens)} tokens instead of {TOKENS}: {data[:500]!r}")
    return first, tokens

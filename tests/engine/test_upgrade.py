"""The rehearsal of docs/using/upgrade.md: a pair of the version before is brought to this one and back, part by part,
while clients ask on and on.

Two wheels, each in an environment of its own, and every process is one of theirs. `pytest -s` shows the table.
"""

import asyncio
import contextlib
import json
import random
import re
import shlex
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.engine.kinds import REFERENCE, there
from tests.engine.shims import House, Program, Shim
from tests.gateway.door import GatewayProgram, ask
from tests.gateway.steady_load import SteadyLoad, Step
from tests.gateway.under_load import PACE, all_of, check, pair, questions, shim, whole
from tests.support import wheels
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.waiting import until
from tools import release

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("upgrade"),
    pytest.mark.skipif(REFERENCE not in there(), reason="there is no reference engine"),
]
CLIENTS = 8
OTHER_MODEL = ("--seed", "1")
LONGER = ("--max-model-len", "4096")


def rows() -> list[str]:
    """Of the page's table: what was exchanged. (Not read at import: where mutants are tried there are no pages.)"""
    page = (ROOT / "docs" / "using" / "upgrade.md").read_text(encoding="utf-8")
    return [row.replace("`", "") for row in re.findall(r"^\| ([^|]+) \| [0-9]+ \| 0 \|", page, re.M)]


@dataclass(frozen=True)
class Versions:
    """Environments."""

    before: Path
    after: Path


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    """Both environments."""
    into = tmp_path_factory.mktemp("versions")
    (into / "dist").mkdir()
    older, of = wheels.before(into / "dist")
    print(f"\nthe version before, {wheels.OLDER}, is built of {of}")
    for name, wheel in (("before", older), ("after", release.wheel(into / "dist"))):
        environment = wheels.Environment(into / name)
        environment.install(wheel)
        environment.bring((*wheels.CORE, *wheels.REFERENCE, *wheels.DOOR))
    return Versions(into / "before", into / "after")


class Rehearsal:
    """A pair in its house, of which each part may be of either version."""

    def __init__(self, house: "TypedHouse") -> None:
        self.house = house
        self.arguments: tuple[str, ...] = ()
        self.shims = pair(house)
        whole(self.shims)
        self.door = GatewayProgram(house).serving()

    def told(self, program: Program) -> None:
        self.house.typed.append(f"kill {self.house.names[program.pid]}")
        program.signal(signal.SIGTERM)

    def ends(self, program: Program | None) -> None:
        assert program is not None
        self.told(program)
        assert program.code() == 0, program.said()[-2000:]

    def exchange_lock(self) -> None:
        self.ends(self.house.lock)
        self.house.start_lock(*REFERENCE.lock)

    def exchange_gms(self) -> None:
        before = self.house.weights()
        self.ends(self.house.gms)
        self.house.start_gms(REFERENCE)
        assert before is not None
        until(lambda: (now := self.house.weights()) is not None and now.generation == before.generation, "it has them")
        whole(self.shims)

    def exchange_door(self) -> None:
        """At the same port, once the old one has let go of it; that one finishes what it has."""
        old = self.door
        self.told(old)
        until(lambda: not listens(old.port), "the old door takes no more connections")
        self.door = GatewayProgram(self.house, port=old.port)
        assert old.code() == 0 and "cut=0" in old.said(), old.said()[-2000:]

    def exchange_standby(self) -> Shim:
        """The new standby, ready."""
        _, standby = whole(self.shims)
        self.ends(standby)
        new = self.shims[self.shims.index(standby)] = shim(self.house, standby.engine_id, *self.arguments)
        new.until("Standby", ready=True)
        return new

    def exchange_active(self, *how: str) -> None:
        """The standby takes over, so that this one is the standby. `how`: of the switchover."""
        active, standby = whole(self.shims)
        self.house.says("lockserver.cli.lockctl", "switchover", *how)
        standby.until("Active", ready=True)
        active.until("Standby", ready=True)
        self.exchange_standby()
        for each, state in zip(whole(self.shims), ("Active", "Standby"), strict=True):
            each.until(state, redundant=True, differences=[])

    def exchange_engines(self) -> None:
        self.exchange_standby()
        self.exchange_active()

    def configure(self, *arguments: str) -> None:
        """The engines differ until both are exchanged, and say so. Answers don't finish first: the other goes on."""
        self.arguments = arguments
        new = self.exchange_standby()
        active, _ = whole(self.shims)
        for each in (active, new):
            until(partial(says_what_differs, each), f"{each.engine_id} says what differs")
        self.exchange_active("--drain-timeout", "0")

    def exchange_all(self, *arguments: str) -> None:
        """What has something of the old model ends; the door first, because an answer that outlived its engine's drain
        would be gone on with by the new one.
        """
        port = self.door.port
        self.arguments = arguments
        self.close()
        self.house.start_lock(*REFERENCE.lock)
        self.house.start_gms(REFERENCE)
        self.shims = [shim(self.house, name, *self.arguments) for name in "ab"]
        self.door = GatewayProgram(self.house, port=port)
        whole(self.shims)

    def close(self) -> None:
        for program in (self.door, *whole(self.shims)[::-1], self.house.gms, self.house.lock):
            self.ends(program)


class TypedHouse(House):
    """Its programs are a wheel's commands, and what is typed is kept."""

    def __init__(self, directory: Path, version: Path) -> None:
        super().__init__(directory)
        self.where = directory
        self.version = version
        self.typed: list[str] = []
        self.names: dict[int, str] = {}
        self.environment.pop("PYTHONPATH", None)

    def line(self, command: tuple[str, ...]) -> list[str]:
        script = str(self.version / "bin" / command[0].rpartition(".")[2].replace("_", "-"))
        words = shlex.join([script, *command[1:]])
        self.typed.append(words.replace(f"{self.version.parent}/", "").replace(str(self.directory), "DIR"))
        return [script, *command[1:]]

    def add(self, program: Program) -> None:
        super().add(program)
        self.names[program.pid] = program.log.stem.upper()

    def says(self, module: str, *words: str) -> None:
        program = Program(self, module, module, "--run-dir", str(self.run_dir), *words)
        assert program.code() == 0, program.said()

    def only(self, version: Path) -> None:
        """Every process of the pair is of this version."""
        lines = [Path("/proc", str(pid), "cmdline").read_bytes() for pid in self.processes()]
        assert len(lines) > 5
        assert [line for line in lines if not line.startswith(bytes(version / "bin"))] == []


@pytest.fixture
def houses(house: House, versions: Versions) -> Iterator[Callable[[str], TypedHouse]]:
    """By its name; each with a run directory of its own."""
    with contextlib.ExitStack() as stack:

        def make(name: str) -> TypedHouse:
            directory = house.directory / name
            directory.mkdir()
            return stack.enter_context(contextlib.closing(TypedHouse(directory, versions.before)))

        yield make


def says_what_differs(engine: Shim) -> bool:
    state = engine.state()
    named = "--max-model-len: " in str(state.get("differences"))
    return named and not state["redundant"] and " alarm shim takes_other_requests " in engine.said()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionError:
        return False
    return True


def table(steps: list[Step]) -> str:
    lines = ["| what is exchanged | answers | failed | refused | 503 | longest pause |", "|---|---|---|---|---|---|"]
    for step in steps:
        counts = f"{step.answers} | {len(step.failed)} | {step.refused} | {step.told_503}"
        lines.append(f"| {step.what} | {counts} | {step.pause_s:.1f} s |")
    for step in steps:
        lines += ["", f"{step.what}:", *(f"    {each}" for each in step.typed)]
    return "\n".join(lines)


def one_step(load: SteadyLoad, house: "TypedHouse", what: str, deed: Callable[[], None], *, away: bool) -> Step:
    """`away`: nothing may listen for a while, or no engine be there."""
    with load.during(what) as seen:
        house.typed = seen.typed
        deed()
    assert seen.failed == [], (what, seen.failed)
    assert away or (seen.refused, seen.told_503) == (0, 0), seen
    return seen


@pytest.mark.slow
def test_a_pair_is_brought_to_this_version_and_back(houses: Callable[[str], TypedHouse], versions: Versions) -> None:
    house = houses("first")
    it = Rehearsal(house)
    asked = questions(22, random.Random(19), most_tokens=80)
    known = asyncio.run(all_of(it.door.port, asked))
    check(known, known)
    steps: list[Step] = []
    with SteadyLoad(it.door.port, asked, known, CLIENTS) as load:

        def step(what: str, deed: Callable[[], None], *, away: bool = False) -> None:
            steps.append(one_step(load, house, what, deed, away=away))

        step("nothing", lambda: None)
        house.only(versions.before)
        house.version = versions.after
        step("the lock server", it.exchange_lock)
        step("GMS", it.exchange_gms)
        step("the engines", it.exchange_engines)
        step("the door", it.exchange_door, away=True)
        house.only(versions.after)
        step("an argument of the engines", lambda: it.configure(*LONGER))
        house.version = versions.before
        step("back: the door", it.exchange_door, away=True)
        step("back: the argument and the engines", lambda: it.configure())
        step("back: GMS", it.exchange_gms)
        step("back: the lock server", it.exchange_lock)
        house.only(versions.before)
        load.models = 2
        house.version = versions.after
        step("all of it, and the model", lambda: it.exchange_all(*OTHER_MODEL), away=True)
        house.only(versions.after)

        def beside() -> None:
            """A second pair; what leads clients to a door leads them to the other; the first pair ends."""
            second.typed = house.typed
            other = Rehearsal(second)
            load.port = other.door.port
            it.close()

        second = houses("second")
        step("back: a second pair beside, of the old model", beside)
        second.only(versions.before)
    print(table(steps))
    assert [seen.what for seen in steps] == rows()[: len(steps)], "what the page says was measured"


def test_failover_up_is_exchanged_whole(houses: Callable[[str], TypedHouse], versions: Versions) -> None:
    house = houses("up")
    port = free_port()

    def failover(*words: str) -> Program:
        command, *rest = words
        program = Program(house, command, "engine_shim.cli.failover", command, "--run-dir", str(house.run_dir), *rest)
        house.add(program)
        return program

    def up() -> None:
        words = ("--listen", f"127.0.0.1:{port}", "--capacity", "64MiB", "--", *PACE)
        running.append(failover("up", *words))
        until(lambda: redundant(port), "one engine serves, the other is ready")

    def exchange(version: Path) -> None:
        down()
        house.version = version
        up()

    def down() -> None:
        assert failover("down").code() == 0 and running[-1].code() == 0

    running: list[Program] = []
    up()
    asked = questions(22, random.Random(19), most_tokens=80)
    known = asyncio.run(all_of(port, asked))
    check(known, known)
    with SteadyLoad(port, asked, known, CLIENTS) as load:
        forward = one_step(load, house, "all of failover up", lambda: exchange(versions.after), away=True)
        so_far = len(running[-1].said())
        back = one_step(load, house, "back: all of failover up", lambda: exchange(versions.before), away=True)
    print(table([forward, back]))
    assert [forward.what, back.what] == rows()[-2:], "what the page says was measured"
    down()
    assert " alarm " not in running[-1].said()[so_far:], "no server waits for what has ended in order"


def redundant(port: int) -> bool:
    """What its door says."""
    try:
        return bool(json.loads(ask(port, "/failover")[2])["pairs"][0]["redundant"])
    except OSError:
        return False

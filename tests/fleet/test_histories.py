"""Many real programs contend for a host, on a real database, while holders and waiters are killed and stopped for
longer than a term, connections are cut between question and answer, and the database stands still or is killed. A
checker goes through what they say.

CONTENDERS and CONTEND_S choose how many, and for how long.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.shell.store import open_store
from tests.fleet.postgres import Postgres, free_port, pooler, postgres
from tests.support.processes import ROOT, environment_with
from tests.support.root import needs_root

COUNT, SECONDS, TTL_S = int(os.environ.get("CONTENDERS", "40")), float(os.environ.get("CONTEND_S", "15")), 6.0
pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("crowd")]


class Cutter:
    """A relay in front of the database that cuts a connection now and then behind a question: its answer is lost."""

    def __init__(self, port: int, dice: random.Random) -> None:
        self._to, self._dice = port, dice
        self._server = socket.create_server(("127.0.0.1", 0), backlog=400)
        self.port: int = self._server.getsockname()[1]
        self.cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._to), 10)
        except OSError:
            client.close()
            return
        back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
        back.start()
        self._pump(client, server, cuts=True)
        for each in (client, server):
            each.close()

    def _pump(self, source: socket.socket, sink: socket.socket, *, cuts: bool = False) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
                if cuts and self._dice.random() < 0.01:
                    self.cut += 1
                    for each in (source, sink):
                        each.shutdown(socket.SHUT_RDWR)
                    return
        except OSError:
            pass
        finally:
            for each in (source, sink):
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def close(self) -> None:
        self._server.close()


def tell(program: subprocess.Popen[bytes], what: signal.Signals) -> None:
    """With what it runs: `unshare` passes no signal on."""
    if program.poll() is None:
        os.killpg(program.pid, what)


class Crowd:
    def __init__(self, database: str, host: str, seed: int, wrap: Callable[[int], tuple[list[str], float]]) -> None:
        self.database, self.host, self.dice, self._wrap = database, host, random.Random(seed), wrap
        self.lines: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self._number = 0
        self.end = time.monotonic() + SECONDS
        for _ in range(COUNT):
            self.start()

    def start(self) -> None:
        self._number += 1
        before, offset_s = self._wrap(self._number)
        words = [self.database, self.host, str(self._number), f"{TTL_S:g}"]
        program = subprocess.Popen(
            [*before, sys.executable, "-m", "tests.fleet.contender", *words], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, cwd=ROOT, env=environment_with({"CLOCK_OFFSET_S": f"{offset_s:g}"}),
            start_new_session=True,
        )  # fmt: skip
        self.running[self._number] = program
        self._readers.append(threading.Thread(target=self._read, args=(program,), daemon=True))
        self._readers[-1].start()

    def _read(self, program: subprocess.Popen[bytes]) -> None:
        assert program.stdout is not None
        for line in program.stdout:
            with self._lock:
                self.lines.append(json.loads(line))

    def disturb(self, more: Callable[[], None] = lambda: None) -> None:
        """Until the time is over and there was something to check: kills, and stops for longer than a term."""
        stopped: list[tuple[float, subprocess.Popen[bytes]]] = []
        while (now := time.monotonic()) < self.end or (self._grants() <= COUNT / 4 and now < self.end + 5 * SECONDS):
            signal.sigtimedwait([], self.dice.uniform(0.1, 0.5))
            number = self.dice.choice(list(self.running))
            program, deed = self.running[number], self.dice.random()
            if deed < 0.3:
                tell(program, signal.SIGKILL)
                program.wait()
                self.say(number, "killed")
                del self.running[number]
                self.start()
            elif deed < 0.6:
                tell(program, signal.SIGSTOP)
                stopped.append((time.monotonic() + self.dice.choice((0.5, TTL_S + 1)), program))
            elif deed < 0.65:
                more()
            for each in [each for each in stopped if each[0] <= time.monotonic()]:
                tell(each[1], signal.SIGCONT)
                stopped.remove(each)
        for _, program in stopped:
            tell(program, signal.SIGCONT)
        for program in self.running.values():
            tell(program, signal.SIGTERM)

    def _grants(self) -> int:
        with self._lock:
            return sum(line.get("token") is not None for line in self.lines)

    def say(self, number: int, what: str) -> None:
        with self._lock:
            self.lines.append({"who": str(number), "what": what, "at": time.clock_gettime(time.CLOCK_BOOTTIME)})

    def wait(self) -> list[dict[str, Any]]:
        for program in self.running.values():
            program.wait(300)
        for reader in self._readers:
            reader.join(60)
        return sorted(self.lines, key=lambda line: float(line["at"]))

    def close(self) -> None:
        for program in self.running.values():
            tell(program, signal.SIGKILL)
            program.wait()


def check(lines: list[dict[str, Any]]) -> tuple[int, int]:
    """No two rely on the host that exclude each other; tokens grow; each wish has an end. Returns grants and losses."""
    relied: dict[str, tuple[float, bool]] = {}
    tokens: list[int] = []
    exclusive_tokens: list[int] = []
    lost = 0
    for line in lines:
        who, at = line["who"], line["at"]
        if line["what"] == "relies":
            exclusive = line["mode"] == "exclusive"
            if line["until"] > at:
                others = {other: end for other, (end, alone) in relied.items()
                          if other != who and end > at and (alone or exclusive)}  # fmt: skip
                assert not others, f"{line} beside {others}"
            relied[who] = line["until"], exclusive
            if line["token"] is not None:
                tokens.append(line["token"])
                exclusive_tokens += [line["token"]] * exclusive
        elif line["what"] in ("ends", "killed", "done"):
            relied.pop(who, None)
            lost += line.get("why") == "lost"
    assert len(set(tokens)) == len(tokens), "a token was given twice"
    assert exclusive_tokens == sorted(exclusive_tokens), "tokens grow"
    return len(tokens), lost


def bounded(lines: list[dict[str, Any]]) -> None:
    """Each that wasn't killed or stopped has an answer to its wish within its bound, and the time of a stop."""
    wished: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["what"] == "wishes":
            wished[line["who"]] = line
        elif line["who"] in wished:
            wish = wished.pop(line["who"])
            waited_s = line["at"] - wish["at"]
            most_s = wish["wait_s"] + 10 + 2 * (TTL_S + 1) + 60  # on a machine that is busy with so many programs
            assert waited_s < most_s or line["what"] == "killed", (wish, line)


def contend(database: str, host: str, seed: int, deed: Callable[[], None] = lambda: None, *,
            wrap: Callable[[int], tuple[list[str], float]] = lambda number: ([], 0.0)) -> None:  # fmt: skip
    crowd = Crowd(database, host, seed, wrap)
    try:
        crowd.disturb(deed)
        lines = crowd.wait()
    finally:
        crowd.close()
    grants, lost = check(lines)
    bounded(lines)
    print(f"{COUNT} contenders, {SECONDS:g} s, seed {seed}: {grants} grants, {lost} leases lost, {len(lines)} lines")
    ends = Counter(line["why"] + ": " + line["because"] for line in lines if line["what"] == "ends")
    assert grants > COUNT / 4, ends.most_common(20)


@pytest.fixture
def seed() -> int:
    found = int(os.environ.get("FAILOVER_CHAOS_SEED", "0")) or random.randrange(1 << 30)
    print(f"FAILOVER_CHAOS_SEED={found}")
    return found


def test_a_crowd_contends_on_sqlite(tmp_path: Path, seed: int) -> None:
    url = f"sqlite://{tmp_path}/fleet.db"
    open_store(url).init(["h"])
    contend(url, "h", seed)


@pytest.fixture
def server(request: pytest.FixtureRequest, place: Path) -> Iterator[Postgres]:
    with postgres(request.param, place / f"contended-{request.param}-{free_port()}") as server:
        yield server


BY = [("packaged", "itself"), ("system", "itself"), ("packaged", "a pooler")]


@pytest.mark.parametrize(("server", "by"), BY, indirect=["server"])
def test_a_crowd_contends_on_postgresql(server: Postgres, by: str, place: Path, seed: int) -> None:
    """Its answers are lost now and then, it stands still for longer than a term once, and it is killed once."""
    open_store(server.url()).init(["h"])
    dice = random.Random(seed)
    deeds = [server.kill, server.stop]

    def deed() -> None:
        if not deeds:
            return
        if deeds.pop() == server.stop:
            server.stop()
            signal.sigtimedwait([], TTL_S + 1)
            server.go_on()
        else:
            server.kill()
            server.start()

    if by == "itself":
        cutter = Cutter(server.port, dice)
        contend(server.url(port=cutter.port), "h", seed, deed)
        assert cutter.cut
        cutter.close()
    else:
        with pooler(server, place / f"pooler-{free_port()}") as port:
            cutter = Cutter(port, dice)
            contend(server.url(port=cutter.port), "h", seed, deed)
            cutter.close()


@needs_root
@pytest.mark.root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare isn't installed")
def test_clients_whose_clocks_are_an_hour_and_a_day_off(packaged: Postgres, seed: int) -> None:
    """Their monotonic clocks, by time namespaces; and the time of day, where faketime is installed."""
    open_store(packaged.url()).init(["clocks"])
    faketime = shutil.which("faketime")

    def wrap(number: int) -> tuple[list[str], float]:
        offset = (0, 3600, 86400, 7200)[number % 4]
        day = ["faketime", "-f", ("+0", "+1h", "-1d", "+1d")[number // 4 % 4]] if faketime and number % 3 == 0 else []
        space = ["unshare", "--time", f"--monotonic={offset}", f"--boottime={offset}"] if offset else []
        return [*space, *day], float(offset)

    contend(packaged.url(), "clocks", seed, wrap=wrap)

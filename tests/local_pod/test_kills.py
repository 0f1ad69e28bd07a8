"""A hundred deaths, drawn by chance, of everything that the pair's pod has, while two clients ask all the time.

    LOCAL_POD_LONG=1 python -m pytest -s tests/local_pod/test_kills.py
    LOCAL_POD_LONG=1 LOCAL_POD_KILLS=20 LOCAL_POD_SEED=... python -m pytest -s tests/local_pod/test_kills.py

Kubelet's own looks and no back-off, so that each death counts as a first one. A quarter of them come within two
seconds of the one before, on whatever is just then starting again or taking over; the rest when the pair is whole.
What it showed last is in docs/inside/measurements.md.
"""

import http.client
import itertools
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.local_pod.client import Clients, asking, page
from tests.local_pod.ordinary import PATIENCE_S, Place, running
from tests.local_pod.pair import MAIN, POD, SERVER, WORKER, other
from tests.support.chance import seeded
from tools.local_pod import places, wire

KILLS = int(os.environ.get("LOCAL_POD_KILLS", "100"))
PATIENCE_ALL_S = 60 * KILLS
pytestmark = [
    pytest.mark.skipif(not os.environ.get("LOCAL_POD_LONG"), reason="takes half an hour: LOCAL_POD_LONG=1 runs it"),
    pytest.mark.timeout(PATIENCE_ALL_S),
]
TWO_AT_ONCE, WITHIN_S = 0.25, 2.0
LOCK_METRICS, ENGINES = 9400, {"a": 9000, "b": 9001}
HELD, ACTIVE = 'failover_lock_state{state="HELD"}', 'failover_engine_state{state="Active"}'
RUNS_AWAY = ("no process in", "doesn't run")
"""What is said of an engine that is on its way back from an earlier death."""


@dataclass(frozen=True)
class Victim:
    name: str
    container: str
    """{awake} and {other}: the engine that serves, and the one that doesn't."""
    inside: str = ""
    """Its command line has this in it; nothing: the container's first process."""
    takes_over: bool = False
    is_the_door: bool = False


VICTIMS = (
    Victim("main process, serves", "engine-{awake}", MAIN, takes_over=True),
    Victim("worker, serves", "engine-{awake}", WORKER, takes_over=True),
    Victim("main process, standby", "engine-{other}", MAIN),
    Victim("lock server", "lockserver", SERVER),
    Victim("GMS", "gms", SERVER),
    Victim("a device's process of GMS", "gms", "gms.shell.device_process"),
    Victim("gateway", "gateway", SERVER, is_the_door=True),
    Victim("PID 1, engine that serves", "engine-{awake}", takes_over=True),
    Victim("PID 1, standby", "engine-{other}"),
    Victim("PID 1, lock server", "lockserver"),
    Victim("PID 1, GMS", "gms"),
    Victim("PID 1, gateway", "gateway", is_the_door=True),
)


@dataclass
class Blow:
    """One death, or two of which the second came before the pair was whole."""

    victims: list[Victim]
    at: float
    until: float = 0.0
    not_ready_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    gap_s: float = 0.0
    """The longest that a client got nothing."""

    @property
    def name(self) -> str:
        names = [victim.name for victim in self.victims]
        return names[0] if len(names) == 1 else ("two at once" if names else "none yet")


def test_a_hundred_deaths_and_every_byte_is_right(here: Place) -> None:
    rng = seeded("LOCAL_POD_SEED")
    with running(here, POD[0], "--back-off-s", "0"):
        _whole(here)
        blows = [Blow([], time.monotonic())]
        with asking(here, 1) as one, asking(here, 1) as two:
            for clients in (one, two):
                clients.answered_since(3)
            blows[0].until = time.monotonic()
            blows += _blows(here, rng, (one, two))
        flips = [each for each in here.events() if each["event"] in ("ready", "not_ready")][1:]
    offset = time.time() - time.monotonic()
    for off, on in zip(flips[::2], flips[1::2], strict=True):
        assert (off["event"], on["event"]) == ("not_ready", "ready")
        _of(blows, off["time"] - offset).not_ready_s.append(on["time"] - off["time"])
    for clients in (one, two):
        assert [each.text for each in clients.answers if not one.expected.startswith(each.text)] == []
        assert [each for each in clients.answers if not each.error and each.text != one.expected] == []
        for answer in clients.answers:
            if answer.error:
                _of(blows, answer.ended).errors.append(answer.error)
        for blow in blows:
            blow.gap_s = max([blow.gap_s, *_gaps(clients, blow.at, blow.until)])
    whole_ones = sum(not each.error for clients in (one, two) for each in clients.answers)
    _print(blows, whole_ones)
    for blow in blows:
        assert blow.victims or not (blow.errors or blow.not_ready_s), blow
        if len(blow.victims) == 1:
            (victim,) = blow.victims
            assert not blow.errors or victim.is_the_door, blow
            assert len(blow.not_ready_s) == (not victim.inside) or (victim.is_the_door and victim.inside), blow


def _blows(here: Place, rng: Random, clients: tuple[Clients, ...]) -> Iterator[Blow]:
    """Every kind in turns, each turn in an order of its own."""
    awake, token = _whole(here)
    drawn = itertools.chain.from_iterable(rng.sample(VICTIMS, len(VICTIMS)) for _ in itertools.count())
    left = KILLS
    while left:
        victims = [next(drawn) for _ in range(min(left, 2 if rng.random() < TWO_AT_ONCE else 1))]
        left -= len(victims)
        time.sleep(rng.uniform(0, 1))  # anywhere in an answer
        blow = Blow([], 0.0)
        for victim in victims:
            at = _kill(here, victim, awake)
            blow.at = blow.at or at
            blow.victims.append(victim)
            if len(blow.victims) < len(victims):
                time.sleep(rng.uniform(0, WITHIN_S))
        wire.ask(here.pod / places.CONTROL, {"do": "wait", "for": "ready", "timeout_s": PATIENCE_S})
        alone = victims[0] if len(victims) == 1 else None
        awake, token = _whole(here, since=token if alone and alone.takes_over else 0)
        for each in clients:
            each.answered_since(2)
        blow.until = time.monotonic()
        print(f"{KILLS - left} of {KILLS}: {', '.join(each.name for each in blow.victims)}", flush=True)
        yield blow


def _kill(here: Place, victim: Victim, awake: str) -> float:
    """When. A container whose first process it was has been started again."""
    container = victim.container.format(awake=awake, other=other(awake))
    request = {"do": "signal", "container": container, "inside": victim.inside, "signal": "SIGKILL"}
    deadline = time.monotonic() + PATIENCE_S
    starts = len(here.events("started", container=container))
    while True:
        try:
            answer, _ = wire.ask(here.pod / places.CONTROL, request)
            break
        except wire.Refused as error:
            assert any(why in str(error) for why in RUNS_AWAY) and time.monotonic() < deadline, error
            time.sleep(0.05)
    if not victim.inside:
        here.until_event("started", starts + 1, container=container)
    return float(answer["at"])


def _whole(here: Place, since: float = 0) -> tuple[str, float]:
    """Waits until one engine serves, by a later grant than that token, and the other could: (who serves, its token).

    As their metrics say, because a look through `lockctl` is a start of Python in a container.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            lock = _samples(here, LOCK_METRICS)
            awake = [each for each, port in ENGINES.items() if _samples(here, port)[ACTIVE]]
        except (OSError, http.client.HTTPException, wire.Refused, KeyError) as error:
            lock, awake = {repr(error): 0.0}, []
        whole = lock.get(HELD) and lock["failover_lock_waiters_ready"] and lock["failover_lock_token"] > since
        if whole and len(awake) == 1:
            return awake[0], lock["failover_lock_token"]
        assert time.monotonic() < deadline, (lock, awake)
        time.sleep(0.1)


def _samples(here: Place, port: int) -> dict[str, float]:
    """Of a page of metrics: what stands on each line."""
    lines = (line.rpartition(" ") for line in page(here, port).splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def _of(blows: list[Blow], at: float) -> Blow:
    """The last before that moment."""
    return max((each for each in blows if each.at <= at), key=lambda each: each.at)


def _gaps(clients: Clients, begin: float, end: float) -> list[float]:
    """What one client waited, from piece to piece and from answer to answer, where the wait touches this time."""
    moments = sorted(itertools.chain.from_iterable(answer.pieces for answer in clients.answers))
    return [later - earlier for earlier, later in itertools.pairwise(moments) if later > begin and earlier < end]


def _print(blows: list[Blow], answers: int) -> None:
    kills = Counter(each.name for each in blows)
    deaths = sum(len(each.victims) for each in blows)
    print(f"\n{deaths} deaths, {answers} answers whole")
    print("| what died | times | NotReady: times, longest | a client's longest wait: median, most | errors |")
    print("|---|---|---|---|---|")
    for name in sorted(kills):
        own = [each for each in blows if each.name == name]
        gone = [s for each in own for s in each.not_ready_s]
        waits = [each.gap_s for each in own]
        print(
            f"| {name} | {len(own)} | {len(gone)}, {max(gone, default=0):.1f} s "
            f"| {statistics.median(waits):.2f} s, {max(waits):.2f} s | {sum(len(each.errors) for each in own)} |"
        )
    for text, count in Counter(error for each in blows for error in each.errors).most_common():
        print(f"  {count} times: {text}")

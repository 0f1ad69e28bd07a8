"""Many rounds of whatever can happen to a pair, drawn from a seed: an engine is killed, stopped or told to end, and now
and then another a moment later. After each round exactly one serves, the other is ready, and the same prompt has
the same answer byte for byte. Two KV caches don't fit on the device: two engines awake at once would show.

    FAILOVER_CHAOS_SEED=... FAILOVER_CHAOS_ROUNDS=200 pytest tests/engine/test_chaos.py -s
"""

import contextlib
import os
import random
import select
import signal

import pytest

from tests.engine.kinds import REFERENCE, there
from tests.engine.shims import House, Program, Shim
from tests.support.chance import seeded
from tests.support.processes import Process
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(REFERENCE not in there(), reason="there is no reference engine")]
ROUNDS = int(os.environ.get("FAILOVER_CHAOS_ROUNDS", "8"))
STALL = ("--stall-s", "4")
VICTIMS = ("shim", "main", "worker", "group", "stopped main", "told to end", "lock", "gms", "switchover")
MOST_PAUSE_S = 0.4


class Pair:
    def __init__(self, house: House) -> None:
        self.house = house
        house.pair(REFERENCE, *STALL)
        self.shims = {shim.engine_id: shim for shim in house.programs if isinstance(shim, Shim)}
        self.ended: dict[str, str] = {}
        """Engine -> the tree that was killed in this round: another has to follow."""
        self.history: list[str] = []
        self.token = 0

    def happens(self, what: str, engine_id: str) -> None:
        """To the servers, or to this engine."""
        self.history.append(f"{what} {engine_id}")
        if what in ("lock", "gms"):
            self.house.restart(what, REFERENCE)
        elif what == "switchover":  # refused, if there is no engine to switch to at this moment
            place = ("--run-dir", str(self.house.run_dir))
            asked = Program(self.house, "switchover", "lockserver.cli.lockctl", *place, "switchover")
            self.house.add(asked)
            asked.wait()
        else:
            self._ends(what, self.shims[engine_id])

    def _ends(self, what: str, shim: Shim) -> None:
        name = shim.state()["incarnation"]
        if what in ("shim", "told to end"):
            everything = shim.tree()
            shim.signal(signal.SIGKILL if what == "shim" else signal.SIGTERM)
            shim.code()
            for process in everything:
                process.wait()
            self.shims[shim.engine_id] = self.house.shim(REFERENCE, shim.engine_id, *STALL)
        elif not self._signal(what, shim):
            return
        self.ended[shim.engine_id] = name

    def _signal(self, what: str, shim: Shim) -> bool:
        """False: it is being started anew at this moment, and there is none; or none whose stop would be noticed,
        because a start has two hours.
        """
        with contextlib.suppress(AssertionError, ProcessLookupError):
            victims: list[Process] = shim.workers() if what == "worker" else [shim.main()]
            if not victims or (what == "stopped main" and shim.state()["state"] == "Init"):
                return False
            if what == "group":
                os.killpg(victims[0].pid, signal.SIGKILL)
            else:
                victims[0].signal(signal.SIGSTOP if what == "stopped main" else signal.SIGKILL)
            return True
        return False

    def whole(self) -> tuple[Shim, Shim]:
        """Who serves, and who is ready to."""
        try:
            return until(self._settled, "one serves and the other is ready") or self._never()
        except AssertionError as error:
            states = {shim.engine_id: shim.state() for shim in self.shims.values()}
            said = "".join(f"\n--- {program.log.name}\n{program.said()[-3000:]}" for program in self.house.programs[:4])
            raise AssertionError(f"{error}\nafter {self.history[-6:]}\n{states}\n{self.house.status()}{said}") from None

    def _never(self) -> tuple[Shim, Shim]:
        raise AssertionError("the pair never settled")

    def _settled(self) -> tuple[Shim, Shim] | None:
        states = {engine_id: shim.state() for engine_id, shim in self.shims.items()}
        if any(states[engine_id]["incarnation"] == name for engine_id, name in self.ended.items()):
            return None
        found = {state["state"]: engine_id for engine_id, state in states.items() if state["ready"]}
        if set(found) != {"Active", "Standby"} or self.house.endpoint() != states[found["Active"]]["url"]:
            return None
        return self.shims[found["Active"]], self.shims[found["Standby"]]


def moment(dice: random.Random) -> None:
    """Lets a little of what follows happen."""
    select.select([], [], [], dice.random() * MOST_PAUSE_S)


@pytest.mark.timeout(max(300, ROUNDS * 20))
def test_whatever_happens_one_serves_the_other_is_ready_and_answers_stay_the_same(house: House) -> None:
    dice = seeded()
    pair = Pair(house)
    active, standby = pair.whole()
    for _ in range(ROUNDS):
        pair.ended.clear()
        what, whom = dice.choice(VICTIMS), dice.choice((active, standby))
        pair.happens(what, whom.engine_id)
        if dice.random() < 0.4:
            moment(dice)
            pair.happens(dice.choice(VICTIMS), dice.choice((active, standby)).engine_id)
        active, standby = pair.whole()
        house.answers_as_ever(REFERENCE)
        assert house.endpoints(standby.engine_id) == [], pair.history
        status = house.status()
        assert status is not None and status.holder is not None and status.holder.token >= pair.token
        pair.token = status.holder.token
    for shim in pair.shims.values():
        assert "Traceback" not in shim.said() and "OutOfMemory" not in shim.said(), shim.said()[-6000:]

"""An engine that sleeps in place, by the lock: its process lives on, and after each wake it has a newer token and the
same answers. Whatever is killed at whichever step, the lock is at rest where it was to be, and the next wake is served.
"""

import dataclasses
import threading
from itertools import product

import pytest

from tests.engine.kinds import REFERENCE, there
from tests.engine.shims import House, Program, Shim
from tests.engine.sleeper import STEPS
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(REFERENCE not in there(), reason="the reference engine needs numpy")
KILLS = [*product((*STEPS, "at rest"), ("main", "lock server")), ("give back", "worker")]


class Nights:
    """A pair, or one engine, that is put to sleep and waked."""

    def __init__(self, house: House, *engine_ids: str, more: tuple[str, ...] = ()) -> None:
        self.house = house
        self.faults = house.directory / "faults"
        self.faults.mkdir()
        arguments = (str(self.faults), *REFERENCE.arguments, *more)
        self.kind = dataclasses.replace(REFERENCE, engine="tests.engine.sleeper:make", arguments=arguments)
        house.start_lock(*self.kind.lock)
        house.start_gms(self.kind)
        self.shims = {engine_id: house.shim(self.kind, engine_id) for engine_id in engine_ids}
        house.until_announced(self.shims["a"])
        house.answers_as_ever(self.kind)
        self.all_there()
        self.token = self.awake().state()["token"]

    def all_there(self) -> None:
        """One serves, unless the lock is at rest; the others are ready to."""
        serves = set() if self.rests else {"Active"}
        wanted = {"Standby"} | serves if len(self.shims) > len(serves) else serves
        until(lambda: {shim.state()["state"] for shim in self.shims.values()} == wanted, f"they are {wanted}")

    @property
    def rests(self) -> bool:
        status = self.house.status()
        return status is not None and status.resting

    def awake(self) -> Shim:
        return self.shims[until(self.house.holder, "an engine holds the lock")]

    def sleep(self) -> None:
        code, said = self.house.lockctl("sleep")
        assert (code, self.rests) == (0, True), said
        self.all_there()
        assert not any(self.house.endpoints(engine_id) for engine_id in self.shims), "no client finds it"

    def wake(self) -> Shim:
        code, said = self.house.lockctl("wake")
        assert code == 0, said
        return self.served_anew()

    def served_anew(self) -> Shim:
        """By an engine with a newer token, and the same answers."""
        until(self.house.endpoint, "an endpoint is announced")
        status = self.house.status()
        assert status is not None and status.holder is not None and status.holder.token > self.token
        self.token = status.holder.token
        self.house.answers_as_ever(self.kind)
        self.all_there()
        return self.awake()

    def kill(self, step: str, victim: str) -> None:
        """In the middle of a sleep, or after it."""
        holder = self.awake()
        main, worker = holder.main(), holder.workers()[0]
        asked: Program | None = None
        if step == "at rest":
            self.sleep()
        else:
            (self.faults / step).touch()
            words = ("lockserver.cli.lockctl", "--run-dir", str(self.house.run_dir), "sleep")
            asked = Program(self.house, "sleep", *words)
            self.house.add(asked)
            reached = "draining" if step == "drain" else "giving back"
            until(lambda: (status := self.house.status()) and status.plan and status.plan.step == reached, reached)
            if step == "drain":
                holder.until("Draining")
            if step == "asleep":
                holder.until("Sleeping")
                until(lambda: not self.house.endpoints(holder.engine_id), "it is asleep")
        if victim == "lock server":
            self.house.restart("lock", self.kind)
        else:
            (main if victim == "main" else worker).kill()
        for name in STEPS:
            (self.faults / name).unlink(missing_ok=True)
        if asked is not None:
            asked.wait()

    def sees_what_follows(self, step: str, victim: str) -> None:
        if step == "drain" and victim == "lock server":
            self.all_there()  # the new server announces the holder by its file, before it knows that the drain is off
            until(self.house.endpoint, "the holder serves on")
            self.house.answers_as_ever(self.kind)
            assert self.awake().state()["token"] == self.token
        elif step == "drain":
            self.served_anew()
        else:
            until(lambda: self.rests, "the lock is at rest")
            self.all_there()
            self.wake()


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_whatever_is_killed_at_whichever_step_of_a_sleep_the_next_wake_is_served_with_the_same_answers(
    house: House,
) -> None:
    nights = Nights(house, "a", "b")
    for step, victim in KILLS:
        print(f"{victim} is killed at the step {step!r}", flush=True)
        nights.kill(step, victim)
        nights.sees_what_follows(step, victim)


def test_it_sleeps_and_wakes_without_dying_and_into_rubbish_it_ends_before_any_client_is_admitted(house: House) -> None:
    nights = Nights(house, "a")
    shim = nights.shims["a"]
    tree = {process.pid for process in shim.tree()}
    for _ in range(3):
        nights.sleep()
        shim.until("Standby", ready=True, live=True)
        nights.wake()
    assert {process.pid for process in shim.tree()} == tree and shim.state()["deaths"] == 0
    nights.sleep()
    (nights.faults / "wrong").touch()
    nights.house.lockctl("wake")
    until(lambda: "WokeWrong" in shim.state()["last_end"], "it ends, and says why")
    (nights.faults / "wrong").unlink()
    nights.served_anew()


def test_what_still_streams_when_the_drain_is_over_is_broken_off_and_the_lock_is_at_rest(house: House) -> None:
    nights = Nights(house, "a", more=("--tokens-per-s", "50"))
    slow = {**(nights.kind.prompt or {}), "max_tokens": 900}
    broken: list[BaseException] = []

    def ask() -> None:
        try:
            house.ask(nights.kind.asked, slow)
        except (AssertionError, OSError, ValueError, IndexError) as error:
            broken.append(error)

    client = threading.Thread(target=ask)
    (nights.faults / "drain").touch()  # its own bound doesn't end it: the lock's does
    client.start()
    code, said = nights.house.lockctl("sleep", "--drain-timeout", "0.1")
    assert code == 4 and "draining took too long" in said
    (nights.faults / "drain").unlink()
    nights.all_there()
    code, said = nights.house.lockctl("sleep", "--drain-timeout", "0")
    assert code == 0 and nights.rests, said
    client.join()
    assert broken
    nights.wake()

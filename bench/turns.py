"""Models take turns on a device: how long from the wish for the other model to its first token?

Two reference engines, each with its weights in GMS, and room for one KV cache: one is awake, the other asleep in place.
A round is a turn: `Wake` to the one and `Sleep` to the other lock, said at once; the one that is to wake has its lock
at once and waits in the ledger for the bytes of the other. It counts until the first token is in the client's hands,
who watches the lock, and only if the whole answer is the same as ever.

The floor, in the same round: one sleep and one wake as they are alone, with nothing to wait for. The wake alone is the
way from `lockctl wake` to the first token.

What this file may not do: choose which model is next.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import kv
from bench.figures import Comparison, Part, Result
from bench.pair import answer, house, question
from bench.stage import Broken
from lockserver.observer import Observer, Sleep, Step, Wake
from lockserver.rules import messages as m
from tests.engine.kinds import Kind
from tests.engine.many import Host, Model

WARM_UP = 2
GOAL_MS = 100.0
GOAL = 2.0
DEADLINE_S = 60.0
BODY = question("reference", "whose turn is it", 8)


class Turn:
    """One of the two models, and connections to its lock."""

    def __init__(
        self,
        host: Host,
        name: str,
        stack: contextlib.ExitStack,
        kind: Kind | None = None,
        body: bytes = BODY,
        deadline_s: float = DEADLINE_S,
        more: tuple[str, ...] = (),
    ) -> None:
        self.body, self.deadline_s = body, deadline_s
        self.model = Model(host, name, kind)
        self.shim = self.model.engine(*more)
        self.shim.until("Standby", ready=True)
        self.wishes = stack.enter_context(Observer(self.model.run_dir, self.deadline_s))
        self.watch = stack.enter_context(Observer(self.model.run_dir, self.deadline_s))
        self.watch.ask(m.Watch(), m.Status)
        self.answer: list[int] = []

    def first_token(self) -> int:
        """When it is there, after a wish: the next announced endpoint is asked."""
        status = self.watch.hear(m.Status, self.deadline_s)
        while status.state != "HELD" or status.holder is None or not status.holder.endpoint:
            status = self.watch.hear(m.Status, self.deadline_s)
        first, tokens = answer(status.holder.endpoint, self.body, self.deadline_s)
        if self.answer and tokens != self.answer:
            raise Broken(f"{self.model.name} answers {tokens} after a turn, and {self.answer} before")
        self.answer = tokens
        return first

    def done(self, phase: str) -> None:
        while not (step := self.wishes.hear(Step, self.deadline_s)).done:
            continue
        if step.phase != phase:
            raise Broken(f"{self.model.name}: {step.phase}: {step.detail}")

    def swapped(self, other: "Turn") -> int:
        """From the wish that this one wakes and the other sleeps: how long until its first token."""
        began = time.monotonic_ns()
        self.wishes.tell(Wake())
        other.wishes.tell(Sleep(drain_timeout_s=0))
        took = self.first_token() - began
        self.done("waked")
        other.done("asleep")
        other.rests()
        return took

    def rests(self) -> None:
        while self.watch.hear(m.Status, self.deadline_s).state != "FREE":
            continue

    def sleeps(self) -> int:
        """Alone: how long until the lock is at rest."""
        began = time.monotonic_ns()
        self.wishes.tell(Sleep(drain_timeout_s=0))
        self.done("asleep")
        spent = time.monotonic_ns() - began
        self.rests()
        return spent

    def wakes(self) -> int:
        """Alone: how long until its first token."""
        began = time.monotonic_ns()
        self.wishes.tell(Wake())
        first = self.first_token()
        self.done("waked")
        return first - began

    def restarts(self) -> int:
        """It is awake. How long from the word that it is to end until the first token of the one after it."""
        began = time.monotonic_ns()
        self.shim.signal(signal.SIGTERM)
        self.shim.code()
        self.rests()
        self.shim = self.model.engine()
        return self.first_token() - began


def measure(parent: Path, rounds: int) -> Iterator[Result]:
    with house(parent) as here, contextlib.ExitStack() as stack:
        os.environ["FAILOVER_HOST_DEVICES"] = str(here.devices)
        host = Host(here)
        awake, asleep = (Turn(host, name, stack) for name in ("chat", "coder"))
        for turn in (asleep, awake):
            turn.wakes()
            if turn is asleep:
                turn.sleeps()
        turns, sleeps, wakes = [], [], []
        for number in range(WARM_UP + rounds):
            slept, woke = awake.sleeps(), awake.wakes()
            took = asleep.swapped(awake)
            awake, asleep = asleep, awake
            if number >= WARM_UP:
                turns.append(took)
                sleeps.append(slept)
                wakes.append(woke)
    floor = [slept + woke for slept, woke in zip(sleeps, wakes, strict=True)]
    what, against = "a wish for the other model -> its first token", "one sleep, and one wake, alone"
    yield Comparison(what, against, goal_median=GOAL, goal_ms=GOAL_MS, ours=turns, floor=floor)
    yield Part("of the floor: the sleep", sleeps, floor)
    yield Part("of the floor: lockctl wake -> first token", wakes, floor)


def measure_kv(parent: Path, contexts: Sequence[int], rounds: int) -> Iterator[Result]:
    """The same turns with so many tokens of context, which were read before: parked, and dropped and read again."""
    rng = random.Random(0)
    for context in contexts:
        with house(parent) as here, contextlib.ExitStack() as stack:
            os.environ["FAILOVER_HOST_DEVICES"] = str(here.devices)
            host, kind = Host(here), kv.engine(context, context)
            body = question(kv.MODEL, kv.prompt_of(rng, context), 8)
            pairs = {
                how: [Turn(host, f"{how}-{n}", stack, kind, body, more=("--kv", how)) for n in "ab"]
                for how in ("keep", "drop")
            }
            took: dict[str, list[int]] = {how: [] for how in pairs}
            for asleep, awake in pairs.values():
                asleep.wakes()
                asleep.sleeps()
                awake.wakes()
            for number in range(WARM_UP + rounds):
                for how, pair in pairs.items():
                    spent = pair[0].swapped(pair[1])
                    pair.reverse()
                    if how == "keep":
                        kv.must_have_adopted(pair[1].shim)
                    if number >= WARM_UP:
                        took[how].append(spent)
        yield Comparison(f"a turn with {context} tokens of context", "--kv drop", ours=took["keep"], floor=took["drop"])

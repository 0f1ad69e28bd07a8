"""The reference engine that serves is killed, or stops: how long until the other's first token?

Ours: a pair with two processes an engine. It is whole, and has just answered. Then SIGKILL to the main process, to the
worker, or to all of the group at once; the waiter is granted the lock when the last process of the other is proven
dead, maps the weights, creates its KV cache, binds, announces; and the client, who watches the lock, asks the same as
before. The round counts until the first token is in its hands, and only if the whole answer is the same. Of an engine
that adopted a KV cache and died within 30 s, as here each second one, the next adopts nothing: that isn't counted.

The floor, in the same round: the end of the same processes, of an engine without a successor, and a first token from
one that is awake. A server that must be sure that the other is dead can't be faster than that; what is left is the
lock, the wake, and the announcement. The end is that of a second engine, alone at servers of its own, which is killed
in the same way, by the same signal to the same process, with the same shim above it, a moment before (its next start
waits a quarter of a second, and takes nothing from ours). The first token is what the pair's own engine needed for the
same question just before its end. The two are added up, for each round.

Shares are medians of what each phase had of its round, so they add up to nearly a hundred.

A main process that is stopped (SIGSTOP) is noticed by its silence. The floor there is `--stall-s` itself, the time that
it may be silent; the last word before counts, so a little less than that can pass.
"""

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Comparison, Part, Reading, Result
from bench.pair import PHASES, STOPPED, Pair, Takeover, Victim, house
from bench.stage import Broken
from tests.engine.kinds import REFERENCE

WARM_UP = 2
GOAL_MS = 30.0
STALL_S = 1.0
MODEL = "reference"
AS_UP_DOES = ("--memory", "host")
"""Only a lock server that reads the memory proves enough for a KV cache to be adopted."""


def measure(parent: Path, victim: Victim, rounds: int) -> Iterator[Result]:
    """The pair's round and the lone engine's end, in turns."""
    warm_up = min(WARM_UP, rounds // 10)
    with contextlib.ExitStack() as stack:
        alone = Pair(stack.enter_context(house(parent)), REFERENCE, MODEL, "a", lock=AS_UP_DOES)
        pair = Pair(stack.enter_context(house(parent)), REFERENCE, MODEL, lock=AS_UP_DOES)
        taken: list[Takeover] = []
        ends: list[int] = []
        for _ in range(3 * (warm_up + rounds)):
            pair.whole()
            end = alone.end_of(victim)
            played = pair.takeover(victim)
            if not played.after_a_second_death:
                taken.append(played)
                ends.append(end)
            if len(taken) == warm_up + rounds:
                break
        else:
            raise Broken(f"only {len(taken)} of {3 * (warm_up + rounds)} takeovers adopted a KV cache")
    del taken[:warm_up], ends[:warm_up]
    tokens = [one.beside for one in taken]
    floor = [end + token for end, token in zip(ends, tokens, strict=True)]
    what = f"kill -9 of {victim.name} -> first token"
    yield Comparison(
        what, "its end, and a token of one awake", goal_ms=GOAL_MS, ours=[one.total for one in taken], floor=floor
    )
    yield from parts(taken)
    yield Part("of the floor: the end", ends, floor)
    yield Part("of the floor: the token", tokens, floor)


def measure_stall(parent: Path, rounds: int) -> Iterator[Result]:
    """Its main process is stopped, and says nothing any more."""
    with house(parent) as here:
        pair = Pair(here, REFERENCE, MODEL, more=("--stall-s", f"{STALL_S:g}"))
        taken = [pair.takeover(STOPPED) for _ in range(1 + rounds)][1:]
    floor = [round(STALL_S * 1e9)]
    yield Comparison(
        "SIGSTOP of the main process -> first token",
        f"--stall-s {STALL_S:g}",
        ours=[one.total for one in taken],
        floor=floor,
    )
    yield from parts(taken)


def parts(taken: list[Takeover]) -> Iterator[Result]:
    """Where the time goes."""
    whole = [one.total for one in taken]
    for name in PHASES:
        yield Part(name, [one.phases[name] for one in taken], whole)
    again = statistics.median(one.whole for one in taken) / 1e9
    yield Reading("until the pair is whole again", again, "s", beside="median")

"""`make soak`: a pair behind its door for an hour, under mixed load, while something of it dies again and again.

    make soak S=900 SEED=4711         a quarter of an hour, with these dice
    python -m tests.tools.soak --engines reference --seconds 900

No request may fail. Processes, descriptors, files and memory of what lives on have to stay as they were after each
death was seen once. Where vLLM is installed in this Python, its tiny model runs beside the reference engine, as a pair
of its own. The load and the deaths are those of `tests/gateway/under_load.py`, what "flat" means stands in
`tests/engine/census.py`. The last report is docs/inside/soak.md. Exits 1 if anything isn't as it should be. After
Ctrl-C or SIGTERM it ends the round that it is in, and reports.
"""

import argparse
import asyncio
import importlib.util
import os
import random
import signal
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("FAILOVER_CHAOS_DEADLINE_S", "240")  # a start of vLLM takes a quarter of a minute or more

from bench.pair import house
from tests.engine import census
from tests.engine.shims import House, Shim
from tests.gateway.door import Stream
from tests.gateway.under_load import DEEDS, Stage, all_of
from tests.support.processes import ROOT
from tests.support.waiting import DEADLINE_S, until
from tests.tools.night import WIDTH, begun

REPORT = ROOT / "docs" / "inside" / "soak.md"
WHERE = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
Deed = Callable[[Stage], None]
filled = partial(textwrap.fill, width=WIDTH)
VLLM_DEEDS: list[Deed] = [
    Stage.kill_main,
    Stage.kill_group,
    Stage.kill_shim,
    Stage.cut_the_doors_lock_connection_and_kill,
    Stage.kill_the_lock_server_and_main,
    Stage.kill_gms_and_main,
]


class VllmStage(Stage):
    """vLLM's answers are whole and as long as was asked for; which words they have depends on what else it computes."""

    def start(self) -> list[Shim]:
        from tests.vllm import pair, tiny_model

        model = tiny_model.make(self.house.directory / "model")
        found = pair.kind(model, 1)
        self.kind = replace(found, arguments=(*found.arguments, "--max-num-seqs", "32"))
        self.house.start_lock(*self.kind.lock)
        self.house.start_gms(self.kind)
        return [self.shim(name) for name in "ab"]

    def shim(self, name: str) -> Shim:
        bounds = ("--stall-s", f"{DEADLINE_S:g}", "--waking-timeout-s", f"{DEADLINE_S:g}")
        return self.house.shim(self.kind, name, *bounds)

    def questions(self) -> list[Stream]:
        from tests.vllm.pair import NAME

        more: tuple[dict[str, Any], ...] = (
            {},
            {"logprobs": 2},
            {"temperature": 1.0},
            {"temperature": 1.0, "n": 2},
            {"presence_penalty": 0.5},
            {"seed": 7},
        )
        body = {"model": NAME, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        usage = {"stream_options": {"include_usage": True}}
        return [Stream({**body, **usage, "prompt": f"question {at}", **more[at % len(more)]}) for at in range(18)]

    def check(self, streams: list[Stream], like: list[Stream]) -> None:
        for stream in streams:
            assert (stream.status, stream.whole, stream.error) == (200, True, ""), (stream.raw[-300:], stream.body)
            (said,) = [one for one in stream.alike[-1] if one.get("usage")]
            assert said["usage"]["completion_tokens"] == 200 * stream.body.get("n", 1), (said, stream.body)


@dataclass
class Soak:
    """Of one pair: what was done to it, and what came of it."""

    name: str
    make: Callable[[House, random.Random], Stage]
    deeds: Sequence[Deed]
    dice: random.Random
    environment: dict[str, str] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    left: int = 0
    """Clients that went in mid-answer."""
    gaps: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    counted: list[dict[str, int]] = field(default_factory=list)
    resident: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    ends: threading.Event = field(default_factory=threading.Event)

    def run(self, seconds: float) -> None:
        try:
            with house(WHERE, self.environment) as here:
                stage = self.make(here, self.dice)
                self._go_on(stage, time.monotonic() + seconds)
                now = until(lambda: self._flat(stage), "all is as after the first turn", 60)
                self.counted.append(now)
        except Exception as error:
            print(f"{self.name}: {traceback.format_exc()}", flush=True)
            self.failed.append(f"{type(error).__name__}: {str(error)[:600]}")

    def _go_on(self, stage: Stage, end: float) -> None:
        self._look(stage)
        while time.monotonic() < end or len(self.counted) < 3:
            for deed in self.dice.sample(self.deeds, len(self.deeds)):
                if not self.ends.is_set() and (len(self.counted) < 3 or time.monotonic() < end):
                    self._round(stage, deed)
            self._look(stage)

    def _round(self, stage: Stage, deed: Deed) -> None:
        stage.whole()
        # By another user each time: what three engines died of within ten minutes is poison to the door (rule 5 of its
        # admission), and here so many die that a question which clients leave unanswered comes to it by chance.
        asked = [
            Stream({**one.body, "user": f"{sum(self.done.values())}"}, one.path, one.streams) for one in stage.asked
        ]
        places = self.dice.sample(range(len(asked)), self.dice.randint(4, len(asked)))
        leaving = [asked[place] for place in self.dice.sample(range(len(asked)), 3)]
        wait_s = self.dice.uniform(0.0, 1.0)

        def strike() -> None:
            signal.sigtimedwait([], wait_s)
            deed(stage)

        streams = asyncio.run(_beside(stage, asked, places, leaving, strike))
        try:
            stage.check(streams, [stage.like[place] for place in places])
        except AssertionError as error:
            self.failed.append(f"at {deed.__name__}: {str(error)[:600]}")
        self.done[deed.__name__.replace("_", " ")] += 1
        self.answers += len(streams)
        self.left += len(leaving)
        self.gaps += [stream.gap_s for stream in streams]
        longest = max(stream.gap_s for stream in streams)
        said = f"{deed.__name__}, {len(streams)} streams, longest gap {longest * 1000:.0f} ms"
        print(f"{self.name} {sum(self.done.values())}: {said}, {len(self.failed)} failed", flush=True)

    def _look(self, stage: Stage) -> None:
        """After each turn of deaths. What is compared with is the first of these after the pair's start."""
        self.counted.append(_count(stage))
        self.resident.append((time.monotonic(), census.resident(stage.house, stage.shims, stage.door)))

    def _flat(self, stage: Stage) -> dict[str, int] | None:
        now = _count(stage)
        more = self.more_resident()
        if more > census.MOST_MORE:
            raise AssertionError(f"{more >> 10} KiB more of servers and shims")
        grown = census.grown(now, self.counted[1], sum(self.done.values()))
        print(f"{self.name}: {[f'{name}: {self.counted[1][name]}, now {now[name]}' for name in grown]}", flush=True)
        return None if grown else now

    def more_resident(self) -> int:
        return sum(self.resident[-1][1].values()) - sum(self.resident[1][1].values())

    def lines(self) -> list[str]:
        gaps = sorted(self.gaps) or [0.0]
        told = ", ".join(f"{count} times {what}" for what, count in sorted(self.done.items()))
        found = [
            f"## {self.name}",
            "",
            filled(
                f"{sum(self.done.values())} deaths or cuts ({told}); {self.answers} answers, {self.left} clients that "
                f"left in mid-answer; **{len(self.failed)} failed**. The longest gap of an answer: median "
                f"{gaps[len(gaps) // 2] * 1000:.0f} ms, at most {gaps[-1] * 1000:.0f} ms."
            ),
            *(["", *(f"    {part}" for part in self.failed[:5])] if self.failed else []),
        ]
        if len(self.resident) < 2 or len(self.counted) < 3:
            return [*found, ""]
        (began, first), (ended, last) = self.resident[1], self.resident[-1]
        what = {**self.counted[1], **{f"KiB of {name}": size >> 10 for name, size in first.items()}}
        now = {**self.counted[-1], **{f"KiB of {name}": size >> 10 for name, size in last.items()}}
        found += ["", f"| | after the first turn | {(ended - began) / 60:.0f} minutes later |", "|---|---|---|"]
        return [*found, *(f"| {name} | {what[name]} | {now[name]} |" for name in what), ""]


def soaking(engine: str, dice: random.Random) -> Soak:
    if engine == "vllm":
        from tests.vllm.pair import ENVIRONMENT

        return Soak("vLLM", VllmStage, VLLM_DEEDS, dice, dict(ENVIRONMENT))
    return Soak("The reference engine", Stage, DEEDS, dice)


def _count(stage: Stage) -> dict[str, int]:
    """After a death while no client asks: the door has no idle connections to an engine then, as after any other."""

    def count() -> dict[str, int]:
        return census.count(stage.house, stage.shims, "0", stage.door)

    active, standby = stage.whole()
    active.main().kill()
    until(lambda: standby.state()["state"] == "Active", f"{standby.engine_id} serves")
    stage.whole()
    until(lambda: count() == count(), "all connections of the last change are made, or closed")
    return count()


async def _beside(
    stage: Stage, asked: list[Stream], places: list[int], leaving: list[Stream], strike: Callable[[], None]
) -> list[Stream]:
    """Those that stay to the end. The others leave somewhere in their answers, or before those began."""
    goes = [asyncio.create_task(Stream(one.body, one.path, one.streams).run(stage.door.port)) for one in leaving]
    for task in goes:
        asyncio.get_running_loop().call_later(stage.dice.uniform(0.0, 2.0), task.cancel)
    streams = await all_of(stage.door.port, asked, strike, places)
    await asyncio.gather(*goes, return_exceptions=True)
    return streams


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    there = ["reference", *(["vllm"] if importlib.util.find_spec("vllm") else [])]
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--engines", type=lambda text: text.split(","), default=there)
    parser.add_argument("--report", type=Path, default=REPORT)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"SEED={options.seed}", flush=True)
    began = datetime.now(UTC)
    soaks = [soaking(engine, random.Random(options.seed)) for engine in options.engines]
    threads = [threading.Thread(target=soak.run, args=(options.seconds,)) for soak in soaks]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except KeyboardInterrupt:
                for soak in soaks:
                    soak.ends.set()
    failed = sum(len(soak.failed) for soak in soaks)
    lines = [
        "# The last soak",
        "",
        filled(
            "`make soak` writes this page: a pair and its door under mixed load, while engines, shims, lock server and "
            "GMS die. What is compared is the first quiet moment after each death was seen once, and the last."
        ),
        "",
        begun(began, f"`make soak S={options.seconds:g} SEED={options.seed}`: {'FAILED' if failed else 'passed'}."),
        "",
        *(line for soak in soaks for line in soak.lines()),
    ]
    options.report.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

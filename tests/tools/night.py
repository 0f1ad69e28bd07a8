"""`make night`: what is too long for every change, one stage after the other. Its report: docs/inside/night.md.

Each stage has a variable that says how much of it there shall be; 0 leaves it out, and what the page says of it stays:

    make night SCHEDULES=2000 MUTANTS=tenth KILLS=0 SLOW=0 VLLM=0 SOAK=0 PODS=0 REPEATS=0

A stage that fails keeps no other from running. Exits 1 if one did.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.support.processes import ROOT

REPORT = ROOT / "docs" / "inside" / "night.md"
PYTEST = (sys.executable, "-m", "pytest", "-s")
FIRST_SCHEDULE = 20_500
"""CI has those before it."""
TELLING = re.compile(
    r"^(simulator of .*|VIOLATION .*|\d+ (made )?mutants .*|\d+ kills, .*|=+ .* in [0-9.]+s.* =+|FAILED .*|ERROR .*|"
    r".*: no test notices.*|.*longest gap of an answer.*|.*\*\*\d+ failed.*)$"
)
LINES = 12
WIDTH = 118


@dataclass(frozen=True)
class Stage:
    variable: str
    how_much: str
    """Unless the variable says otherwise."""
    what: str
    command: tuple[str, ...]
    """`{}` is how much."""
    environment: tuple[tuple[str, str], ...] = ()

    def asked(self) -> str:
        return os.environ.get(self.variable) or self.how_much

    def heading(self) -> str:
        return self.what[0].upper() + self.what[1:]


STAGES = (
    Stage(
        "SCHEDULES", "1000000", "schedules of each world", (sys.executable, "-m", "tests.sim.compiled", "--seeds", "{}")
    ),
    Stage("MUTANTS", "all", "mutants", (sys.executable, "-m", "tests.mutants", "--part", "{}")),
    Stage(
        "KILLS",
        "500",
        "kills of engines with a kept KV cache, under load",
        (*PYTEST, "tests/kv/test_kills.py"),
        (("FAILOVER_KV_KILLS", "{}"),),
    ),
    Stage("SLOW", "1", "what takes long and has found little", ("make", "rest", "ONLY=slow")),
    Stage("VLLM", "1", "all of vLLM", ("make", "test-vllm")),
    Stage("SOAK", "3600", "seconds of the soak", (sys.executable, "-m", "tests.tools.soak", "--seconds", "{}")),
    Stage(
        "PODS",
        "100",
        "kills in a local pod, and what takes minutes there",
        (
            *PYTEST,
            "tests/local_pod/test_kills.py",
            "tests/local_pod/test_pair_long.py",
            "tests/engine/test_reference_pair.py",
        ),
        (("LOCAL_POD_LONG", "1"), ("LOCAL_POD_KILLS", "{}"), ("FAILOVER_KV_TURNS", "10")),
    ),
    Stage(
        "REPEATS",
        "1000",
        "schedules of dual pods, and each other repetition of which CI has a part",
        (
            *PYTEST,
            "tests/many/test_swaps.py",
            "tests/pool/test_policies.py",
            "tests/fleet/test_statements.py",
            "tests/fleet/test_histories.py",
            "tests/dual_pods/test_sim.py",
            "tests/gms/test_program_chaos.py",
            "tests/chaos/test_kill_loops.py",
            "tests/chaos/test_fallbacks.py",
        ),
        (
            ("FAILOVER_DUAL_SCHEDULES", "{}"),
            ("FAILOVER_MANY_SWAPS", "200"),
            ("FAILOVER_MANY_ROUNDS", "3"),
            ("FAILOVER_POOL_EVENTS", "100000"),
            ("FAILOVER_FLEET_TURNS", "15"),
            ("CONTENDERS", "100"),
            ("CONTEND_S", "30"),
            ("FAILOVER_CHAOS_ROUNDS", "300"),
            ("FAILOVER_CHAOS_FALLBACK_ROUNDS", "100"),
            ("FAILOVER_GMS_SESSIONS", "5000"),
        ),
    ),
)


@dataclass(frozen=True)
class Run:
    stage: Stage
    passed: bool
    """One that came to no end didn't."""
    said: tuple[str, ...]


def run(stage: Stage) -> Run:
    asked = stage.asked()
    began, clock = datetime.now(UTC), time.monotonic()
    seeds = f"{FIRST_SCHEDULE}:{FIRST_SCHEDULE + int(asked)}" if stage.variable == "SCHEDULES" else asked
    command = [word.replace("{}", seeds) for word in stage.command]
    environment = {**os.environ, **{name: value.replace("{}", asked) for name, value in stage.environment}}
    print(f"--- {' '.join(command)}", flush=True)
    told: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as program:
        assert program.stdout is not None
        for line in program.stdout:
            print(line, end="", flush=True)
            if TELLING.match(line.strip()):
                told.append(line.strip().strip("= "))
    passed = program.returncode == 0
    result = f"`{stage.variable}={asked}`: {'passed' if passed else 'FAILED'}, in {time.monotonic() - clock:.0f} s."
    quoted = [f"    {part}" for line in told[-LINES:] for part in textwrap.wrap(line, WIDTH - 4)]
    return Run(stage, passed, ("", begun(began, result), *([""] if quoted else []), *quoted))


def begun(began: datetime, more: str) -> str:
    """When and where, for a report."""
    load = os.getloadavg()[2]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return textwrap.fill(
        f"Begun {began:%Y-%m-%d %H:%M} UTC at commit {commit.stdout.strip() or 'unknown'}, on "
        f"{len(os.sched_getaffinity(0))} processors with Linux {platform.release()} and Python "
        f"{platform.python_version()}; load of the last quarter of an hour at its end: {load:.0f}. {more}",
        WIDTH,
    )


def report(page: str, run: Run) -> str:
    """The page with what this run said, in the order of the stages; what it says of the others stays."""
    said = {heading: lines for heading, *lines in (part.splitlines() for part in page.split("\n## ")[1:])}
    said[run.stage.heading()] = list(run.said)
    lines = [
        "# The last nights",
        "",
        "`make night` writes this page: what the last run of each stage said. What they are for: [tests](tests.md).",
    ]
    for heading in (stage.heading() for stage in STAGES):
        if heading in said:
            lines += ["", f"## {heading}", *said[heading]]
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make night", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", type=Path, default=REPORT)
    options = parser.parse_args()
    runs: list[Run] = []
    for stage in STAGES:
        if stage.asked() == "0":
            continue
        runs.append(run(stage))
        page = options.report.read_text(encoding="utf-8") if options.report.exists() else ""
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(report(page, runs[-1]), encoding="utf-8")  # also if this one is the last that is run
    return 0 if all(run.passed for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())

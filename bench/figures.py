"""Samples, ratios to their floor, and how they are shown. Pure but for the description of this machine.

A `Comparison` holds two series that were measured in turns (A B A B ...), so that whatever else the machine does hits
both. Medians and p99. A p99 of fewer than 100 rounds is the worst of them, and says little.
"""

import datetime
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

Json = dict[str, object]


@dataclass
class Comparison:
    """What was measured, and in turns with it its floor. Nanoseconds."""

    what: str
    against: str
    goal_median: float | None = None
    """At most this many times the floor."""
    goal_p99: float | None = None
    goal_ms: float | None = None
    """For our own median, whatever the floor is."""
    ours: list[int] = field(default_factory=list)
    floor: list[int] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.floor)

    @property
    def p99(self) -> float:
        return p99(self.ours) / p99(self.floor)

    @property
    def goal(self) -> str:
        said = [] if self.goal_ms is None else [f"{self.goal_ms:g} ms"]
        said += [] if self.goal_median is None else [f"{_times(self.goal_median)}x"]
        said += [] if self.goal_p99 is None else [f"{_times(self.goal_p99)}x p99"]
        return "<= " + ", ".join(said) if said else ""

    @property
    def met(self) -> bool | None:
        """None where there is no goal."""
        median_ms = statistics.median(self.ours) / 1e6
        goals = [(self.median, self.goal_median), (self.p99, self.goal_p99), (median_ms, self.goal_ms)]
        judged = [value <= goal for value, goal in goals if goal is not None]
        return all(judged) if judged else None

    def in_turns(self, rounds: int, warm_up: int, floor: Callable[[], int], ours: Callable[[], int]) -> Self:
        """One of each a round. What the first rounds say is thrown away."""
        for number in range(warm_up + rounds):
            self.add(floor(), ours(), keep=number >= warm_up)
        return self

    def add(self, floor: int, ours: int, *, keep: bool = True) -> None:
        if keep:
            self.floor.append(floor)
            self.ours.append(ours)

    def row(self) -> list[str]:
        return [
            self.what,
            _spread(self.ours),
            f"{_spread(self.floor)}  {self.against}",
            f"{_times(self.median)} / {_times(self.p99)}",
            self.goal,
            _verdict(self.met),
        ]

    def json(self) -> Json:
        return {
            "what": self.what,
            "against": self.against,
            "rounds": len(self.ours),
            "ours_us": _summary(self.ours),
            "floor_us": _summary(self.floor),
            "ratio_median": round(self.median, 4),
            "ratio_p99": round(self.p99, 4),
            "goal": self.goal,
            "met": self.met,
        }


@dataclass
class Part:
    """One phase of something that was measured, and what share of it it had. Nanoseconds, one of each for a round."""

    what: str
    ours: list[int]
    whole: list[int]

    @property
    def share(self) -> float:
        """The median round's."""
        return statistics.median(part / whole for part, whole in zip(self.ours, self.whole, strict=True))

    def row(self) -> list[str]:
        return [f"    {self.what}", _spread(self.ours), "", f"{self.share:.0%}", "", ""]

    def json(self) -> Json:
        return {"what": self.what, "us": _summary(self.ours), "share": round(self.share, 4)}


@dataclass
class Reading:
    """One number with a limit, and no floor."""

    what: str
    value: float
    unit: str
    limit: float | None = None
    beside: str = ""
    """What a reader may want to know with it."""

    @property
    def met(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit

    def row(self) -> list[str]:
        goal = "" if self.limit is None else f"<= {self.limit:g} {self.unit}"
        return [self.what, f"{self.value:.4g} {self.unit}", self.beside, "", goal, _verdict(self.met)]

    def json(self) -> Json:
        return {
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "limit": self.limit,
            "beside": self.beside,
            "met": self.met,
        }


Result = Comparison | Part | Reading


def p99(samples: Sequence[int]) -> int:
    """The smallest sample that at least 99 of 100 don't exceed."""
    return sorted(samples)[math.ceil(len(samples) * 0.99) - 1]


def table(results: Iterable[Result]) -> str:
    head = ["what", "ours: median, p99", "floor: median, p99", "ratio", "goal", ""]
    rows = [head, *(result.row() for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def machine() -> Json:
    """Where it was measured, and when."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "argv": sys.argv[1:],
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _spread(samples: Sequence[int]) -> str:
    return f"{_time(statistics.median(samples))}, {_time(p99(samples))}"


def _time(ns: float) -> str:
    if ns >= 10e9:
        return f"{ns / 1e9:.1f} s"
    return f"{ns / 1e3:.0f} us" if ns < 10e6 else f"{ns / 1e6:.1f} ms"


def _times(ratio: float) -> str:
    """As a fraction where that says more."""
    return f"{ratio:.2f}".removesuffix(".00") if ratio >= 0.1 else f"1/{1 / ratio:.0f}"


def _summary(samples: Sequence[int]) -> dict[str, float]:
    return {
        "min": min(samples) / 1e3,
        "median": statistics.median(samples) / 1e3,
        "p99": p99(samples) / 1e3,
        "max": max(samples) / 1e3,
    }


def _verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "MISSED"

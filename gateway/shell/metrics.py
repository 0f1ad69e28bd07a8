"""What the door counts, and how it is shown: Prometheus's text for machines, JSON for `GET /failover`.

Counting must cost nearly nothing: some of it is done for every piece of every answer. So histograms are plain lists
here, and become metrics when they are asked for.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gateway.rules import events as e
from gateway.rules.handoffs import GAP_PARTS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_GAPS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def buckets(self) -> list[tuple[str, float]]:
        found, so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((bound, float(so_far)))
        return found


class Counts:
    """What is counted for the whole door."""

    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """(how it ended, how it got there) -> requests."""
        self.latency = Histogram(_LATENCY_S)
        self.first = Histogram(_LATENCY_S)
        self.between = Histogram(_GAPS_S)
        self.gaps = Histogram(_GAPS_S)
        self.gap_parts_s = dict.fromkeys(GAP_PARTS, 0.0)
        self.tokens = 0
        self.alarms: Counter[str] = Counter()

    def over(self, over: e.Over) -> None:
        self.outcomes[over.outcome._value_, over.how] += 1  # `value` is made of Python
        self.tokens += over.tokens

    def gap(self, gap: e.Gap) -> None:
        self.gaps.add(gap.total_s)
        for part in GAP_PARTS:
            self.gap_parts_s[part] += getattr(gap, f"{part}_s")

    def how(self, how: str) -> int:
        return sum(count for (outcome, one), count in self.outcomes.items() if one == how and outcome == "answered")

    def outcome(self, outcome: str) -> int:
        return sum(count for (one, _), count in self.outcomes.items() if one == outcome)


Value = tuple[str, str, dict[str, str], float]
"""Name (a counter's ends in `_total`), what it says, labels, and what it is now."""


def collect(counts: Counts, values: Iterable[Value]) -> Iterator["Metric"]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    requests = CounterMetricFamily(
        "failover_door_requests", "Requests, by how they ended and how they got there", labels=["outcome", "how"]
    )
    for (outcome, how), count in counts.outcomes.items():
        requests.add_metric([outcome, how], count)
    yield requests
    yield CounterMetricFamily("failover_door_tokens", "Tokens that clients were given in streams", counts.tokens)
    alarms = CounterMetricFamily("failover_door_alarms", "What an operator should look at", labels=["event"])
    for event, count in counts.alarms.items():
        alarms.add_metric([event], count)
    yield alarms
    for name, help, histogram in (
        ("request_seconds", "From a request's arrival to the end of its answer", counts.latency),
        ("first_byte_seconds", "From a request's arrival to the first byte of its answer", counts.first),
        ("between_pieces_seconds", "Between two pieces of a streamed answer", counts.between),
        ("gap_seconds", "From the last piece of a lost engine to the first of another", counts.gaps),
    ):
        yield HistogramMetricFamily(
            f"failover_door_{name}", help, buckets=histogram.buckets(), sum_value=histogram.total
        )
    parts = CounterMetricFamily(
        "failover_door_gap_part_seconds", "The same gaps added up, by what was waited for", labels=["part"]
    )
    for part, seconds in counts.gap_parts_s.items():
        parts.add_metric([part], seconds)
    yield parts
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for name, help, labels, value in values:
        of_kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = families.setdefault(name, of_kind(f"failover_door_{name}", help, labels=list(labels)))
        family.add_metric(list(labels.values()), value)
    yield from families.values()


def of_engines(pages: Iterable[tuple[str, bytes]]) -> bytes:
    """What vLLM says of itself on these pages (the pair's run directory, its engine's page): each family once. Where
    there are several pairs their label `run_dir` says whose it is.
    """
    pages = list(pages)
    families: dict[bytes, tuple[dict[bytes, bytes], list[bytes]]] = {}
    for run_dir, page in pages:
        whose = b'run_dir="%b"' % run_dir.replace("\\", "\\\\").replace('"', '\\"').encode() if len(pages) > 1 else b""
        family = b""
        for line in page.splitlines():
            if line.startswith((b"# HELP ", b"# TYPE ")):
                family = [*line.split(maxsplit=3), b""][2]  # whatever an engine says there
                if family.startswith(b"vllm:"):
                    families.setdefault(family, ({}, []))[0].setdefault(line[:7], line)
            elif line.startswith(b"vllm:") and family in families:
                families[family][1].append(_labelled(line, whose) if whose else line)
    return b"".join(line + b"\n" for said, samples in families.values() for line in (*said.values(), *samples))


def _labelled(line: bytes, label: bytes) -> bytes:
    name, brace, rest = line.partition(b"{")
    if brace:
        return b"%b{%b%b%b" % (name, label, b"" if rest.startswith(b"}") else b",", rest)
    name, _, value = line.partition(b" ")
    return b"%b{%b} %b" % (name, label, value)

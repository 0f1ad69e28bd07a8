"""The door's document (`GET /failover/state`) as lines for a terminal. Pure; `top.py` gets and prints them.

What this file may not do: know more than the document says. Whatever comes from outside is made printable here.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sidecar.terminal import table
from sidecar.terminal.formatting import Paint, Tone, ago, printable, size

FORM = 1
BAR = 24
TONES = {"good": Tone.GOOD, "care": Tone.CARE, "bad": Tone.BAD}
STATES = {"serves": Tone.GOOD, "ready": Tone.GOOD, "lost": Tone.BAD, "gone": Tone.BAD}
PHASES = {"proof": ("proof", "p"), "granted": ("grant", "g"), "serves": ("wake", "w"), "goes_on": ("first answer", "a")}
Line = tuple[str, Tone | None]


class OtherVersion(Exception):
    """The document isn't one that is known here."""


def lines(document: Any, paint: Paint, width: int, height: int = 0, away: str = "") -> list[str]:
    """`away`: why there is no newer document. A height of 0: all lines. Raises OtherVersion."""
    try:
        if document["form"] == FORM:
            return _lines(document, paint, width, height, away)
    except (AttributeError, LookupError, TypeError, ValueError):
        pass  # whatever listens there has made it
    raise OtherVersion("this failover and the door are of different versions: use the one that belongs to the door")


def _lines(document: Mapping[str, Any], paint: Paint, width: int, height: int, away: str) -> list[str]:
    found: list[Line] = [(away, Tone.BAD)] if away else []
    found.append((f"{document['says']}  ({document['at'][11:19]} UTC)", None if away else TONES[document["tone"]]))
    if document["why_not_ready"]:
        found.append((f"the door isn't ready: {document['why_not_ready']}", Tone.BAD))
    found += [(f"ALARM  {alarm['text']}: {alarm['todo']}", Tone.BAD) for alarm in document["alarms"]]
    now = datetime.fromisoformat(document["at"])
    for pair in document["pairs"]:
        found += [("", None), *_pair(pair, document["counts"], now, len(document["pairs"]) > 1)]
    shown = found[:height] if height else found
    return [paint(printable(text)[:width], tone) if tone else printable(text)[:width] for text, tone in shown]


def _pair(pair: Mapping[str, Any], counts: Mapping[str, int], now: datetime, several: bool) -> Iterator[Line]:
    lock = pair["lock"]
    said = lock["state"] if lock["answers"] else f"no answer since {lock['since'][11:19]} (last {lock['state']})"
    yield f"{pair['run_dir']}  lock {said}  models: {', '.join(pair['models']) or 'not told yet'}", Tone.STRONG
    if several:
        yield pair["says"], TONES[pair["tone"]]
    for alarm in pair["alarms"]:
        yield f"ALARM  {alarm}", Tone.BAD
    for reason in pair["waiting_for"]:
        yield f"waits for  {reason}", Tone.CARE
    for advice in pair["todo"]:
        yield f"to do  {advice}", None
    yield "", None
    rows = [(one["engine_id"], one["state"], _ago(one, now), _facts(one)) for one in pair["engines"]]
    for text, one in zip(table.lines(rows), pair["engines"], strict=True):
        yield text, STATES.get(one["state"], Tone.CARE) if lock["answers"] else None
    yield "", None
    requests = pair["requests"]
    yield (
        "requests   "
        + ", ".join(
            f"{requests.get(key, 0)} {word}"
            for key, word in (
                ("in_flight", "in flight"),
                ("answering",) * 2,
                ("waiting",) * 2,
                ("interrupted", "paused"),
            )
        ),
        None,
    )
    yield "           since the door began: " + ", ".join(
        f"{counts[key]} {word}" for key, word in (
            *((name, name) for name in ("continued", "compared", "refused")),
            ("restarted", "asked again"), ("ended", "ended with an error"),
        )
    ), None  # fmt: skip
    yield "", None
    yield from _failovers(pair, now)


def _ago(engine: Mapping[str, Any], now: datetime) -> str:
    return ago(engine["since"], now) if engine.get("since") else ""


def _facts(engine: Mapping[str, Any]) -> str:
    needs = [f"needs {size(count)} of {device}" for device, count in (engine.get("needs") or {}).items()]
    pid, token = engine.get("pid"), engine.get("token")
    facts = [engine["why"], f"process {pid}" if pid else "", f"token {token}" if token else "", *needs]
    return ", ".join(filter(None, facts))


def _failovers(pair: Mapping[str, Any], now: datetime) -> Iterator[Line]:
    under_way, past = pair["handoff"], pair["failovers"]
    if under_way is not None:
        yield f"{under_way['from']} is lost, {ago(under_way['at'], now)}; the proof of its end:", Tone.BAD
        for proof in under_way["proofs"]:
            proven = "..." if proof["ms"] is None else time(proof["ms"])
            yield f"  {proof['part']:<10}  {proven:>7}  {proof['says']}", None if proof["ms"] is None else Tone.GOOD
    if not past:
        yield "failovers  none since the door began", None
        return
    yield f"failovers  {pair['count']}; p proof, g until granted, w wake, a first answer goes on", Tone.STRONG
    longest = max((_end(one) for one in past), default=1.0) or 1.0
    rows = [
        (
            f"{one['at'][11:19]}",
            f"{one['from']} -> {one['to']}{' (planned)' if one['planned'] else ''}",
            time(_end(one)),
            _bar(one["phases"], longest),
            ", ".join(f"{PHASES[phase['name']][0]} {time(phase['ms'])}" for phase in one["phases"]) + _felt(one),
        )
        for one in past
    ]
    for text in table.lines(rows, right=(2,)):
        yield text, None


def _felt(one: Mapping[str, Any]) -> str:
    clients = one["clients"]
    return f"; {clients['clients']} paused {time(clients['p50'])}, most {time(clients['max'])}" if clients else ""


def _end(one: Mapping[str, Any]) -> float:
    return max((float(phase["from_ms"] + phase["ms"]) for phase in one["phases"]), default=0.0)


def _bar(phases: Sequence[Mapping[str, Any]], longest: float) -> str:
    bar = ""
    for phase in phases:
        end = round(BAR * (phase["from_ms"] + phase["ms"]) / longest)
        bar += PHASES[phase["name"]][1] * (end - len(bar))
    return f"[{bar:<{BAR}}]"


def time(ms: float) -> str:
    if ms < 1:
        return "<1 ms"
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"

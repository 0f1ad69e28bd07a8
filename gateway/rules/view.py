"""What there is to see: one document, made of what the door knows, and shown by all that show anything (`/failover/`,
`/failover/state`, `/failover/events`, `failover top`). Pure.

What the lock says is the lock's; while no lock server answers, its last words are shown as such, with the time since
when nothing is known. Every list and every text in it is bounded: names and reasons come from outside.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.rules import handoffs as h
from lockserver.advice import Status, advice
from sidecar.machine.context import rfc3339

FORM = 1
"""The document's. It grows when a field goes or means something else."""
TEXT_MOST, LIST_MOST = 500, 16
_TONES = ("bad", "care", "good")
ADVICE = {
    "engine_malformed": "an engine says what can't be read: the door's log line has the request and the reason",
    "lease_unverified": "the host's lease couldn't be asked for: requests went on, and no run of that time is clean",
    "broken_rule": "a mistake of the door's own: it cost one request, and its log line is a bug report",
}
_GRANT = "holder.json: the grant to {} is being written"
"""A reason of the lock server's: no waiter any more, and no holder yet."""
AGAIN = "what starts it (its shim, failover up) starts it again; its log says why it ended"
Document = dict[str, object]


@dataclass(frozen=True)
class PairSeen:
    run_dir: str
    models: Sequence[str]
    status: Status | None
    """The lock's newest; None while there was none yet."""
    away_since: float | None
    handoffs: h.Handoffs
    requests: Mapping[str, int] = field(default_factory=dict)
    """How many there are, and of which kinds."""


@dataclass(frozen=True)
class DoorSeen:
    began: float
    ready: str
    """Why it isn't; empty while every client can expect an answer."""
    counts: Mapping[str, int]
    alarms: Mapping[str, int]
    lease: Mapping[str, object] | None = None
    """What its host's lease is, where it has one."""


def document(
    door: DoorSeen, pairs: Sequence[PairSeen], now: float, wall: float, models: Mapping[str, Any] | None = None
) -> Document:
    """`now` is on the clock of the failovers, `wall` on the wall's. `models`: what a pool shows, where there is one."""
    shown = [_pair(pair, now) for pair in pairs]
    tone, says = _of_pairs(shown) if models is None else _of_models(models, shown)
    alarms = [
        {"text": f"{event} ({count} since the door began)", "todo": ADVICE.get(event, "the door's log says more")}
        for event, count in list(door.alarms.items())[:LIST_MOST]
    ]
    return {
        "form": FORM,
        "at": rfc3339(wall),
        "began": rfc3339(door.began),
        "tone": tone,
        "says": _cut(says),
        "ready": not door.ready,
        "why_not_ready": _cut(door.ready),
        "counts": dict(door.counts),
        "alarms": alarms,
        "lease": dict(door.lease) | {"says": _cut(str(door.lease["says"]))} if door.lease is not None else None,
        "pairs": shown,
        **(models or {}),
    }


def _of_pairs(shown: Sequence[Document]) -> tuple[str, str]:
    worst = min(shown, key=lambda pair: _TONES.index(str(pair["tone"])))
    tone, says = str(worst["tone"]), str(worst["says"])
    if len(shown) == 1:
        return tone, says
    good = sum(pair["tone"] == "good" for pair in shown)
    where = "" if good == len(shown) else f" {worst['run_dir']}: {says}"
    return tone, f"{good} of {len(shown)} pairs are well.{where}"


def _of_models(models: Mapping[str, Any], shown: Sequence[Document]) -> tuple[str, str]:
    """That a model has no standby is as it should be."""
    states = Counter(model["state"] for model in models["models"])
    awake, away = states.pop("awake", 0), models["pool"] == "away"
    others = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    says = f"{awake} of {len(models['models'])} models are awake{others and '; '}{others}."
    bad = [f" {pair['run_dir']}: {pair['says']}" for pair in shown if pair["tone"] == "bad"]
    if away:
        says = f"The pool doesn't answer: nothing swaps. When it did, {says}"
    return "bad" if bad else "care" if away or states["failed"] else "good", says + "".join(bad[:1])


def _pair(pair: PairSeen, now: float) -> Document:
    status, away = pair.status, pair.away_since
    tone, says = _in_words(pair)
    waits = status.fencing.waiting_for if status is not None and status.fencing is not None else []
    under_way = pair.handoffs.now
    return {
        "run_dir": _cut(pair.run_dir),
        "tone": tone,
        "says": _cut(says),
        "models": [_cut(model) for model in pair.models[:LIST_MOST]],
        "lock": {
            "answers": away is None,
            "since": rfc3339(away) if away is not None else None,
            "state": status.state if status is not None else None,
            "switchover": status.switchover if status is not None else None,
        },
        "engines": _engines(pair),
        "requests": dict(pair.requests),
        "memory": _memory(status),
        "handoff": _handoff(under_way, status, now) if under_way is not None else None,
        "waiting_for": [_cut(reason) for reason in waits if status is None or reason not in status.alarms][:LIST_MOST],
        "failovers": [_handoff(one, None, now) for one in reversed(pair.handoffs.past)],
        "count": pair.handoffs.count,
        "alarms": _cuts(status.alarms) if status is not None else [],
        "todo": _cuts(_todo(pair)),
    }


def _todo(pair: PairSeen) -> list[str]:
    if pair.away_since is not None:
        stopped = f"is process {pair.status.server_pid} stopped (state T in ps: kill -CONT)? " if pair.status else ""
        return [f"{stopped}A lock server that ended is started again by what started it, and its log says why it ended"]
    return advice(pair.status) if pair.status is not None else []


# -- in a sentence -------------------------------------------------------------------------------------------------


def _in_words(pair: PairSeen) -> tuple[str, str]:
    status = pair.status
    if pair.away_since is not None:
        since = f"No lock server has answered since {rfc3339(pair.away_since)[11:19]} UTC"
        if status is None or status.holder is None:
            return "bad", f"{since}: which engine serves isn't known."
        name = status.holder.engine_id
        return "bad", f"{since}: {name} serves on, as far as is known, and no engine can take over until one does."
    if status is None:  # not away, and nothing was said: there is no such thing
        return "bad", "Nothing is known of the lock."
    tone, says = _answered(status)
    if (count := pair.requests.get("silent", 0)) == 0:
        return tone, says
    stand = "answer stands" if count == 1 else "answers stand"
    return min("care", tone, key=_TONES.index), f"{says} {count} {stand} still: `failover status` names what hangs."


def _answered(status: Status) -> tuple[str, str]:
    holder = status.holder
    ready = [waiter.engine_id for waiter in status.waiters if waiter.ready]
    if status.state == "HELD" and holder is not None:
        name = holder.engine_id
        if status.plan is not None:
            return "care", f"{name} serves, and {_does(status.plan.to)} ({status.plan.step})."
        if not holder.endpoint:
            return "care", f"{name} has the lock and wakes."
        if ready:
            return "good", f"{name} serves; {ready[0]} is ready to take over."
        return "care", f"{name} serves, and no engine is ready to take over: its death would be an outage."
    then = f"; {ready[0]} is next." if ready else ", and no engine is ready to follow."
    if status.state == "RECOVERING":
        who = f"for {holder.engine_id}, which may serve on" if holder is not None else "for a holder that may come back"
        return "care", f"The lock server is new: it waits {who}, or for the proof of its end."
    if holder is not None:
        return "bad", f"{holder.engine_id} is lost, and its end is being proven{then}"
    if status.state == "FENCING":
        return "bad", f"No engine serves: the last one is gone{then}"
    starts = [permit.holder for permit in status.permits.values() if permit.holder]
    return "bad", f"No engine serves yet: {starts[0]} starts." if starts else "No engine serves, and none is ready."


# -- engines -------------------------------------------------------------------------------------------------------


def _engines(pair: PairSeen) -> list[Document]:
    """In the order of their names, so that they keep their places."""
    status, found = pair.status, dict[str, Document]()
    if status is not None:
        for name, permit in status.permits.items():
            waits = "; ".join(permit.waiting_for) or f"{permit.holder} has it"
            for engine_id in permit.waiters:
                found[engine_id] = _engine(engine_id, "starts", f"waits for the permit {name}: {waits}")
            if permit.holder is not None:
                found[permit.holder] = _engine(permit.holder, "starts", "initialises; its log shows how far it is")
        for waiter in status.waiters:
            why = "" if waiter.ready else "waits, and says that its engine can't wake now; its shim knows why"
            more = {"pid": waiter.pid, "since": waiter.since, "needs": dict(list(waiter.needs.items())[:LIST_MOST])}
            found[waiter.engine_id] = _engine(waiter.engine_id, "ready" if waiter.ready else "not ready", why, **more)
        if status.holder is not None:
            found[status.holder.engine_id] = _holder(status, pair.away_since is not None)
    for engine_id, seen in pair.handoffs.engines.items():
        if engine_id in found:
            continue
        if status is not None and status.fencing is not None and _GRANT.format(engine_id) in status.fencing.waiting_for:
            found[engine_id] = _engine(engine_id, "wakes", "the lock is being granted to it")
        else:
            found[engine_id] = _engine(engine_id, "gone", f"it has ended: {AGAIN}", since=rfc3339(seen))
    return [found[engine_id] for engine_id in sorted(found)][:LIST_MOST]


def _holder(status: Status, away: bool) -> Document:
    holder = status.holder
    assert holder is not None
    dead = sum(not member.alive for member in holder.members)
    if status.state == "FENCING":
        state, why = "lost", f"its end is being proven: {dead} of {len(holder.members)} processes have ended"
    elif status.state == "RECOVERING":
        state, why = "in doubt", "a new lock server waits for it; if it lives, it serves on"
    elif not holder.endpoint:
        state, why = "wakes", "it has the lock, and hasn't said yet where it serves"
    elif status.plan is not None:
        state, why = "drains", f"it {_does(status.plan.to)}"
    else:
        state, why = "serves", ""
    if away:
        why = "; ".join(filter(None, ("as the lock said last", why)))
    more = {
        "pid": holder.pid,
        "since": holder.granted_at,
        "token": holder.token,
        "endpoint": _cut(holder.endpoint or ""),
    }
    return _engine(holder.engine_id, state, why, **more, processes=len(holder.members) - dead)


def _does(to: str) -> str:
    return f"hands over to {to}" if to else "goes to sleep"


def _engine(engine_id: str, state: str, why: str, **more: object) -> Document:
    return {"engine_id": _cut(engine_id), "state": state, "why": _cut(why), **more}


# -- failovers -----------------------------------------------------------------------------------------------------


def _handoff(handoff: h.Handoff, status: Status | None, now: float) -> Document:
    """`status`: while it is under way."""
    return {
        "at": rfc3339(handoff.at),
        "from": _cut(handoff.engine_id),
        "from_token": handoff.token,
        "to": _cut(handoff.to),
        "to_token": handoff.to_token,
        "planned": handoff.planned,
        "ms": handoff.spent_ms(now) if status is not None else handoff.phases_ms[h.SERVES],
        "phases": _phases(handoff),
        "proofs": _proofs(handoff, status),
        "clients": handoff.felt(),
    }


def _phases(handoff: h.Handoff) -> list[Document]:
    """One behind the other: each begins where the one before it ended."""
    ends, names, found, began = handoff.phases_ms, [], [], 0.0
    proven = [ends[part] for part in (h.PROCESSES, h.LIFE_LOCK) if part in ends]
    names += [("proof", max(proven))] if len(proven) == 2 else []
    names += [(name, ends[name]) for name in (h.GRANTED, h.SERVES, h.GOES_ON) if name in ends]
    for name, end in names:
        found.append({"name": name, "from_ms": began, "ms": round(max(end - began, 0.0), 3)})
        began = max(began, end)
    return found


def _proofs(handoff: h.Handoff, status: Status | None) -> list[Document]:
    """All three, and when each came in; `ms` is None for what isn't proven."""
    ends, holder = handoff.phases_ms, status.holder if status is not None else None
    fence = status.fencing if status is not None else None
    alive = [member.pid for member in holder.members if member.alive] if holder is not None else []
    life = {"held": "a process holds it", "missing": "its file is missing", "free": "no process holds it"}
    if h.PROCESSES in ends:
        processes = f"all {handoff.members} have ended" if handoff.members > 1 else "its one process has ended"
    else:
        named = ", ".join(map(str, alive[:LIST_MOST]))
        processes = f"{len(alive)} of {handoff.members} live: {named}" if alive else "nothing is known of them"
    lock = life.get(fence.life_lock if fence is not None else "", "it hasn't been looked at")
    short = [reason for reason in fence.waiting_for if reason.startswith("memory: ")] if fence is not None else []
    memory = "looked at when the rest is proven"
    if h.GRANTED in ends:
        memory = "what the next one needs is free" if handoff.verified else "not verified"
    elif short:
        memory = short[0].removeprefix("memory: ")
    return [
        {"part": "processes", "ms": ends.get(h.PROCESSES), "says": _cut(processes)},
        {"part": "life lock", "ms": ends.get(h.LIFE_LOCK), "says": life["free"] if h.LIFE_LOCK in ends else lock},
        {"part": "memory", "ms": ends.get(h.GRANTED) if handoff.verified else None, "says": _cut(memory)},
    ]


# -- the rest ------------------------------------------------------------------------------------------------------


def _memory(status: Status | None) -> Document | None:
    if status is None:
        return None
    return {"verified": status.memory == "verified", "why": _cut(status.memory_why)}


def _cuts(texts: Sequence[str]) -> list[str]:
    return [_cut(text) for text in texts[:LIST_MOST]]


def _cut(text: str) -> str:
    text = text.encode(errors="replace").decode()  # a path may have bytes that are no text
    return text if len(text) <= TEXT_MOST else text[: TEXT_MOST - 1] + "…"

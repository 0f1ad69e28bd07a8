"""`failover status`: which engine serves, which is ready, and where, from what `pair_look.py` has seen.

Which engine serves is the lock's to say, because clients go by it; the shims are asked only where the lock doesn't
know. What doesn't answer is called unknown and never taken for redundancy.
"""

import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine_shim.cli.pair_look import Seen, look
from engine_shim.cli.pair_process import PairError
from engine_shim.rules import takes
from sidecar.terminal import table
from sidecar.terminal.formatting import ago
from sidecar.terminal.terminal import say

REACHED, NONE_REACHED, NOT_ALL_SEEN, NOTHING_RUNS = 0, 1, 2, 3
NO_LOCK = "no lock server answers, and without one no engine takes over"
AT_REST = "it is at rest: `lockctl wake` ends that; of many models a request does, or failover models wake"
WAITS_FOR_WEIGHTS = "waits for the weights: GMS has to run, and a primary to write them"


def show(run_dir: Path, as_json: bool, door: str | None = None) -> int:
    """Prints the status. Returns the exit code. Raises PairError where this user may not see whether anything runs."""
    seen = look(run_dir, door)
    running = runs(seen)
    if seen.refused and not running:
        raise PairError(seen.lock_why)
    serves = serving(seen.lock, seen.engines)
    redundant, said = redundancy(seen.lock, seen.engines, seen.gms)
    if as_json:
        more = {"serving": serves, "redundant": redundant, "redundancy": said}
        say(json.dumps({**dataclasses.asdict(seen), **more}))
    elif running:
        say("\n".join(_lines(seen, said, datetime.now(UTC))))
    else:
        say(f"nothing runs in {run_dir}; failover up starts a pair")
    if not running:
        return NOTHING_RUNS
    return NONE_REACHED if not reached(seen) else NOT_ALL_SEEN if silent_parts(seen) else REACHED


def runs(seen: Seen) -> bool:
    """Whether anything of a pair is there."""
    answers = [seen.lock is not None, *(one["answers"] for one in seen.gms), *(one["state"] for one in seen.engines)]
    return seen.up is not None or any(answers)


def silent_parts(seen: Seen) -> list[str]:
    """The parts of the pair that can't be asked. An engine that was given up is known of."""
    lock = [] if seen.lock is not None else ["the lock server"]
    gms = [f"GMS of {one['device']}" for one in seen.gms if not one["answers"]]
    shims = [one["engine_id"] for one in seen.engines if one["state"] is None and not one.get("given_up")]
    return [*lock, *gms, *(f"the shim of {name}" for name in shims)]


def reached(seen: Seen) -> bool:
    """Whether clients reach the engine that serves: the door answers, where there is one, and so does the engine."""
    serves = serving(seen.lock, seen.engines)
    if serves is None or (seen.door is not None and not seen.door["answers"]):
        return False
    engine = next((engine for engine in seen.engines if engine["engine_id"] == serves), {"state": None})
    return engine["state"] != "Active" or bool(engine["ready"] and not engine["silent_s"])


def serving(lock: dict[str, Any] | None, engines: Sequence[dict[str, Any]]) -> str | None:
    """Which engine serves. A lock server that is new or silent doesn't know; an engine serves on without it."""
    if lock is not None and lock["state"] != "RECOVERING":
        holder = lock["holder"]
        return holder["engine_id"] if lock["state"] == "HELD" and holder and holder["endpoint"] else None
    return next((engine["engine_id"] for engine in engines if engine["state"] == "Active" and engine["ready"]), None)


def redundancy(
    lock: dict[str, Any] | None, engines: Sequence[dict[str, Any]], gms: Sequence[dict[str, Any]] = ()
) -> tuple[bool, str]:
    """Whether an engine serves and another one could take over every request; and that in words."""
    ready = [engine for engine in engines if engine["ready"] and engine["state"] == "Standby"]
    names = ", ".join(engine["engine_id"] for engine in ready)
    but = f"; {names} {'is' if len(ready) == 1 else 'are'} ready" if ready else ""
    holder = serving(lock, engines)
    if lock is None:
        return False, f"none: {NO_LOCK}{but}"
    if holder is None and lock.get("resting"):
        return False, f"none: {AT_REST}{but}"
    if holder is None:
        return False, f"none: no engine serves, the lock is {lock['state']}{but}"
    if lock["state"] != "HELD":
        return False, f"none: no engine takes over while the lock is {lock['state']}; {holder} serves on{but}"
    if silent := [one["device"] for one in gms if not one["answers"]]:
        return False, f"none: GMS of {', '.join(silent)} doesn't answer, and no engine wakes without it{but}"
    shims = {engine["engine_id"]: engine for engine in engines}
    if not ready:
        waiting = [waiter["engine_id"] for waiter in lock.get("waiters", ())]
        unknown = [name for name in waiting if name in shims and shims[name]["state"] is None]
        if unknown:
            return False, f"unknown: {', '.join(unknown)}'s shim doesn't answer"
        lost = [f"{one['engine_id']} is given up by failover up" for one in engines if one.get("given_up")]
        coming = [how for engine in engines if engine["engine_id"] != holder for how in _coming(engine)]
        none = f"none yet: {', '.join(coming)}" if coming else "none: no engine is ready to take over"
        return False, "; ".join([none, *lost])
    if holder in shims and shims[holder]["state"] is None:
        return False, f"in doubt: {names} is ready, and {holder}'s shim, which knows what requests it takes, is silent"
    theirs = shims.get(holder, {}).get("takes") or {}
    others = {engine["engine_id"]: takes.differences(engine.get("takes") or {}, theirs, holder) for engine in ready}
    same = [name for name, found in others.items() if not found]
    if not same:
        name, found = next(iter(others.items()))
        return False, f"none: {name} is ready and takes other requests ({'; '.join(found)})"
    if lock["alarms"]:
        return False, f"in doubt: {', '.join(same)} is ready, and the lock server has an alarm"
    return True, f"yes: {', '.join(same)} would take over"


def _coming(engine: dict[str, Any]) -> list[str]:
    """How far an engine is that isn't there to take over and will be by itself."""
    doing = {"Init": "starting", "Waking": "waking"}.get(engine["state"])
    if doing:
        return [f"{engine['engine_id']} has been {doing} for {engine['for_s']:.0f} s"]
    wait_s = engine.get("next_start_in_s")
    return [f"{engine['engine_id']} starts again in {wait_s:.0f} s"] if wait_s else []


def _lines(seen: Seen, said: str, now: datetime) -> list[str]:
    ends = ", which ends everything" if seen.ending else ""
    command = "failover models up" if seen.of_many else "failover up"
    up = f"  ({command}: process {seen.up}{ends})" if seen.up is not None else ""
    # what isn't there yet, or is to be there no more, is no alarm
    passing = seen.ending or (seen.starting and serving(seen.lock, seen.engines) is None)
    rows = [("run directory", f"{seen.run_dir}{up}")]
    rows += [("alarm", seen.no_room)] if seen.no_room else []
    if seen.door is not None:
        answers = "answers" if seen.door["answers"] else f"doesn't answer: {seen.door['why']}"
        rows.append(("door", f"{seen.door['url']}/v1  ({answers})"))
        if not seen.door["answers"] and not passing:
            rows.append(("alarm", "the door doesn't answer: clients reach no engine through it"))
    lock = seen.lock
    if lock is None:
        rows.append(("lock", seen.lock_why))
        rows += [] if passing else [("alarm", NO_LOCK)]
    else:
        holder = lock["holder"]
        rows.append(("lock", lock["state"] + (f" by {holder['engine_id']}, token {holder['token']}" if holder else "")))
        awaited = (lock["fencing"] or {"waiting_for": []})["waiting_for"]
        rows += [("waits for", reason) for reason in awaited if reason not in lock["alarms"]]
        rows += [("alarm", alarm) for alarm in lock["alarms"]]
        if lock.get("resting"):
            rows.append(("at rest", lock["resting_why"]))
        elif serving(lock, seen.engines) is None and not passing:
            rows.append(("none serves", _none_serves(seen, now)))
    for one in seen.gms:
        rows.append((f"gms {one['device']}", _weights(one) if one["answers"] else f"no answer: {one['why']}"))
        if not one["answers"] and not passing:
            rows.append(("alarm", f"GMS of {one['device']} doesn't answer: no engine wakes without it"))
        rows += [("waits for", reason) for reason in one.get("waiting_for", ())]
        rows += [("alarm", alarm) for alarm in one.get("alarms", ())]
    for engine in seen.engines:
        rows.append((f"engine {engine['engine_id']}", _engine(engine, seen.gms)))
        rows += [("", reason) for reason in why_not_ready(engine, seen)]
        if engine.get("silent_s"):
            rows.append(("alarm", silent_engine(engine, lock)))
        elif engine.get("no_step_s"):
            rows.append(("alarm", _no_step(engine)))
    rows.append(("redundancy", said))
    return table.lines(rows)


def _none_serves(seen: Seen, now: datetime) -> str:
    """Since when, what ended, and what is tried next."""
    last, tried = seen.last_served, "; ".join(filter(None, map(_next_try, seen.engines)))
    if last is None:
        since = "the lock server knows of none that did"
    else:
        ends = [one.get("last_end") for one in seen.engines if one["engine_id"] == last["engine_id"]]
        since = f"for {ago(last['until'], now).removesuffix(' ago')}, since {last['until']}; the last was "
        since += last["engine_id"] + (f": {ends[0]}" if any(ends) else "")
    return f"{since}. Next: {tried or 'nothing, no engine is left to try'}"


def _next_try(engine: dict[str, Any]) -> str:
    """What this engine is about to do towards serving; empty where that is nothing."""
    name = engine["engine_id"]
    if engine.get("next_start_in_s"):
        return f"{name} starts again in {engine['next_start_in_s']:.0f} s"
    if engine["state"] == "Standby":
        return f"{name} takes over" if engine["ready"] else f"{name} gets ready"
    words = {
        "Init": "starts",
        "Waking": "wakes",
        "Active": "begins to serve",
        "Draining": "ends, and then starts again",
    }
    return f"{name} {words[engine['state']]}" if engine["state"] in words else ""


def _models(gms: dict[str, Any]) -> list[dict[str, Any]]:
    """The regions of weights, which one GMS may have of several models: each has its own state and readers."""
    return [region for region in gms.get("regions", ()) if region["policy"] == "shared"]


def _weights(gms: dict[str, Any]) -> str:
    """A state of GMS's, and what it means."""
    if len(_models(gms)) > 1:
        return ", ".join(f"{model['key']} {model['state']}" for model in _models(gms))
    state = gms["state"]
    meaning = {
        "EMPTY": "there are no weights",
        "RW": "an engine writes the weights",
        "COMMITTED": "there are weights, and no engine reads them",
        "RO": "there are weights, and engines read them",
        "PARKED": "the weights are in host memory, and an engine that wakes brings them back",
        "RECOVERING": "a new server waits for the weights to be handed back",
    }.get(state)
    return f"{state}: {meaning}" if meaning else str(state)


def _weights_are_there(gms: Sequence[dict[str, Any]]) -> bool:
    models = [model for one in gms for model in _models(one) or [one]]
    return bool(models) and all(model["state"] in ("COMMITTED", "RO", "PARKED") for model in models)


def _engine(engine: dict[str, Any], gms: Sequence[dict[str, Any]] = ()) -> str:
    if engine["state"] is None:
        return str(engine["why"])
    words = [engine["state"], "ready" if engine["ready"] else "not ready"]
    if engine["state"] == "Init":  # only then it matters, and afterwards it would be taken for a state
        there = _weights_are_there(gms)
        loads = "starting (the weights are already there)" if there else "loads the weights if no engine has"
        words.insert(1, {"primary": loads, "shadow": "reads the weights"}[engine["role"]])
    words.append(f"for {engine['for_s']:.0f} s")
    if (ends := engine.get("deaths", 0)) > 1:
        words.append(f"ended {ends} times" + (f", last: {engine['last_end']}" if engine["ready"] else ""))
    if engine["url"]:
        words.append(engine["url"])
    return "  ".join(words)


def silent_engine(engine: dict[str, Any], lock: dict[str, Any] | None) -> str:
    """An engine that is stopped keeps its state until its shim ends it: until then its clients wait."""
    name, known = engine["engine_id"], [*(lock or {}).get("waiters", ()), (lock or {}).get("holder") or {}]
    pid = next((f" {one['pid']}" for one in known if one.get("engine_id") == name), "")
    return (
        f"main process{pid} of {name} has said nothing for {engine['silent_s']:.0f} s: is it stopped (state T in ps: "
        f"kill -CONT)? At {engine['stall_s']:g} s its shim ends it and starts it again"
    )


def _no_step(engine: dict[str, Any]) -> str:
    """Its main process speaks, and another one of it is stopped or frozen; or it compiles."""
    return (
        f"{engine['engine_id']} has had work queued for {engine['no_step_s']:.0f} s and finished no step: is a process "
        "of it stopped or frozen (`lockctl doctor` names it), or does it compile (then it uses processors)? Without a "
        f"step its shim ends it at {engine['stall_s']:g} s, later where it uses processors"
    )


def why_not_ready(engine: dict[str, Any], seen: Seen) -> list[str]:
    """What a person with a pager wants to know of an engine that isn't ready."""
    if engine["state"] is None or engine["ready"]:
        return []
    said = [engine["why"]] if engine["why"] != engine["state"] else []
    said += [reason for reason in (waits_for(engine, seen),) if reason]
    if engine.get("last_end") and engine["last_end"] not in said:
        said.append(f"its last end: {engine['last_end']}")
    if engine.get("next_start_in_s"):
        said.append(f"starts again in {engine['next_start_in_s']:.0f} s")
    return said


def waits_for(engine: dict[str, Any], seen: Seen) -> str:
    """What keeps an engine that starts or wakes, as far as the servers say it; empty where they don't."""
    name, state, lock = engine["engine_id"], engine["state"], seen.lock
    if state not in ("Init", "Waking"):
        return ""
    if lock is None:
        return "waits for a lock server"
    if silent := [one["device"] for one in seen.gms if not one["answers"]]:
        return f"{WAITS_FOR_WEIGHTS} (GMS of {', '.join(silent)} doesn't answer)"
    permit = lock["permits"].get("init")
    if state == "Init" and permit is not None and name in permit["waiters"]:
        why = "; ".join(permit["waiting_for"]) or f"{permit['holder']} has it"
        return f"waits for the permit to start: {why}"
    if state == "Init" and permit is not None and permit["holder"] == name:
        return ""
    for one, model in ((gms, model) for gms in seen.gms for model in _models(gms) if not model["generation"]):
        if any((client["engine_id"], client["region"]) == (name, model["key"]) for client in one["clients"]):
            where = one["device"] if len(_models(one)) == 1 else f"{model['key']} of {one['device']}"
            holder = serving(lock, seen.engines)
            if holder is None or model["state"] != "EMPTY":
                return f"{WAITS_FOR_WEIGHTS} ({where} is {model['state']})"
            return (
                f"waits for the weights: {where} is EMPTY, and {holder}, which serves, writes none before it "
                "starts again. The way out: failover kill active --anyway, and no engine serves until they are loaded"
            )
    return ""

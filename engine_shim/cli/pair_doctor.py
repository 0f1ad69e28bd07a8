"""`failover doctor`: what `lockctl doctor` looks at, and the other parts of the pair as `failover status` sees them; or
the servers of a host with many models, and each of these.

What this file may not do: look at anything by itself. The machine and the lock are `lockserver/doctor.py`'s, the parts
`pair_look.py`'s.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine_shim.cli import pair_look
from engine_shim.cli.pair_process import up_pid
from engine_shim.cli.pair_status import redundancy, runs, serving, silent_engine, why_not_ready
from lockserver.doctor import examine, examine_machine
from pool.entries import FOLLOWS_NONE, ModelShown, State
from pool.launching import LOCKS
from pool.observer import Observer as Pool
from sidecar.terminal.findings import Finding, Level, fail, ok, report, warn
from sidecar.wire.observer import ObserverError
from vram.observer import Observer as Ledger

LOG = "its log says why (kubectl logs, or the output of failover up, or of failover models up)"
SHOWN = "failover models shows it as it is now"
FILE = "put that right (failover models check FILE says whether it is), then kill -HUP of failover models up"
SILENT = f"kill -CONT if it is stopped; else {LOG}"


def show(run_dir: Path, as_json: bool, door: str | None) -> int:
    """Prints what was found. Returns the exit code."""
    if (facts := pair_look.UpFacts.read(run_dir)).models:
        findings = [*examine_machine(run_dir), *_of_many(run_dir, facts)]
    else:
        seen, findings = pair_look.look(run_dir, door), examine(run_dir, pair_look.TIMEOUT_S)
        if runs(seen) or seen.refused:
            findings += of_the_parts(seen)
        else:  # nothing is to be started by hand in place of a failover up
            do = "failover up starts a pair, and failover models up FILE many models"
            findings = [one for one in findings if one.check != "server"]
            findings.append(fail("pair", f"nothing runs in {run_dir}", do))
    return report(findings, as_json, run_dir=str(run_dir))


def _of_many(run_dir: Path, facts: pair_look.UpFacts) -> Iterator[Finding]:
    """The servers that a host has one of, and then each model."""
    starts = pair_look.who_starts_it(facts, up_pid(run_dir))
    yield from _of_gms(pair_look.weights(run_dir, starts))
    try:
        with Ledger(run_dir, pair_look.TIMEOUT_S) as ledger:
            alarms = ledger.status().alarms
        yield from (fail("ledger", alarm, "see what `vramctl status` says about it") for alarm in alarms)
        if not alarms:
            yield ok("ledger", "answers")
    except ObserverError as error:
        why = pair_look.why_none("ledger", error, starts)
        yield fail("ledger", why, _way_out(why))
    yield _of_door(pair_look.door(facts.door, starts))
    try:
        with Pool(run_dir, pair_look.TIMEOUT_S) as pool:
            listing = pool.listing()
    except ObserverError as error:
        why = pair_look.why_none("pool", error, starts)
        yield fail("pool", f"{why}; awake models serve on, and nothing swaps", _way_out(why))
        return
    if listing.waiting_for:
        yield warn("pool", f"it waits: {listing.waiting_for}", "see that part above, and its log")
    yield from (fail("pool", alarm, FILE if FOLLOWS_NONE in alarm else SHOWN) for alarm in listing.alarms)
    if not listing.waiting_for and not listing.alarms:
        yield ok("pool", f"{len(listing.models)} models")
    locks = run_dir / LOCKS
    with ThreadPoolExecutor(32) as threads:  # a lock server that is stopped says nothing of each
        for found in threads.map(lambda model: list(_of_model(model, locks / model.name)), listing.models):
            yield from found


def _of_model(model: ModelShown, directory: Path) -> Iterator[Finding]:
    name, state = f"model {model.name}", model.state.value
    said = f"{state}: {model.why}" if model.why not in ("", state) else state
    if model.state is State.FAILED:
        yield fail(name, said, f"{LOG}; failover models wake {model.name} tries at once")
    elif model.wanted and model.state is not State.AWAKE:
        yield warn(name, said, "wait, if it is just starting; failover models --watch says what comes of it")
    else:
        yield ok(name, said)
    if not directory.is_dir():
        return
    seen = pair_look.look(directory, "")
    if model.state is not State.OFF:  # then it has no shim, and is to have none
        yield from (one for one in _of_engines(seen, f"{model.name}/") if one.level is Level.FAIL)
    if seen.lock is None:
        yield fail(f"lock of {model.name}", seen.lock_why, _way_out(seen.lock_why))
    for alarm in seen.lock["alarms"] if seen.lock else ():
        yield fail(f"lock of {model.name}", alarm, f"see lockctl status --run-dir {directory}")


def of_the_parts(seen: pair_look.Seen) -> Iterator[Finding]:
    yield from _of_gms(seen.gms)
    yield _of_door(seen.door)
    yield from _of_engines(seen)
    redundant, said = redundancy(seen.lock, seen.engines, seen.gms)
    if seen.lock is not None and seen.lock.get("resting"):
        yield warn("redundancy", said, "nothing, where that is meant")
    elif serving(seen.lock, seen.engines) is None:
        yield fail("redundancy", said, "failover status says since when, and what is tried next")
    else:
        yield ok("redundancy", said) if redundant else warn("redundancy", said, "see what is wrong above")


def _of_gms(devices: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for one in devices:
        name = f"gms {one['device']}"
        if not one["answers"]:
            yield fail(name, f"no answer, and without it no engine wakes: {one['why']}", _way_out(one["why"]))
        for alarm in one.get("alarms", ()):
            yield fail(name, alarm, "see what `gmsctl status` says about it")
        if one["answers"] and not one.get("alarms"):
            yield ok(name, one["state"])


def _of_door(door: Mapping[str, Any] | None) -> Finding:
    if door is None:
        return ok("door", "none: clients come to the engines themselves, or no engine is there")
    if door["answers"]:
        return ok("door", f"answers at {door['url']}")
    return fail("door", f"{door['url']}: {door['why']}; through it clients reach no engine", _way_out(door["why"]))


def _of_engines(seen: pair_look.Seen, of: str = "") -> Iterator[Finding]:
    for engine in seen.engines:
        name, state = f"engine {of}{engine['engine_id']}", engine["state"]
        if state is None:
            yield fail(
                name,
                str(engine["why"]),
                "put that right, and send SIGUSR1 to failover up"
                if engine.get("given_up")
                else _way_out(engine["why"]),
            )
        elif engine.get("silent_s"):
            yield fail(name, silent_engine(engine, seen.lock), SILENT)
        elif engine["ready"]:
            yield ok(name, f"{state}, ready")
        else:
            found = "; ".join([f"{state}, not ready", *why_not_ready(engine, seen)])
            yield warn(name, found, "wait, if it is just starting; else its log says more")


def _way_out(why: str) -> str:
    """Only a process that is there and says nothing can be stopped: then `why` asks that, too."""
    if pair_look.ENDS in why:
        return "nothing, where that is meant: what ends finishes its answers first"
    return SILENT if "state T in ps" in why else LOG

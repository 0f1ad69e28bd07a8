"""`failover doctor`: what `lockctl doctor` looks at, and the other parts of the pair as `failover status` sees them.

What this file may not do: look at anything by itself. The machine and the lock are `lockserver/doctor.py`'s, the parts
`pair_look.py`'s.
"""

from collections.abc import Iterator
from pathlib import Path

from engine_shim.cli import pair_look
from engine_shim.cli.pair_status import redundancy, serving, silent_engine, why_not_ready
from lockserver.doctor import examine
from sidecar.terminal.findings import Finding, fail, ok, report, warn

LOG = "its log says why (kubectl logs, or the output of failover up)"
SILENT = f"kill -CONT if it is stopped; else {LOG}"


def show(run_dir: Path, as_json: bool, door: str | None) -> int:
    """Prints what was found. Returns the exit code."""
    findings = [*examine(run_dir, pair_look.TIMEOUT_S), *of_the_parts(pair_look.look(run_dir, door))]
    return report(findings, as_json, run_dir=str(run_dir))


def of_the_parts(seen: pair_look.Seen) -> Iterator[Finding]:
    for one in seen.gms:
        name = f"gms {one['device']}"
        if not one["answers"]:
            yield fail(name, f"no answer, and without it no engine wakes: {one['why']}", _way_out(one["why"]))
        for alarm in one.get("alarms", ()):
            yield fail(name, alarm, "see what `gmsctl status` says about it")
        if one["answers"] and not one.get("alarms"):
            yield ok(name, one["state"])
    if seen.door is None:
        yield ok("door", "none: clients come to the engines themselves, or no engine is there")
    elif seen.door["answers"]:
        yield ok("door", f"answers at {seen.door['url']}")
    else:
        yield fail(
            "door",
            f"{seen.door['url']}: {seen.door['why']}; through it clients reach no engine",
            _way_out(seen.door["why"]),
        )
    for engine in seen.engines:
        name, state = f"engine {engine['engine_id']}", engine["state"]
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
    redundant, said = redundancy(seen.lock, seen.engines, seen.gms)
    if serving(seen.lock, seen.engines) is None:
        yield fail("redundancy", said, "failover status says since when, and what is tried next")
    else:
        yield ok("redundancy", said) if redundant else warn("redundancy", said, "see what is wrong above")


def _way_out(why: str) -> str:
    """Only a process that is there and says nothing can be stopped: then `why` asks that, too."""
    return SILENT if "state T in ps" in why else LOG

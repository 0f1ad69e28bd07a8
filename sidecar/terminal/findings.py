"""What a doctor says: `lockctl doctor`, `failover doctor`, `fleetctl doctor`."""

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.terminal.formatting import Tone
from sidecar.terminal.terminal import say, terminal_paint


class Level(enum.Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    check: str
    level: Level
    found: str
    do: str = ""
    """What to do; empty when there is nothing to do."""


def report(findings: Sequence[Finding], as_json: bool, **about: str) -> int:
    """Prints them. Returns the exit code: 1 if something FAILs."""
    sick = any(finding.level is Level.FAIL for finding in findings)
    if as_json:
        checks = [{"check": f.check, "level": f.level.value, "found": f.found, "do": f.do} for f in findings]
        say(json.dumps({"healthy": not sick, **about, "checks": checks}))
        return int(sick)
    paint = terminal_paint()
    tones = {Level.OK: Tone.GOOD, Level.WARN: Tone.CARE, Level.FAIL: Tone.BAD}
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        say(f"{paint(f'{finding.level.value:<4}', tones[finding.level])}  {finding.check:<{width}}  {finding.found}")
        if finding.do:
            say(f"{'':<{width + 8}}-> {finding.do}")
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    say(f"\n{counts[Level.OK]} ok, {counts[Level.WARN]} to be looked at, {counts[Level.FAIL]} FAIL")
    return int(sick)


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)


def warn(check: str, found: str, do: str) -> Finding:
    return Finding(check, Level.WARN, found, do)


def fail(check: str, found: str, do: str) -> Finding:
    return Finding(check, Level.FAIL, found, do)

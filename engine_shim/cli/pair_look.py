"""What can be seen of a pair in its run directory: its lock server, GMS of each device, the shims, and the door.

All are asked at once, and each has a bound: a server that is stopped costs the caller no more than that. What this
file may not do: judge what it sees (`pair_status.py`).
"""

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from engine_shim.cli.door_answer import NoDoor, ask
from engine_shim.cli.pair_process import PairError, up_pid
from engine_shim.shell import shim_status
from gms import observer as gms
from lockserver import observer as lockserver
from pool.launching import LOCKS
from sidecar.kernel import durable, port_owner

TIMEOUT_S = 2.0
STARTING = "is starting it"
BY_ITSELF = "starts it again by itself, and its output says why it ended"
ENDS = "ends them all"
"""A second one that a person starts by hand has other options, and keeps the pair's own one out."""
DOOR = "http://localhost:8000"
"""Where to ask for a door that no `failover up` has told of: its own default, and in a pod the chart's."""
UP_FACTS = "up.json"
"""What `failover up` says of its pair while it runs."""


@dataclass(frozen=True)
class UpFacts:
    door: str = ""
    """Where clients come; empty where there is no door."""
    devices: tuple[str, ...] | None = None
    """As it was told; empty where there is no GMS, None where no file says it."""
    starting: bool = False
    """No engine has served yet."""
    given_up: dict[str, str] = field(default_factory=dict)
    """The engines that it has given up, and why, in a sentence."""
    models: bool = False
    """It has many models, each with a run directory of its own."""
    ending: bool = False
    """It ends everything: what has ended stays so."""

    def write(self, run_dir: Path) -> None:
        """Unless it says so already. Not worth ending a pair: without it `failover status` has no row for the door."""
        if self.read(run_dir) == self:
            return
        new = run_dir / f"{UP_FACTS}.new"
        with contextlib.suppress(OSError):
            with open(new, "w", opener=durable.regular) as file:
                file.write(json.dumps(asdict(self)))
            new.replace(run_dir / UP_FACTS)

    @classmethod
    def read(cls, run_dir: Path) -> "UpFacts":
        try:
            return msgspec.json.decode(durable.read(run_dir / UP_FACTS), type=cls)
        except (OSError, msgspec.MsgspecError, UnicodeError):
            return cls()

    @staticmethod
    def remove(run_dir: Path) -> None:
        with contextlib.suppress(OSError):
            (run_dir / UP_FACTS).unlink()


@dataclass(frozen=True)
class Seen:
    """As `failover status --json` prints it."""

    run_dir: str
    up: int | None
    """The process of `failover up`, where there is one and it can be seen from here."""
    lock: dict[str, Any] | None
    lock_why: str
    """Why there is none."""
    gms: list[dict[str, Any]]
    """Each with its `device`, whether it `answers`, `why` if it doesn't, and what it says of itself."""
    engines: list[dict[str, Any]]
    """What each shim says of itself; where it doesn't answer, `state` is None and `why` says why."""
    door: dict[str, Any] | None
    """`url`, whether it `answers`, and `why` if it doesn't."""
    starting: bool = False
    """`failover up` has begun, and no engine has served yet."""
    ending: bool = False
    """It ends everything."""
    last_served: dict[str, str] | None = None
    """While no engine serves: the one that did last (`engine_id`), and `until` when, as the lock server knows."""
    no_room: str = ""
    """What the lock server's doctor says of the run directory's disk, where that is nearly full."""
    refused: bool = False
    """The lock server doesn't let this user look."""
    of_many: bool = False
    """It is one model of a host with many: `up` is the process of `failover models up`."""


def look(run_dir: Path, door: str | None = None) -> Seen:
    """Everything. `door`: its address where a person has told it, empty where there is none. Raises PairError where the
    directory can't be looked at.
    """
    not_many(run_dir, UpFacts.read(run_dir))
    facts, runs_in = what_up_says(run_dir)
    pid = up_pid(runs_in)
    told = door is not None or pid is not None
    url = door if door is not None else facts.door or ("" if told else DOOR)
    starts = who_starts_it(facts, pid)
    given = facts.given_up if pid is not None else {}
    shims = starts if facts.ending or not facts.models else ""  # a model's are started when it is wanted
    ids, named = sorted({*shim_status.engines(run_dir), *given}), devices(run_dir)
    with ThreadPoolExecutor(max_workers=len(ids) + len(named) + 2) as pool:
        lock = pool.submit(_lock, run_dir, starts)
        weights = [pool.submit(_gms, run_dir, device, starts) for device in named]
        engines = [pool.submit(_engine, run_dir, engine_id, given, shims) for engine_id in ids]
        asked = pool.submit(_why_no_answer, url, starts, None if told else run_dir)
    status, last_served, why, refused = lock.result()
    why_no_door = asked.result()
    at_ports = any(str(one.result().get("url")).startswith("http:") for one in engines)  # which need no door
    if why_no_door and not told and (at_ports or not (ids or named)):
        url = ""
    return Seen(
        str(run_dir),
        pid,
        status,
        why,
        [one.result() for one in weights],
        [one.result() for one in engines],
        {"url": url, "answers": not why_no_door, "why": why_no_door} if url else None,
        pid is not None and facts.starting,
        pid is not None and facts.ending,
        last_served,
        _no_room(run_dir),
        refused,
        facts.models,
    )


def weights(run_dir: Path, starts: str) -> list[dict[str, Any]]:
    """What GMS of each device says: of a host with many models."""
    return [_gms(run_dir, device, starts) for device in devices(run_dir)]


def door(url: str, starts: str) -> dict[str, Any]:
    """Whether one answers there, whatever stands behind it."""
    why = _why_no_answer(url, starts, None)
    return {"url": url, "answers": not why, "why": why}


def not_many(run_dir: Path, facts: UpFacts) -> None:
    """Raises PairError where there is no pair but many models."""
    if facts.models:
        raise PairError(
            f"{run_dir} has many models: failover models shows them, and --run-dir {run_dir}/{LOCKS}/NAME is one's"
        )


def what_up_says(run_dir: Path) -> tuple[UpFacts, Path]:
    """What the `failover up` of this directory says of its pair, and the directory that it runs in; of one model of
    many, what the `failover models up` of the host does.
    """
    host = run_dir.parent.parent
    if run_dir.parent.name == LOCKS and (many := UpFacts.read(host)).models:
        return many, host
    return UpFacts.read(run_dir), run_dir


def who_starts_it(facts: UpFacts, up: int | None) -> str:
    """What `failover up`, or `failover models up`, does about parts that don't listen; empty where none runs."""
    command = "failover models up" if facts.models else "failover up"
    does = ENDS if facts.ending else STARTING if facts.starting else BY_ITSELF
    return "" if up is None else f"{command} {does}"


def why_none(what: str, error: Exception, starts: str) -> str:
    """Why it doesn't answer. What is started for a person isn't to be started by one."""
    return f"no {what} listens; {starts}" if starts and isinstance(error, lockserver.NoServer) else str(error)


def devices(run_dir: Path) -> list[str]:
    """Those whose GMS the pair needs: what the `failover up` that runs was told, else what GMS itself was told. (A
    directory may have had another pair before.)
    """
    told = UpFacts.read(run_dir).devices
    if told is None or up_pid(run_dir) is None:
        return gms.devices(run_dir)
    return gms.devices(run_dir) or ["cuda"] if "cuda" in told else list(told)


def _gms(run_dir: Path, device: str, starts: str) -> dict[str, Any]:
    try:
        with gms.Observer(run_dir, device, TIMEOUT_S) as observer:
            status = observer.status()
    except (gms.ObserverError, OSError) as error:
        why = why_none(f"GMS of {device}", error, starts)
        return {"device": device, "answers": False, "why": why, "state": None}
    names = [name for name in status.__struct_fields__ if name != "fds"]  # every field, as gmsctl status --json has it
    said = {name: msgspec.to_builtins(getattr(status, name)) for name in names}
    return {**said, "answers": True, "why": ""}


def _lock(run_dir: Path, starts: str) -> tuple[dict[str, Any] | None, dict[str, str] | None, str, bool]:
    """Its status, which engine served last, why there is none of this, and whether this user may not look."""
    try:
        with lockserver.Observer(run_dir, TIMEOUT_S) as observer:
            return msgspec.to_builtins(next(observer.watch())), observer.last_served(), "", False
    except (lockserver.ObserverError, OSError) as error:
        return None, None, why_none("lock server", error, starts), isinstance(error, lockserver.Refused)


def _no_room(run_dir: Path) -> str:
    from lockserver.doctor import room  # loading it takes time that failover up hasn't

    with contextlib.suppress(OSError):  # it isn't there: nothing runs
        found = room(run_dir)
        return f"the run directory has {found.found}: {found.do}" if found.do else ""
    return ""


def _engine(run_dir: Path, engine_id: str, given: dict[str, str], starts: str) -> dict[str, Any]:
    try:
        return shim_status.ask(run_dir, engine_id, TIMEOUT_S)
    except (shim_status.ObserverError, OSError) as error:
        absent = {"engine_id": engine_id, "state": None, "ready": False, "given_up": engine_id in given}
        return {**absent, "why": given.get(engine_id, why_none("shim", error, starts))}


class _Pair(msgspec.Struct):
    run_dir: str


class _Door(msgspec.Struct):
    pairs: list[_Pair]


def _why_no_answer(url: str, starts: str, run_dir: Path | None) -> str:
    """Empty if a door answers there; with `run_dir`, one that stands in front of this pair."""
    if not url:
        return "there is no door"
    elsewhere = (
        "" if run_dir is None else "; --door HOST:PORT says where else it listens, --door none that there is none"
    )
    try:
        served = [pair.run_dir for pair in ask(url, "/failover", TIMEOUT_S, _Door).pairs]
    except TimeoutError:
        at = urlsplit(url)
        is_here = at.hostname in ("localhost", "127.0.0.1", "::1")
        who = (port_owner.owner(at.port or 80) if is_here else "") or "its process"
        return f"says nothing for {TIMEOUT_S:g} s: is {who} stopped (state T in ps)?"
    except ConnectionRefusedError:
        return "no program listens there" + (f"; {starts}" if starts else elsewhere)
    except (OSError, NoDoor) as error:
        return (getattr(error, "strerror", None) or str(error)) + elsewhere
    if run_dir is None or os.path.realpath(run_dir) in map(os.path.realpath, served):
        return ""
    return f"a door of other pairs listens there ({', '.join(served)}){elsewhere}"

"""What `failover status`, `down` and `kill` do to a pair that `failover up` (or anybody) runs in a directory."""

import contextlib
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from engine_shim import places, status
from engine_shim.up import UP_LOCK
from lockserver.observer import Observer, ObserverError
from sidecar import peers
from sidecar.durable import AlreadyLocked, DirectoryLock

SERVES, NOBODY_SERVES, NOTHING_RUNS = 0, 1, 3
DOWN_S, HANDOFF_S = 60.0, 60.0
ELSEWHERE = "it is another user's, or in another PID namespace: in a container, say this inside it"


class PairError(Exception):
    """It can't be done, and why."""


def up_pid(run_dir: Path) -> int | None:
    """The process of `failover up` in this directory; None where there is none."""
    if not (run_dir / UP_LOCK).exists():
        return None
    try:
        DirectoryLock(run_dir, UP_LOCK).acquire().close()
    except AlreadyLocked as error:
        return error.pid
    except OSError as error:
        raise PairError(f"{run_dir} can't be looked at: {error.strerror}") from None
    return None


def show(run_dir: Path, as_json: bool) -> int:
    """Prints who serves, who is ready, and where. Returns the exit code."""
    lock: dict[str, Any] | None = None
    why = ""
    try:
        with Observer(run_dir) as observer:
            lock = msgspec.to_builtins(next(observer.watch()))
    except ObserverError as error:
        why = str(error)
    engines: list[dict[str, Any]] = []
    for engine_id in status.engines(run_dir):
        try:
            engines.append(status.ask(run_dir, engine_id))
        except status.NoAnswer as error:
            engines.append({"engine_id": engine_id, "state": None, "ready": False, "why": str(error)})
    pid = up_pid(run_dir)
    running = lock is not None or any(engine["state"] for engine in engines)
    serving = next((engine for engine in engines if engine["state"] == "Active"), None)
    if as_json:
        print(json.dumps({"run_dir": str(run_dir), "up": pid, "lock": lock, "engines": engines}))
    elif not running and pid is None:
        print(f"nothing runs in {run_dir}; failover up starts a pair")
    else:
        _print(run_dir, pid, lock, why, engines)
    return SERVES if serving else NOBODY_SERVES if running or pid else NOTHING_RUNS


def _print(
    run_dir: Path, pid: int | None, lock: dict[str, Any] | None, why: str, engines: list[dict[str, Any]]
) -> None:
    print(f"{'run directory':<15} {run_dir}" + (f"  (failover up: process {pid})" if pid else ""))
    if lock is None:
        print(f"{'lock':<15} {why}")
    else:
        holder = lock["holder"]
        print(
            f"{'lock':<15} {lock['state']}" + (f" by {holder['engine_id']}, token {holder['token']}" if holder else "")
        )
    for engine in engines:
        name = f"engine {engine['engine_id']}"
        if engine["state"] is None:
            print(f"{name:<15} {engine['why']}")
            continue
        words = [engine["role"], engine["state"], "ready" if engine["ready"] else "not ready"]
        words.append(f"for {engine['for_s']:.0f} s")
        if engine["url"]:
            words.append(engine["url"])
        elif not engine["ready"] and engine["why"] != engine["state"]:
            words.append(engine["why"])
        print(f"{name:<15} " + "  ".join(words))
    ready = [engine["engine_id"] for engine in engines if engine["ready"] and engine["state"] == "Standby"]
    print(f"{'redundancy':<15} " + (f"yes: {', '.join(ready)} would take over" if ready else "none"))


def down(run_dir: Path, timeout_s: float = DOWN_S) -> None:
    """Ends a `failover up`, and waits for that. Raises PairError."""
    pid = up_pid(run_dir)
    if pid is None:
        raise PairError(f"no failover up runs in {run_dir}")
    pidfd = _reach(pid, run_dir / UP_LOCK)
    if pidfd is None:
        if up_pid(run_dir) is None:
            return  # it ended in between
        raise PairError(f"failover up, process {pid} as it says itself, can't be reached: {ELSEWHERE}")
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if not select.select([pidfd], [], [], timeout_s)[0]:
            raise PairError(f"process {pid} was told to end and still runs after {timeout_s:g} s; its log says why")
    finally:
        os.close(pidfd)


def _reach(pid: int, file: Path) -> int | None:
    """A pidfd of the process that has this number *and* this file open; None where there is none here. A number alone
    may be somebody else's: it comes from another PID namespace, or its process has ended.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        if _has_open(pid, file) and not peers.is_dead(pidfd):
            kept, pidfd = pidfd, -1
            return kept
        return None
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def _has_open(pid: int, file: Path) -> bool:
    with contextlib.suppress(OSError):
        wanted = os.stat(file)
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), wanted):
                    return True
    return False


def kill_active(run_dir: Path, anyway: bool) -> None:
    """SIGKILL to the main process of the engine that serves; prints what follows. Raises PairError."""
    try:
        with Observer(run_dir) as observer:
            _kill_and_watch(observer, run_dir, anyway)
    except ObserverError as error:
        raise PairError(str(error)) from None


def _kill_and_watch(observer: Observer, run_dir: Path, anyway: bool) -> None:
    states = observer.watch()
    seen = next(states)
    holder = seen.holder
    if seen.state != "HELD" or holder is None or not holder.endpoint:
        raise PairError(f"nobody serves (the lock is {seen.state}): there is nothing to kill")
    if not any(waiter.ready for waiter in seen.waiters) and not anyway:
        raise PairError(f"nobody is ready to take over from {holder.engine_id}; --anyway kills it all the same")
    pidfd = _reach(holder.pid, run_dir / places.LIFE / f"{holder.engine_id}.{holder.incarnation}")
    if pidfd is None:
        raise PairError(f"the main process of {holder.engine_id}, {holder.pid}, can't be reached: {ELSEWHERE}")
    try:
        print(f"{holder.engine_id} (process {holder.pid}, token {holder.token}) serves at {holder.endpoint}: SIGKILL")
        began = time.monotonic()
        if peers.kill(pidfd) is peers.KillResult.OUT_OF_REACH:
            raise PairError(f"process {holder.pid} is another user's, or in another PID namespace")
    finally:
        os.close(pidfd)
    last = ""
    while time.monotonic() < began + HANDOFF_S:
        seen = observer.hear(type(seen), HANDOFF_S)
        spent_ms = (time.monotonic() - began) * 1000
        then = seen.holder if seen.holder is not None and seen.holder.token != holder.token else None
        line = _line(seen, then)
        if line and line != last:
            last = line
            print(f"{spent_ms:8.1f} ms  {line}")
        if then is not None and then.endpoint:
            return
    raise PairError(f"nobody serves {HANDOFF_S:g} s after the kill; failover status says what is waited for")


def _line(seen: Any, then: Any) -> str:
    """What has become of it so far. Nothing, while the dead one still counts as the holder."""
    if then is not None and then.endpoint:
        return f"{then.engine_id} serves at {then.endpoint}"
    if then is not None:
        return f"{then.engine_id} has the lock, with token {then.token}"
    if seen.state == "HELD":
        return ""
    waiting_for = "; ".join(seen.fencing.waiting_for) if seen.fencing is not None else ""
    return f"the lock is {seen.state}" + (f": {waiting_for}" if waiting_for else "")

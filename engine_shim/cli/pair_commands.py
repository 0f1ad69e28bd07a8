"""What `failover down` and `failover kill` do to a pair that `failover up` (or anything else) runs in a directory."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_shim.cli import pair_look
from engine_shim.cli.pair_process import UP_LOCK, PairError, reach, up_pid
from engine_shim.cli.pair_status import redundancy
from engine_shim.shell import cleanup, paths
from lockserver.observer import NoServer, Observer, ObserverError
from sidecar.kernel import peers
from sidecar.kernel.durable import nobody_has
from sidecar.terminal.names import incarnation_name
from sidecar.terminal.terminal import say

DOWN_S, HANDOFF_S = 60.0, 60.0
ACTIVE = "active"
"""Stands for the engine that serves."""
ELSEWHERE = "it is another user's, or in another PID namespace: run this in its container (in a pod: that engine's)"


def down(run_dir: Path, timeout_s: float = DOWN_S) -> None:
    """Ends a `failover up`, waits for its end, and says what stays; of one that was killed, also what was still there
    and is gone now. Raises PairError.
    """
    devices = pair_look.devices(run_dir)
    with _ended(run_dir) as ended:
        if ended and (run_dir / pair_look.UP_FACTS).exists():
            say(f"the failover up of {run_dir} was killed: what it has left, and no process uses, is removed")
            left = cleanup.left(run_dir, devices)
            stays = cleanup.remove(run_dir, devices)
            pair_look.UpFacts.remove(run_dir)
            for path in left:
                if not os.path.lexists(path):
                    say(f"removed: {path}")
            _say_what_stays(run_dir, stays)
            return
    try:
        _end(run_dir, timeout_s)
    finally:
        with _ended(run_dir) as ended:
            if ended:
                _say_what_stays(run_dir, cleanup.remove(run_dir, devices))


@contextlib.contextmanager
def _ended(run_dir: Path) -> Iterator[bool]:
    """A failover up has run here, and none does; and none begins meanwhile."""
    if not os.access(run_dir / UP_LOCK, os.R_OK | os.W_OK):
        yield False
        return
    with nobody_has(run_dir, UP_LOCK) as ended:
        yield ended


def _say_what_stays(run_dir: Path, stays: list[str]) -> None:
    for what in stays:
        say(f"stays: {what}")
    say(f"stays: {run_dir}, where the newest token is, for the next start")


def _end(run_dir: Path, timeout_s: float) -> None:
    pid = up_pid(run_dir)
    if pid is None:
        raise PairError(f"no failover up runs in {run_dir}, as far as this process can see")
    pidfd = reach(pid, run_dir / UP_LOCK)
    if pidfd is None:
        if up_pid(run_dir) is None:
            return  # it ended in between
        raise PairError(f"failover up, process {pid}, can't be reached: {ELSEWHERE}")
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if not select.select([pidfd], [], [], timeout_s)[0]:
            raise PairError(f"process {pid} was told to end and still runs after {timeout_s:g} s; its log says why")
    finally:
        os.close(pidfd)


def kill(run_dir: Path, whom: str, anyway: bool) -> None:
    """SIGKILL to the main process of the engine that serves, if it is the one that is meant: `active` is whichever
    serves. Prints what follows. Raises PairError.
    """
    pair_look.not_many(run_dir, pair_look.UpFacts.read(run_dir))
    try:
        with Observer(run_dir) as observer:
            _kill_and_watch(observer, run_dir, whom, anyway)
    except NoServer:
        facts, runs_in = pair_look.what_up_says(run_dir)
        starts = pair_look.who_starts_it(facts, up_pid(runs_in))
        if not starts:
            raise PairError(f"nothing runs in {run_dir}: there is nothing to kill; failover up starts a pair") from None
        raise PairError(f"no lock server listens, and without it no engine is known to serve; {starts}") from None
    except ObserverError as error:
        raise PairError(str(error)) from None


def _kill_and_watch(observer: Observer, run_dir: Path, whom: str, anyway: bool) -> None:
    states = observer.watch()
    seen = next(states)
    holder = seen.holder
    if seen.state != "HELD" or holder is None or not holder.endpoint:
        raise PairError(f"no engine serves (the lock is {seen.state}): there is nothing to kill")
    if whom not in (ACTIVE, holder.engine_id):
        only = "and only the engine that serves can be killed here: failover kill active"
        raise PairError(f"{whom} doesn't serve, {holder.engine_id} does, {only}")
    if not anyway:
        shown = pair_look.look(run_dir)
        redundant, said = redundancy(shown.lock, shown.engines, shown.gms)
        if not redundant:
            raise PairError(
                f"redundancy {said} (failover status says more); --anyway kills {holder.engine_id} all the same"
            )
    pidfd = reach(holder.pid, run_dir / paths.LIFE / incarnation_name(holder.engine_id, holder.incarnation))
    if pidfd is None:
        raise PairError(f"the main process of {holder.engine_id}, {holder.pid}, can't be reached: {ELSEWHERE}")
    try:
        say(f"{holder.engine_id} (process {holder.pid}, token {holder.token}) serves at {holder.endpoint}: SIGKILL")
        began = time.monotonic()
        killed = peers.kill(pidfd)
        if killed in (peers.KillResult.OUT_OF_REACH, peers.KillResult.REFUSED):
            why = ELSEWHERE if killed is peers.KillResult.OUT_OF_REACH else killed.value
            raise PairError(f"process {holder.pid} can't be killed: {why}")
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
            say(f"{spent_ms:8.1f} ms  {line}")
        if then is not None and then.endpoint:
            return
    raise PairError(f"no engine serves {HANDOFF_S:g} s after the kill; failover status says what is waited for")


def _line(seen: Any, then: Any) -> str:
    """What has happened so far; empty while the dead engine still counts as the holder."""
    if then is not None and then.endpoint:
        return f"{then.engine_id} serves at {then.endpoint}"
    if then is not None:
        return f"{then.engine_id} has the lock, with token {then.token}"
    if seen.state == "HELD":
        return ""
    waiting_for = "; ".join(seen.fencing.waiting_for) if seen.fencing is not None else ""
    return f"the lock is {seen.state}" + (f": {waiting_for}" if waiting_for else "")

"""The lock's public state, as the door's machine wants it. One thread for each pair, which waits and tells.

What this file may not do: guess. No server is no news; whoever held the lock serves on.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from gateway import events as e
from lockserver.observer import ObserverError, Status, watch_forever
from sidecar.logs import Log

REFUSED_RETRY_S = 1.0


def watch(run_dir: Path, tell: Callable[[Status | None], None], log: Log) -> None:
    """In a thread of its own, for as long as the process lives."""
    threading.Thread(target=_watch, args=(run_dir, tell, log), name=f"watch {run_dir}", daemon=True).start()


def _watch(run_dir: Path, tell: Callable[[Status | None], None], log: Log) -> None:
    while True:
        try:
            for status in watch_forever(run_dir):
                tell(status)
        except ObserverError as error:
            tell(None)
            log.alarm("lock_refuses", run_dir=str(run_dir), why=str(error))
        except Exception as error:  # whatever it is: a door that doesn't see the lock can't follow it
            tell(None)
            log.alarm("watch_failed", run_dir=str(run_dir), why=f"{type(error).__name__}: {error}")
        time.sleep(REFUSED_RETRY_S)


def seen(status: Status | None) -> e.LockSeen | e.LockAway:
    if status is None:
        return e.LockAway()
    holder = status.holder
    return e.LockSeen(
        state=status.state,
        newest=status.token,
        token=holder.token if holder is not None else 0,
        engine_id=holder.engine_id if holder is not None else "",
        url=(holder.endpoint or "") if holder is not None else "",
        plan=_plan(status),
        ready=tuple(waiter.engine_id for waiter in status.waiters if waiter.ready),
    )


def _plan(status: Status) -> e.Plan | None:
    plan = status.plan
    return None if plan is None else e.Plan(plan.old_token, plan.drain_timeout_s, plan.step == "exiting")

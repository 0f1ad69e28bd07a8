"""The lock's public state, as the door's machine wants it. One thread for each pair, which waits and tells.

What this file may not do: guess. No server is no news; the holder serves on.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from gateway.rules import events as e
from lockserver.observer import Status, watch_for_good
from sidecar.terminal.logs import Log


def watch(run_dir: Path, tell: Callable[[Status | None], None], over: Callable[[], bool], log: Log) -> None:
    """In a thread of its own, until it is `over`."""

    def alarm(why: str) -> None:
        log.alarm("lock_unseen", run_dir=str(run_dir), why=why)

    def work() -> None:
        # `asks`: a server that is stopped grants no other engine, as if there were none, and so it counts as away.
        watch_for_good(run_dir, tell, alarm, asks=True, over=over)

    threading.Thread(target=work, name=f"watch {run_dir}", daemon=True).start()


def asleep(status: Status) -> bool:
    return status.resting and status.state == "FREE"


def lock_seen(status: Status | None) -> e.LockSeen | e.LockAway:
    if status is None:
        return e.LockAway()
    holder = status.holder
    kept = holder.kept if holder is not None else None
    return e.LockSeen(
        state=status.state,
        newest=status.token,
        token=holder.token if holder is not None else 0,
        engine_id=holder.engine_id if holder is not None else "",
        url=(holder.endpoint or "") if holder is not None else "",
        kept_tokens=kept.tokens if kept is not None else 0,
        kept_block=kept.block if kept is not None else 0,
        resting=status.resting,
        switchover=_switchover(status),
        ready=tuple(waiter.engine_id for waiter in status.waiters if waiter.ready),
        others=bool(status.waiters) or any(it.holder is not None or it.waiters for it in status.permits.values()),
    )


def _switchover(status: Status) -> e.Switchover | None:
    plan = status.plan
    if plan is None:
        return None
    return e.Switchover(plan.old_token, plan.drain_timeout_s, plan.step in ("exiting", "giving back"))

"""The lock's three acts: one awake, one waits; a kill -9 and what proves the end; a lock server that dies unnoticed.

Everything that is printed was seen: by pidfds of the demo's own, by the life file, by the device's ledger, and by what
the lock server tells any observer. The demo takes no part in the handoff.
"""

import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from demo.lock.stage import PATIENCE_S, Contender, Stage
from demo.machine import MIB, CantPlay
from demo.words import paint, say, title
from lockserver import messages as m
from lockserver import status_text
from lockserver.observer import Observer, ServerSilent, watch_forever
from lockserver.rundir import LIFE
from sidecar.lifelock import LifeProbe


@dataclass(frozen=True)
class Seen:
    """A moment of the handoff, as seen from outside."""

    ms: float
    what: str
    evidence: str


def play() -> None:
    with Stage() as stage:
        server = stage.start_server()
        first, second = one_awake_one_waits(stage)
        handoff_ms = kill_the_holder(stage, first, second)
        kill_the_server(stage, server, second)
    title("What was shown")
    say("1. One awake, one waits: never two, and nobody before the memory that it needs is free.")
    say(f"2. kill -9 of the holder: the next grant {handoff_ms:.0f} ms later, by proof: processes, life lock, memory.")
    say("3. kill -9 of the lock server: the holder serves on, with the same token; nobody notices.")
    print()


# -- act 1 ------------------------------------------------------------------------------------------------------------


def one_awake_one_waits(stage: Stage) -> tuple[Contender, Contender]:
    title("1. Two engines, one device: one is awake, one waits")
    mib, needs = stage.capacity // MIB, stage.needs // MIB
    say(f"A device of {mib} MiB (host memory stands in for a GPU). An engine needs {needs} MiB of it while it is")
    say(f"awake, {needs // 2} in its main process and {needs // 2} in a worker: there is no room for two.")
    first = stage.start_contender("engine-a")
    first.wake()
    first.hear("awake")
    second = stage.start_contender("engine-b")
    with Observer(stage.run_dir) as observer:
        status = until(observer, lambda status: bool(status.waiters and status.holder and status.holder.endpoint))
    print()
    print(paint("    $ lockctl status", status_text.Tone.QUIET))
    for line in status_text.status_lines(status, datetime.now(UTC), paint):
        print(f"    {line}".rstrip())
    return first, second


# -- act 2 ------------------------------------------------------------------------------------------------------------


def kill_the_holder(stage: Stage, holder: Contender, successor: Contender) -> float:
    title(
        f"2. kill -9 of {holder.engine_id}'s main process, while its worker still holds {stage.needs // 2 // MIB} MiB"
    )
    with Observer(stage.run_dir) as observer:
        before = until(observer, lambda status: status.state == "HELD")
        seen = watch_the_handoff(stage, observer, holder, successor)
        after = until(observer, lambda status: bool(status.holder and status.holder.engine_id == successor.engine_id))
    with Observer(stage.run_dir) as observer:
        history = observer.ask(m.AskHistory(), m.History).events
    assert before.holder is not None and after.holder is not None

    print(paint(f"    {'ms':>6}  {'seen from outside':<70}{'life lock':<11}{'device':>13}", status_text.Tone.QUIET))
    for moment in seen:
        print(f"    {moment.ms:6.1f}  {moment.what:<70}{moment.evidence}".rstrip())
    print()
    say("and what the lock server wrote down:")
    print()
    start = next(at for at in range(len(history) - 1, -1, -1) if history[at].event == "fencing")
    for event in history[start:]:
        detail = "  ".join(f"{key}={value}" for key, value in event.detail.items() if key != "lock")
        print(f"    {event.at}  {event.event:<9} {detail}")
    print()
    grown = paint(f"{before.holder.token} -> {after.holder.token}", status_text.Tone.STRONG)
    successor.wake()
    successor.hear("awake")
    say(f"The fencing token grew: {grown}. {successor.engine_id} has its {stage.needs // MIB} MiB, and serves.")
    return seen[-1].ms


def watch_the_handoff(stage: Stage, observer: Observer, holder: Contender, successor: Contender) -> list[Seen]:
    """Kills, and writes down what shows, in one loop: a process's end before what follows from it."""
    probe = LifeProbe.open(stage.run_dir / LIFE, holder.tree)
    assert probe is not None
    seen: list[Seen] = []
    poll = select.poll()
    for fd in (holder.pidfd, holder.worker_pidfd, observer.fileno(), successor.reports.fileno()):
        poll.register(fd, select.POLLIN)
    with probe:

        def note(what: str) -> None:
            ms = (time.monotonic() - began) * 1000
            lock = "held" if probe.locked() else "free"
            seen.append(Seen(ms, what, f"{lock:<11}{stage.free() // MIB:>4} MiB free"))

        began = time.monotonic()
        note(f"SIGKILL to {holder.pid}, the main process of {holder.engine_id}")
        signal.pidfd_send_signal(holder.pidfd, signal.SIGKILL)
        fenced = False
        while True:
            ready = {fd for fd, _ in poll.poll(PATIENCE_S * 1000)}
            if not ready:
                raise CantPlay(f"{successor.engine_id} was not granted within {PATIENCE_S:g} s")
            if observer.fileno() in ready:
                fencing = any(status.state == "FENCING" for status in come(observer))
                if fencing and not fenced:
                    note(f"the lock server has noticed, and fences {holder.engine_id}")
                fenced |= fencing
            if holder.pidfd in ready:
                poll.unregister(holder.pidfd)
                worker = "" if holder.worker_pidfd in ready else f"; its worker, {holder.worker}, isn't"
                note(f"{holder.pid} is dead, says its pidfd{worker}")
            if holder.worker_pidfd in ready:
                poll.unregister(holder.worker_pidfd)
                note(f"{holder.worker}, killed by the lock server, is dead, says its pidfd")
            if successor.reports.fileno() in ready:
                token = successor.hear("granted")["token"]
                note(f"{successor.engine_id} is granted: acquire() returns token {token}")
                return seen


def come(observer: Observer) -> list[m.Status]:
    """What has come by now."""
    came: list[m.Status] = []
    try:
        while True:
            came.append(observer.hear(m.Status, 0.0))
    except ServerSilent:
        return came


# -- act 3 ------------------------------------------------------------------------------------------------------------


def kill_the_server(stage: Stage, server: int, holder: Contender) -> None:
    title(f"3. kill -9 of the lock server, while {holder.engine_id} serves and engine-a, started again, waits")
    stage.start_contender("engine-a")
    states = watch_forever(stage.run_dir)
    before = next(status for status in states if status is not None and len(status.waiters) == 1)
    print(paint(f"    {'ms':>6}", status_text.Tone.QUIET))
    began = time.monotonic()

    def note(what: str) -> None:
        print(f"    {(time.monotonic() - began) * 1000:6.1f}  {what}", flush=True)

    note(f"SIGKILL to {server}, the lock server")
    stage.kill_server()
    next(status for status in states if status is None)
    note("everybody who watches has seen it go; a new one is started")
    started = stage.start_server()
    note(f"{started}, the new lock server, listens")
    after = next(status for status in states if status is not None and status.state == "HELD" and status.waiters)
    note(f"the lock is {after.state} as before, and {after.waiters[0].engine_id} is in the queue again")
    print()
    old, new = before.holder, after.holder
    if old is None or new is None:
        raise CantPlay("nobody holds the lock")
    rows: list[tuple[str, object, object]] = [
        ("holder", old.engine_id, new.engine_id),
        ("process", old.pid, new.pid),
        ("token", old.token, new.token),
        ("granted at", old.granted_at, new.granted_at),
        ("lock server", before.server_pid, after.server_pid),
    ]
    print(paint(f"    {'':<14}{'before':<28}after", status_text.Tone.QUIET))
    for label, was, is_now in rows:
        print(f"    {label:<14}{was!s:<28}{is_now!s:<28}{'the same' if was == is_now else 'another'}")


# -- words ------------------------------------------------------------------------------------------------------------


def until(observer: Observer, done: Callable[[m.Status], bool]) -> m.Status:
    """The first state of which this is so."""
    return next(status for status in observer.watch() if done(status))

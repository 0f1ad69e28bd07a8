"""What the probes answer, as a function of the machine and the time. Pure.

The two modes differ only in Init, and in what comes after an engine's death:

    state      /live                        /startup                     /ready
    Init       in place: 200 to its bound   in place: 200                503
               exit: 503                    exit: 503
    Standby    200 while it beats           200                          200 while it is well and beats, and
                                                                         no other program has its port
    Waking     200 to its bound             200                          503
    Active     200 while it is well, beats  200                          as /live, while clients can connect
               and gets on with its work
    Draining   as Active                    200                          503
    Sleeping   200 to its bound             200                          503
    Dead       in place: 200, exit: 503     in place: 200                503
                                            exit: as before its death

In place the shim starts a dead engine again itself. Killing the container for it would only take longer.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine_shim.rules import takes
from engine_shim.rules.events import Restart, State
from engine_shim.rules.lifecycle import Lifecycle, TreePhase


class Answer(NamedTuple):
    ok: bool
    why: str

    @property
    def status(self) -> int:
        return 200 if self.ok else 503


def live(machine: Lifecycle, now: float) -> Answer:
    state, in_place = machine.state, machine.config.restart is Restart.IN_PLACE
    if state is State.INIT and not in_place:
        return Answer(False, "Init")
    if state is State.DEAD:
        return Answer(in_place, f"Dead: {machine.why}")
    if now >= machine.bound:
        return Answer(False, f"{state.value} for longer than it may, or stalled")
    if state in (State.ACTIVE, State.DRAINING) and not machine.well:
        return Answer(False, f"{state.value} and not well: {machine.unwell_why}")
    return Answer(True, state.value)


def startup(machine: Lifecycle, now: float) -> Answer:
    if machine.config.restart is Restart.IN_PLACE:
        return Answer(True, machine.state.value)
    return Answer(machine.left_init, machine.state.value)


def ready(machine: Lifecycle, now: float) -> Answer:
    """Whether it serves or could take over now."""
    state = machine.state
    if state not in (State.STANDBY, State.ACTIVE):
        return Answer(False, state.value)
    if not machine.well:
        return Answer(False, f"{state.value} and not well: {machine.unwell_why}")
    if machine.unreachable:
        return Answer(False, f"{state.value}, and no client can connect: {machine.unreachable}")
    if state is State.STANDBY and not machine.beats(now):
        return Answer(False, "Standby, and its main process is silent")
    return live(machine, now)


def state(machine: Lifecycle, now: float) -> dict[str, Any]:
    """Everything, for people and programs. Every field is always there."""
    counters = machine.counters
    is_live, is_ready = live(machine, now), ready(machine, now)
    return {
        "engine_id": machine.config.engine_id,
        "role": machine.config.role,
        "state": machine.state.value,
        "since": round(machine.since_wall, 3),
        "for_s": round(max(now - machine.since, 0.0), 3),
        "live": is_live.ok,
        "ready": is_ready.ok,
        "why": is_ready.why if machine.state is not State.DEAD else machine.why,
        "last_end": machine.why,
        "url": machine.url,
        "token": machine.token,
        "incarnation": machine.incarnation,
        "processes": len(machine.processes) if machine.tree is TreePhase.ALIVE else 0,
        "queued": machine.queued,
        "silent_s": round(machine.silent_s(now), 3),
        "no_step_s": round(machine.no_step_s(now), 3),
        "stall_s": machine.config.stall_s,
        "restart": machine.config.restart.value,
        "starts": counters.starts,
        "deaths": counters.deaths,
        "failovers": counters.failovers,
        "redundant": machine.counterparts.redundant,
        "takes": machine.counterparts.takes,
        "takes_digest": takes.digest(machine.counterparts.takes),
        "differences": list(machine.counterparts.differences),
        "next_start_in_s": round(max(machine.restart_at - now, 0.0), 3) if machine.tree is TreePhase.NONE else None,
        "phases_s": {name: spent.last_s for name, spent in counters.phases.items() if spent.last_s is not None},
    }


Probe = Callable[[Lifecycle, float], Answer]
PROBES: dict[str, Probe] = {"/live": live, "/startup": startup, "/ready": ready}

"""What the door has for each model, as the pool wants to know it; and whether it waits in vain. Pure."""

from collections.abc import Mapping

import msgspec

from gateway.rules.machine import Machine
from pool.entries import ModelDemand, ModelOutlook, State


def demand_of(machine: Machine, now: float, served: int, keep_alive_s: float) -> ModelDemand:
    """Without what the lease of another keeps out: for that no model is to be woken, and none to make room."""
    visitors, requests, lets_in = machine.admission.visitors, machine.requests, machine.admission.state.lets_in
    new, interrupted = list(filter(lets_in, visitors.new)), list(filter(lets_in, visitors.interrupted))
    there = [*new, *interrupted]
    began = min((visitors[request].since for request in there), default=now)
    priority = min((request.kind.priority for request in requests.values()), default=0)
    turns = (request.turn_s for request in requests.values() if request.kind.priority == priority)
    nearest = min((requests[request].kind.until for request in new), default=float("inf"))
    return ModelDemand(
        waiting=len(new),
        oldest_wait_ms=int((now - began) * 1000),
        deadline_in_ms=int((nearest - now) * 1000) if nearest < float("inf") else None,
        priority=priority,
        streaming=len(requests) - visitors.waiting,
        paused=len(interrupted),
        keep_alive_s=keep_alive_s,
        served=served,
        turn_ms=int(1000 * max(turns, default=0)),
    )


def shared(
    demand: Mapping[str, ModelDemand], devices: Mapping[str, list[str]], longest_s: float
) -> dict[str, ModelDemand]:
    """The longest turn is for all models on the same devices together: else others wait the longer the more ask for
    one. `devices`: those that an entry names; none are all.
    """
    on = {name: set(devices.get(name, ())) for name, one in demand.items() if one.turn_ms}
    found = dict(demand)
    for name in on:
        beside = (other for other in on if not on[name] or not on[other] or on[name] & on[other])
        part = min(1000 * longest_s / sum(demand[other].turn_ms for other in beside), 1.0)
        found[name] = msgspec.structs.replace(demand[name], turn_ms=int(part * demand[name].turn_ms))
    return found


def wedged(
    demand: Mapping[str, ModelDemand], outlook: Mapping[str, ModelOutlook], still_s: float, bound_s: float
) -> str:
    """Why what waits may wait in vain, if it does. `still_s`: for so long no model has got into another state."""
    waiting = [name for name, it in demand.items() if it.waiting or it.paused]
    asleep = [name for name in waiting if name not in outlook or outlook[name].state is not State.AWAKE]
    patience_s = bound_s + max(
        ((outlook[name].estimate_ms or 0) / 1000 for name in asleep if name in outlook), default=0
    )
    if not asleep or still_s < patience_s:
        return ""
    names = ", ".join(sorted(asleep)[:5])
    return f"requests wait for {names}, and no model has got into another state for {still_s:.0f} s"

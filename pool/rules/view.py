"""What doors and people are told of all models. Pure, and changes nothing."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

from pool.entries import ModelOutlook, ModelShown, State
from pool.rules.events import LockView
from pool.rules.model import Demand, Model, Wish
from pool.rules.picture import Picture, together
from pool.rules.plan import queue, turn_by_turn
from pool.rules.room import Blocked, Up, most_for, parkable, rank, room_for, staying, target, too_large
from pool.rules.turns import cost_of, lazy
from sidecar.machine.context import rfc3339
from sidecar.terminal.formatting import size

WORDS = {
    State.OFF: "no engine of it runs; the first request starts one",
    State.LOADING: "loading",
    State.ASLEEP: "asleep",
    State.WAKING: "waking",
    State.AWAKE: "",
    State.DRAINING: "going to sleep",
    State.STOPPING: "its processes end",
}
DIED = "no engine of it is ready: the last one has ended, and the next one starts"
ORDINALS = {1: "first", 2: "second", 3: "third"}


def outlooks(it: Picture, run_dirs: Mapping[str, str], now: float) -> dict[str, ModelOutlook]:
    waits, line = waiting(it, now), queue(it, now)
    free, soon = it.free(), _as_soon(it)
    found = {}
    for name, model in it.models.items():
        turn, tried = waits.get(name, (0, None))
        state = model.offered
        at_rest = state in (State.OFF, State.ASLEEP)
        if at_rest and (not isinstance(tried, Blocked) or (turn == 1 and tried.in_vain)):
            asked = replace(model, demand=Demand(waiting=1, since=now, priority=model.demand.priority))
            tried = room_for(soon, model if turn else asked, free, set(), now)
        large = _too_large(it, model, now) if at_rest else ""
        estimate_s = math.inf if large else estimate(it, model, turn, tried, now)
        in_haste = not large and isinstance(tried, Blocked)
        soonest_s = min(_in_haste(soon, model, line, free, now), estimate_s) if in_haste else estimate_s
        found[name] = ModelOutlook(
            state=state,
            why=large or _why(it, model, turn, tried),
            turn=turn,
            estimate_ms=None if math.isinf(estimate_s) else round(estimate_s * 1000),
            soonest_ms=None if soonest_s == estimate_s else round(soonest_s * 1000),
            run_dir=run_dirs.get(name, ""),
            token=model.view.token if model.view is not None else 0,
            leaving=model.leaving,
            loaded=model.child.runs_as.partition(".")[0],
        )
    return found


def _as_soon(it: Picture) -> Picture:
    """The same with those awake whose engines wake: their turns come first."""
    found = dict(it.models)
    for name, one in it.models.items():
        match one.state, one.view:
            case State.WAKING, LockView(held=True):
                at, view = one.since + one.wake_s, LockView(resting=False, serving=True)
                found[name] = replace(one, wish=Wish.NONE, view=view, since=at, turn_at=at, begun=one.demand.wants)
    return replace(it, models=found)


def _too_large(it: Picture, model: Model, now: float) -> str:
    """Why none can say when it is waked; empty if it fits."""
    most, need = most_for(it, model, now), target(it, model)
    if not too_large(it, model, now):
        return ""
    of = next(device for device, size in need.items() if size > most.get(device, size))
    own = it.weights_in(model, State.AWAKE).get(of, 0)
    unleased = f"{size(it.foreign.get(of, 0))} are in use without a lease"
    others = f"what others have isn't counted (vramctl status; {unleased}), nor weights"
    if stay := [_stays(one) for one in staying(it, model, now) if of in one.weights]:
        others += f"; those of {', '.join(stay)} can't be parked now (host_memory:), nor dropped"
    takes, may = size(need[of] - own), size(most[of] - own)
    return f"it takes {takes} of {of}, where all models together may have {may}: {others}"


def _stays(model: Model) -> str:
    why = "pinned" if model.pinned else "it has requests" if model.demand.busy else ""
    return f"{model.name} ({why})" if why else model.name


def waiting(it: Picture, now: float) -> dict[str, tuple[int, Up | Blocked | None]]:
    """The turn of each model that is to be awake, and isn't served now; and what it waits for, or what it takes."""
    turns = ((model, tried) for model, tried in turn_by_turn(it, it.free(), set(), now) if not lazy(model))
    return {model.name: (number, tried) for number, (model, tried) in enumerate(turns, start=1)}


def estimate(it: Picture, model: Model, turn: int, tried: Up | Blocked | None, now: float) -> float:
    """Until a request for it that comes now could be answered, in seconds."""
    state, spent = model.state, now - model.since
    if state is State.AWAKE:
        return 0.0
    if model.offered is State.FAILED:
        return model.retry_at - now  # it is refused until then, and none loads it meanwhile
    if model.lacking and not model.awaits:
        return math.inf  # another program has it, and none of ours goes for it
    if state is State.WAKING:
        return max(model.wake_s - spent, 0.0)
    takes = model.wake_s + _parks_s(it, model, tried, now)
    if state is State.LOADING:
        takes += max(model.load_s - spent, 0.0)
    elif not model.child.running:
        takes += model.load_s
    if not isinstance(tried, Blocked):
        return takes
    if tried.stays:
        return math.inf
    first = tried.at - now if now < tried.at < math.inf else 0.0
    others = [one.sleep_s for one in it.models.values() if one.state is State.AWAKE]
    if turn > 1:
        first = turns(it, model, turn) / min((_together(it, device) for device in model.rules.devices), default=1)
    return takes + it.host.drain_s + max(others, default=0.0) + first


def _in_haste(it: Picture, model: Model, line: list[Model], free: Mapping[str, int], now: float) -> float:
    """The same for one that would be too late otherwise: it comes first of those as urgent, and shortens others' turns.
    `line`: those that wait.
    """
    awake = (one for one in it.models.values() if one.state is State.AWAKE)
    swap_s = it.host.drain_s + max((cost_of(model, one) for one in awake), default=0.0)
    asked = replace(model, demand=Demand(waiting=1, since=now, priority=model.demand.priority, deadline=now + swap_s))
    before = sum(rank(it, one, now) < rank(it, asked, now) for one in line if one is not model)
    return max(estimate(it, model, before + 1, room_for(it, asked, free, set(), now), now), swap_s)


def _parks_s(it: Picture, model: Model, tried: Up | Blocked | None, now: float) -> float:
    """How long weights, its own or others', go to host memory before it can be waked: one model's after the other's."""
    devices = set(model.rules.devices)
    waits = isinstance(tried, Blocked) or (tried is not None and tried.room_first)
    next_ = (*tried.park, *tried.sleep) if isinstance(tried, Up) and tried.room_first else ()
    left = dict[str, float]()
    for one in it.models.values():
        if one.wish is Wish.PARK and (one is model or (waits and devices & one.weights.keys())):
            left[one.region.name] = abs(one.park_s - (now - one.wished_at))  # one that is late may be as late again
        elif one.name in next_:
            left[one.region.name] = one.park_s
    return sum(left.values())


def turns(it: Picture, model: Model, number: int) -> float:
    """How long so many others have its devices at most, where several want them without end, with the swap to the next.
    Each has as long as a swap is worth, and those longer whose requests begin anew.
    """
    others = [one for one in it.models.values() if set(one.rules.devices) & set(model.rules.devices)]
    parks = any(one.parked for one in others)
    costs = (one.sleep_s + (one.park_s + one.wake_parked_s if parks else one.wake_s) for one in [*others, model])
    each = max(costs) / it.budget.share
    longer = sorted((max(one.demand.turn_s - each, 0.0) for one in others if one is not model), reverse=True)
    return number * each + sum(longer[:number])


def _together(it: Picture, device: str) -> int:
    """How many of those that are wanted fit on this device together."""
    goes = {one.region.name for one in parkable(it)}
    stay = together(region.here for region in it.regions.values() if region.name not in goes)
    most = it.most.get(device, 0) - stay.get(device, 0)
    needs, counted = list[int](), set[str]()
    for one in _wanted(it, device):
        comes = (one.region.name in goes or not one.weights) and one.region.name not in counted
        moved = it.weights_in(one, State.AWAKE).get(device, 0) if comes else 0
        needs.append(one.needs(it.beside_weights).get(device, 0) + moved)
        counted.add(one.region.name)
    return max(sum(total <= most for total in itertools.accumulate(sorted(needs, reverse=True))), 1)


def _wanted(it: Picture, device: str) -> list[Model]:
    return [one for one in it.models.values() if device in one.rules.devices and one.demand.busy]


def quantum(it: Picture) -> float:
    """How long others may be awake, at most, before it is a paused answer's turn again."""
    longest = 0.0
    for device in it.most:
        wanted, together = _wanted(it, device), _together(it, device)
        if len(wanted) > together:
            before = math.ceil(len(wanted) / together) - 1
            longest = max(longest, *(turns(it, one, before) for one in wanted))
    return longest


def _why(it: Picture, model: Model, turn: int, tried: Up | Blocked | None) -> str:
    match model.state, model.view:
        case State.FAILED, _:
            return model.why_failed
        case State.WAKING, LockView(held=False, ready=False):
            return f"{DIED}: {model.child.why}" if model.child.why else DIED
        case State.AWAKE, LockView(ready=False) if model.rules.entry.standby:
            return "its standby isn't ready yet"
    if turn and (waits := it.lacks or (tried.why if isinstance(tried, Blocked) else "")):
        return f"{ORDINALS.get(turn, f'{turn}th')} in the queue: {waits}"
    return WORDS[model.state]


def shown(it: Picture, outlook: Mapping[str, ModelOutlook], wall: float, now: float) -> list[ModelShown]:
    return [_shown(it, model, outlook[name], wall, now) for name, model in it.models.items()]


def _shown(it: Picture, model: Model, outlook: ModelOutlook, wall: float, now: float) -> ModelShown:
    entry, demand, state = model.rules.entry, model.demand, model.state
    return ModelShown(
        name=model.name,
        state=state,
        why=outlook.why,
        devices=list(model.rules.devices),
        bytes=dict(model.leases or model.needs(it.beside_weights)),
        asleep_bytes=dict(model.learned.asleep or model.rules.asleep),
        weights=dict(model.weights),
        weights_name=model.region.name,
        parked=dict(model.parked),
        last_used=None if math.isinf(model.used_at) else rfc3339(wall - (now - model.used_at)),
        port=model.view.port if model.view is not None else None,
        pinned=model.pinned,
        turn=outlook.turn,
        estimate_ms=outlook.estimate_ms,
        waiting=demand.waiting,
        streaming=demand.streaming,
        paused=demand.paused,
        aliases=list(entry.aliases),
        priority=entry.priority,
        swaps=model.swaps,
        awake_s=round(model.awake_s + (now - model.since if state is State.AWAKE else 0.0), 3),
        failures=model.failures_total,
        pauses=model.pauses,
        waited_s=round(now - demand.since, 3) if demand.wants else 0.0,
        token=outlook.token,
        runs=model.child.running,
        wanted=model.wants,
    )

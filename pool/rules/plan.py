"""Which wish is due, and when to look again: questions, and the one plan of the pool. Pure, and changes nothing.

The rules stand at the top of `machine.py`; `picture.py` has how things stand, and `room.py` how room is made.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pool.entries import State
from pool.rules.model import MOST_GRANTS, Model
from pool.rules.picture import Picture, of_sleepers
from pool.rules.room import (
    Blocked,
    Up,
    acts,
    coming,
    kept_awake,
    lacks,
    make_room,
    rank,
    room_for,
    sleepers,
    target,
    too_large,
)

LACKS_S = 0.5
"""So long what has just been given back may take to be seen."""


@dataclass(frozen=True)
class Down:
    model: str
    why: str
    end: bool = False


Step = Up | Down


def plan(it: Picture, now: float) -> Step | float:
    """The next step, or when to look again."""
    if it.lacks:
        return math.inf
    found = [*_orders(it, now), *_idle(it, now)]
    step, at = _next(it, now)
    return next((one for one in found if not isinstance(one, float)), step) or min([at, *found])  # type: ignore[type-var]


# -- what has to go ------------------------------------------------------------------------------------------------


def _orders(it: Picture, now: float) -> Iterator[Step | float]:
    """What was taken out of the file, or runs with an older entry, and what a person has put to sleep."""
    for model in it.models.values():
        if now < model.sleep_at:
            yield model.sleep_at
            continue
        if model.put_down and acts(model) and (model.state is State.AWAKE or _lock_is_free(model)):
            yield Down(model.name, "a person has asked for it")
        if model.grants > MOST_GRANTS and acts(model) and _lock_is_free(model):
            yield Down(model.name, model.why_failed)
        none_has_them = all(not one.child.running and acts(one) for one in model.region.models)
        if none_has_them and not it.gms_away and model.has_others and model.region.dropping.again_at == -math.inf:
            yield Up(model.name, drop=(model.name,), room_first=True)
        if not (model.leaving or model.outdated) or not acts(model):
            continue
        if model.leaving and model.demand.busy:
            continue
        why = model.outdated or "it was taken out of models.yaml"
        if model.state is State.AWAKE:
            yield Down(model.name, why)
        elif model.state in (State.ASLEEP, State.FAILED) or _loads(model):
            yield Down(model.name, why, end=True)


def _idle(it: Picture, now: float) -> Iterator[Step | float]:
    """What has had no request for long enough, and engines asleep beyond the budget."""
    for model in it.models.values():
        entry = model.rules.entry
        if not acts(model) or model.demand.busy or now < model.sleep_at:
            continue
        if model.state is State.AWAKE and entry.keep_alive_s is not None and not kept_awake(it, model):
            at = max(model.kept_until, model.since + max(entry.keep_alive_s, entry.loaded_at_least_s))
            yield Down(model.name, "its keep-alive is over") if now >= at else at
        elif model.state is State.ASLEEP and entry.stop_after_s is not None and not model.wants:
            at = model.since + entry.stop_after_s
            yield Down(model.name, "it was asleep for long enough", end=True) if now >= at else at
    if not it.host.asleep:
        return
    most, taken = it.most, it.taken()
    over = [device for device in it.host.asleep if taken.get(of_sleepers(device), 0) > most[of_sleepers(device)]]
    for model in sleepers(it):
        if any(it.has(model, model.state).get(of_sleepers(device), 0) for device in over):
            yield Down(model.name, f"more engines are asleep than the budget of {over[0]} allows", end=True)


def _lock_is_free(model: Model) -> bool:
    """It is to be awake, and no engine has its lock: its last one has died, say, and no other is ready."""
    return model.state is State.WAKING and model.view is not None and not model.view.held


def _loads(model: Model) -> bool:
    """It may have been waked meanwhile: its lock isn't at rest then."""
    return model.state is State.LOADING or (_lock_is_free(model) and model.view is not None and not model.view.ready)


# -- which is next -------------------------------------------------------------------------------------------------


def queue(it: Picture, now: float) -> list[Model]:
    """Those that are to be awake and aren't; the first is next."""
    those = (model for model in it.models.values() if model.retry_at <= now and _candidate(it, model))
    found = [model for model in those if not too_large(it, model, now)]
    return sorted(found, key=lambda model: rank(it, model, now))


def _candidate(it: Picture, model: Model) -> bool:
    if model.has_others or (not model.demand.wants if model.leaving else model.outdated):
        return False
    state = model.state
    if state in (State.OFF, State.FAILED) and not model.child.running:
        return model.wants or (
            model.rules.entry.preload and not model.ended_idle and state is State.OFF and not model.kept_asleep
        )
    returns = model.name == it.host.default and not model.kept_asleep
    return state in (State.ASLEEP, State.DRAINING, State.FAILED) and (model.wants or returns)


def _next(it: Picture, now: float) -> tuple[Step | None, float]:
    """The step by which a model is waked, or started; or when to look again."""
    look, closed, free = math.inf, set[str](), it.free()
    for model in it.models.values():
        if model.state not in (State.WAKING, State.LOADING) or not (missing := lacks(it, model, free)):
            continue
        found = _more_room(it, model, missing, now)
        if isinstance(found, Up):
            return found, look
        look = min(look, found.at)
        if not found.in_vain:  # what is free there, or will be, is this one's: it takes more than was thought
            closed |= missing.keys()
            free |= dict.fromkeys(missing, 0)
        elif not model.lacking:  # nor is kept what it doesn't get
            free |= {device: free.get(device, 0) + size for device, size in coming(model).items()}
    for _, tried in turn_by_turn(it, free, closed, now):
        if isinstance(tried, Up):
            return tried, look
        look = min(look, tried.at if tried is not None else math.inf)
    return None, look


def turn_by_turn(
    it: Picture, free: dict[str, int], closed: set[str], now: float
) -> Iterator[tuple[Model, Up | Blocked | None]]:
    """The queue, and what each in it waits for, or would take; None: nothing can be wished of it now. What is free is
    kept for each, and so is what would go for those behind it.
    """
    lacked = frozenset(closed)
    for model in queue(it, now):
        if model.away if model.state is State.DRAINING else not acts(model):
            yield model, None
            continue
        if not model.child.running and model.weights.keys() & lacked:  # which may be dropped for those that lack room
            yield model, None
            continue
        yield model, room_for(it, model, free, closed, now)
        for device, need in target(it, model).items():
            closed.add(device)
            free[device] = max(free.get(device, 0) - need, 0)


def _more_room(it: Picture, model: Model, missing: Mapping[str, int], now: float) -> Up | Blocked:
    """Nothing that goes already is enough for it."""
    if model.awaits:
        return Blocked(math.inf, "")
    if model.lacking and now < model.lacks_since + LACKS_S:
        return Blocked(model.lacks_since + LACKS_S, "")
    found = make_room(it, model, missing, now)
    return found if isinstance(found, Blocked) else replace(found, room_first=True)

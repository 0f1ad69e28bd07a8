"""How room is made for a model: questions. Pure, and changes nothing.

The rules stand at the top of `machine.py`; `turns.py` has how long a turn is.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pool.entries import State
from pool.rules.model import ON_DEVICE, READS, Model, Wish
from pool.rules.picture import Picture, together
from pool.rules.turns import cost_of, effective, lazy, may_sleep
from sidecar.terminal.formatting import sizes

PARKS_TRIED = 6
"""So often parking the weights of an engine that sleeps is tried before it is ended and they are dropped: over
more than half a minute, in which a new GMS refuses because readers may be on their way back.
"""
AT_REST = (State.ASLEEP, State.OFF, State.FAILED)
"""No process reads its weights."""


@dataclass(frozen=True)
class Up:
    """This model is to be awake (or to be started); these are put to sleep for it, these ended, and of these the
    weights parked, or dropped.
    """

    model: str
    sleep: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    park: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    cost_s: float = 0.0
    """What a budget pays for it."""
    room_first: bool = False
    """It is wished once weights are gone; or was wished already, and lacks room."""


Chosen = list[tuple[Model, Wish]]
"""What could be wished of each, or is. Parked or dropped are the weights of all that share them: one stands for them,
the one that is missed most.
"""


@dataclass(frozen=True)
class Blocked:
    """It can't be waked yet."""

    at: float
    """When to look again; infinite: something has to happen first."""
    why: str
    in_vain: bool = False
    """Nothing that could be wished makes room."""
    stays: bool = False
    """Nor will it by itself: what has the room is pinned, or its lock doesn't answer."""


def room_for(it: Picture, model: Model, free: Mapping[str, int], closed: set[str], now: float) -> Up | Blocked:
    """What it takes to have it awake (or started)."""
    has, need = it.has(model, model.state), target(it, model)
    lacking = {
        device: missing
        for device, size in need.items()
        if device in free and (missing := size - has.get(device, 0) - free[device]) > 0
    }
    if closed & set(lacking):
        return Blocked(math.inf, "those before it in the queue come first")
    return make_room(it, model, lacking, now)


def target(it: Picture, model: Model) -> Mapping[str, int]:
    """What it has when the next wish for it is done."""
    return it.has(model, State.LOADING if not model.child.running else State.AWAKE)


def make_room(it: Picture, model: Model, lacking: Mapping[str, int], now: float) -> Up | Blocked:
    """Which models sleep, or are ended, and whose weights are parked, or dropped, so that so much more is free."""
    awake = [one for one in it.models.values() if one.name != model.name and one.state in ON_DEVICE]
    awake.sort(key=_missed(now))
    serve = [one for one in it.models.values() if one.state is State.AWAKE]
    when = {one.name: may_sleep(model, one, price(it, model, one, serve), it.host, it.budget, now) for one in awake}
    ready = [(one, Wish.SLEEP) for one in awake if when[one.name].least <= now]
    later = [(one, Wish.SLEEP) for one in awake if now < when[one.name].least < math.inf]
    for options in _ways(it, model, ready, later, now):
        chosen, short = _enough(it, lacking, options)
        if not short:
            break
    else:
        reads = [one for one in it.models.values() if one.name != model.name and one.state in READS]
        others = [(one, Wish.SLEEP) for one in reads if (one, Wish.SLEEP) not in options and not _stuck(one)]
        missing = _enough(it, short, others)[1]
        has_it = [one for one in reads if any(it.has(one, one.state).get(device, 0) for device in missing)]
        why, stay = f"{sizes(short)} are missing", ", and ".join(filter(None, map(_stuck, has_it)))
        return Blocked(math.inf, f"{why}: {stay}" if stay else why, True, bool(stay))
    chosen = _needed(it, lacking, chosen)
    park, drop = ([one for one, wish in chosen if wish is what] for what in (Wish.PARK, Wish.DROP))
    goes = [*park, *drop]
    regions = {one.region.name for one in goes}
    ends = [one for one, wish in chosen if wish is Wish.END]
    down = [one for one in awake if (one, Wish.SLEEP) in chosen or one in ends or one.region.name in regions]
    sleep = tuple(one.name for one in down if not (goes and one.wish is Wish.SLEEP))
    at = max((max(when[name]) for name in sleep), default=now)
    if at > now:
        return Blocked(at, f"its turn comes after that of {', '.join(sleep)}")
    cost = max((price(it, model, it.models[name], serve) for name in sleep), default=0.0)
    of_dropped = [one for lead in drop for one in lead.region.models]
    at_rest = [one for one in of_dropped if one.child.running and one.state in AT_REST]
    end = (*(one.name for one in ends if one not in down), *(one.name for one in at_rest))
    parks_now = tuple(it.name for it in park if all(one.state in AT_REST and acts(one) for one in it.region.models))
    drops_now = tuple(it.name for it in drop if all(not one.child.running and acts(one) for one in it.region.models))
    if goes and not (sleep or end or parks_now or drops_now):
        where = "go to host memory" if park else "are dropped"
        return Blocked(math.inf, f"the weights of {', '.join(one.name for one in goes)} {where} first")
    first = bool(goes) or any(one in down for one in ends)
    return Up(model.name, sleep, end, parks_now, drops_now, cost, room_first=first)


def _stuck(model: Model) -> str:
    """Why one keeps what it has from all others, until a person or its lock server acts; empty: it doesn't."""
    if model.pinned:
        return f"{model.name} is pinned"
    return f"the lock of {model.name} doesn't answer" if model.away and model.state in ON_DEVICE else ""


def _ways(it: Picture, model: Model, ready: Chosen, later: Chosen, now: float) -> Iterator[Chosen]:
    """What could be wished so that it has room; what is taken first comes first."""
    yield [*ready, *later]
    loads = any(one.state is State.LOADING for one in it.models.values())  # which takes less once it is asleep:
    waits = loads and lazy(model) and not model.child.running  # a start that no request needs awaits that
    weights = [] if waits else parkable(it, model)
    turn_is_over, turn_ends = ({one.name for one, _ in those} for those in (ready, later))
    rest, after_ready, after_later = Chosen(), Chosen(), Chosen()
    for one in weights:
        reads = {each.name for each in one.region.models if not _rests(each)}
        if not reads:
            rest.append((one, Wish.PARK))
        elif reads <= turn_is_over:
            after_ready.append((one, Wish.PARK))
        elif reads <= turn_is_over | turn_ends:
            after_later.append((one, Wish.PARK))
    yield [*ready, *rest, *after_ready, *later, *after_later]
    parked = [one for one, _ in (*rest, *after_ready, *after_later)]
    could = [one for one in droppable(it, model, now) if one not in parked]
    drops = [(one, Wish.DROP) for one in could if not _last_resort(one)]
    yield [*ready, *rest, *after_ready, *drops, *later, *after_later]
    last = [one for one in could if _last_resort(one)]
    for dropped in range(len(last) + 1):  # no more than needed
        gone = [(one, Wish.DROP) for one in last[:dropped]]
        those = [each for one in last[:dropped] for each in one.region.models]
        idle = [one for one in sleepers(it) if one.name != model.name and one not in those]
        idle += [one for one, _ in ready if not one.demand.busy and one not in those]  # asleep first
        ended = [(one, Wish.END) for one in (*idle, *_loading_in_vain(it, model, now))]
        yield [*ready, *rest, *after_ready, *drops, *gone, *ended, *later, *after_later]


def _loading_in_vain(it: Picture, up: Model, now: float) -> list[Model]:
    """Those behind it, or that no request needs, whose engines wait for room for their weights and get none."""
    free = it.free()
    found = [one for one in it.models.values() if one.state is State.LOADING and lacks(it, one, free) and acts(one)]
    return [one for one in found if not one.pinned and (up.wants > one.wants or rank(it, up, now) < rank(it, one, now))]


def lacks(it: Picture, model: Model, free: Mapping[str, int]) -> Mapping[str, int]:
    """What one that wakes or loads waits for in the ledger; or what its weights take that come back from host memory:
    GMS refuses that at once where the device is full, and its engine tries again and again.
    """
    if model.lacking:
        return model.lacking
    beside = model.bytes(model.state, it.beside_weights)  # which the ledger will ask for, where it isn't free
    short = {device: min(size, -free.get(device, 0) - beside.get(device, 0)) for device, size in coming(model).items()}
    return {device: size for device, size in short.items() if size > 0}


def coming(model: Model) -> Mapping[str, int]:
    """Weights that are in host memory, and are brought back."""
    return {device: max(size - model.weights.get(device, 0), 0) for device, size in model.parked.items()}


def _enough(it: Picture, lacking: Mapping[str, int], options: Chosen) -> tuple[Chosen, dict[str, int]]:
    """The first of these that free what is lacking; and what is lacking still."""
    short, chosen = dict(lacking), Chosen()
    for model, wish in options:
        gives = _gives(it, model, wish)
        if any(gives.get(device, 0) > 0 for device in short):
            chosen.append((model, wish))
            short = {device: left for device, size in short.items() if (left := size - gives.get(device, 0)) > 0}
    return chosen, short


def _needed(it: Picture, lacking: Mapping[str, int], chosen: Chosen) -> Chosen:
    """No more of them than needed: a later one may have made one before it needless."""
    for one in chosen[:-1]:
        rest = [other for other in chosen if other != one]
        total = together(_gives(it, *other) for other in rest)
        if all(total.get(device, 0) >= size for device, size in lacking.items()):
            chosen = rest
    return chosen


def _gives(it: Picture, model: Model, wish: Wish) -> Mapping[str, int]:
    """`PARK`, `END`: of one that is asleep by then; `DROP`: of one that is asleep, or has ended, and ends before."""
    if wish is Wish.PARK:
        return model.weights
    if wish is Wish.DROP:
        engines = [one for one in model.region.models if not _has_no_engine(one)]
        return together((model.weights, *(it.beside(one, State.ASLEEP) for one in engines)))
    after = it.has(model, State.ASLEEP if wish is Wish.SLEEP else State.OFF)
    before = State.ASLEEP if wish is Wish.END and model.state in ON_DEVICE else model.state
    missed = coming(model) if model.state is State.LOADING and not model.lacking else {}  # it has none of them yet
    return together((it.has(model, before), {device: -size for has in (after, missed) for device, size in has.items()}))


def price(it: Picture, up: Model, down: Model, serve: Sequence[Model]) -> float:
    """What a budget pays for this swap: its cost, in seconds, and less where others of those that `serve` go on."""
    moved, beside = up.needs(it.beside_weights), 0.0
    for device in down.rules.devices:
        rest = sum(one.needs(it.beside_weights).get(device, 0) for one in serve if one is not down)
        if rest > 0:
            beside = max(beside, rest / (rest + moved.get(device, 0)))
    return cost_of(up, down) * (1 - beside)


def _missed(now: float) -> Callable[[Model], tuple[bool, bool, float, float]]:
    """Which sleeps first: without requests before with, the less urgent first, then the least recently used, or of
    those with requests the one that has been awake for longest.
    """

    def key(model: Model) -> tuple[bool, bool, float, float]:
        busy = model.demand.busy
        kept = not busy and model.kept_until > now
        return busy, kept, -model.demand.priority, model.turn_at if busy else model.used_at

    return key


# -- whose weights go ----------------------------------------------------------------------------------------------


def parkable(it: Picture, up: Model | None = None) -> list[Model]:
    """Whose weights could go to host memory for it, all of them together, now or when their engines sleep: first those
    that are on their way, then those that are missed least. One stands for all that share them.
    """
    left = {device: said.host_left for device, said in it.gms.items() if device not in it.gms_away}
    found = list[Model]()
    others = [one for one in _leads(it, up, _missed_parked) if not any(each.pinned for each in one.region.models)]
    for one in sorted(others, key=lambda one: (one.wish is not Wish.PARK, *_missed_parked(one))):
        here, copied = one.weights, one.parked  # or it is in its copy
        takes = {device: size for device, size in here.items() if device not in copied}
        moved = here.keys() & copied.keys() and one.wish is not Wish.PARK  # by another process
        if one.region.parking.again_at > -math.inf or moved:
            continue
        if all(size <= left.get(device, 0) for device, size in takes.items()):
            left |= {device: left[device] - size for device, size in takes.items()}
            found.append(one)
    return found


def droppable(it: Picture, up: Model, now: float) -> list[Model]:
    """Models whose weights could be given up for it: first those that are on their way, then those without an engine,
    then those that are missed least. One stands for all that share them. For a start that no request needs none are.
    """
    if lazy(up) and not up.pinned:
        return []
    place = rank(it, up, now)

    def missed(one: Model) -> tuple[bool, bool, bool, bool, int, float]:
        return not _has_no_engine(one), one.wants, *_missed_asleep(it, one)

    def could_go(one: Model) -> bool:
        ends = not one.pinned and (_has_no_engine(one) or _could_end(one))
        failed = one.retry_at > -math.inf  # and isn't in the queue until its pause is over
        return one.wish is Wish.DROP or (ends and (failed or place < rank(it, one, now)))

    found = [
        one
        for one in _leads(it, up, missed)
        if not one.weights.keys() & it.gms_away and one.region.dropping.again_at == -math.inf
        if all(could_go(each) for each in one.region.models)
    ]
    return sorted(found, key=lambda one: (one.wish is not Wish.DROP, *missed(one)))


def _leads(it: Picture, up: Model | None, missed: Callable[[Model], tuple[Any, ...]]) -> list[Model]:
    """The one that is missed most of those that share weights in the device; but none that shares those of `up`."""
    regions = [region for region in it.regions.values() if region.here and (up is None or region is not up.region)]
    return [max(region.models, key=missed) for region in regions]


def _missed_parked(model: Model) -> tuple[bool, int, float]:
    return model.wants, -model.demand.priority, model.used_at


def _rests(model: Model) -> bool:
    """It needs its weights no more, or is about to."""
    at_rest = model.state in AT_REST and (acts(model) or model.wish is Wish.PARK)
    return at_rest or model.state is State.DRAINING


def staying(it: Picture, model: Model, now: float) -> list[Model]:
    """Others whose weights nothing takes away for it."""
    goes = {one.region.name for one in (*parkable(it, model), *droppable(it, model, now))}
    return [one for one in it.models.values() if one.region.name not in {*goes, model.region.name}]


def most_for(it: Picture, model: Model, now: float) -> dict[str, int]:
    """What all models together may have, without the weights of others that stay in the device."""
    stay = together({one.region.name: one.weights for one in staying(it, model, now)}.values())
    return {device: most - stay.get(device, 0) for device, most in it.most.items()}


def too_large(it: Picture, model: Model, now: float) -> bool:
    """It takes more than can be had at the moment: none waits behind it for what can't be."""
    need, own = target(it, model), model.weights
    left = it.most | it.beside_weights
    if all(size - own.get(device, 0) <= left.get(device, size) for device, size in need.items()):
        return False  # beside all weights, whichever stay
    most = most_for(it, model, now)
    return any(size > most.get(device, size) for device, size in need.items())


def _last_resort(model: Model) -> bool:
    """To drop its weights costs more than a longer start: an engine, or a start that requests wait for."""
    costs = any(not _has_no_engine(one) or one.wants for one in model.region.models)
    return model.wish is not Wish.DROP and costs


def _has_no_engine(model: Model) -> bool:
    """Or one that ends."""
    return model.wish is Wish.END or not model.child.running


def _could_end(model: Model) -> bool:
    """Its engine could be ended so that its weights can be dropped, once it sleeps."""
    moved = model.weights.keys() & model.parked.keys()  # by another process
    if moved or (model.region.parking.again_at > -math.inf and model.region.parking.failures < PARKS_TRIED):
        return False
    if model.state is State.AWAKE:
        return acts(model) and not model.demand.busy
    return model.state is State.DRAINING or (model.state in AT_REST and acts(model))


# -- which comes first ---------------------------------------------------------------------------------------------


def rank(it: Picture, model: Model, now: float) -> tuple[bool, bool, bool, float, float, float, str]:
    """In the queue: the lowest comes first. One that loads or wakes, or has loaded for requests that it hasn't had yet,
    or that others make room for, has had its turn to do so before all that wait. A default model that returns comes
    after all that are to be awake: it would be put to sleep for them at once.
    """
    waits = model.state not in (State.LOADING, State.WAKING) and not (model.fresh and model.demand.wants)
    waits = waits and not model.room_first
    takes = it.host.drain_s + model.wake_s
    deadline = model.demand.deadline if now + takes <= model.demand.deadline else math.inf
    urgency = effective(model, it.host, now)
    return waits, not model.wants, lazy(model), urgency, deadline, model.waits_since, model.name


def sleepers(it: Picture) -> list[Model]:
    """Those that could be ended; the one that is missed least comes first."""
    found = [one for one in it.models.values() if one.state is State.ASLEEP and acts(one) and not one.wants]
    return sorted(found, key=lambda one: _missed_asleep(it, one))


def _missed_asleep(it: Picture, model: Model) -> tuple[bool, bool, int, float]:
    return kept_awake(it, model), model.rules.entry.preload, -model.demand.priority, model.used_at


def kept_awake(it: Picture, model: Model) -> bool:
    return model.pinned or model.name == it.host.default


def acts(model: Model) -> bool:
    """A wish for it would be heard, and none is under way."""
    return model.wish is Wish.NONE and (not model.child.running or not model.away)

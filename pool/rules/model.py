"""One model: what is seen of it, what was wished for it last, and the state that follows. Pure.

A state is no memory of its own: it is what the launcher says of its processes and its lock of its engines, beside the
wish that is under way. So a pool that was killed finds every model where it is.
"""

import enum
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pool.entries import Entry, ModelDemand, State, of_weights
from pool.rules.events import Child, Learned, LockView, ModelRules, WeightsSeen

FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 60.0
"""Back-off after a failure: it doubles."""
WRONG_S = 3600.0
"""Where an engine says that its arguments are wrong. What it took for that may have been the network."""
WAKE_S, SLEEP_S, LOAD_S = 1.0, 0.5, 60.0
"""Until it was measured."""
COPIED = 2 << 30
"""Bytes of weights that go to host memory, or come back, in a second: until that was measured."""
MOST_GRANTS = 3
"""An engine may be killed as it wakes. Where more of one wake end so, the model fails."""
NEWEST_COUNTS = 0.3
"""The weight of the newest measurement among those before."""
ON_DEVICE = (State.WAKING, State.AWAKE)
READS = (State.LOADING, *ON_DEVICE)
"""Its weights are in the device, or come there."""
_USUAL = Entry()


class Wish(enum.Enum):
    NONE = "none"
    START = "start"
    END = "end"
    WAKE = "wake"
    SLEEP = "sleep"
    PARK = "park"
    DROP = "drop"


@dataclass
class Demand:
    """What all doors together have for a model. Times are on the pool's clock."""

    waiting: int = 0
    streaming: int = 0
    paused: int = 0
    since: float = math.inf
    """Since when the first of those that wait, or are paused, has waited."""
    deadline: float = math.inf
    priority: int = 0
    keep_alive_s: float | None = None
    served: int = 0
    turn_s: float = 0.0
    """So long its turn has to be, for requests that begin anew."""

    @property
    def wants(self) -> bool:
        return self.waiting + self.paused > 0

    @property
    def busy(self) -> bool:
        return self.waiting + self.paused + self.streaming > 0


def merged(said: list[tuple[float, ModelDemand]], priority: int) -> Demand:
    """`said`: when, and what, by each door. `priority`: that of a model for which no request says one."""
    found = Demand(priority=priority)
    urgent: list[int] = []
    for at, one in said:
        found.waiting += one.waiting
        found.streaming += one.streaming
        found.paused += one.paused
        found.served += one.served
        found.turn_s = max(found.turn_s, one.turn_ms / 1000)
        if one.waiting + one.paused:
            found.since = min(found.since, at - one.oldest_wait_ms / 1000)
        if one.waiting + one.paused + one.streaming:
            urgent.append(one.priority)
        if one.deadline_in_ms is not None:
            found.deadline = min(found.deadline, at + one.deadline_in_ms / 1000)
        if one.keep_alive_s is not None:
            found.keep_alive_s = max(found.keep_alive_s or 0.0, one.keep_alive_s)
    found.priority = min(urgent, default=priority)
    return found


@dataclass
class Tries:
    """To move weights. Between two that fail lies a pause that grows."""

    failures: int = 0
    again_at: float = -math.inf
    """The last one failed: not before that."""

    def failed(self, now: float) -> None:
        self.failures += 1
        self.again_at = now + pause_s(self.failures)


@dataclass(eq=False)
class Region:
    """Weights in GMS: a model's, or those that several models share."""

    name: str
    models: list["Model"] = field(default_factory=list, repr=False)
    """Which have them."""
    here: dict[str, int] = field(default_factory=dict)
    """What they take of each device now, as GMS says; of an engine that has none in GMS it isn't known."""
    parked: dict[str, int] = field(default_factory=dict)
    """What they take of the host's memory, by the device that they are of."""
    parking: Tries = field(default_factory=Tries)
    dropping: Tries = field(default_factory=Tries)

    def seen(self, said: WeightsSeen) -> None:
        for has, sizes in ((self.here, said.here or {}), (self.parked, said.parked)):
            has.pop(said.device, None)
            has |= {said.device: sizes[self.name]} if sizes.get(self.name) else {}


@dataclass(eq=False)
class Model:
    rules: ModelRules
    region: Region
    """Its weights: those that it was started with, as long as it runs."""
    demand: Demand = field(default_factory=Demand)
    child: Child = field(default_factory=lambda: Child(running=False))
    view: LockView | None = None
    """The newest that is known; None before its lock has said anything."""
    away: bool = True
    """Its lock doesn't answer at the moment."""
    wish: Wish = Wish.NONE
    wished_at: float = 0.0
    taken: bool = False
    """The lock has acknowledged the wish: what it says from now on comes after it."""
    room_at: float = 0.0
    """When the last of those that sleep for it had given back: its own wake begins."""
    started_at: float | None = None
    """When this pool wished its start; None once it has loaded."""
    awaits: frozenset[str] = frozenset()
    """These sleep, or end, for it, and haven't given back yet."""
    room_first: bool = False
    """Others sleep, or go, for it, and it is wished once there is room: none overtakes it."""
    drained_at: float = 0.0
    """When its last answer had ended, or was paused: its sleep begins."""
    since: float = 0.0
    """When the state became what it is."""
    turn_at: float = math.inf
    """When it was waked: an engine that takes over from another goes on with its turn."""
    was: State = State.OFF
    used_at: float = -math.inf
    gap_s: float = math.inf
    """How soon after it has answered all its requests the next one usually comes."""
    keep_alive_s: float = 0.0
    """The longest that its newest requests have asked for."""
    begun: bool = False
    """It has had a request since it was waked."""
    fresh: bool = False
    """It hasn't been awake since it has loaded."""
    asked_at: float | None = None
    """A person has asked for it to be awake."""
    kept_asleep: bool = False
    """A person has put it to sleep: it is waked by a request only."""
    grants: int = 0
    """How many its engines have had since one of them served, or it was to be waked."""
    dies: bool = False
    """It has failed for that, and none has served since: it fails again with the next that ends."""
    put_down: bool = False
    """That sleep hasn't been wished yet."""
    pinned: bool = False
    leaving: bool = False
    outdated: str = ""
    """Why what runs is to be ended: it was started with an older entry, or a person has asked for it."""
    ended_idle: bool = False
    """The pool has ended it for lack of use, or for room: its preload doesn't start it again."""
    sleep_at: float = -math.inf
    """Its lock has refused to put it to sleep: not again before that."""
    found_others: bool = False
    """Its engine has ended last since GMS has another model's weights for it."""
    failures: int = 0
    retry_at: float = -math.inf
    """It has failed, and isn't tried again before; then it is as if it had not."""
    why_failed: str = ""
    leases: Mapping[str, int] = field(default_factory=dict)
    beyond_lease: dict[str, int] = field(default_factory=dict)
    """What a `command` that is awake uses besides, as far as can be seen."""
    lacking: Mapping[str, int] = field(default_factory=dict)
    """It waits in the ledger, and so much of each device is missing."""
    lacks_since: float = math.inf
    brings_back: bool = False
    """Its weights were parked when its wake was wished."""
    learned: Learned = field(default_factory=Learned)
    swaps: int = 0
    pauses: int = 0
    failures_total: int = 0
    awake_s: float = 0.0

    @property
    def name(self) -> str:
        return self.rules.entry.name

    @property
    def weights(self) -> dict[str, int]:
        """What they take of each device now."""
        return self.region.here

    @property
    def parked(self) -> dict[str, int]:
        return self.region.parked

    @property
    def state(self) -> State:
        view, wish = self.view, self.wish
        if not self.child.running:
            if wish is Wish.START:
                return State.LOADING
            return State.FAILED if self.why_failed else State.OFF
        if wish is Wish.END:
            return State.STOPPING
        if view is None:
            return State.LOADING
        if view.serving and not view.draining and wish is not Wish.SLEEP:
            return State.AWAKE
        if wish is Wish.WAKE:
            return State.WAKING
        if view.held and (view.draining or view.resting or wish is Wish.SLEEP):
            return State.DRAINING
        if not view.resting:
            return State.WAKING
        if self.why_failed:
            return State.FAILED
        return State.ASLEEP if view.ready else State.LOADING

    @property
    def has_its_own(self) -> bool:
        """An engine of it has its weights, and they are what its entry says."""
        loaded = self.view is not None and (self.view.ready or self.view.held)
        return loaded and not (self.outdated or self.leaving)

    @property
    def has_others(self) -> bool:
        """GMS has another model's weights for it, as its engine has found; or it may, since they were loaded with an
        older entry. Weights that it shares may follow from any of several entries.
        """
        ran, region = self.child.runs_as, self.region
        if self.child.running or not (self.weights or self.parked):
            return False
        if any(one.has_its_own for one in region.models):
            return False
        loads = runs_as(self.rules.entry).partition(".")[0]
        return self.found_others or (region.models == [self] and ran.partition(".")[0] not in ("", loads))

    @property
    def offered(self) -> State:
        """What doors go by: one that has failed takes requests again when its pause is over, and is tried for them."""
        if self.state is not State.FAILED or self.retry_at > -math.inf:
            return self.state
        if not self.child.running:
            return State.OFF
        return State.ASLEEP if self.view is not None and self.view.ready else State.LOADING

    @property
    def wants(self) -> bool:
        """It is to be awake, as far as it goes by itself."""
        return self.demand.wants or self.asked_at is not None or (self.pinned and not self.kept_asleep)

    @property
    def gives_way(self) -> bool:
        """It is on its way to sleep, or to its end; or was when its lock was heard last."""
        going = self.wish in (Wish.SLEEP, Wish.END) or self.state is State.DRAINING
        return going or (self.away and self.child.running)

    @property
    def waits_since(self) -> float:
        since = min(self.demand.since, math.inf if self.asked_at is None else self.asked_at)
        return since if since < math.inf else self.since

    @property
    def kept_until(self) -> float:
        """Its keep-alive: until then others without requests go first."""
        return self.used_at + max(self.rules.entry.keep_alive_s or 0.0, self.keep_alive_s)

    # -- what it costs ---------------------------------------------------------------------------------------------

    @property
    def wake_s(self) -> float:
        if self.parked or self.wish is Wish.PARK:
            return self.wake_parked_s
        return WAKE_S if self.learned.wake_s is None else self.learned.wake_s

    @property
    def wake_parked_s(self) -> float:
        known = self.learned
        return (known.wake_s or WAKE_S) + self._copy_s if known.wake_parked_s is None else known.wake_parked_s

    @property
    def park_s(self) -> float:
        return self._copy_s if self.learned.park_s is None else self.learned.park_s

    @property
    def _copy_s(self) -> float:
        """On all devices at once."""
        return max((*self.weights.values(), *self.parked.values()), default=0) / COPIED

    @property
    def sleep_s(self) -> float:
        return SLEEP_S if self.learned.sleep_s is None else self.learned.sleep_s

    @property
    def load_s(self) -> float:
        return LOAD_S if self.learned.load_s is None else self.learned.load_s

    def bytes(self, state: State, most: Mapping[str, int]) -> Mapping[str, int]:
        """What it has of each device in this state, beside its weights. `most`: all there is without weights, which
        one takes whose need isn't known.
        """
        if state in (State.OFF, State.STOPPING) or (state is State.FAILED and not self.child.running):
            return {}
        if state in ON_DEVICE:
            return self.needs(most)
        asleep = self.learned.asleep or self.rules.asleep
        return asleep or self.needs(most) if state is State.LOADING else asleep

    def needs(self, most: Mapping[str, int]) -> Mapping[str, int]:
        if known := self.learned.bytes or self.rules.bytes:
            beyond = self.beyond_lease
            return {device: known.get(device, 0) + beyond.get(device, 0) for device in {**known, **beyond}}
        return {device: max(most.get(device, 0) - self.parked.get(device, 0), 0) for device in self.rules.devices}

    # -- transitions -----------------------------------------------------------------------------------------------

    def wished(self, wish: Wish, now: float) -> None:
        self.wish, self.taken, self.awaits, self.grants = wish, False, frozenset(), 0
        self.room_first = False
        self.wished_at = self.room_at = self.drained_at = now
        self.brings_back = bool(self.parked)

    def failed(self, why: str, now: float, *, wrong: bool = False) -> None:
        self.wish = Wish.NONE
        self.failures += 1
        self.failures_total += 1
        self.why_failed = why
        self.retry_at = now + (WRONG_S if wrong else pause_s(self.failures))

    def works(self) -> None:
        self.failures, self.why_failed, self.retry_at, self.grants, self.dies = 0, "", -math.inf, 0, False
        self.found_others = False


def runs_as(entry: Entry) -> str:
    """What of it its processes are started with, in two words: what its weights may follow from, and the rest. What is
    as usual isn't in them: a later pool with more fields has the same words.
    """
    loads = _unusual(entry, "engine", "environment", "devices")
    loads["of_weights"] = of_weights(entry.engine, entry.arguments)
    rest = _unusual(entry, "arguments", "command", "health", "standby", "weights", "snapshot", "kv_parked")
    rest |= _unusual(entry, "memory") if entry.command else {}
    packed = (msgspec.msgpack.encode(said, order="deterministic") for said in (loads, rest))
    return ".".join(hashlib.sha256(each).hexdigest()[:16] for each in packed)


def _unusual(entry: Entry, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(entry, name)) != getattr(_USUAL, name)}


def pause_s(failures: int) -> float:
    return min(FIRST_PAUSE_S * 2.0 ** (failures - 1), MOST_PAUSE_S)


def averaged(before: float | None, seen: float) -> float:
    return seen if before is None or before == math.inf else before + NEWEST_COUNTS * (seen - before)

"""How things stand with all models. Pure, and changes nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pool.entries import State
from pool.rules.events import HOST, HostRules, WeightsSeen
from pool.rules.model import ON_DEVICE, READS, Model, Region
from pool.rules.turns import SwapBudget

SEEN_S = 5.0
"""So long after its sleep nothing of what a `command` had is in use any more."""


@dataclass
class Picture:
    """How things stand: what all of it is decided by."""

    host: HostRules = field(default_factory=HostRules)
    models: dict[str, Model] = field(default_factory=dict)
    regions: dict[str, Region] = field(default_factory=dict)
    """All models' weights: those that several share are there once."""
    room: dict[str, int] | None = None
    """The ledger's; None while it doesn't answer."""
    foreign: dict[str, int] = field(default_factory=dict)
    """What of each device is in use without a lease."""
    others: dict[str, int] = field(default_factory=dict)
    """What of that was there without any `command`, too."""
    most: dict[str, int] = field(default_factory=dict)
    """What all models together may have, with the budget of those that are asleep."""
    beside_weights: dict[str, int] = field(default_factory=dict)
    """What of it is left for all models while all weights stay where they are; or how much they have too much."""
    launched: bool = False
    """The launcher answers."""
    settled: bool = False
    """All that ran when this pool began has been seen."""
    gms: dict[str, WeightsSeen] = field(default_factory=dict)
    """The newest of each device."""
    gms_away: set[str] = field(default_factory=set)
    """Devices whose GMS doesn't answer: nothing of them is parked or dropped."""
    broken: str = ""
    """The pool's own rules go round in a circle: a bug. Nothing is wished any more then."""
    budget: SwapBudget = field(default_factory=lambda: SwapBudget(0.1))

    @property
    def lacks(self) -> str:
        """Why nothing is wished at the moment; empty while the picture is whole."""
        if self.broken:
            return self.broken
        if not self.launched:
            return "the launcher doesn't answer: no engine is started, waked or put to sleep until it is back"
        if self.room is None:
            return "the ledger doesn't answer: no engine is started, waked or put to sleep until it is back"
        return "" if self.settled else "the pool has just begun, and looks what runs"

    def weigh(self, now: float) -> None:
        """After each event."""
        taken = together(region.here for region in self.regions.values())
        for model in self.models.values():
            model.beyond_lease = model.beyond_lease if _is_command_on_device(model) else {}
        self.most, self.beside_weights = {}, {}
        for device, size in (self.room or {}).items():
            here = (self.gms[device].here or {}) if device in self.gms else {}
            of_no_model = sum(size for name, size in here.items() if name not in self.regions)
            self.most[device] = most = max(size + self._of_commands(device, now) - of_no_model, 0)
            self.beside_weights[device] = most - taken.get(device, 0)
        self.most |= {of_sleepers(device): most for device, most in self.host.asleep.items()}

    def _of_commands(self, device: str, now: float) -> int:
        """What is in use without a lease, and goes with a `command`: what one takes is never measured."""
        foreign = self.foreign.get(device, 0)
        commands = [one for one in self.models.values() if one.rules.entry.command and device in one.rules.devices]
        on_it = sorted(filter(_is_command_on_device, commands), key=lambda one: one.turn_at)
        self.others[device] = min(self.others.get(device, 0), foreign)
        if on_it:
            left = foreign - self.others[device]
            for one in on_it[:-1]:
                one.beyond_lease[device] = min(one.beyond_lease.get(device, 0), left)
                left -= one.beyond_lease[device]
            on_it[-1].beyond_lease[device] = left  # what has come since it was waked, as far as can be seen
            return foreign - self.others[device]
        heard = self.launched and not any(one.child.running and one.away for one in commands)  # else one may be awake
        if heard and all(one.was is one.state and now >= one.since + SEEN_S for one in commands):
            self.others[device] = foreign
        return 0

    def taken(self) -> dict[str, int]:
        """What all models have, or will when what is under way is done."""
        weights = (self.weights_in(one.models[0], one.models[0].state) for one in self.regions.values())
        return together((*(self.beside(model, model.state) for model in self.models.values()), *weights))

    def free(self) -> dict[str, int]:
        taken = self.taken()
        return {device: size - taken.get(device, 0) for device, size in self.most.items()}

    def has(self, model: Model, state: State) -> Mapping[str, int]:
        """What it has in this state, with its weights, which others may have, too."""
        return together((self.beside(model, state), self.weights_in(model, state)))

    def weights_in(self, model: Model, state: State) -> Mapping[str, int]:
        """What its weights take of each device with it in this state, and those that share them in theirs."""
        states = [(one, state if one.name == model.name else one.state) for one in model.region.models]
        if not any(its in READS for _, its in states):
            return model.weights
        found = dict(model.weights)
        for known in (model.parked, *(one.learned.weights for one, its in states if its is State.LOADING)):
            for device, size in known.items():
                found[device] = max(size, found.get(device, 0))
        return found

    def beside(self, model: Model, state: State) -> Mapping[str, int]:
        """What it has in this state beside its weights."""
        bytes_ = model.bytes(state, self.beside_weights)
        if not self.host.asleep:
            return bytes_
        asleep = model.bytes(State.ASLEEP, {}) if state in READS else bytes_  # unknown while it loads: measured then
        if state in ON_DEVICE:
            asleep = {HOST: asleep.get(HOST, 0)}
        return {**bytes_, **{of_sleepers(device): size for device, size in asleep.items()}}


def _is_command_on_device(model: Model) -> bool:
    on_it = model.state in ON_DEVICE or model.state is State.DRAINING
    return bool(model.rules.entry.command) and on_it and not model.lacking  # else it has nothing yet


def together(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in many:
        for device, size in one.items():
            found[device] = found.get(device, 0) + size
    return found


def of_sleepers(device: str) -> str:
    return f"{device}, as far as engines asleep may have it"

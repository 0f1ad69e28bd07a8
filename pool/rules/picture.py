"""How things stand with all models. Pure, and changes nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pool.entries import State
from pool.rules.events import HOST, HostRules, WeightsSeen
from pool.rules.model import ON_DEVICE, READS, Model, Region
from pool.rules.turns import SwapBudget


@dataclass
class Picture:
    """How things stand: what all of it is decided by."""

    host: HostRules = field(default_factory=HostRules)
    models: dict[str, Model] = field(default_factory=dict)
    room: dict[str, int] | None = None
    """The ledger's; None while it doesn't answer."""
    beside_weights: dict[str, int] = field(default_factory=dict)
    """What of it is left for all models while all weights stay where they are."""
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

    @property
    def most(self) -> dict[str, int]:
        """What all models together may have, with the budget of those that are asleep."""
        others = {device: self._of_no_model(device) for device in self.room or {}}
        room = {device: max(most - others[device], 0) for device, most in (self.room or {}).items()}
        return room | {of_sleepers(device): most for device, most in self.host.asleep.items()}

    def _of_no_model(self, device: str) -> int:
        """What weights take of it that are no model's any more."""
        here = (self.gms[device].here or {}) if device in self.gms else {}
        return sum(size for name, size in here.items() if name not in self.regions)

    @property
    def regions(self) -> dict[str, Region]:
        """All models' weights: those that several share are there once."""
        return {model.region.name: model.region for model in self.models.values()}

    def weigh(self) -> None:
        taken = together(region.here for region in self.regions.values())
        most = self.most
        self.beside_weights = {device: max(most[device] - taken.get(device, 0), 0) for device in self.room or {}}

    def taken(self) -> dict[str, int]:
        """What all models have, or will when what is under way is done."""
        weights = {model.region.name: self.weights_in(model, model.state) for model in self.models.values()}
        beside = (self.beside(model, model.state) for model in self.models.values())
        return together((*beside, *weights.values()))

    def free(self) -> dict[str, int]:
        taken = self.taken()
        return {device: size - taken.get(device, 0) for device, size in self.most.items()}

    def has(self, model: Model, state: State) -> Mapping[str, int]:
        """What it has in this state, with its weights, which others may have, too."""
        return together((self.beside(model, state), self.weights_in(model, state)))

    def weights_in(self, model: Model, state: State) -> Mapping[str, int]:
        """What its weights take of each device with it in this state, and those that share them in theirs."""
        others = [(one, one.state) for one in model.region.models if one.name != model.name]
        reads = [(one, its) for one, its in ((model, state), *others) if its in READS]
        if not reads:
            return model.weights
        known = (model.weights, model.parked, *(one.learned.weights for one, its in reads if its is State.LOADING))
        return {device: max(one.get(device, 0) for one in known) for one in known for device in one}

    def beside(self, model: Model, state: State) -> Mapping[str, int]:
        """What it has in this state beside its weights."""
        bytes_ = model.bytes(state, self.beside_weights)
        if state in ON_DEVICE:
            asleep = {of_sleepers(HOST): model.bytes(State.ASLEEP, {}).get(HOST, 0)}
        else:
            asleep = {of_sleepers(device): size for device, size in bytes_.items()}
        return together((bytes_, asleep))


def together(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in many:
        for device, size in one.items():
            found[device] = found.get(device, 0) + size
    return found


def of_sleepers(device: str) -> str:
    return f"{device}, as far as engines asleep may have it"

"""What must hold after every event, checked in production (`machine.py` asks after each).

These are not the rules once more, but what the rules are for, seen from the outcome: how the parts of the machine fit
together, and whether what is about to be told and done agrees with it. A rule that doesn't hold is a mistake in this
program. Then no process is let in any more, an alarm says what is needed to report it, and nothing is taken away:
readers read on, and slabs of what stands stay here. What must hold of one region: `Region.broken`, `Region.breaks`.

Pure. What this file may not do: change anything.
"""

from collections.abc import Sequence
from typing import Any

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules.record import Region as Recorded
from gms.rules.region import Device
from gms.rules.sessions import MOST_CLIENTS, MOST_OBSERVERS
from gms.rules.weights import Slab

MOST_QUESTIONS = 64
"""Questions to the shell that aren't answered yet. It answers each at once."""
_TELLS = (m.Opened, m.Slabs, m.Created, m.Committed, m.Parked, m.PoolOwned, m.PoolReleased, m.RegionDropped)
"""Messages by which a process is let in, is given memory, or is promised something."""


class Invariants:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._newest = 0
        """The newest generation that was given, as of the event before."""
        self._tokens: dict[str, int] = {}
        """The same."""
        self._standing: list[Sequence[Slab]] = []
        """The same. Where nothing has changed nothing is looked through: a layout may have a thousand slabs."""

    def look(self, effects: Sequence[object]) -> str:
        """The first rule that doesn't hold, in a sentence; empty if all do."""
        regions, newest = self._device.regions, self._device.generations.newest
        tokens = {key: region.token for key, region in regions.items()}
        rule = ""
        if newest < self._newest:
            rule = f"generations fall: {newest} after {self._newest}"
        for region in regions.values():
            rule = rule or region.broken(newest)
        for key, token in tokens.items():
            if token < self._tokens.get(key, 0):
                rule = rule or f"the token of pool {key} falls to {token}"
        rule = rule or self._together() or self._told(effects)
        self._newest, self._tokens = newest, tokens
        return rule

    def _together(self) -> str:
        device = self._device
        standing = [region.standing for region in device.regions.values()]
        if [id(slabs) for slabs in standing] != [id(slabs) for slabs in self._standing]:
            handles = [slab.handle for slabs in standing for slab in slabs]
            if len(set(handles)) != len(handles):
                return "two regions have the same memory"
            self._standing = standing
        clients, observers = len(device.sessions.clients), len(device.sessions.observers)
        if clients > MOST_CLIENTS or observers > MOST_OBSERVERS:
            return f"{clients} clients and {observers} observers are connected"
        if len(device.questions) > MOST_QUESTIONS:
            return f"{len(device.questions)} questions to the shell are open"
        return ""

    def _told(self, effects: Sequence[object]) -> str:
        """First on disk, then told; and no descriptor of memory that stands is closed."""
        device, says = self._device, self._device.file.says
        for effect in effects:
            if type(effect) is e.Send and isinstance(effect.message, _TELLS):
                client = device.sessions.clients.get(effect.conn)
                region = device.regions.get(client.key) if client is not None else None
                if region is None:
                    continue
                recorded = says.region(region.key) if says is not None else None
                given = says.given if says is not None else 0
                rule = region.breaks(effect, recorded or Recorded(region.key, region.policy), given)
                if rule:
                    return rule
            elif type(effect) is e.Forget:
                for region in device.regions.values():
                    stands = {slab.handle for slab in region.standing}
                    if stands.intersection(effect.slabs):
                        return f"slabs of {region.key} that stand are forgotten"
        return ""


def harmless(effects: Sequence[e.Effect], standing: Sequence[Slab]) -> list[e.Effect]:
    """What may still be done when a rule doesn't hold: no process is let in, nothing is written, no memory goes."""
    kept: list[e.Effect] = []
    stays = {slab.handle for slab in standing}
    for effect in effects:
        if isinstance(effect, e.Persist | e.Allocate):
            continue
        if isinstance(effect, e.Send) and isinstance(effect.message, (*_TELLS, m.Drop)):
            continue
        if isinstance(effect, e.Forget):
            effect = e.Forget(tuple(handle for handle in effect.slabs if handle not in stays))
        kept.append(effect)
    return kept


def in_words(event: e.Event) -> str:
    """For a report of a mistake: what came, without the megabytes that may be in it."""
    if isinstance(event, e.Received):
        return f"{_fields(event.message)} on connection {event.conn} with {len(event.slabs)} slabs"
    return _fields(event)


def _fields(struct: Any) -> str:
    shown = []
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        is_long = isinstance(value, bytes) or (isinstance(value, str | list | tuple) and len(value) > 100)
        shown.append(f"{name}={len(value)} long" if is_long else f"{name}={value}")
    return f"{type(struct).__name__}({', '.join(shown)})"[:600]

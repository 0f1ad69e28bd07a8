"""What is left of models that are none any more: processes, a directory, and weights in GMS. Pure.

Only of such as a pool has had, now or before: it keeps their names and those of their weights, and the launcher runs no
others. Any other region of GMS is another program's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pool.rules import events as e
from pool.rules.model import Tries
from pool.rules.picture import Picture
from sidecar.machine.context import Context


@dataclass
class Leftover:
    runs: bool = False
    ends: bool = False
    """The launcher was told that it is a model no more."""
    drops: bool = False
    dropping: Tries = field(default_factory=Tries)


class Leftovers:
    def __init__(self, picture: Picture, context: Context[Any]) -> None:
        self._picture, self._context = picture, context
        self.of: dict[str, Leftover] = {}

    def runs(self, name: str) -> bool:
        return name in self.of and self.of[name].runs

    def seen(self, children: Mapping[str, e.Child] | None) -> None:
        """The launcher says what runs."""
        for name in children or {}:
            if name not in self._picture.models:
                self.of.setdefault(name, Leftover())
        for name, one in self.of.items():
            is_model = name in self._picture.models
            one.runs = not is_model and children is not None and name in children and children[name].running
            one.ends = one.ends and children is not None  # whether it was heard isn't known

    def dropped(self, name: str, why: str) -> None:
        """A wish to drop weights has been carried out; or hasn't, and this is why."""
        one = self.of.get(name)
        if one is None:
            return
        one.drops = False
        if why:
            one.dropping.failed(self._context.now)
            again_s = round(one.dropping.again_at - self._context.now, 1)
            self._context.note("drop_failed", weights=name, why=why, again_in_s=again_s)
        else:
            self._context.note("dropped", weights=name)
            self._gone(name)

    def clear(self) -> None:
        it, context = self._picture, self._context
        any_runs = any(one.runs for one in self.of.values())  # any of them may have the weights of any
        for name, one in list(self.of.items()) if it.launched else ():
            if not one.ends and name not in it.models and (one.runs or name not in it.regions):
                one.ends = True
                context.out.append(e.End(name))
            if any_runs or one.drops or context.wait_until(one.dropping.again_at):
                continue
            heard = {device: said for device, said in it.gms.items() if device not in it.gms_away}
            if name not in it.regions and any((g.here or {}).get(name) or g.parked.get(name) for g in heard.values()):
                one.drops = True
                context.out.append(e.Drop(name))
            elif it.room is not None and it.room.keys() <= heard.keys():
                self._gone(name)

    def _gone(self, name: str) -> None:
        del self.of[name]
        self._context.out.append(e.Save())

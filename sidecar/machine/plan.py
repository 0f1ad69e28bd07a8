"""What is to be done now, and when to look again.

Pure. In each turn the parts are asked what follows from how things stand (`plan`, `plan_...`): they change nothing,
and write down here what is to be done and until when they wait. A machine does it, and asks again until nothing is
left to do. So a question is only a question, and the timer of a turn is a result.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar


class Step(NamedTuple):
    act: Callable[..., Any]
    args: tuple[Any, ...] = ()


@dataclass(slots=True)
class Plan:
    now: float
    alarms: Mapping[str, str]
    """Those that last already."""
    steps: list[Step] = field(default_factory=list)
    again: float = math.inf

    def do(self, act: Callable[..., Any], *args: Any) -> None:
        self.steps.append(Step(act, args))

    def carry_out(self) -> bool:
        """Returns whether there was anything to be done."""
        for step in self.steps:
            step.act(*step.args)
        return bool(self.steps)

    def wait_until(self, at: float) -> bool:
        """True: it isn't that late yet, and a plan is made again when it is."""
        if self.now < at:
            self.again = min(self.again, at)
        return self.now < at

    def say(self, alarm: Callable[[str, str], None], key: str, text: str) -> None:
        """An alarm that lasts; unless it is said already."""
        if self.alarms.get(key) != text:
            self.do(alarm, key, text)

    def calm(self, calm: Callable[..., None], *keys: str) -> None:
        if any(key in self.alarms for key in keys):
            self.do(calm, *keys)


AnyPlan = TypeVar("AnyPlan", bound=Plan)


class Circle(Exception):
    """A bug of the rules: what they want done has no end."""

    def __init__(self, newest: Plan) -> None:
        super().__init__(f"the rules go round in a circle: {newest.steps[:3]}")
        self.newest = newest


def conclude(ask: Callable[[], AnyPlan], most_rounds: int) -> AnyPlan:
    """Everything that follows from how things stand. Returns the plan that has nothing to be done. Raises Circle."""
    for _ in range(most_rounds):
        plan = ask()
        if not plan.carry_out():
            return plan
    raise Circle(plan)

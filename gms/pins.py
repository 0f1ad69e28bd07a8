"""Who still has memory of a layout that is no more (rule 7 of `machine.py`).

Pure, a part of the machine. A descriptor pins its memory in whatever process it lies. Whoever has some is asked to drop
them, and is named for as long as it doesn't answer: nobody can take them away from it.
"""

from typing import TYPE_CHECKING

from gms import messages as m
from gms.sessions import Client, Doing
from sidecar.context import rfc3339

if TYPE_CHECKING:
    from gms.machine import Machine

ANSWER_S = 5.0
"""A process that isn't stopped and doesn't hang answers within that."""


class Pins:
    def __init__(self, machine: "Machine") -> None:
        self.machine = machine

    def ask(self, generation: int) -> None:
        """That layout is no more."""
        for client in self.machine.clients.values():
            if generation in client.holds:
                self.ask_one(client, generation)

    def ask_one(self, client: Client, generation: int) -> None:
        client.holds.add(generation)
        client.asked[generation] = self.machine.context.now
        if client.doing is Doing.ASLEEP:
            self.machine.rest(client)
        self.machine.context.send(client.conn, m.Drop(generation=generation))

    def dropped(self, client: Client, generation: int) -> None:
        client.holds.discard(generation)
        if client.asked.pop(generation, None) is not None:
            self.machine.context.note("dropped", engine=client.engine_id, generation=generation)
        if client.doing is Doing.ASLEEP:
            self.machine.rest(client)

    def step(self) -> None:
        context = self.machine.context
        late = [
            f"{client} still has memory of layout {generation}, which is no more, and does not answer"
            for client in self.machine.clients.values()
            for generation, since in client.asked.items()
            if context.reached(since + ANSWER_S)
        ]
        if late:
            context.alarm("pins", "; ".join(late[:5]))
        else:
            context.calm("pins")

    def named(self) -> list[str]:
        context = self.machine.context
        return [
            f"{client} has memory of layout {generation}, and was asked to drop it at "
            f"{rfc3339(context.wall - (context.now - since))}"
            for client in self.machine.clients.values()
            for generation, since in client.asked.items()
        ]

"""Which process has descriptors of which memory, and which was asked to drop those of memory that is gone (rule 7 of
`machine.py`).

Pure, a part of the machine. Memory is named by its generation, of which no two on a device are the same. A descriptor
keeps its memory alive in whatever process it lies, and can't be taken away from there. So a process that has memory of
a layout or a pool that is gone is asked to drop it, and is named for as long as it hasn't: its drop is pending.

What this file may not do: know what a process does.
"""

import math
from collections.abc import Iterator

from gms.rules import messages as m
from gms.rules.context import Context
from gms.rules.sessions import Client, Sessions
from sidecar.machine.context import rfc3339
from sidecar.machine.plan import Plan

MOST_LAYOUTS = 8
"""How many layouts one process may have descriptors of: as a rule one, and another while one replaces the other."""
TOO_MANY_LAYOUTS = "this process says that it has more layouts than one process can have"
"""It is thrown out with that."""
ANSWER_S = 5.0
"""A process that isn't stopped and doesn't hang drops what it is asked to drop within that."""


class Holders:
    def __init__(self, context: Context, sessions: Sessions) -> None:
        self._context = context
        self._sessions = sessions
        self._holds: dict[int, dict[int, float | None]] = {}
        """Connection -> generation -> when it was asked to drop that one. None: it may keep it."""

    def layouts(self, conn: int) -> list[int]:
        """Generations of which this process has descriptors, the oldest first."""
        return sorted(self._holds.get(conn, ()))

    def has(self, conn: int, generation: int) -> bool:
        """And was not asked to drop it."""
        return self._holds.get(conn, {}).get(generation, math.inf) is None

    def keeps_some(self, conn: int) -> bool:
        """It has descriptors that it was not asked to drop."""
        return None in self._holds.get(conn, {}).values()

    def who_has(self, generation: int) -> list[int]:
        return [conn for conn, generations in self._holds.items() if generation in generations]

    def got(self, conn: int, generation: int) -> None:
        """It was given these descriptors, or came back with them."""
        self._holds.setdefault(conn, {}).setdefault(generation)

    def keep_only(self, conn: int, generation: int) -> None:
        """So it says. What it was asked to drop it has until it says that it has dropped it."""
        for each, asked_at in list(self._holds.get(conn, {}).items()):
            if each != generation and asked_at is None:
                self._forget(conn, each)

    def remove(self, conn: int) -> None:
        """A process's end gives back everything."""
        self._holds.pop(conn, None)

    def _forget(self, conn: int, generation: int) -> float | None:
        """Returns when it was asked to drop that."""
        generations = self._holds.get(conn, {})
        asked_at = generations.pop(generation, None)
        if not generations:
            self._holds.pop(conn, None)
        return asked_at

    # -- memory that is gone ---------------------------------------------------------------------------------------

    def ask(self, generation: int) -> list[int]:
        """That memory is gone: every process that has it is asked. Returns the connections of those that have more of
        it to drop than one process can have.
        """
        who = [self._sessions.clients[conn] for conn in self.who_has(generation)]
        return [client.conn for client in who if not self.ask_one(client, generation)]

    def ask_one(self, client: Client, generation: int, *, tell: bool = True) -> bool:
        """False: it says that it has more memory than one process can have. `tell`: it doesn't know by itself."""
        generations = self._holds.setdefault(client.conn, {})
        generations[generation] = self._context.now
        self._sessions.turns_to_something_else(client)
        if tell:
            self._context.send(client.conn, m.Drop(generation=generation))
        return len(generations) <= MOST_LAYOUTS

    def dropped(self, client: Client, generation: int) -> None:
        """So it says."""
        if self._forget(client.conn, generation) is not None:
            self._context.note("dropped", region=client.key, engine=client.engine_id, generation=generation)
        self._sessions.turns_to_something_else(client)

    def still(self, generation: int) -> list[str]:
        """Processes that have that memory. In sentences."""
        return [f"{self._has(conn, generation)}, and was asked to drop it" for conn in self.who_has(generation)]

    def plan(self, plan: Plan) -> None:
        """A process that doesn't answer is named in an alarm."""
        late = [
            f"{self._has(conn, generation, 'still has')}, which is gone, and does not answer"
            for conn, generation, asked_at in self._asked()
            if not plan.wait_until(asked_at + ANSWER_S)
        ]
        if late:
            plan.say(self._context.alarm, "pending_drops", "; ".join(late[:5]))
        else:
            plan.calm(self._context.calm, "pending_drops")

    @property
    def pending(self) -> list[str]:
        """In sentences."""
        context = self._context
        return [
            f"{self._has(conn, generation)}, and was asked to drop it at "
            f"{rfc3339(context.wall - (context.now - asked_at))}"
            for conn, generation, asked_at in self._asked()
        ]

    @property
    def also(self) -> str:
        """The same, behind why there is too little memory."""
        return "".join(f"; {sentence}" for sentence in self.pending)

    def _asked(self) -> Iterator[tuple[int, int, float]]:
        for conn, generations in self._holds.items():
            for generation, asked_at in generations.items():
                if asked_at is not None:
                    yield conn, generation, asked_at

    def _has(self, conn: int, generation: int, has: str = "has") -> str:
        client = self._sessions.clients[conn]
        what = f"layout {generation}" if client.key == m.WEIGHTS else f"memory {generation} of {client.key}"
        return f"{client} {has} memory of {what}"

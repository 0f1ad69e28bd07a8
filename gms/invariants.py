"""What must hold after every event, checked in production (`machine.py` asks after each).

These are not the rules once more, but what the rules are for, seen from the outcome: how the parts of the machine fit
together, and whether what is about to be told and done agrees with it. A rule that doesn't hold is a mistake in this
program. Then nobody is let in any more, an alarm says what is needed to report it, and nothing is taken away from
anybody: readers read on, and slabs of the layout stay here.

Pure. What this file may not do: change anything.
"""

from collections.abc import Sequence
from typing import Any

from gms import events as e
from gms import messages as m
from gms.pool_invariants import TELLS as POOL_TELLS
from gms.record import Record
from gms.sessions import MOST_CLIENTS, MOST_OBSERVERS, Sessions
from gms.weights import Phase, Slab, Weights

MOST_QUESTIONS = 64
"""Questions to the shell that aren't answered yet. It answers each at once."""
_TELLS = (m.Opened, m.Slabs, m.Created, m.Committed, *POOL_TELLS)
"""Messages by which somebody is let in, or is given memory."""


class Invariants:
    def __init__(self, weights: Weights, sessions: Sessions) -> None:
        self._weights = weights
        self._sessions = sessions
        self._newest = 0
        """The newest generation that was given, as of the event before."""

    def broken(self, effects: Sequence[object], on_disk: Record | None, questions: int) -> str:
        """The first rule that doesn't hold, in a sentence; empty if all do. `on_disk`: what the file says, as far as
        this server has written it.
        """
        rule = self._state() or self._people() or self._told(effects, on_disk)
        if not rule and questions > MOST_QUESTIONS:
            rule = f"{questions} questions to the shell are open"
        self._newest = self._weights.newest_generation
        return rule

    def _state(self) -> str:
        weights, newest = self._weights, self._weights.newest_generation
        phase, committed, draft, awaited = weights.phase, weights.committed, weights.draft, weights.awaited
        if newest < self._newest:
            return f"generations fall: {newest} after {self._newest}"
        if (draft is not None) is not (phase is Phase.RW):
            return f"the phase is {phase.value}, and {'somebody' if draft is not None else 'nobody'} writes"
        if draft is not None and weights.readers:
            return "somebody writes while somebody reads"
        if bool(weights.readers) is not (phase is Phase.RO):
            return f"the phase is {phase.value}, and {len(weights.readers)} read"
        if (awaited is not None) is not (phase is Phase.RECOVERING):
            return f"the phase is {phase.value}, and {'a' if awaited is not None else 'no'} layout is awaited"
        if committed is None:
            if phase in (Phase.COMMITTED, Phase.RO):
                return f"the phase is {phase.value}, and nothing is committed"
        elif phase in (Phase.EMPTY, Phase.RECOVERING):
            return f"the phase is {phase.value}, and layout {committed.generation} is committed"
        elif not committed.slabs:
            return f"layout {committed.generation} is committed, and has no slab"
        elif committed.generation > newest:
            return f"layout {committed.generation} is committed, and {newest} is the newest that was given"
        if draft is not None:
            oldest = committed.generation if committed is not None else 0
            if not oldest < draft.generation <= newest:
                return f"generation {draft.generation} is being written, after {oldest}; {newest} is the newest"
        return ""

    def _people(self) -> str:
        weights, sessions = self._weights, self._sessions
        if weights.writer is not None and weights.writer not in sessions.clients:
            return "the writer is not connected"
        if not weights.readers <= sessions.clients.keys():
            return "somebody reads who is not connected"
        if len(sessions.clients) > MOST_CLIENTS or len(sessions.observers) > MOST_OBSERVERS:
            return f"{len(sessions.clients)} clients and {len(sessions.observers)} observers are connected"
        return ""

    def _told(self, effects: Sequence[object], on_disk: Record | None) -> str:
        """First on disk, then told; and no descriptor of a layout that stands is closed."""
        weights = self._weights
        for effect in effects:
            if type(effect) is e.Send:
                message = effect.message
                if type(message) is m.Committed:
                    if on_disk is None or on_disk.generation != message.generation:
                        return f"layout {message.generation} is told to be committed, and is not on disk"
                elif type(message) is m.Opened and message.mode == "rw":
                    if on_disk is None or on_disk.given < message.generation:
                        return f"generation {message.generation} is given to a writer, and is not on disk"
                    if on_disk.generation and weights.committed is None:
                        return f"a writer is let in, and layout {on_disk.generation} is still on disk"
                elif type(message) is m.Opened and (
                    weights.committed is None or weights.committed.generation != message.generation
                ):
                    return f"a reader is given layout {message.generation}, which is not committed"
            elif type(effect) is e.Forget and weights.committed is not None:
                forgotten = set(effect.slabs).intersection(slab.handle for slab in weights.committed.slabs)
                if forgotten:
                    return f"{len(forgotten)} slabs of layout {weights.committed.generation} are forgotten"
        return ""


def harmless(effects: Sequence[e.Effect], standing: Sequence[Slab]) -> list[e.Effect]:
    """What may still be done when a rule doesn't hold: nobody is let in, nothing is written, no memory goes."""
    kept: list[e.Effect] = []
    stays = {slab.handle for slab in standing}
    for effect in effects:
        if isinstance(effect, e.Persist | e.Allocate | e.PersistPools | e.AllocatePool):
            continue
        if isinstance(effect, e.Send) and isinstance(effect.message, (*_TELLS, m.Drop, m.PoolGone)):
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

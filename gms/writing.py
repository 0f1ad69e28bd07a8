"""A writer's work: its slabs, one after the other, and the layout that is made of them.

Pure, a part of the machine (rules 4, 5, 6 and 8 of `machine.py`). On a full device `Create` waits, for a bounded time,
and no longer than its writer: nobody says when memory becomes free, so it is tried again and again. What can never fit
is refused at once.
"""

from dataclasses import dataclass

from gms import events as e
from gms import layout as lay
from gms import messages as m
from gms.context import Context
from gms.sessions import Client, Request, Sessions
from gms.weights import Draft, Layout, Slab, Weights

RETRY_S = 0.02
"""How soon memory is asked for again on a full device; for pools, too."""


@dataclass
class Wanted:
    """A slab for which there is no memory yet."""

    conn: int
    size: int
    until: float
    retry_at: float
    free: int = 0


class Writing:
    def __init__(self, context: Context, weights: Weights, sessions: Sessions, config: e.Config) -> None:
        self._context = context
        self._weights = weights
        self._sessions = sessions
        self._config = config
        self.wanted: Wanted | None = None

    def mistake(self, client: Client) -> str:
        """Why this process may not create or commit anything now; empty if it may."""
        if self._weights.writer != client.conn:
            return "this process isn't writing; Open first"
        if self.wanted is not None:
            return "the last Create isn't answered yet"
        return ""

    def is_there_room(self, client: Client, request: Request, free: int) -> None:
        """What there is no room for is refused at once (rule 6)."""
        layout, needed, capacity = self._weights.committed, request.open.bytes, self._config.capacity
        old = sum(each.size for each in (layout, self._weights.draft) if each is not None)
        stays = layout.size if layout is not None and request.open.replace else 0
        if needed + stays > capacity or needed > free + (0 if stays else old):
            why = f"the new layout needs {needed} bytes, and {free} of {capacity} are free"
            if stays:
                why += f" beside the {stays} of the old one; without `replace` the old one would be cleared first"
            elif old:
                why += f", and {old} more once what is there is cleared"
            self._sessions.refuse(client, why, "too_large" if needed + stays > capacity else "no_memory")

    # -- slabs -----------------------------------------------------------------------------------------------------

    def create(self, draft: Draft, size: int) -> None:
        context, config, committed = self._context, self._config, self._weights.committed
        size = -(-size // config.granularity) * config.granularity
        stays = committed.size if committed is not None else 0
        if len(draft.slabs) >= lay.MAX_SLABS:
            context.refuse(draft.writer, f"a layout has at most {lay.MAX_SLABS} slabs", "too_large")
        elif size + draft.size + stays > config.capacity:
            why = (
                f"a slab of {size} bytes can't fit: the device has {config.capacity}, this writer has made "
                f"{draft.size}, and the layout that it replaces has {stays}"
            )
            context.refuse(draft.writer, why, "too_large")
        else:
            now = context.now
            self.wanted = Wanted(draft.writer, size, now + config.memory_wait_s, now + RETRY_S)
            context.out.append(e.Allocate(draft.writer, size))

    def allocated(self, event: e.Allocated) -> None:
        wanted = self.wanted
        if wanted is None or wanted.conn != event.conn:
            self._context.forget([event.slab])
            return
        self.wanted = None
        slab = Slab(event.slab.handle, event.slab.identity, wanted.size)
        number = self._weights.add(slab)
        self._context.changed = True
        self._context.send(event.conn, m.Created(slab=number, size=slab.size), (slab.handle,))

    def not_allocated(self, event: e.NotAllocated, pending_drops: list[str]) -> None:
        context, wanted, writer = self._context, self.wanted, self._sessions.writer
        if wanted is None or wanted.conn != event.conn or writer is None:
            return
        wanted.free = event.free
        context.changed = True
        if event.why:
            self.wanted = None
            context.refuse(event.conn, f"a slab of {wanted.size} bytes can't be made: {event.why}", "not_now")
        elif context.now >= wanted.until:
            self.wanted = None
            context.note("no_memory", engine=writer.engine_id, needed=wanted.size, free=event.free)
            who = "".join(f"; {drop}" for drop in pending_drops)
            why = f"a slab of {wanted.size} bytes is needed, and {event.free} are free{who}"
            context.refuse(event.conn, why, "no_memory")
        else:
            wanted.retry_at = min(context.now + RETRY_S, wanted.until)

    def step(self) -> None:
        wanted = self.wanted
        if wanted is not None and self._context.reached(wanted.retry_at):
            wanted.retry_at = self._context.now + RETRY_S
            self._context.out.append(e.Allocate(wanted.conn, wanted.size))

    # -- the end ---------------------------------------------------------------------------------------------------

    def layout(self, draft: Draft, document: bytes) -> Layout | None:
        """What is to be committed. None: it is refused, and its writer goes on."""
        try:
            layout = lay.decode(document)
            lay.check(layout, [slab.size for slab in draft.slabs])
            if not draft.slabs:
                raise lay.BadLayout("no slab was made: there is nothing to commit")
        except lay.BadLayout as error:
            self._context.refuse(draft.writer, str(error), "bad_layout")
            return None
        return Layout(draft.generation, lay.structure_hash(document), document, len(layout.tensors), tuple(draft.slabs))

    def abort(self, writer: Client) -> None:
        """It ends without a commit. What the file says is still so."""
        draft = self._weights.abort()
        self.wanted = None
        self._context.forget(draft.slabs)
        self._context.note("aborted", engine=writer.engine_id, generation=draft.generation)
        self._sessions.turns_to_something_else(writer)

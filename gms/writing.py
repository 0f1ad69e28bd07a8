"""A writer's work: slabs, one after the other, and the commit (rules 4, 5 and 8 of `machine.py`).

Pure, a part of the machine.
"""

from typing import TYPE_CHECKING

from gms import events as e
from gms import layout as lay
from gms import messages as m
from gms.record import Record, Slab
from gms.sessions import Client, Committed, Doing, Draft, HeldSlab, Wanted

if TYPE_CHECKING:
    from gms.machine import Machine

RETRY_S = 0.02
"""Nobody says when memory becomes free."""


class Writing:
    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.context = machine.context

    def _draft_of(self, event: e.Received, client: Client) -> Draft | None:
        draft = self.machine.draft
        what = type(event.message).__name__
        if draft is None or draft.writer is not client:
            self.machine.throw_out(event.conn, f"{what}: this process isn't writing; Open first")
            return None
        if draft.create is not None:
            self.machine.throw_out(event.conn, f"{what}: the last Create isn't answered yet")
            return None
        return draft

    # -- slabs -----------------------------------------------------------------------------------------------------

    def create(self, event: e.Received, client: Client) -> None:
        message, config = event.message, self.machine.config
        assert isinstance(message, m.Create)
        draft = self._draft_of(event, client)
        if draft is None:
            return
        size = -(-message.size // config.granularity) * config.granularity
        stays = self.machine.committed.size if self.machine.committed is not None else 0
        if len(draft.slabs) >= lay.MAX_SLABS:
            self.machine.refuse(event.conn, f"a layout has at most {lay.MAX_SLABS} slabs", "too_large")
        elif size + draft.size + stays > config.capacity:
            why = (
                f"a slab of {size} bytes can't fit: the device has {config.capacity}, this writer has made "
                f"{draft.size}, and the layout that it replaces has {stays}"
            )
            self.machine.refuse(event.conn, why, "too_large")
        else:
            draft.create = Wanted(size, self.context.now + config.memory_wait_s, self.context.now + RETRY_S)
            self.context.out.append(e.Allocate(event.conn, size))

    def allocated(self, event: e.Allocated) -> None:
        draft = self.machine.draft
        if draft is None or draft.writer.conn != event.conn or draft.create is None:
            self.context.out.append(e.Forget((event.slab.handle,)))
            return
        size, draft.create = draft.create.size, None
        draft.slabs.append(HeldSlab(event.slab.handle, event.slab.identity, size))
        self.context.changed = True
        created = m.Created(slab=len(draft.slabs) - 1, size=size)
        self.context.send(event.conn, created, (event.slab.handle,))

    def not_allocated(self, event: e.NotAllocated) -> None:
        draft = self.machine.draft
        if draft is None or draft.writer.conn != event.conn or draft.create is None:
            return
        create = draft.create
        create.free = event.free
        if event.why:
            draft.create = None
            self.machine.refuse(event.conn, f"a slab of {create.size} bytes can't be made: {event.why}", "not_now")
        elif self.context.now >= create.until:
            draft.create = None
            pins = "".join(f"; {pin}" for pin in self.machine.pins.named())
            why = f"a slab of {create.size} bytes is needed, and {event.free} are free{pins}"
            self.context.note("no_memory", engine=draft.writer.engine_id, needed=create.size, free=event.free)
            self.machine.refuse(event.conn, why, "no_memory")
        else:
            create.retry_at = min(self.context.now + RETRY_S, create.until)
            self.context.changed = True

    def step(self) -> None:
        draft = self.machine.draft
        if draft is not None and draft.create is not None and self.context.reached(draft.create.retry_at):
            draft.create.retry_at = self.context.now + RETRY_S
            self.context.out.append(e.Allocate(draft.writer.conn, draft.create.size))

    # -- the commit ------------------------------------------------------------------------------------------------

    def commit(self, event: e.Received, client: Client) -> None:
        message = event.message
        assert isinstance(message, m.Commit)
        draft = self._draft_of(event, client)
        if draft is None:
            return
        try:
            layout = lay.decode(message.layout)
            lay.check(layout, [slab.size for slab in draft.slabs])
            if not draft.slabs:
                raise lay.BadLayout("no slab was made: there is nothing to commit")
        except lay.BadLayout as error:
            self.machine.refuse(event.conn, str(error), "bad_layout")
            return
        new = Committed(
            draft.generation, lay.structure_hash(message.layout), message.layout, len(layout.tensors), draft.slabs
        )
        slabs = tuple(Slab(slab.size, slab.identity) for slab in new.slabs)
        record = Record(self.machine.given, new.generation, new.hash, slabs, self.machine.config.boot_id)

        def failed(why: str) -> None:
            if self.machine.draft is draft:
                sentence = f"the state file can't be written ({why}): nothing is committed, and it can be tried again"
                self.machine.refuse(event.conn, sentence, "disk")

        self.machine.write(record, lambda: self._committed(draft, new), failed)

    def _committed(self, draft: Draft, new: Committed) -> None:
        machine = self.machine
        if machine.draft is not draft:
            machine.file_is_wrong()
            return
        machine.draft, old = None, machine.committed
        self.context.calm("record")
        machine.committed = new
        self.context.note(
            "committed", engine=draft.writer.engine_id, generation=new.generation, hash=new.hash, bytes=new.size
        )
        machine.begins_to_read(draft.writer, new)
        self.context.send(draft.writer.conn, m.Committed(generation=new.generation, hash=new.hash))
        machine.tell(m.Changed(generation=new.generation, hash=new.hash), but=draft.writer)
        if old is not None:
            machine.forget(old.slabs)
            self.context.note("replaced", generation=old.generation, by=new.generation)
            machine.pins.ask(old.generation)

    def abort(self) -> None:
        """It ends without a commit. What the file says is still so."""
        draft, self.machine.draft = self.machine.draft, None
        if draft is not None:
            self.machine.forget(draft.slabs)
            self.context.note("aborted", engine=draft.writer.engine_id, generation=draft.generation)
            if draft.writer.doing is Doing.WRITING:
                self.machine.rest(draft.writer)

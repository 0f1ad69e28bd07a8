"""A new server and the layout of the one before (rules 9 and 10 of `machine.py`).

Pure, a part of the machine. The weights outlive the server, because its readers keep their descriptors. The file tells
which layout that is; its readers bring it back. Nothing else may take its place meanwhile.
"""

import math
from typing import TYPE_CHECKING

from gms import events as e
from gms import layout as lay
from gms import messages as m
from gms.record import Record
from gms.sessions import Client, Committed, Doing, HeldSlab, Returning

if TYPE_CHECKING:
    from gms.machine import Machine

LOOK_EVERY_S = 0.25
RETRY_S = 0.5


class Recovery:
    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.context = machine.context
        self.awaited: Record | None = None
        """The layout that is to be handed back."""
        self._window_until = -math.inf
        """Until then other readers than those who are here may be on their way back."""
        self._awake_at = math.inf
        """When this server last did anything."""
        self._look_at = math.inf
        self._looking = False
        self._nobody_has_it_at = math.inf
        """When that is to be written into the file."""

    @property
    def awaits(self) -> bool:
        return self.awaited is not None

    @property
    def hopes(self) -> bool:
        """That layout may well come back: who can read or write waits to read it."""
        return self.awaited is not None and not self.context.reached(self._window_until)

    def begin(self, event: e.Started) -> None:
        record, config, machine = event.record, self.machine.config, self.machine
        if record is None:
            machine.given = event.generation_floor
            if event.unreadable:
                self._window_until = self.context.now + config.window_s
                self.context.alarm(
                    "record",
                    f"the state file can't be read ({event.unreadable}): whatever was committed is lost to this "
                    "server, and whoever reads it must end",
                )
            self.context.note("started", found=event.unreadable or "no file")
            return
        machine.given = max(record.given, record.generation)
        if not record.hash:
            self.context.note("started", found="no layout")
            return
        self.context.note("started", found="a layout", generation=record.generation, hash=record.hash)
        self.awaited = record
        if record.boot_id != config.boot_id:
            self._nobody_has_it_at = self.context.now  # no memory outlives a boot
            return
        self._window_until = self.context.now + config.window_s
        self._look_at = self.context.now

    def record(self, given: int) -> Record:
        """What the file has to say while nothing is committed."""
        awaited = self.awaited
        if awaited is None:
            return Record(given)
        return Record(given, awaited.generation, awaited.hash, awaited.slabs, awaited.boot_id)

    def why_no_reader(self) -> str:
        if self.awaited is None:
            return ""
        return f"layout {self.awaited.generation} is to be handed back by whoever has kept it"

    def why_no_writer(self) -> str:
        if self.context.reached(self._window_until):
            return ""
        if self.awaited is not None:
            return f"this server is new, and layout {self.awaited.generation} may still be handed back"
        return "this server is new, and others who read may still be on their way back"

    def notice(self) -> None:
        """The window is time in which somebody could come back: not that in which this server itself was stopped."""
        asleep_s = self.context.now - self._awake_at - LOOK_EVERY_S
        if asleep_s > LOOK_EVERY_S and self._awake_at < self._window_until:
            self._window_until += asleep_s
        self._awake_at = self.context.now

    def step(self) -> None:
        awaited = self.awaited
        if not self.context.reached(self._window_until):
            self.context.reached(self._awake_at + LOOK_EVERY_S)
        if awaited is None:
            return
        if self.context.reached(self._nobody_has_it_at):
            self._nobody_has_it_at = math.inf
            self.machine.write(Record(self.machine.given), lambda: self._gone(awaited), self._gone_unwritten)
        elif self.context.reached(self._window_until):
            self.context.alarm(
                "window",
                f"layout {awaited.generation} was not handed back within {self.machine.config.window_s:g} s; "
                "the next writer will begin anew",
            )
        elif not self._looking and self.context.reached(self._look_at):
            self._look()

    def somebody_left(self) -> None:
        """It may have been the last one who had that memory."""
        if self.awaited is not None and not self._looking:
            self._look()

    def _look(self) -> None:
        awaited = self.awaited
        if awaited is None:
            return
        self._looking, self._look_at = True, self.context.now + LOOK_EVERY_S
        self.machine.look_at_memory(tuple(slab.identity for slab in awaited.slabs), self._seen)

    def _seen(self, memory: e.MemorySeen) -> None:
        self._looking = False
        if self.awaited is not None and memory.held is False:
            self._nobody_has_it_at = self.context.now

    def _gone(self, awaited: Record) -> None:
        if self.awaited is awaited:
            self.give_up("nobody has its memory any more")
            self._window_until = -math.inf
        else:
            self.machine.file_is_wrong()

    def _gone_unwritten(self, why: str) -> None:
        self._nobody_has_it_at = self.context.now + RETRY_S

    def give_up(self, why: str) -> None:
        """The file says already that there is no layout."""
        awaited, self.awaited = self.awaited, None
        self.context.calm("window")
        if awaited is None:
            return
        self.context.note("given_up", generation=awaited.generation, why=why)
        for client in self.machine.clients.values():
            if client.returning is not None:
                self._put_down(client.returning)
        self.machine.tell(m.Changed(generation=0, hash=""))

    # -- handing back ----------------------------------------------------------------------------------------------

    def hand_back(self, event: e.Received, client: Client) -> None:
        message, machine = event.message, self.machine
        assert isinstance(message, m.HandBack)
        came = [HeldSlab(slab.handle, slab.identity, 0) for slab in event.slabs]
        mistake = ""
        if message.first == 0:
            if client.doing not in (Doing.WATCHING, Doing.ASLEEP) or client.returning is not None:
                mistake = f"this process is {client.doing.value}, or hands back already"
            elif not came and self._is(self.awaited, message):
                mistake = "the slabs are awaited, and none came with it"
            else:
                client.returning = Returning(document=message.layout)
        returning = client.returning
        if returning is None or message.first != returning.count or (message.first > 0 and not came):
            mistake = mistake or "the slabs are to be handed back one after the other, each once"
        if mistake or returning is None:
            machine.forget(came)
            machine.throw_out(event.conn, f"HandBack: {mistake}")
            return
        self._look_through(returning, message, came)
        returning.count += len(came)
        if not came or returning.count >= len(message.sizes):
            client.returning = None
            self._returned(client, message, returning)

    def _is(self, layout: Record | Committed | None, message: m.HandBack) -> bool:
        return layout is not None and (message.generation, message.hash) == (layout.generation, layout.hash)

    def _look_through(self, returning: Returning, message: m.HandBack, came: list[HeldSlab]) -> None:
        """Keeps what came if it is awaited. Whether it is the right thing is said once everything is there."""
        awaited = self.awaited
        if awaited is None or returning.why_not or not self._is(awaited, message):
            self.machine.forget(came)
            return
        expected = awaited.slabs[returning.count : returning.count + len(came)]
        if tuple(message.sizes) != tuple(slab.size for slab in awaited.slabs):
            returning.why_not = "its slabs are of other sizes than those of the layout in the file"
        elif [slab.identity for slab in came] != [slab.identity for slab in expected]:
            returning.why_not = "its memory is not that of the layout in the file"
        elif message.first == 0 and lay.structure_hash(returning.document) != awaited.hash:
            returning.why_not = "its document is not that of the layout in the file"
        if returning.why_not:
            self.machine.forget(came)
            self._put_down(returning)
        else:
            returning.slabs += [slab._replace(size=known.size) for slab, known in zip(came, expected, strict=True)]

    def _returned(self, client: Client, message: m.HandBack, returning: Returning) -> None:
        machine, awaited = self.machine, self.awaited
        if awaited is not None and self._is(awaited, message) and not returning.why_not:
            self._stands_again(client, message, returning, awaited)
        layout = machine.committed
        if layout is not None and self._is(layout, message) and not returning.why_not:
            self._has_it(client, message, layout)
            return
        there = f"there is {layout.generation} now" if layout is not None else "there is none now"
        why = returning.why_not or f"layout {message.generation} is no more; {there}"
        self.context.note("stale", engine=client.engine_id, generation=message.generation, why=why)
        machine.refuse(client.conn, why, "stale")
        machine.pins.ask_one(client, message.generation)

    def _stands_again(self, client: Client, message: m.HandBack, returning: Returning, awaited: Record) -> None:
        machine = self.machine
        try:
            tensors = lay.count_tensors(returning.document)
        except lay.BadLayout as error:  # the file was written by hand
            returning.why_not = str(error)
            self._put_down(returning)
            return
        self.awaited, self._nobody_has_it_at = None, math.inf
        sums = message.sums if len(message.sums) == len(returning.slabs) else []
        layout = machine.committed = Committed(
            awaited.generation, awaited.hash, returning.document, tensors, returning.slabs, sums
        )
        for other in machine.clients.values():
            if other.returning is not None:
                self._put_down(other.returning)
        self.context.calm("window")
        self.context.note("handed_back", engine=client.engine_id, generation=layout.generation, hash=layout.hash)
        # Who came meanwhile, and has nothing to bring back, was told that there is none.
        machine.tell(m.Changed(generation=layout.generation, hash=layout.hash), but=client)

    def _put_down(self, returning: Returning) -> None:
        """What has been handed back so far is of no use any more."""
        self.machine.forget(returning.slabs)
        returning.slabs = []

    def _has_it(self, client: Client, message: m.HandBack, layout: Committed) -> None:
        machine = self.machine
        if message.reading and machine.draft is not None:
            machine.refuse(client.conn, f"it was away for too long: {machine.draft.writer} is writing", "stale")
            machine.pins.ask_one(client, layout.generation)
            return
        client.holds.add(layout.generation)
        if message.reading:
            machine.begins_to_read(client, layout)
        else:
            machine.rest(client)
        self.context.send(client.conn, m.HandedBack(generation=layout.generation, reading=message.reading))

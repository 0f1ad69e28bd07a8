"""A region: memory of a device with a key, which outlives processes and servers (`docs/inside/gms.md`, "Regions").

Pure, a part of the machine. What all regions have in common is here: what is handed back to a new server, what is given
up on purpose, who has waited in vain. What differs is the policy:

    shared.py      shared after commit: weights       its phases, and who may come in: `weights.py`
    exclusive.py   exclusive by token: pools          its phases: `pools.py`; who may own it: `claims.py`

A region knows what the device's regions share (`Device`), and neither another region nor the machine.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, ClassVar, NamedTuple

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules.context import Context
from gms.rules.holders import TOO_MANY_LAYOUTS, Holders
from gms.rules.leases import Leases
from gms.rules.making import Making, Wanted
from gms.rules.pools import Pool
from gms.rules.record import Record
from gms.rules.record import Region as Recorded
from gms.rules.record import Slab as RecordedSlab
from gms.rules.recovery import HandBacks, HandBackVerdict, HandedBack, Recovery, Step, Window
from gms.rules.sessions import IDLE, Client, Doing, Request, Sessions
from gms.rules.state_file import Owed, StateFile
from gms.rules.weights import Generations, Slab, Weights
from sidecar.machine.plan import Plan

LOOK_S = 0.1
"""How soon the device is asked again whether any process has memory that was given up."""


Slabs = Sequence[Slab] | Sequence[RecordedSlab]
Requests = dict[type, Callable[[Any, Client, Any], m.Problem | None]]
"""What clients of a region may ask for. A problem ends the connection."""


class Device:
    """What the regions of a device share."""

    def __init__(self, config: e.Config, context: Context) -> None:
        self.config = config
        self.context = context
        self.unreadable = ""
        """Why the file couldn't be read, or one before it, until the window is over."""
        self.window = Window(context)
        """Until it is over processes may come back of whose regions this server doesn't know."""
        self.generations = Generations()
        self.regions: dict[str, Region] = {}
        self.sessions = Sessions(context, lambda client: self.regions[client.key].doing(client))
        self.holders = Holders(context, self.sessions)
        self.file = StateFile(context)
        self.leases = Leases(context, are_wanted=config.leases)
        self.making = Making(context, self.leases)
        self.why_closed = ""
        """Why no process is let in any more; empty while all is well."""
        self.checking_peer: tuple[int, int] | None = None
        """Connection and request of a writer that is about to be let in."""
        self.questions: list[Callable[[e.MemoryChecked], None]] = []
        """What takes which answer of the shell's: it answers in that order."""
        self.thrown_out: list[tuple[int, m.Problem | None]] = []
        """Connections that are to end."""

    @property
    def in_host_memory(self) -> int:
        """Bytes of it that parked weights take."""
        return sum(region.in_host_memory for region in self.regions.values())

    @property
    def busy(self) -> bool:
        """A question is open whose answer decides what follows."""
        return self.file.busy or self.checking_peer is not None or self.making.busy

    def record(self, *changed: Recorded) -> Record:
        """What the file has to say now, or once these are so."""
        new = {recorded.key: recorded for recorded in changed}
        regions = [new.get(region.key) or region.record() for region in self.regions.values()]
        config = self.config
        return Record(
            self.generations.newest,
            tuple([each for each in regions if each.generation or each.token]),
            config.boot_id,
            config.pid_namespace,
            config.time_namespace,
            self.unreadable,
        )

    def ask_memory(
        self,
        answered: Callable[[e.MemoryChecked], None],
        identities: tuple[str, ...] = (),
        tables: tuple[int, ...] = (),
    ) -> None:
        self.questions.append(answered)
        self.context.out.append(e.CheckMemory(identities, tables))

    def throw_out(self, conn: int, problem: m.Problem | None) -> None:
        """A mistake: it costs the sender this connection."""
        self.thrown_out.append((conn, problem))


class GivenUp(NamedTuple):
    """Memory is not wanted any more. (A claim that waits for that is looked at again.)"""

    generation: int
    why: str
    by: int = 0
    """The connection of an observer who asked for just that; 0: none did."""
    until: float = math.inf


@dataclass
class Dropping:
    """An observer waits until no process has that memory any more, or a process that has parked it."""

    generation: int
    bytes: int
    identities: tuple[str, ...]
    until: float
    look_at: float


class Region(ABC):
    policy: ClassVar[m.Policy]
    memory: Weights | Pool
    """What it is at the moment."""

    def __init__(self, device: Device, key: str, window_until: float = -math.inf) -> None:
        """`window_until`: until then processes that know of it, and of which this server doesn't, may come back."""
        self.key = key
        self.device = device
        self.context = device.context
        self.since = ""
        """When its phase became what it is."""
        self.recovery = Recovery(device.context, window_until)
        self.hand_backs = HandBacks(device.context, self.why_not)
        self.record_lost = ""
        """Why the file could not be read in which it may have stood; empty once that is of no matter any more."""
        self._to_drop: dict[int, float] = {}
        """Until when observers wait for it to be given up, by their connections."""
        self._dropping: dict[int, Dropping] = {}
        """By the connection of who asked."""

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> Enum:
        return self.memory.phase

    @property
    def awaited(self) -> Recorded | None:
        """What is to be handed back."""
        return self.memory.awaited

    @property
    def there(self) -> tuple[int, str]:
        """Generation and hash of the memory that is there, or else awaited; 0 and nothing if there is none."""
        return self.memory.there

    @property
    def standing(self) -> Sequence[Slab]:
        """Slabs that stay whatever else goes wrong."""
        return self.memory.standing

    def record(self) -> Recorded:
        """What the file has to say of it now."""
        return self.memory.record()

    # -- what the policies say -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def requests(self) -> Requests: ...

    @property
    @abstractmethod
    def slabs(self) -> Sequence[Slab]:
        """All whose descriptors are wanted here."""

    @property
    def leased(self) -> Sequence[Slab]:
        """Those for which there is to be a lease in the ledger."""
        return ()

    def on_device(self, slabs: Slabs) -> Slabs:
        """Those that take memory of the device."""
        return slabs

    @property
    def in_host_memory(self) -> int:
        """Bytes of it that its weights take."""
        return 0

    @property
    def token(self) -> int:
        """The newest with which an owner was let in; 0: none ever was."""
        return 0

    @property
    def is_blank(self) -> bool:
        """There is nothing that would have to be remembered."""
        return not self.there[0] and self.recovery.window.is_over

    @property
    def may_be_forgotten(self) -> bool:
        """To make room for another key."""
        return self.is_blank

    @abstractmethod
    def recover(self, recorded: Recorded, found: e.FoundOwner | None, *, same_clock: bool) -> None:
        """A new server reads of it in the file."""

    @abstractmethod
    def works(self, client: Client) -> Doing | None:
        """What it does with the memory: it reads or writes; None: neither."""

    @abstractmethod
    def why_waits(self, client: Client, request: Request) -> tuple[str, m.Reason]:
        """And with which reason it is refused when it has waited in vain."""

    @abstractmethod
    def plan_queue(self, plan: Plan) -> None:
        """Which of those that wait are let in, or refused, now."""

    @abstractmethod
    def left(self, client: Client, was: Doing) -> None:
        """Its connection ended."""

    @abstractmethod
    def why_not(self, document: bytes) -> str:
        """What is wrong with a document that is handed back with awaited memory."""

    @abstractmethod
    def stand_again(self, client: Client, back: HandedBack) -> None:
        """What was awaited is here."""

    @abstractmethod
    def let_return(self, client: Client, message: m.HandBack) -> str:
        """The client goes on as it was, and is told so. Returns why it may not; empty: it does."""

    @abstractmethod
    def ask_to_drop(self, client: Client, generation: int) -> bool:
        """What it has kept is the region's no longer. False: it says that it has more than one process can have."""

    @abstractmethod
    def why_in_use(self) -> str:
        """Why its memory may not be given up on purpose; empty: it may."""

    @abstractmethod
    def give_up(self, owed: GivenUp) -> bool:
        """The file says already that it has no memory. False: it isn't that memory any more, or is in use."""

    @abstractmethod
    def persisted(self, what: Any) -> None:
        """What was owed to the disk is to be done."""

    @abstractmethod
    def not_persisted(self, what: Any, why: str) -> None:
        """It is not to be done."""

    @abstractmethod
    def allocated(self, wanted: Wanted, slabs: tuple[Slab, ...]) -> None: ...

    @abstractmethod
    def not_allocated(self, wanted: Wanted, event: e.NotAllocated) -> None: ...

    @abstractmethod
    def broken(self, newest: int) -> str:
        """The first rule that doesn't hold of it, in a sentence; empty if all do."""

    @abstractmethod
    def breaks(self, effect: e.Send, on_disk: Recorded, given: int) -> str:
        """First on disk, then told: which rule this message breaks."""

    @abstractmethod
    def status(self, blocks: dict[int, tuple[int, int]]) -> m.RegionStatus: ...

    @abstractmethod
    def summary(self) -> list[str]:
        """For a report of a mistake."""

    # -- those that have to do with it -----------------------------------------------------------------------------

    def doing(self, client: Client) -> Doing:
        idle = Doing.ASLEEP if self.device.holders.keeps_some(client.conn) else Doing.WATCHING
        return self.works(client) or (Doing.WAITING if client.request is not None else idle)

    @property
    def clients(self) -> list[Client]:
        return self.device.sessions.of_region(self.key)

    @property
    def queue(self) -> list[tuple[Client, Request]]:
        return self.device.sessions.queue(self.key)

    def note(self, event: str, **detail: str | int | float | bool) -> None:
        self.context.note(event, region=self.key, **detail)

    def refuse(self, client: Client, why: str, reason: m.Reason) -> None:
        """Its request is over."""
        client.request = None
        self.device.sessions.turns_to_something_else(client)
        self.note("refused", engine=client.engine_id, reason=reason, why=why)
        self.context.refuse(client.conn, why, reason)

    def came(self, client: Client, have: int) -> None:
        """It is connected, and welcome; `have`: the generation that it says it has."""
        if self.record_lost:
            why = f"the state file can't be read ({self.record_lost})"
            self.context.alarm(f"record {self.key}", f"what {self.key} had is lost to this server: {why}")

    def forget_record_lost(self) -> None:
        """It has memory again; or a person wants none."""
        self.record_lost = ""
        self.context.calm(f"record {self.key}")

    def process_died(self, process: int) -> None:  # noqa: B027 - weights have no owner
        """Its connections have ended already."""

    def keeps(self, process: int) -> bool:
        """That process matters also without a connection."""
        return False

    def is_idle(self, client: Client) -> bool:
        return self.doing(client) in IDLE and not self.hand_backs.comes_from(client.conn)

    # -- what follows ----------------------------------------------------------------------------------------------

    def plan(self, plan: Plan) -> None:
        """What is to be done next, if no question is open."""
        step = self.recovery.due(plan, awaited=self.awaited is not None)
        if step is Step.CHECK_MEMORY:
            plan.do(self._check_memory)
        elif step is Step.GIVE_UP:
            plan.do(self._give_up_lost)
        if not plan.steps:
            self.plan_queue(plan)

    def plan_time_outs(self, plan: Plan) -> None:
        """Those that have waited in vain."""
        for client, request in self.queue:
            if self.device.making.of(client.conn) is None and not plan.wait_until(request.until):
                plan.do(self._waited_in_vain, client, request)

    def plan_dropped(self, plan: Plan) -> None:
        """Those that wait until memory is gone are answered: by the device, by its processes, or in time."""
        for conn, until in self._to_drop.items():
            if plan.steps or self.device.busy:  # it is written, and one write at a time
                break
            if not self.may_be_on_their_way or self.why_in_use() or not plan.wait_until(until):
                plan.do(self._drop, conn)
        for conn, dropping in self._dropping.items():
            still = self.device.holders.still(dropping.generation)
            if not self.device.sessions.knows(conn):
                plan.do(self._dropping.pop, conn)
            elif not plan.wait_until(dropping.until):
                plan.do(self._dropped, conn, still or ["memory in its place is in use, says the device"])
            elif not still and not plan.wait_until(dropping.look_at):
                plan.do(self._look_for_dropped, conn, dropping)

    def _check_memory(self) -> None:
        self.recovery.note_asked()
        slabs = self.awaited.slabs if self.awaited is not None else ()
        self.device.ask_memory(self.recovery.checked, tuple([slab.identity for slab in slabs]))

    def _give_up_lost(self) -> None:
        self.recovery.note_giving_up()
        self.write_given_up(GivenUp(self.there[0], "lost"))

    def _waited_in_vain(self, client: Client, request: Request) -> None:
        why, reason = self.why_waits(client, request)
        self.refuse(client, f"waited {request.message.timeout_s or 0:g} s in vain: {why}", reason)

    def _look_for_dropped(self, conn: int, dropping: Dropping) -> None:
        dropping.look_at = self.context.now + LOOK_S
        self.device.ask_memory(partial(self._dropped_checked, conn), dropping.identities)

    # -- handed back to a new server -------------------------------------------------------------------------------

    def take_back(self, client: Client, message: m.HandBack, slabs: Sequence[Slab]) -> m.Problem | None:
        client.says_what_it_has = False
        idle = self.doing(client) in IDLE
        back = self.hand_backs.take(client.conn, message, slabs, self.awaited, self.there, idle=idle)
        if back.verdict is HandBackVerdict.STANDS_AGAIN:
            self.recovery.end()
            self.stand_again(client, back)
            self.hand_backs.end()
        return self._answer_hand_back(client, message, back)

    def _answer_hand_back(self, client: Client, message: m.HandBack, back: HandedBack) -> m.Problem | None:
        if back.verdict is HandBackVerdict.MISTAKE:
            return m.Problem(why=f"HandBack: {back.why}")
        why = back.why
        if back.verdict is HandBackVerdict.COME_AGAIN:
            self.device.throw_out(client.conn, None)
        elif back.verdict in (HandBackVerdict.HAS_IT, HandBackVerdict.STANDS_AGAIN):
            why = self.let_return(client, message)
            if not why:
                return None
        if back.verdict in (HandBackVerdict.MORE, HandBackVerdict.COME_AGAIN):
            return None
        self.note("stale", engine=client.engine_id, generation=message.generation, why=why)
        self.context.refuse(client.conn, why, "stale")
        if not self.ask_to_drop(client, message.generation):
            return m.Problem(why=TOO_MANY_LAYOUTS)
        return None

    # -- given up --------------------------------------------------------------------------------------------------

    def drop(self, conn: int, timeout_s: float) -> None:
        """An observer's wish. It waits for the end of a new server's window, as a writer does."""
        self._to_drop[conn] = self.context.now + timeout_s

    def _drop(self, conn: int) -> None:
        until = self._to_drop.pop(conn)
        if not self.device.sessions.knows(conn):
            return
        why = self.device.why_closed or self.why_in_use() or self.may_be_on_their_way
        generation, _ = self.there
        if why:
            self.context.refuse(conn, why, "owned")
        elif not generation:
            self.forget_record_lost()
            self.forget_token()
            self.context.send(conn, m.RegionDropped(key=self.key, bytes=0, seen=True))
        else:
            self.write_given_up(GivenUp(generation, "dropped", conn, until))

    @property
    def may_be_on_their_way(self) -> str:
        """Readers, to a new server: says which. It isn't dropped before."""
        return ""

    def forget_token(self) -> None:  # noqa: B027 - weights have none
        """A person has no use for it any more, though it has no memory."""

    def write_given_up(self, owed: GivenUp) -> None:
        """It has no memory any more, the file says first."""
        self.write(self.without_memory(owed.why), owed)

    def without_memory(self, why: str) -> Recorded:
        return Recorded(self.key, self.policy)

    def write(self, becomes: Recorded | None, what: object) -> None:
        """`becomes`: what the file says of this region once `what` is done; None: what it says now."""
        record = self.device.record(*([becomes] if becomes is not None else []))
        self.device.file.write(record, Owed(self.key, what))

    def given_up(self, owed: GivenUp) -> None:
        """That there is no memory is on disk."""
        awaited = self.awaited
        slabs = self.on_device(self.standing or (awaited.slabs if awaited is not None else ()))
        identities, size = tuple(slab.identity for slab in slabs), sum(slab.size for slab in slabs)
        size = size or self.in_host_memory
        if self.there[0] != owed.generation or not self.give_up(owed):
            self.device.file.write_again()
            if owed.by:
                self.context.refuse(owed.by, self.why_in_use() or f"{self.key} has other memory by now", "not_now")
            return
        for conn in self.device.holders.ask(owed.generation):
            self.device.throw_out(conn, m.Problem(why=TOO_MANY_LAYOUTS))
        if owed.by:
            self.tell_when_gone(owed.by, owed.generation, size, identities, owed.until)

    def tell_when_gone(self, conn: int, generation: int, size: int, identities: tuple[str, ...], until: float) -> None:
        """Memory that was given up: by the device's word, and that of each process that had it."""
        self._dropping[conn] = Dropping(generation, size, identities, until, self.context.now)

    def _dropped_checked(self, conn: int, answer: e.MemoryChecked) -> None:
        dropping = self._dropping.get(conn)
        if dropping is not None and answer.held is not True:
            self._dropped(conn, [], seen=answer.held is False and bool(dropping.identities))

    def _dropped(self, conn: int, still: list[str], *, seen: bool = False) -> None:
        dropping = self._dropping.pop(conn)
        answer = m.RegionDropped(
            key=self.key, bytes=dropping.bytes, seen=seen, still=[why[:2000] for why in still[:50]]
        )
        self.context.send(conn, answer)

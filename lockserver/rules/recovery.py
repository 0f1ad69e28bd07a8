"""What a server leaves behind for the next one, and what a new one finds of the lock (rule 7 of `machine.py`). What it
finds of processes: the package `evidence`.

Pure. The file may name a holder: it is awaited. Or there is no file, or one that can't be read: then an unknown engine
may hold the lock, and every incarnation that has a life lock here is asked for (`evidence/rules/strangers.py`). Whether
that is enough is `flags.py`'s verdict.
"""

import math

from evidence.rules.evidence import Evidence
from evidence.rules.incarnation import Incarnation
from lockserver.rules.context import Context
from lockserver.rules.events import Config, Started
from lockserver.rules.flags import Unnamed
from lockserver.rules.lock import Doubt, Found, Lock, Phase
from lockserver.rules.messages import INIT
from lockserver.rules.record import Record, Tenure
from lockserver.rules.rest import Rest

RETURN_S = 0.25
"""A holder whose server went away knocks every 0.1 s (`client_machine.py`): by then a live one is back."""

NEW = "it is new"


def back_by(found: Found, settle_s: float) -> float:
    """How long after its start this server has heard of every live holder. One that serves in another directory,
    because the path led there before, looks at the path four times in the settling time at least: it has half of it.
    """
    return max(RETURN_S, settle_s / 2) if found is Found.NOTHING else RETURN_S


class Recovery:
    def __init__(self, config: Config, context: Context, evidence: Evidence, rest: Rest) -> None:
        self.config = config
        self.context = context
        self.evidence = evidence
        self.rest = rest
        self._began = -math.inf

    # -- at the start ----------------------------------------------------------------------------------------------

    def begin(self, event: Started, active: Lock, permit: Lock) -> None:
        record, self._began = event.record, self.context.now
        self.rest.why = record.resting if record is not None else NEW if self.config.at_rest else ""
        if record is None:
            found = Found.UNREADABLE if event.unreadable else Found.NOTHING
            self._doubt(found, event.unreadable, active, permit)
            return
        same_boot = self.evidence.begin(record.processes)
        unsettled = Found[record.doubt] if record.doubt in Found.__members__ and same_boot else None
        for lock, tenure in ((active, record.active), (permit, record.permits.get(INIT))):
            if tenure is None:
                continue
            note = "awaiting_holder" if same_boot else "died_with_its_boot"
            self.context.note(note, engine=tenure.engine_id, lock=lock.name, token=tenure.token)
            if same_boot:
                found = unsettled if lock is active and unsettled else Found.HOLDER
                lock.found(self._holder(tenure), tenure, self._new_doubt(found))
        if unsettled is not None:
            self._doubt(unsettled, "an earlier server could not read it", active, permit)

    def _holder(self, tenure: Tenure) -> Incarnation:
        return self.evidence.incarnations.known[tenure.life_file]

    def _new_doubt(self, found: Found) -> Doubt:
        now = self.context.now
        return Doubt(found, now, now + (self.config.settle_s if found is Found.NOTHING else self.config.window_s))

    def _doubt(self, found: Found, why: str, active: Lock, permit: Lock) -> None:
        """An unknown holder may have the lock."""
        if found is Found.UNREADABLE:
            self.context.alarm(
                "record",
                f"holder.json can't be read ({why}); it was put aside, and an unknown engine may hold the lock",
            )
        for lock in (active, permit):
            if lock.phase is Phase.FREE:
                lock.suspect(self._new_doubt(found))

    # -- for the next one ------------------------------------------------------------------------------------------

    def record(self, active: Lock, permit: Lock, newest: int) -> Record:
        """What the file has to say now."""
        in_permit = _tenure(permit)
        doubt = active.doubt
        return Record(
            processes=self.evidence.record(),
            token=newest,
            active=_tenure(active),
            permits={INIT: in_permit} if in_permit is not None else {},
            doubt=doubt.found.name if doubt is not None and doubt.unnamed else "",  # a file must not make it forgotten
            resting=self.rest.why,
        )

    # -- strangers: questions --------------------------------------------------------------------------------------

    def what_is_known(self, doubt: Doubt, now: float, *, memory_is_free: bool) -> Unnamed:
        """For the verdict."""
        strangers = self.evidence.strangers
        return Unnamed(
            strangers=strangers.look(now),
            others_awaited=strangers.unheard(),
            let_go_lately=now < strangers.settled_at(),
            memory_is_free=memory_is_free,
            over=now >= doubt.until,
        )

    def who_may_hold(self, now: float) -> list[str]:
        """The lock is free by the file, which may be an older copy of itself: so a process that lives here, and may
        have been granted the lock since, comes back first, or is gone. Of a stranger nothing is known but its life
        lock; for that the settling time is enough.
        """
        may = list(self.evidence.strangers.unheard())
        if now < self.settled_at:
            looked = self.evidence.strangers.look(now)
            if looked is None:
                may.append("the life files are being looked at")
            else:
                held = self.evidence.strangers.holding(looked)
                may += [f"life lock of {name}: held by a process that has not registered" for name in held]
        return may

    @property
    def settled_at(self) -> float:
        return self._began + self.config.settle_s

    @property
    def window_ends_at(self) -> float:
        return self._began + self.config.window_s


def _tenure(lock: Lock) -> Tenure | None:
    holder = lock.holder
    if holder is None:
        return None
    return Tenure(holder.name, lock.token, lock.granted_at, lock.endpoint, lock.verified)

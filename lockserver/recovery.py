"""What a server leaves behind for the next one; what a new one finds, and what it learns of those whom no file names
(rule 7 of `machine.py`).

Pure. The file may name a holder: it is awaited, and its processes are looked up. Or there is no file, or one that can't
be read: then somebody unknown may hold the lock, and everybody who has a life lock here is asked for (`strangers`).
Whether that is enough is `proof.py`'s verdict.
"""

import math

from lockserver.context import Context
from lockserver.events import Config, ProbeStrangers, Started, StrangersProbed
from lockserver.incarnation import Stage
from lockserver.incarnations import Incarnations
from lockserver.lock import Doubt, Found, Lock, Phase
from lockserver.messages import INIT
from lockserver.proof import Unnamed
from lockserver.record import Member, Record, Tenure

STRANGERS_EVERY_S = 0.1
RETURN_S = 0.25
"""A holder whose server went away knocks every 0.1 s (`client_machine.py`): by then a live one is back."""


def back_by(found: Found, settle_s: float) -> float:
    """So long after its start this server has heard of every live holder. One that serves in another directory, because
    the path led there before, looks at the path four times in the settling time at least: it has half of it.
    """
    return max(RETURN_S, settle_s / 2) if found is Found.NOTHING else RETURN_S


class Recovery:
    def __init__(self, config: Config, context: Context, incarnations: Incarnations) -> None:
        self.config = config
        self.context = context
        self.incarnations = incarnations
        self.strangers: StrangersProbed | None = None
        """Who has a life lock here and has not registered with this server."""
        self._asked = False
        self._asked_at = -math.inf
        self._held_at = -math.inf

    # -- at the start ----------------------------------------------------------------------------------------------

    def begin(self, event: Started, active: Lock, permit: Lock, permit_tenure: Tenure | None) -> None:
        record = event.record
        if record is None:
            found = Found.UNREADABLE if event.unreadable else Found.NOTHING
            self._doubt(found, event.unreadable, active, permit)
            return
        same_boot = record.boot_id == self.config.boot_id
        self.incarnations.pending_unlinks = dict.fromkeys(record.gone, 0)
        unsettled = Found[record.doubt] if record.doubt in Found.__members__ and same_boot else None
        for lock, tenure in ((active, record.active), (permit, permit_tenure)):
            if tenure is not None and same_boot:
                self._await(lock, tenure, record, unsettled if lock is active and unsettled else Found.HOLDER)
            elif tenure is not None:
                self.context.note("died_with_its_boot", engine=tenure.engine_id, lock=lock.name, token=tenure.token)
                self.incarnations.pending_unlinks[tenure.life_file] = 0
        if unsettled is not None:
            self._doubt(unsettled, "an earlier server could not read it", active, permit)
        self._probe(active, permit)

    def _await(self, lock: Lock, tenure: Tenure, record: Record, found: Found) -> None:
        look_up = bool(record.pid_namespace) and record.pid_namespace == self.config.pid_namespace
        holder = self.incarnations.from_file(tenure, look_up=look_up)
        lock.find(holder, tenure, self._new_doubt(found))
        self.context.note("awaiting_holder", engine=tenure.engine_id, lock=lock.name, token=tenure.token)

    def _new_doubt(self, found: Found) -> Doubt:
        now = self.context.now
        return Doubt(found, now, now + (self.config.settle_s if found is Found.NOTHING else self.config.window_s))

    def _doubt(self, found: Found, why: str, active: Lock, permit: Lock) -> None:
        """Somebody unknown may hold the lock."""
        if found is Found.UNREADABLE:
            self.context.alarm(
                "record",
                f"holder.json can't be read ({why}); it was kept aside, and somebody unknown may hold the lock",
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
            boot_id=self.config.boot_id,
            token=newest,
            active=_tenure(active),
            permits={INIT: in_permit} if in_permit is not None else {},
            gone=list(self.incarnations.pending_unlinks),
            doubt=doubt.found.name if doubt is not None and doubt.unnamed else "",  # a file must not make it forgotten
            pid_namespace=self.config.pid_namespace,
        )

    # -- strangers -------------------------------------------------------------------------------------------------

    def what_is_known(self, doubt: Doubt, active: Lock, permit: Lock, *, memory_is_free: bool) -> Unnamed:
        """For the verdict; asks for what has become old."""
        over, probed = self.context.reached(doubt.until), self.strangers
        somebody = probed is not None and probed.somebody
        stale = probed is None or somebody or (over and self._asked_at < doubt.until)
        if stale and not self._asked and self.context.reached(self._asked_at + STRANGERS_EVERY_S):
            self._probe(active, permit)
        awaited = any(i.stage is Stage.AWAITED and i.seen_alive for i in self.incarnations.ending.values())
        return Unnamed(
            strangers=probed if somebody or not stale else None,
            others_awaited=awaited,
            let_go_lately=not self.context.reached(self._held_at + self.config.settle_s),
            memory_is_free=memory_is_free,
            over=over,
        )

    def _probe(self, active: Lock, permit: Lock) -> None:
        """Everybody who has a life lock here, and has not registered with this server."""
        self._asked, self._asked_at = True, self.context.now
        holders = (active.holder, permit.holder)
        known = tuple(
            name for name, i in self.incarnations.known.items() if i.stage is not Stage.AWAITED or i in holders
        )
        self.context.out.append(ProbeStrangers(known))

    def strangers_probed(self, event: StrangersProbed, active: Lock) -> None:
        self.strangers, self._asked = event, False
        if active.unnamed:
            if event.somebody:
                self._held_at = self.context.now
        else:
            for name in event.free:
                if name not in self.incarnations.known and name not in self.incarnations.pending_unlinks:
                    self.incarnations.unlink_at_once(name)

    def nobody_is_left(self) -> None:
        """The doubt is settled: what the unknown left behind can go once that is on disk."""
        if self.strangers is not None:
            self.incarnations.unlink_later(self.strangers.free)


def _tenure(lock: Lock) -> Tenure | None:
    holder = lock.holder
    if holder is None:
        return None
    left = [one for one in holder.members.values() if not one.dead or one is holder.main]
    return Tenure(
        engine_id=holder.engine_id,
        incarnation=holder.random,
        token=lock.token,
        granted_at=lock.granted_at,
        life_file=holder.name,
        members=[Member(one.number, one.identity, one.pid, one.local_pid, one.kept) for one in left],
        secret=holder.secret,
        endpoint=lock.endpoint,
        verified=lock.verified,
    )

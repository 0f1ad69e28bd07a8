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
        self._began = -math.inf

    # -- at the start ----------------------------------------------------------------------------------------------

    def begin(self, event: Started, active: Lock, permit: Lock, permit_tenure: Tenure | None) -> None:
        record, self._began = event.record, self.context.now
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
        return Unnamed(
            strangers=self._look(active, permit),
            others_awaited=self._who_is_awaited(),
            let_go_lately=not self.context.reached(self._held_at + self.config.settle_s),
            memory_is_free=memory_is_free,
            over=self.context.reached(doubt.until),
        )

    def who_may_hold(self, active: Lock, permit: Lock) -> list[str]:
        """The lock is free by the file, which may be an older copy of itself: so whoever lives here, and may have been
        granted the lock since, comes back first, or is gone. Of a life lock whose owner doesn't come nothing else is
        known; for that the settling time is enough.
        """
        may = list(self._who_is_awaited())
        if not self.context.reached(self._began + self.config.settle_s):
            looked = self._look(active, permit)
            here = self.incarnations
            held = (
                [name for name in looked.held if name not in here.known and not here.why_condemned(name)]
                if looked
                else []
            )
            may += [f"life lock of {name}: held by somebody who has not registered" for name in held]
            may += [] if looked else ["the life files are being looked at"]
        return may

    @property
    def window_is_over(self) -> bool:
        return self.context.reached(self._began + self.config.window_s)

    def _who_is_awaited(self) -> tuple[str, ...]:
        """Somebody of them lives, and no main process of theirs has come and said what it holds."""
        awaited = (who for who in self.incarnations.absent.values() if who.seen_alive and not who.came)
        return tuple(f"somebody of {who.engine_id} is alive, and its main process isn't back" for who in awaited)

    def _look(self, active: Lock, permit: Lock) -> StrangersProbed | None:
        """The last look at the life files. None: it is too old, and a new one is asked for."""
        probed, stale = self.strangers, self.context.reached(self._asked_at + STRANGERS_EVERY_S)
        if stale and not self._asked:
            self._probe(active, permit)
        return probed if not stale or (probed is not None and probed.somebody) else None

    def _probe(self, active: Lock, permit: Lock) -> None:
        """Everybody who has a life lock here, and has not registered with this server."""
        self._asked, self._asked_at = True, self.context.now
        holders = (active.holder, permit.holder)
        known = tuple(
            name for name, i in self.incarnations.known.items() if i.stage is not Stage.AWAITED or i in holders
        )
        self.context.out.append(ProbeStrangers(known))

    def strangers_probed(self, event: StrangersProbed, active: Lock) -> None:
        before, self.strangers, self._asked = self.strangers, event, False
        if active.unnamed:
            if event.somebody or (before is not None and before.somebody):  # let go at any moment since the last look
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

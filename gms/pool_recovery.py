"""What a new server knows of the pools of the one before (rule 6 of `pool_machine.py`).

Pure. The file says which memory each pool has, and whose it is. Whoever has descriptors of it hands them back; the
owner is looked for at once, because a process that doesn't come back may live all the same.
"""

import math

from gms import events as e
from gms.context import Context
from gms.pools import Owner, Pools

BACK_S = 1.0
"""How long a claim waits for memory that its caller hasn't got. Clients look for a new server every 10 ms."""
SECOND_DEATH_S = 30.0
"""An owner that dies so soon after it has adopted may have died of what it adopted."""


class PoolRecovery:
    def __init__(self, context: Context, pools: Pools, config: e.Config) -> None:
        self._context = context
        self._pools = pools
        self._config = config
        self._until = -math.inf

    @property
    def may_come_back(self) -> bool:
        """This server is so new that whoever has memory may still bring it."""
        return not self._context.reached(self._until)

    def starts(self, event: e.Started) -> None:
        pools, record, context = self._pools, event.pools, self._context
        pools.newest_generation = max(event.generation_floor, record.given if record is not None else 0)
        if event.pools_unreadable:
            context.alarm(
                "pools_record",
                f"the pools' file can't be read ({event.pools_unreadable}): who owns a pool goes on, and its contents "
                "are lost to its successor",
            )
        if record is None or record.boot_id != self._config.boot_id:
            return  # no memory outlives a boot, and no process that a token could shut out
        found = {each.key: each for each in event.owners}
        for recorded in record.pools:
            pool = pools.of(recorded.key)
            if pool is None:
                continue
            owner, doubt, kind = None, recorded.doubt, recorded.doubt_kind
            if (old := recorded.owner) is not None:
                who = found.get(recorded.key)
                # By another clock nothing can be told: as if it had been given the pool a moment ago.
                since = old.since if record.time_namespace == self._config.time_namespace else context.now
                process = who.process if who is not None else None
                known = Owner(old.name, process, old.pid, old.identity, since, old.adopted)
                known.writes_end = old.writes_end is True
                if process is not None:
                    owner = known
                    context.out.append(e.WatchDeath(process))
                elif who is not None and who.gone:
                    doubt, kind = doubt_of(known, context.now)
                else:
                    doubt = f"it can't be told what has become of {old.name}, which owned it"
                    kind = "unproven"
            pool.await_(recorded, owner, doubt, kind)
            if recorded.generation:
                self._until = context.now + BACK_S
                context.note("pool_awaited", pool=pool.key, owner=owner.name if owner is not None else "", doubt=doubt)


def doubt_of(owner: Owner, now: float) -> tuple[str, str]:
    """Whether an owner's death says something against the contents: in a sentence, and in a word."""
    late, kind = late_writes(owner)
    if late:
        return late, kind
    lived_s = now - owner.since
    if owner.adopted and lived_s < SECOND_DEATH_S:
        return f"{owner.name} died {lived_s:.1f} s after it had adopted it: it may be what kills", "second_death"
    return "", ""


def late_writes(owner: Owner) -> tuple[str, str]:
    """Its end, or its word, isn't the end of what it writes."""
    if owner.writes_end:
        return "", ""
    return f"{owner.name} could have had io_uring, whose reads arrive after the end of a process", "unproven"

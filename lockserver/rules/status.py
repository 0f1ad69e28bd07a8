"""The public status of the lock, and in words what it waits for. Pure: it reads what it is given and decides nothing.

Lists are cut: a status goes into one frame, however many wait.
"""

from evidence.rules.proof import what_is_missing
from lockserver.rules import messages as m
from lockserver.rules.events import Config, Effect
from lockserver.rules.lock import Lock, Phase, State
from lockserver.rules.messages import INIT
from lockserver.rules.queue import Queue, Waiter
from lockserver.rules.succession import Succession
from lockserver.rules.switchover import Switch
from sidecar.machine.context import Context, rfc3339

MOST_WAITERS = 64
MOST_REASONS = 32


def status_of(config: Config, context: Context[Effect], succession: Succession) -> m.Status:
    switch = succession.switchover.under_way
    return m.Status(
        state=succession.state.value,
        holder=_holder(succession.active),
        waiters=[_waiter(waiter) for waiter in succession.queue.first(MOST_WAITERS)],
        waiters_total=len(succession.queue.waiters),
        fencing=_fencing(context, succession),
        memory="verified" if _verified(config, context, succession.active) else "unverified",
        memory_why=config.memory_why,
        evidence=config.evidence,
        permits={INIT: _permit(succession)},
        switchover=_in_words(switch) if switch is not None else None,
        plan=_planned(switch) if switch is not None else None,
        alarms=list(context.alarms.values()),
        token=succession.newest_token,
        server_incarnation=config.server_incarnation,
        server_pid=config.server_pid,
        resting=bool(succession.rest.why),
        resting_why=succession.rest.why,
    )


def _in_words(switch: Switch) -> str:
    return f"{switch.step.value}: {switch.old.engine_id} -> {switch.to.engine_id if switch.to is not None else 'rest'}"


def _planned(switch: Switch) -> m.PlanState:
    old, to = switch.old.engine_id, switch.to.engine_id if switch.to is not None else ""
    return m.PlanState(switch.step.value, old, switch.old_token, to, switch.drain_timeout_s)


def history_of(context: Context[Effect]) -> m.History:
    """What happened lately, as much of it as goes into one frame."""
    events, left_out = context.recent()
    return m.History(events=events, left_out=left_out)


def _verified(config: Config, context: Context[Effect], lock: Lock) -> bool:
    """The holder's memory was seen to be free; or while the lock is free: it could be seen."""
    if _told(lock):
        return lock.verified
    return config.reads_memory and "reader" not in context.alarms


def _told(lock: Lock) -> bool:
    """Its holder knows that it holds, or may know."""
    return lock.holder is not None and lock.phase is not Phase.GRANTING


def _holder(lock: Lock) -> m.HolderState | None:
    holder = lock.holder
    if holder is None or not _told(lock):
        return None
    members = [m.MemberState(member.pid, not member.dead) for member in holder.members.values()]
    return m.HolderState(
        holder.engine_id, holder.random, lock.token, lock.granted_at, holder.pid, members, lock.endpoint, lock.kept
    )


def _waiter(waiter: Waiter) -> m.WaiterState:
    who = waiter.incarnation
    return m.WaiterState(who.engine_id, who.random, who.pid, waiter.is_there, waiter.needs, rfc3339(waiter.since))


def _fencing(context: Context[Effect], succession: Succession) -> m.FencingState | None:
    if succession.state not in (State.FENCING, State.RECOVERING):
        return None
    lock = succession.active
    reasons: list[str] = []
    if lock.holder is not None and _told(lock):
        reasons += what_is_missing(lock.holder, new_server=lock.doubt is not None)
    elif lock.holder is not None:
        reasons.append(f"holder.json: the grant to {lock.holder.engine_id} is being written")
    elif lock.doubt is not None:
        reasons.append(f"{lock.doubt.found.value}: an unknown holder may come back")
        reasons += [what for what in succession.nobody_holds(lock.doubt, context.now).missing if what not in reasons]
    reasons += succession.why_not_free()
    if lock.holder is None and (memory := succession.queue.unmet()):
        reasons.append(memory)
    if lock.holder is None and succession.exclusion.settles(context.now):
        reasons.append("another process had the name of this path or of a device a moment ago, and may be dying")
    if lock.holder is None and (unprepared := succession.queue.unprepared):
        reasons.append(unprepared)
    reasons += [text for key, text in context.alarms.items() if key != "reader"]
    if not reasons:
        reasons.append(_what_is_next(lock, succession.queue))
    return m.FencingState(rfc3339(lock.fencing_since or context.wall), reasons[:MOST_REASONS], _life_lock(lock))


def _life_lock(lock: Lock) -> str:
    if lock.holder is None or not _told(lock):
        return "" if lock.doubt is None else "unknown"
    return lock.holder.life.value


def _what_is_next(lock: Lock, queue: Queue) -> str:
    """Nothing is known to be missing: what the server waits for itself, for milliseconds as a rule."""
    if lock.holder is not None:
        return f"{lock.holder.engine_id}: its processes and its life lock are being looked at"
    waiter = next((waiter for waiter in queue.waiters.values() if waiter.ready), None)
    if waiter is None:
        return "no engine that is ready asks for it"
    who = waiter.incarnation.engine_id
    if not waiter.is_there:
        return f"{who}: its connection has ended, and it isn't known to be gone"
    if any(waiter.needs.values()) and queue.memory.is_read:
        return f"memory: the server is finding out whether as much is free as {who} needs"
    return f"{who} is the next one: this server makes sure that no other server has its devices"


def _permit(succession: Succession) -> m.PermitState:
    permit, lock = succession.permit, succession.permit.lock
    why = succession.why_no_permit if permit.waiters else ""
    waiting = [why] if why else []
    if lock.holder is not None and lock.phase in (Phase.FENCING, Phase.IN_DOUBT):
        waiting += what_is_missing(lock.holder, new_server=lock.doubt is not None)
    holder = lock.holder.engine_id if lock.holder is not None and _told(lock) else None
    waiters = [waiter.engine_id for waiter in permit.waiters.values()]
    return m.PermitState(holder, waiters[:MOST_WAITERS], waiting[:MOST_REASONS])

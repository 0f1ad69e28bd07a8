"""The public status of the lock, and in words what it waits for. Pure; it reads the machine and decides nothing."""

from typing import TYPE_CHECKING

from lockserver import messages as m
from lockserver.messages import INIT
from lockserver.tree import Life, Stage, Tree
from sidecar.context import rfc3339

if TYPE_CHECKING:
    from lockserver.machine import Machine


def status_of(machine: "Machine") -> m.Status:
    lock = machine.active
    plan = machine.switchover.plan
    return m.Status(
        state=machine.state.value,
        holder=_holder(machine) if lock.told else None,
        waiters=[
            m.WaiterState(
                w.tree.engine_id,
                w.tree.incarnation,
                w.tree.pid,
                w.ready and w.tree.stage is Stage.PRESENT,
                w.needs,
                rfc3339(w.since),
            )
            for w in machine.queue.waiters.values()
        ],
        fencing=_fencing(machine),
        memory="verified"
        if (lock.verified if lock.told else machine.config.reads_memory and "reader" not in machine.context.alarms)
        else "unverified",
        evidence=machine.config.evidence,
        permits={INIT: _init(machine)},
        switchover=f"{plan.step.value}: {plan.old.engine_id} -> {plan.to.engine_id}" if plan is not None else None,
        alarms=list(machine.context.alarms.values()),
        token=machine.token,
        server_incarnation=machine.config.server_incarnation,
        server_pid=machine.config.server_pid,
    )


def _holder(machine: "Machine") -> m.HolderState | None:
    lock = machine.active
    tree = lock.holder
    if tree is None:
        return None
    members = [m.MemberState(member.pid, not member.dead) for member in tree.members.values()]
    return m.HolderState(
        tree.engine_id, tree.incarnation, lock.token, lock.granted_at, tree.pid, members, lock.endpoint
    )


def _fencing(machine: "Machine") -> m.FencingState | None:
    if machine.state.value not in ("FENCING", "RECOVERING"):
        return None
    lock = machine.active
    reasons: list[str] = []
    if lock.holder is not None and lock.told:
        reasons += _why_not_gone(lock.holder, recovering=lock.recovery is not None)
    elif lock.holder is not None:
        reasons.append(f"holder.json: the grant to {lock.holder.engine_id} is being written")
    elif lock.recovery is not None:
        reasons.append(f"{lock.recovery.found.value}: an unknown holder may come back")
        if machine.inquest.strangers is not None:
            reasons += [
                f"life lock of {name}: held by somebody who has not registered"
                for name in machine.inquest.strangers.held
            ]
    if lock.holder is None and (memory := machine.queue.unmet()):
        reasons.append(memory)
    for waiter in machine.queue.waiters.values():
        if lock.holder is None and waiter.ready and waiter.looked != machine.queue.round:
            reasons.append(f"{waiter.tree.engine_id}: asked whether its engine can wake")
            break
    reasons += [text for key, text in machine.context.alarms.items() if key != "reader"]
    return m.FencingState(rfc3339(lock.fencing_since or machine.context.wall), reasons)


def _why_not_gone(tree: Tree, *, recovering: bool) -> list[str]:
    reasons = []
    for member in tree.members.values():
        what = "main process" if member is tree.main else "process"
        if member.seen_alive:
            cannot = ", which can't be killed from here (another PID namespace)" if member.out_of_reach else ""
            reasons.append(f"{what} {member.pid} of {tree.engine_id} is alive{cannot}")
        elif not member.dead and recovering:
            reasons.append(f"{what} {member.pid} of {tree.engine_id}: not back yet, and no proof of its end")
    if tree.life is Life.HELD and not tree.seen_alive:
        reasons.append(f"life lock of {tree.name}: held by a process that did not join")
    elif tree.life is Life.MISSING:
        reasons.append(f"life lock of {tree.name}: its file is missing")
    return reasons


def _init(machine: "Machine") -> m.PermitState:
    lock = machine.init
    why = machine.why_no_init() if machine.init_waiters or lock.holder is None else ""
    waiting = [why] if why and machine.init_waiters else []
    if lock.holder is not None and lock.holder.stage is not Stage.PRESENT:
        waiting += _why_not_gone(lock.holder, recovering=lock.recovery is not None)
    holder = lock.holder.engine_id if lock.holder is not None and lock.told else None
    return m.PermitState(holder, [tree.engine_id for tree in machine.init_waiters.values()], waiting)

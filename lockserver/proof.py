"""Is the holder really gone? Does nobody hold? The proof of the one claim (rules 1 and 7 of `machine.py`).

Pure functions: what is known goes in, a verdict comes out that can be printed. Nothing is asked, waited for or changed
here; whoever calls sees to it that more becomes known.

A server that has seen the holder all along needs two things: the pidfd of every process of the holder is readable,
and nobody holds the life lock. (The third part of the proof is memory. It depends on who comes next: `queue.py`.)

A server that has restarted doesn't have the pidfds that its predecessor had. It gets them back in two ways: it looks
the processes up, by their numbers and by the kernel's own names for them, and clients hand back the copies that they
kept (`pidfd_copies.py`). These pidfds count like those that it opened itself.

Where there is neither (everything was killed at once, in containers of their own), a free life lock counts instead, for
those processes that can't let go of it while they live: they have ended, or they are dying and have lost it already.
All that a dying process may still have is memory, so what the next engine needs must be seen to be free, too. Free
memory alone proves nothing: a process that has not allocated yet needs none.
"""

import math
from dataclasses import dataclass

from lockserver.events import LookedAt, StrangersProbed
from lockserver.incarnation import Incarnation, Life
from lockserver.lock import Doubt, Found


@dataclass(frozen=True, slots=True)
class Policy:
    """What counts beside the proof, by the server's flags. Off by default."""

    presume_dead: bool = False
    grant_unproven: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    enough: bool
    """It counts as gone: proven, or by a flag."""
    by: str = ""
    """What proves it."""
    by_flag: bool = False
    """This isn't proof: a person has said that it is enough."""
    every_process: bool = False
    """Each single process was seen to have ended. Less is enough for the lock, and not for what a process wrote to."""
    missing: tuple[str, ...] = ()
    """What the proof lacks."""
    alarm: str = ""
    """Somebody has to do something: nothing more can become known by waiting."""

    def __str__(self) -> str:
        if not self.enough:
            return f"not proven: {'; '.join(self.missing)}"
        return f"not proven, and enough by a flag: {self.by}" if self.by_flag else f"proven: {self.by}"


def holder_gone(
    holder: Incarnation,
    doubt: Doubt | None,
    *,
    over: bool,
    memory_is_free: bool,
    policy: Policy,
    life_lock_is_enough: bool = False,
    unknown_may_be_dying: bool = False,
) -> Verdict:
    """`over`: the time is over in which a holder that a new server has found may come back. `memory_is_free`: as much
    as the next one needs. `life_lock_is_enough`: for a permit, which asks for less. `unknown_may_be_dying`: a process
    that no file names had the life lock a moment ago; that it has closed its files doesn't say that it has ended.
    """
    if holder.gone and (memory_is_free or not unknown_may_be_dying):
        all_known = holder.outlived_at == -math.inf
        return Verdict(True, "every process has ended, and nobody holds the life lock", every_process=all_known)
    missing = tuple(what_is_missing(holder, new_server=doubt is not None))
    if holder.gone or doubt is None:
        blind = holder.members_gone and holder.life is Life.MISSING
        alarm = (
            f"every known process of {holder.engine_id} has ended, but its life file is gone, so that nobody can tell "
            "whether another one lives; once you know that none does, restart the lock server"
        )
        return Verdict(False, missing=missing, alarm=alarm if blind else "")
    if over and policy.presume_dead:
        return Verdict(
            True,
            f"{holder.engine_id} is presumed dead after the window, without proof (--unsafe-presume-dead)",
            by_flag=True,
        )
    free = holder.life is Life.FREE or (holder.life is Life.MISSING and over)
    if holder.seen_alive or not free:
        return Verdict(False, missing=missing)
    if holder.members and holder.members_gone:
        return Verdict(True, "every process that joined has ended, and the life file was removed")
    if life_lock_is_enough:
        return Verdict(True, "nobody holds the life lock")
    if memory_is_free and holder.life_lock_tells:
        return Verdict(
            True, "nobody holds the life lock, which no process of it could let go of, and the memory is free"
        )
    if not over:
        return Verdict(False, missing=missing)
    return _unproven(holder, policy, missing)


def _unproven(holder: Incarnation, policy: Policy, missing: tuple[str, ...]) -> Verdict:
    """Its life lock is free, nothing proves more, and nothing more will become known: a person has to say."""
    if policy.grant_unproven:
        return Verdict(
            True,
            f"{holder.engine_id} is taken for gone because its life lock is free; "
            "nothing proves the end of every process (--grant-unproven)",
            by_flag=True,
        )
    return Verdict(
        False,
        missing=missing,
        alarm=f"the life lock of {holder.engine_id} is free, but nothing proves the end of "
        f"{_processes(holder)}; once you know that it is gone, start the server with --grant-unproven",
    )


def what_is_missing(holder: Incarnation, *, new_server: bool, seen: LookedAt | None = None) -> list[str]:
    """For people: what stands in the way of the proof. `seen`: what a look at the living showed (`overdue.py`)."""
    missing = []
    sights = dict(seen.processes) if seen is not None else {}
    for member in holder.members.values():
        what = "main process" if member is holder.main else "process"
        if member.seen_alive:
            cannot = f", which can't be killed from here ({member.out_of_reach})" if member.out_of_reach else ""
            sight = sights.get(member.process or 0, "is alive")
            missing.append(f"{what} {member.pid} of {holder.engine_id} {sight}{cannot}")
        elif not member.dead and new_server:
            missing.append(f"{what} {member.pid} of {holder.engine_id}: not back yet, and no proof of its end")
    if not holder.members:
        missing.append(f"{holder.engine_id}: a waiter told of it, and none of its processes is known")
    if holder.cannot_talk:
        missing.append(f"{holder.engine_id} lives and {holder.cannot_talk}")
    if holder.life is Life.HELD and not holder.seen_alive:
        by = " and by ".join(seen.life) if seen is not None and seen.life else "a process that did not join"
        missing.append(f"life lock of {holder.name}: held by {by}")
    elif holder.life is Life.MISSING:
        missing.append(f"life lock of {holder.name}: its file is missing")
    elif holder.gone and holder.outlived_at > -math.inf:
        missing.append(f"somebody who isn't known to this server had the life lock of {holder.name} and may be dying")
    return missing


def _processes(holder: Incarnation) -> str:
    unknown = [str(member.pid) for member in holder.members.values() if not member.dead]
    if not holder.members:
        return "its processes, of which none is known"
    return f"process {unknown[0]}" if len(unknown) == 1 else f"processes {', '.join(unknown[:5])}"


@dataclass(frozen=True, slots=True)
class Unnamed:
    """What is known while somebody whom no file names may hold the lock."""

    strangers: StrangersProbed | None
    """Who has a life lock here and hasn't registered with this server; None: not asked yet, or too long ago."""
    others_awaited: tuple[str, ...]
    """Who has been heard of, is alive and isn't back, in sentences."""
    let_go_lately: bool
    """Somebody has let go of its life lock a moment ago: it may be dying, and hold memory a little longer."""
    memory_is_free: bool
    """As much as the next one needs, and whoever could have come back has had the time."""
    over: bool


def nobody_holds(found: Found, known: Unnamed, policy: Policy) -> Verdict:
    """There was no holder file that could be read."""
    if known.over and policy.presume_dead:
        return Verdict(True, "the window is over (--unsafe-presume-dead)", by_flag=True)
    strangers = known.strangers
    if strangers is None:
        return Verdict(False, missing=("the life files are being looked at",))
    if strangers.unreadable:
        why = f"the life files can't be read: {strangers.unreadable}"
        return Verdict(False, missing=(why,), alarm=f"{why}; nobody is granted until they can" if known.over else "")
    if strangers.held:
        names = ", ".join(strangers.held[:3])
        alarm = f"a life lock is held by somebody who doesn't come: {names}" if known.over else ""
        held = tuple(f"life lock of {name}: held by somebody who has not registered" for name in strangers.held)
        return Verdict(False, missing=held, alarm=alarm)
    if known.others_awaited:
        alarm = f"nobody is granted: {known.others_awaited[0]}" if known.over else ""
        return Verdict(False, missing=known.others_awaited, alarm=alarm)
    if known.let_go_lately:
        return Verdict(False, missing=("somebody has let go of its life lock a moment ago",))
    if known.memory_is_free:
        return Verdict(True, "nobody has a life lock here, and the memory is free")
    if not known.over:
        return Verdict(False, missing=(f"{found.value}: an unknown holder may come back",))
    if found is Found.UNREADABLE and not policy.grant_unproven:
        return Verdict(
            False,
            missing=(f"{found.value}: an unknown holder may come back",),
            alarm="holder.json could not be read, and neither memory nor a returning holder tells more; "
            "once you know that no engine is awake, start the server with --grant-unproven",
        )
    return Verdict(True, "nobody has a life lock here, and nobody has come back in time")

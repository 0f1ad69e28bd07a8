"""Is an incarnation really gone? The proof of the one claim (rules E1 and E8 of the package).

Pure functions: what is known goes in, a verdict comes out that can be printed. Nothing is asked, waited for or changed
here; the caller sees to it that more becomes known.

A server that has seen the incarnation all along needs two things: the pidfd of every process of it is readable, and
no process holds the life lock. (The third part of the proof is memory. It depends on what comes next.)

A server that has restarted doesn't have the pidfds that its predecessor had. It gets them back in two ways: it looks
the processes up, by their numbers and by the kernel's own names for them, and clients hand back the copies that they
kept (`pidfd_copies.py`). These pidfds count like those that it opened itself.

Where there is neither (everything was killed at once, in containers of their own), a free life lock counts instead, for
those processes that can't let go of it while they live: they have ended, or they are dying and have lost it already.
All that a dying process may still have is memory, so what is needed next must be seen to be free, too. Free
memory alone proves nothing: a process that has not allocated yet needs none.
"""

import math
from dataclasses import dataclass

from evidence.rules.events import LookedAt
from evidence.rules.incarnation import Incarnation, Life, Member


@dataclass(frozen=True, slots=True)
class Verdict:
    enough: bool
    """It counts as gone: proven, or because the server was told that less will do."""
    by: str = ""
    """What proves it."""
    by_flag: bool = False
    """This isn't proof: a person has said that it is enough."""
    unprovable: bool = False
    """Its life lock is free, nothing proves more, and nothing more will become known: a person has to say."""
    every_process: bool = False
    """Every process was seen to have ended. A grant may need less; the contents of a pool never do."""
    missing: tuple[str, ...] = ()
    """What the proof lacks."""
    alarm: str = ""
    """A person has to do something: nothing more can become known by waiting."""

    def __str__(self) -> str:
        if not self.enough:
            return f"not proven: {'; '.join(self.missing)}"
        return f"not proven, and enough by a flag: {self.by}" if self.by_flag else f"proven: {self.by}"


def all_ended(who: Incarnation) -> bool:
    """The proof, memory apart: every member's pidfd is readable *and* the life lock is free. Of an incarnation that was
    only heard of no member may be known: then there is nothing that could prove its end.
    """
    return bool(who.members) and who.members_gone and who.life is Life.FREE


def life_lock_tells(who: Incarnation) -> bool:
    """A free life lock means that every process has ended, or is past the point where it closes its files: each is
    either seen dead, or can't let go of the lock while it lives.
    """
    return bool(who.members) and all(member.dead or member.mapped for member in who.members.values())


def gone(
    who: Incarnation,
    *,
    found: bool,
    over: bool,
    memory_is_free: bool,
    life_lock_is_enough: bool = False,
    unknown_may_be_dying: bool = False,
) -> Verdict:
    """`found`: by a new server, which hasn't seen all of it; `over`: the time is over in which it may come back then.
    `memory_is_free`: as much as is needed next. `life_lock_is_enough`: for what asks for less. `unknown_may_be_dying`:
    a process that no file names had the life lock a moment ago; that it has closed its files doesn't say that it has
    ended.
    """
    if all_ended(who) and (memory_is_free or not unknown_may_be_dying):
        all_known = who.outlived_at == -math.inf
        return Verdict(True, "every process has ended, and no process holds the life lock", every_process=all_known)
    missing = tuple(what_is_missing(who, new_server=found))
    if all_ended(who) or not found:
        blind = who.members_gone and who.life is Life.MISSING
        alarm = (
            f"every known process of {who.engine_id} has ended, but its life file is gone, so that it can't be told "
            "whether another one lives; once you know that none does, restart this server"
        )
        return Verdict(False, missing=missing, alarm=alarm if blind else "")
    free = who.life is Life.FREE or (who.life is Life.MISSING and over)
    if who.seen_alive or not free:
        return Verdict(False, missing=missing)
    if who.members and who.members_gone:
        return Verdict(True, "every process that joined has ended, and the life file was removed")
    if life_lock_is_enough:
        return Verdict(True, "no process holds the life lock")
    if memory_is_free and life_lock_tells(who):
        return Verdict(True, "no process holds the life lock, which none of it could let go of, and the memory is free")
    if not over:
        return Verdict(False, missing=missing)
    alarm = f"the life lock of {who.engine_id} is free, but nothing proves the end of {_processes(who)}"
    return Verdict(False, unprovable=True, missing=missing, alarm=alarm)


def what_is_missing(who: Incarnation, *, new_server: bool, seen: LookedAt | None = None) -> list[str]:
    """For people: what stands in the way of the proof. `seen`: what a look at the living showed (`overdue.py`)."""
    missing = []
    sights = dict(seen.processes) if seen is not None else {}
    for member in who.members.values():
        what = "main process" if member is who.main else "process"
        if member.seen_alive:
            cannot = f", which can't be killed from here ({member.out_of_reach})" if member.out_of_reach else ""
            sight = sights.get(member.process or 0, "is alive")
            missing.append(f"{what} {_number(member)} of {who.engine_id} {sight}{cannot}")
        elif not member.dead and new_server:
            missing.append(f"{what} {_number(member)} of {who.engine_id}: not back yet, and no proof of its end")
    if not who.members:
        missing.append(f"{who.engine_id}: another process told of it, and none of its processes is known")
    if who.cannot_talk:
        missing.append(f"{who.engine_id} lives and {who.cannot_talk}")
    if who.life is Life.HELD and not who.seen_alive:
        by = " and by ".join(seen.life) if seen is not None and seen.life else "a process that did not join"
        missing.append(f"life lock of {who.name}: held by {by}")
    elif who.life is Life.MISSING:
        missing.append(f"life lock of {who.name}: its file is missing")
    elif all_ended(who) and who.outlived_at > -math.inf:
        missing.append(f"a process that isn't known to this server had the life lock of {who.name} and may be dying")
    return missing


def _number(member: Member) -> str:
    """A pidfd that a client handed back from another PID namespace doesn't tell it."""
    return str(member.pid) if member.pid else "of unknown number"


def _processes(who: Incarnation) -> str:
    unknown = [_number(member) for member in who.members.values() if not member.dead]
    if not who.members:
        return "its processes, of which none is known"
    return f"process {unknown[0]}" if len(unknown) == 1 else f"processes {', '.join(unknown[:5])}"

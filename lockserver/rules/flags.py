"""What the lock makes of the evidence (rule 7 of `machine.py`): is a holder gone, where the server's flags count, too;
and is the lock free, where no file says so? What proves an end: `evidence/rules/proof.py`.

Pure: what is known goes in, a verdict comes out that can be printed.
"""

from dataclasses import dataclass, replace

from evidence.rules.events import StrangersProbed
from evidence.rules.incarnation import Incarnation
from evidence.rules.proof import Verdict, all_ended
from lockserver.rules.lock import Found


@dataclass(frozen=True, slots=True)
class Flags:
    """What counts beside the proof. Off by default."""

    presume_dead: bool = False
    grant_unproven: bool = False


@dataclass(frozen=True, slots=True)
class Unnamed:
    """What is known while an incarnation that no file names may hold the lock."""

    strangers: StrangersProbed | None
    """Which have a life lock here and haven't registered with this server; None: not asked yet, or too long ago."""
    others_awaited: tuple[str, ...]
    """Which were heard of, are alive and aren't back, in sentences."""
    let_go_lately: bool
    """One has let go of its life lock a moment ago: it may be dying, and hold memory a little longer."""
    memory_is_free: bool
    """As much as the next one needs, and a holder that could have come back has had the time."""
    over: bool


def with_flags(who: Incarnation, verdict: Verdict, flags: Flags, *, may_be_presumed: bool) -> Verdict:
    """`verdict`: that of the evidence. `may_be_presumed`: a new server found it, and its time to come back is over."""
    if may_be_presumed and flags.presume_dead and not all_ended(who):
        why = f"{who.engine_id} is presumed dead after the window, without proof (--unsafe-presume-dead)"
        return Verdict(True, why, by_flag=True)
    if not verdict.unprovable:
        return verdict
    if flags.grant_unproven:
        why = (
            f"{who.engine_id} is taken for gone because its life lock is free; "
            "nothing proves the end of every process (--grant-unproven)"
        )
        return Verdict(True, why, by_flag=True)
    way_out = "once you know that it is gone, start the server with --grant-unproven"
    return replace(verdict, alarm=f"{verdict.alarm}; {way_out}")


def nobody_holds(found: Found, known: Unnamed, flags: Flags) -> Verdict:
    """There was no holder file that could be read."""
    if known.over and flags.presume_dead:
        return Verdict(True, "the window is over (--unsafe-presume-dead)", by_flag=True)
    strangers = known.strangers
    if strangers is None:
        return Verdict(False, missing=("the life files are being looked at",))
    if strangers.unreadable:
        why = f"the life files can't be read: {strangers.unreadable}"
        return Verdict(False, missing=(why,), alarm=f"{why}; no engine is granted until they can" if known.over else "")
    if strangers.held:
        names = ", ".join(strangers.held[:3])
        alarm = f"a life lock is held by a process that doesn't come: {names}" if known.over else ""
        held = tuple(f"life lock of {name}: held by a process that has not registered" for name in strangers.held)
        return Verdict(False, missing=held, alarm=alarm)
    if known.others_awaited:
        alarm = f"no engine is granted: {known.others_awaited[0]}" if known.over else ""
        return Verdict(False, missing=known.others_awaited, alarm=alarm)
    if known.let_go_lately:
        return Verdict(False, missing=("a process has let go of its life lock a moment ago",))
    if known.memory_is_free:
        return Verdict(True, "no process has a life lock here, and the memory is free")
    if not known.over:
        return Verdict(False, missing=(f"{found.value}: an unknown holder may come back",))
    if found is Found.UNREADABLE and not flags.grant_unproven:
        return Verdict(
            False,
            missing=(f"{found.value}: an unknown holder may come back",),
            alarm="holder.json could not be read, and neither memory nor a returning holder tells more; "
            "once you know that no engine is awake, start the server with --grant-unproven",
        )
    return Verdict(True, "no process has a life lock here, and none has come back in time")

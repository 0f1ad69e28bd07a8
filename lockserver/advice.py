"""What a person can do about what the lock's public status says. Pure: a `Status` goes in, sentences come out.

`lockctl status` ends with them (`cli/status_text.py`), and the door's page has them beside the alarms.
"""

from lockserver.rules import messages as m

__all__ = ["LOOK_AT_IT", "OVERDUE", "TO_DO", "Status", "advice"]

Status = m.Status

LOOK_AT_IT = (
    "a stopped or stuck process (T or D in ps) can't be told from a busy one: look at it; kill -9 if it is stuck"
)
OVERDUE = "is not proven gone after"
TO_DO = (
    # Words of a reason or an alarm, and what to do about it. The first that fits is said.
    (
        "a process that did not join",
        "`lockctl doctor` names the processes that hold the life lock; end them once you know what they are",
    ),
    (
        "by a process that",
        "`lockctl doctor` names the processes that hold the life lock; end them, or let them come back",
    ),
    ("can't be killed from here", "end that process where it can be seen: in its own container, or on the node"),
    (
        "and no proof of its end",
        "it comes back by itself if it lives; if it is stopped (state T), kill -CONT or kill -9 it",
    ),
    ("is alive", LOOK_AT_IT),
    ("memory: ", "another process has that memory: `nvidia-smi` (or `fuser -v` on the host device's file) shows which"),
    ("its file is missing", "its life file was removed by hand; nothing proves its end but the death of its processes"),
    ("can't be written", "make room or mend the permissions in the run directory; the server tries again by itself"),
    ("--grant-unproven", "find out whether the old holder's processes are gone; the alarm says how to go on then"),
    (
        "it was put aside",
        "look at holder.json.unreadable-* in the run directory; until it is explained no engine is granted",
    ),
    ("asked whether its engine", "it is passed over within a second if it doesn't answer"),
    ("memory can't be read", "see the driver and the lock server's --memory; until then needs count as unmet"),
)


def advice(status: Status) -> list[str]:
    """In the order of their weight; empty where all is well."""
    said = [*status.alarms]
    if status.fencing is not None and not any("s, and no engine is granted: " in alarm for alarm in said):
        said += status.fencing.waiting_for  # the alarm of `overdue.py` has looked, and says what to do about each
    todo: list[str] = []
    for reason in said:
        helps = next((text for words, text in TO_DO if words in reason), "")
        if helps == LOOK_AT_IT and any(OVERDUE in alarm for alarm in status.alarms):
            continue  # the alarm says how that process is, and what ends it: a frozen one no kill does
        if helps and helps not in todo:
            todo.append(helps)
    ready = any(waiter.ready for waiter in status.waiters)
    if status.state == "HELD" and not ready:
        todo.append(
            "no engine is ready to take over yet: if it stays so, failover status says what the other one waits for "
            "(a model of models.yaml has one if it says `standby: true`)"
        )
    elif status.resting and status.state == "FREE":
        todo.append("nothing, if it is to sleep: `lockctl wake` ends the rest")
    elif status.state == "FREE":
        starts = [permit.holder for permit in status.permits.values() if permit.holder]
        if status.waiters:
            todo.append("no engine serves: see why the engines that wait aren't ready")
        elif starts:
            todo.append(f"no engine serves yet: {starts[0]} starts, and its log shows how far it is")
        else:
            todo.append("no engine serves: start an engine")
    elif status.state == "RECOVERING" and not todo:
        todo.append(
            "nothing yet: a living holder is back within a second, a dead one is proven gone or the window ends"
        )
    return todo

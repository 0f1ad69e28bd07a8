"""A pod's state in words, from its JSON (`status.py`). Pure."""

from collections.abc import Mapping
from typing import Any


def as_text(pod: Mapping[str, Any]) -> str:
    ready = "Ready" if pod["ready"] else "not Ready"
    state = "being deleted, " if pod["deleting"] else ""
    lines = [
        f"{pod['name']}: {state}{ready}, {pod['for_s']:.0f} s, {len(pod['flips'])} flips, address {pod['address']}"
    ]
    lines += [f"  {why}" for why in pod["unready"]]
    rows = [("CONTAINER", "ROLE", "STATE", "READY", "RESTARTS", "LAST")]
    for each in pod["containers"]:
        state = each["state"]
        if each["back_off_s"] is not None:
            state += f" ({each['back_off_s']:.0f} s)"
        if each["ending"]:
            state += f" ({each['ending']})"
        last = each["last"]
        ended = (
            ""
            if last is None
            else f"{last['reason']}, " + (f"signal {last['signal']}" if last["signal"] else f"code {last['code']}")
        )
        rows.append((each["name"], each["role"], state, "yes" if each["ready"] else "no", str(each["restarts"]), ended))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        lines.append("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
    for each in pod["containers"]:
        if each["last"] is not None and not each["ready"] and (each["last"]["code"] or each["last"]["signal"]):
            lines.append(f"  what {each['name']} wrote before it ended: {_logs(each)}")
    for flip in pod["flips"][-5:]:
        became = "Ready" if flip["ready"] else f"not Ready: {flip['why']}"
        lines.append(f"{flip['at_s']:9.2f} s  {became}")
    return "\n".join(lines)


def _logs(container: Mapping[str, Any]) -> str:
    """The command for the run that ended last, which is the one before if another has begun."""
    return f"local-pod logs {container['name']}" + (" --previous" if container["pid"] else "")

"""What the commands that look at a server print: its history, and its changes as they come. Used by `lockctl`,
`vramctl`; which words a state has is theirs.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from sidecar.machine.context import HistoryEvent
from sidecar.terminal.formatting import key_values
from sidecar.terminal.terminal import end_with_the_reader, say

Status = TypeVar("Status")


def fields(message: msgspec.Struct) -> dict[str, Any]:
    """Every field, also those that the wire leaves out because they say nothing new; without what only it needs."""
    wanted = (name for name in message.__struct_fields__ if name != "fds")
    return {name: msgspec.to_builtins(getattr(message, name)) for name in wanted}


def history(events: Sequence[HistoryEvent], left_out: int, last: int, *, as_json: bool) -> None:
    """`last`: only so many; 0: all."""
    if left_out and not as_json and not last:
        say(f"({left_out} older events don't fit into the answer: see the server's log)")
    for event in events[-last:] if last else events:
        if as_json:
            say(json.dumps(msgspec.to_builtins(event)))
        else:
            say(f"{event.at}  {event.event:<18}  {key_values(event.detail)}".rstrip())


def changes(
    states: Iterable[Status | None],
    line: Callable[[Status | None], str],
    shown: Callable[[Status | None], dict[str, Any]],
    *,
    as_json: bool,
) -> None:
    """A line, or an object, for every change; None: there is no server."""
    last: dict[str, Any] | str = ""
    end_with_the_reader()
    for state in states:
        now = datetime.now().astimezone()
        said = shown(state) if as_json else line(state)
        if said == last:
            continue
        last = said
        if isinstance(said, dict):
            at = now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            say(json.dumps({"at": at} | said))
        else:
            say(f"{now:%H:%M:%S}.{now.microsecond // 1000:03d}  {said}")

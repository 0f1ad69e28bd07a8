"""The commands that look at a server: its status, its changes as they come, its history. Used by `lockctl`, `vramctl`;
which words a state has is theirs.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from sidecar.terminal.commands import Commands
from sidecar.terminal.formatting import Tone, key_values
from sidecar.terminal.settings import count, valued
from sidecar.terminal.terminal import end_with_the_reader, say, terminal_paint
from sidecar.wire.observer import NoServer, Observer, ServerSilent


@dataclass(frozen=True)
class Looks:
    """All three, of a server."""

    observer: Callable[[Path, float], Observer]
    watch_forever: Callable[[Path, float], Iterator[Any]]
    messages: Any
    """Its own: AskStatus and Status, AskHistory and History."""
    words: Any
    """`status_lines` and `change_line`."""
    without_it: str
    code: Callable[[Any], int]
    """The exit code of a status."""

    def add_to(self, commands: Commands, status: tuple[str, str], watch: str, history: str) -> None:
        """What `status` is for, and what stands at the end of each command's help."""
        commands.add("status", self.status, *status)
        commands.add("watch", self.watch, "A line for every change.", watch)
        command = commands.add("history", self.history, "What has happened, oldest first.", history)
        command.add_argument("--last", type=valued(count), default=0, metavar="N", help="only the last N events")

    def status(self, options: argparse.Namespace) -> int:
        try:
            with self.observer(options.run_dir, options.answer_timeout_s) as observer:
                seen = observer.ask(self.messages.AskStatus(), self.messages.Status)
        except (NoServer, ServerSilent) as error:
            if options.json:
                say(json.dumps({"state": "NO_SERVER", "error": str(error)}))
            raise
        if options.json:
            say(json.dumps(fields(seen)))
        else:
            for line in self.words.status_lines(seen, datetime.now(UTC), terminal_paint()):
                say(line)
        return self.code(seen)

    def watch(self, options: argparse.Namespace) -> int:
        """A line, or an object, for every change."""
        paint = terminal_paint()
        away = paint("NO SERVER", Tone.BAD) + f"  none answers at {options.run_dir}; {self.without_it}"
        last: dict[str, Any] | str = ""
        end_with_the_reader()
        for seen in self.watch_forever(options.run_dir, options.answer_timeout_s):
            now = datetime.now().astimezone()
            said: dict[str, Any] | str
            if options.json:
                said = {"state": "NO_SERVER"} if seen is None else fields(seen)
            else:
                said = away if seen is None else self.words.change_line(seen, paint)
            if said == last:
                continue
            last = said
            if isinstance(said, dict):
                at = now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
                say(json.dumps({"at": at} | said))
            else:
                say(f"{now:%H:%M:%S}.{now.microsecond // 1000:03d}  {said}")
        return 0

    def history(self, options: argparse.Namespace) -> int:
        with self.observer(options.run_dir, options.answer_timeout_s) as observer:
            answer = observer.ask(self.messages.AskHistory(), self.messages.History)
        if answer.left_out and not options.json and not options.last:
            say(f"({answer.left_out} older events don't fit into the answer: see the server's log)")
        for event in answer.events[-options.last :]:  # 0: all
            if options.json:
                say(json.dumps(msgspec.to_builtins(event)))
            else:
                say(f"{event.at}  {event.event:<18}  {key_values(event.detail)}".rstrip())
        return 0


def fields(message: msgspec.Struct) -> dict[str, Any]:
    """Every field, also those that the wire leaves out because they say nothing new; without what only it needs."""
    wanted = (name for name in message.__struct_fields__ if name != "fds")
    return {name: msgspec.to_builtins(getattr(message, name)) for name in wanted}

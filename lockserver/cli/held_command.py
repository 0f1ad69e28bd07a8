"""A command under the lock. How it goes: `evidence/cli/held_command.py`. Here is what only the lock has: a check, a
switchover, a place where the command serves. What waiting looks like in words is `status_text.py`'s.
"""

import argparse
from collections.abc import Iterator

from evidence.cli import held_command
from evidence.cli.held_command import Granted
from lockserver.cli import status_text
from lockserver.client import LockClient
from lockserver.observer import watch_forever
from lockserver.rules import messages as m


def hold(options: argparse.Namespace) -> int:
    def check(needs: dict[str, int]) -> None:
        m.check(m.Acquire(needs=needs))
        m.check(m.Serving(url=options.serving))

    return held_command.hold("lockctl", options, check, HeldCommand)


class HeldCommand(held_command.HeldCommand):
    prog = "lockctl"
    what = "the lock"
    lost = "lock lost"
    variable = "FAILOVER_TOKEN"
    session: LockClient

    _memory_why = ""

    def client(self) -> LockClient:
        return LockClient(
            self.options.run_dir,
            self.options.engine_id,
            check=self.command.lives,  # else the next engine is asked
            on_lost=self.on_lost,
            on_exit=lambda: self.tell_to_end("switchover"),
        )

    def ask(self, timeout_s: float | None) -> Granted:
        token = self.session.acquire(self.needs, timeout_s).token
        unread = self._memory_why if self.needs else ""
        beside = f"; it wasn't checked that it is free: {unread}" if unread else ""
        return Granted(token, f"with token {token}", beside)

    def waiting(self) -> Iterator[tuple[str, bool]]:
        incarnation = self.session.me.incarnation
        for status in watch_forever(self.options.run_dir):
            if status is None:
                yield f"no lock server at {self.options.run_dir}", False
                continue
            self._memory_why = status.memory_why
            if status.holder is not None and status.holder.incarnation == incarnation:
                return
            yield status_text.waiting_line(status, incarnation), True

    def started(self) -> None:
        if self.options.serving:
            self.session.serving(self.options.serving)

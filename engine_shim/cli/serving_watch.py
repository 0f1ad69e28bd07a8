"""Sees which engine serves, in a thread of its own, for `failover up`: its loop is given the news and reads it itself,
so what the thread finds out is written by the loop's thread alone.
"""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lockserver.observer import Status, watch_for_good

CONNECT_S = 1.0
AGAIN_S = 0.02
DOOR_S = 60.0
"""How long the door is waited for before the watch says that it doesn't answer, and goes on."""
SERVES, SAYS, REACHED = "serves", "says", "reached"


def serves(status: Status) -> bool:
    """Now, and not as a record of a holder whose end isn't proven yet says it."""
    return status.state == "HELD" and status.holder is not None and bool(status.holder.endpoint)


class ServingWatch:
    """News are pairs of a kind and a line: `SERVES` (an engine does; each change of it), `REACHED` (once: the door can
    be reached, too) and `SAYS` (what else a person should read).
    """

    def __init__(self, run_dir: Path, door: tuple[str, int] | None, tell: Callable[[tuple[str, str]], None]) -> None:
        """`door` is where clients can be expected to reach it from here. `tell` is given the news, in the thread."""
        self._run_dir = run_dir
        self._door = door
        self._last = ""
        self._give = tell

    def start(self) -> None:
        threading.Thread(target=self._run, name="up-watch", daemon=True).start()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        watch_for_good(self._run_dir, self._on_lock, lambda why: self._tell(SAYS, f"the lock can't be seen: {why}"))

    def _on_lock(self, status: Status | None) -> None:
        """The first time, where clients come follows."""
        holder = status.holder if status is not None and serves(status) else None
        if holder is None:
            return
        line = f"{holder.engine_id} serves at {holder.endpoint} (token {holder.token})"
        if line == self._last:
            return
        first, self._last = not self._last, line
        self._tell(SERVES, line)
        if first and self._door is not None:
            self._await_door(*self._door)

    def _await_door(self, host: str, port: int) -> None:
        until = time.monotonic() + DOOR_S
        while time.monotonic() < until:
            try:
                socket.create_connection((host, port), CONNECT_S).close()
            except OSError:
                time.sleep(AGAIN_S)
            else:
                self._tell(REACHED, "")
                return
        self._tell(
            SAYS, f"the door doesn't answer at {host}:{port} yet: its own lines say why; failover status shows it"
        )

    def _tell(self, kind: str, line: str) -> None:
        self._give((kind, line))

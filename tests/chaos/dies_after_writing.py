"""`python -m lockserver`, killed when a grant is on disk and before an engine is told."""

import os
import signal
import sys

from lockserver.__main__ import main
from lockserver.rules import events as e
from lockserver.shell.server import Server


def _persist(self: Server, effect: e.Persist) -> None:
    _write(self, effect)
    if effect.record.active is not None:
        os.kill(os.getpid(), signal.SIGKILL)


_write = Server.effects[e.Persist]
Server.effects = {**Server.effects, e.Persist: _persist}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m gms.shell.device_process`, killed when a pool's owner is on disk and before a client is told."""

import os
import signal
import sys

from gms.rules import events as e
from gms.shell import device_process
from gms.shell.server import Server


def _persist(self: Server, effect: e.Persist) -> None:
    _write(self, effect)
    if any(region.owner is not None for region in effect.record.regions):
        os.kill(os.getpid(), signal.SIGKILL)


_write = Server.effects[e.Persist]
Server.effects = {**Server.effects, e.Persist: _persist}

if __name__ == "__main__":
    sys.exit(device_process.main(sys.argv[1:]))

"""`python -m gms.device_process`, killed when a pool's owner is on disk and before anybody is told."""

import os
import signal
import sys

from gms import device_process
from gms import events as e
from gms.server import Server


def _persist(self: Server, effect: e.PersistPools) -> None:
    _write(self, effect)
    if any(pool.owner is not None for pool in effect.record.pools):
        os.kill(os.getpid(), signal.SIGKILL)


_write = Server.effects[e.PersistPools]
Server.effects = {**Server.effects, e.PersistPools: _persist}

if __name__ == "__main__":
    sys.exit(device_process.main(sys.argv[1:]))

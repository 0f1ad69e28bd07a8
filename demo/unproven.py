"""What the demo runs instead of `failover up` to show what happens without the proof: `python -m demo.unproven up ...`.

The same programs, but for one: the lock server takes a holder for gone as soon as its connection has ended, which is
what a script does that starts the second engine when the first one's port is closed. No pidfd is waited for, no life
lock, no free memory. Nothing of this is in the lock server itself: it is replaced here, in this process.
"""

import sys
from typing import Any
from unittest import mock

from evidence.rules.proof import Verdict

LOCK = "demo.unproven"


def _lock_server() -> int:
    from lockserver.__main__ import main

    def gone(*_: Any, **__: Any) -> Verdict:
        return Verdict(True, "its connection has ended", by_flag=True)

    memory = mock.patch("evidence.rules.free_memory.FreeMemory.is_read", False)
    with mock.patch("lockserver.rules.succession.gone", gone), memory:
        return main(sys.argv[2:])


def _up() -> int:
    from engine_shim.cli import failover
    from engine_shim.cli.pair_parts import Options, children
    from sidecar.machine.supervisor import Child

    def unproven(options: Options) -> list[Child]:
        lock, *others = children(options)
        lock.command = (LOCK, "lock", *lock.command[1:])
        return [lock, *others]

    with mock.patch("engine_shim.cli.up.children", unproven):
        return failover.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(_lock_server() if sys.argv[1] == "lock" else _up())

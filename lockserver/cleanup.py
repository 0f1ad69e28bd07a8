"""Removes the socket of a lock server that was killed. Its files stay: they are what the lock remembers.

For a caller that has ended everything in a run directory. What this file may not do: end anything.
"""

import contextlib
from pathlib import Path

from lockserver.shell.rundir import SERVER_LOCK, SOCKET
from sidecar.kernel.durable import nobody_has


def remove(run_dir: Path) -> list[str]:
    """Returns what stays, and why, in sentences."""
    with nobody_has(run_dir, SERVER_LOCK) as ended:
        if not ended:
            return [f"the socket of a lock server that runs in {run_dir}"]
        with contextlib.suppress(OSError):
            (run_dir / SOCKET).unlink(missing_ok=True)
    return []

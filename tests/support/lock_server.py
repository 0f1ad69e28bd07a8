"""A real lock server for a test that only needs one."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import until


@contextlib.contextmanager
def lock_server(run_dir: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Until the block ends. It settles at once, and reads no memory."""
    command = [sys.executable, "-m", "lockserver", "--run-dir", str(run_dir), "--memory", "none", "--settle-s", "0.01"]
    server = subprocess.Popen([*command, *arguments], stderr=subprocess.DEVNULL)
    try:
        until(lambda: (run_dir / "lock.sock").exists() or server.poll() is not None, "the lock server listens")
        assert server.poll() is None, "the lock server ended"
        yield server
    finally:
        server.terminate()
        server.wait()

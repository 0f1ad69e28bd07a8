"""A real lock server for a test that only needs one."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

DEADLINE_S = 20.0


@contextlib.contextmanager
def lock_server(run_dir: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Until the block ends. It settles at once, and reads no memory."""
    command = [sys.executable, "-m", "lockserver", "--run-dir", str(run_dir), "--memory", "none", "--settle-s", "0.01"]
    server = subprocess.Popen([*command, *arguments], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not (run_dir / "lock.sock").exists():
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        yield server
    finally:
        server.terminate()
        server.wait()

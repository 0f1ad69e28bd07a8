"""The asyncio client, against a real server."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockserver.client import AsyncLockClient, LockClient


@contextlib.contextmanager
def server_at(run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "lockserver", "--run-dir", str(run_dir), "--memory", "none", "--settle-s", "0.01"]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (run_dir / "lock.sock").exists():
        assert server.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    yield server
    server.terminate()
    server.wait()


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    with server_at(tmp_path / "run"):
        yield tmp_path / "run"


def ignore(why: str) -> None:
    """In place of ending the process: these tests hold several engines in one."""


def test_it_is_granted_like_any_other(run_dir: Path) -> None:
    async def go() -> None:
        client = await AsyncLockClient(run_dir, "engine-a", on_lost=ignore).start()
        async with client.permit():
            pass
        grant = await asyncio.wait_for(client.acquire(), 10)
        assert grant.lock == "active" and grant.token > 0
        client.client.close()

    asyncio.run(go())


def test_a_cancelled_wait_gives_up_its_place(run_dir: Path) -> None:
    async def go() -> None:
        first = LockClient(run_dir, "engine-a", on_lost=ignore).start()
        first.acquire(timeout_s=10)
        waiting = await AsyncLockClient(run_dir, "engine-b", on_lost=ignore).start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting.acquire(), 0.2)
        deadline = time.monotonic() + 10
        while waiting.client._machine.wants:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        waiting.client.close()
        first.close()

    asyncio.run(go())

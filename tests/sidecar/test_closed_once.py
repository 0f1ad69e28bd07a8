"""A descriptor's number is taken out before it is closed: what a signal handler raises in that moment, or a fork,
leaves none to be closed again, when it may be another file's.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockserver.client import LockClient
from sidecar.kernel.durable import DirectoryLock
from sidecar.kernel.lifelock import LifeLock, LifeProbe
from sidecar.kernel.path_watch import OpenDirectory, PathWatch
from tests.support.interruptions import Interrupted, each_close_interrupted


def probe(directory: Path) -> LifeProbe | None:
    LifeLock.create(directory, "a.1").close()
    return LifeProbe.open(directory, "a.1")


@pytest.mark.parametrize(
    "make",
    [
        OpenDirectory,
        PathWatch,
        probe,
        lambda directory: LifeLock.create(directory, "a.1"),
        lambda directory: DirectoryLock(directory, "server.lock").acquire(),
    ],
    ids=["directory", "watch", "life probe", "life lock", "server's lock"],
)
def test_none_is_closed_again_after_an_interruption(
    make: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path)
    with each_close_interrupted(monkeypatch) as closed:
        for _ in range(5):
            with contextlib.suppress(Interrupted):
                made.close()
    assert closed and len(closed) == len(set(closed))


def test_the_children_that_a_client_has_vouched_for_are_closed_once_by_several_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each caller that finds the client closed closes them."""

    def meanwhile(fd: int) -> None:
        closed.append(fd)
        client._close_children()
        close(fd)

    closed: list[int] = []
    close = os.close
    client = LockClient(tmp_path, "a")
    client._children = {number: os.pidfd_open(os.getpid()) for number in range(3)}
    with monkeypatch.context() as changed:
        changed.setattr(os, "close", meanwhile)
        client._close_children()
    client.close()
    assert len(closed) == 3 == len(set(closed))

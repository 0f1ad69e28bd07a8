"""Waiting for GMS, and for the weights: a primary has no device until GMS has made it, and a shadow has nothing to read
until a primary has written. Both kinds of engine wait so, before they ask for the `init` permit
(`engine.WaitsForOthers`).
"""

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from gms.client import WEIGHTS, GmsClient, NotInTime


def await_gms(run_dir: Path, engine_id: str, devices: Iterable[str], timeout_s: float) -> None:
    """Blocks until GMS answers for each of these devices. Touches none of them. Raises NotInTime, Refused."""
    end = time.monotonic() + timeout_s
    for device in dict.fromkeys(devices):
        with GmsClient(run_dir, device, engine_id) as client:
            client.await_server(max(0.0, end - time.monotonic()))


def await_weights(run_dir: Path, engine_id: str, devices: Iterable[str], timeout_s: float, region: str = "") -> None:
    """Blocks until GMS has these weights on each of these devices. Touches no device. Raises NotInTime."""
    end = time.monotonic() + timeout_s
    for device in dict.fromkeys(devices):
        there = threading.Event()

        def changed(generation: int, hash: str, there: threading.Event = there) -> None:
            if generation:
                there.set()

        with GmsClient(run_dir, device, engine_id, region=region or WEIGHTS, on_change=changed):
            if not there.wait(max(0.0, end - time.monotonic())):
                raise NotInTime(f"no engine wrote weights to {device} within {timeout_s:g} s")

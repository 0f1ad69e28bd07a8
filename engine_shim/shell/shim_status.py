"""Asks a shim over its socket how its engine is: for `failover`, for tests, and for programs without a port."""

import os
import select
import time
from pathlib import Path
from typing import Any

from engine_shim.rules import messages as m
from engine_shim.shell import paths
from sidecar.wire import sockets
from sidecar.wire.frames import BadFrame, Channel, close_all


class NoAnswer(Exception):
    """There is no shim, or it doesn't answer."""


def ask(run_dir: Path, engine_id: str, timeout_s: float = 2.0) -> dict[str, Any]:
    """The same as its `/state`. Raises NoAnswer."""
    path = run_dir / paths.ENGINES / paths.shim_socket(engine_id)
    try:
        channel = Channel(sockets.connect(path), m.from_shim)
    except OSError as error:
        raise NoAnswer(f"no engine-shim at {path}: {error.strerror or error}") from None
    try:
        channel.send(m.AskState())
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        end = time.monotonic() + timeout_s
        while not channel.eof and poll.poll(max(0.0, end - time.monotonic()) * 1000):
            for message, descriptors in channel.receive():
                close_all(descriptors)
                if isinstance(message, m.StateIs):
                    return message.state
                raise NoAnswer(f"the engine-shim at {path} refuses: {message}")
    except BadFrame as error:
        raise NoAnswer(f"what answers at {path} is no engine-shim of this version: {error}") from None
    finally:
        channel.close()
    raise NoAnswer(
        f"the engine-shim at {path} does not answer within {timeout_s:g} s: is it stopped (state T in ps: "
        "kill -CONT), or the machine overloaded?"
    )


def engines(run_dir: Path) -> list[str]:
    """The engines that have, or had, a shim in this run directory: one of its files is there."""
    suffixes = (paths.shim_lock(""), paths.shim_socket(""))
    try:
        names = os.listdir(run_dir / paths.ENGINES)
    except OSError:
        return []
    found = {name.removesuffix(suffix) for name in names for suffix in suffixes if name.endswith(suffix)}
    return sorted(engine_id for engine_id in found if engine_id and not engine_id.startswith("."))

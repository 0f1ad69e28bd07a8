"""What every process of an engine does before it touches a device: it is set to die with its parent, it joins the lock
server, and it registers with its shim.

    member = membership.enter()          # in a worker, before anything else
    shim = membership.enter_main()       # in the main process, which registers with the lock server by itself

Keep what they return for as long as the process lives. What this file may not do: know what the process is for.
"""

import gc
import os
import select
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from engine_shim.rules import messages as m
from lockserver import client
from sidecar.kernel import peers, process_setup
from sidecar.wire import sockets
from sidecar.wire.frames import BadFrame, Channel, Message, PeerTooSlow, close_all

SHIM_VARIABLE = "FAILOVER_SHIM"
START_VARIABLE = "FAILOVER_START"
SHIM_PID_VARIABLE = "FAILOVER_SHIM_PID"
LEDGER_VARIABLE = "FAILOVER_LEDGER_TREE"
"""`vram.client`'s, which is loaded where there is a ledger."""
WELCOME_S = 10.0


class NotAMember(Exception):
    """This process can't be one of an engine's processes."""


class ShimConnection:
    """A process's connection to its shim. Any thread may use it, and nothing here waits. A shim that is gone or slow is
    no error: a process that has lost its shim dies with it.
    """

    def __init__(self, channel: Channel, beat_s: float) -> None:
        self.beat_s = beat_s
        self._channel = channel
        self._turn = threading.Lock()

    def say(self, message: Message) -> None:
        try:
            with self._turn:
                self._channel.flush()
                self._channel.send(message)
        except PeerTooSlow:
            return

    def failing(self, why: str, *, exit_code: int = 0, transient: bool = False) -> None:
        self.say(m.Failing(why=why[: m.TEXT_MOST], exit_code=exit_code, transient=transient))

    def phase(self, name: str, spent_s: float) -> None:
        self.say(m.Phase(name=name, seconds=spent_s))

    def adopted(self, adopted: int, dropped: int, why: str) -> None:
        self.say(m.Adopted(adopted=adopted, dropped=dropped, why=why))


class Member(NamedTuple):
    shim: ShimConnection
    joined: client.Membership
    leases: object
    """Its membership in the ledger's tree, where there is a ledger."""


def enter() -> Member:
    """For every process of an engine but the main one. Blocks until the lock server counts it as a member. A process
    that may not be one is ended.
    """
    arm()
    gc.enable()  # it has been off since `main_process.py` was loaded
    shim = _register(main=False)
    joined = client.join()
    ledger: object = None
    if os.environ.get(LEDGER_VARIABLE):
        from vram import client as vram

        ledger = vram.join()
    return Member(shim, joined, ledger)


def arm() -> None:
    """For every process but the main one. An orphan is a child of the shim, or of PID 1: neither has started it."""
    shim_pid, parent = int(_given(SHIM_PID_VARIABLE)), os.getppid()
    process_setup.die_with_parent(parent if parent not in (shim_pid, 1) else -1)


def arm_main() -> None:
    """To be called in the main process, before anything else."""
    process_setup.die_with_parent(int(_given(SHIM_PID_VARIABLE)))
    process_setup.forbid_core_dumps()


def enter_main() -> ShimConnection:
    return _register(main=True)


def environment(socket: Path, start: int, shim_pid: int) -> Mapping[str, str]:
    """What the processes of an engine find in their environment."""
    return {SHIM_VARIABLE: str(socket), START_VARIABLE: str(start), SHIM_PID_VARIABLE: str(shim_pid)}


def _register(*, main: bool) -> ShimConnection:
    path = Path(_given(SHIM_VARIABLE))
    try:
        channel = Channel(sockets.connect(path), m.from_shim)
    except OSError as error:
        raise NotAMember(f"no engine-shim listens at {path}: {error.strerror or error}") from None
    pidfds = [peers.own_pidfd()]
    try:
        hello = m.Hello(protocol=m.PROTOCOL, start=int(_given(START_VARIABLE)), pid=os.getpid(), main=main)
        channel.send(hello, pidfds)
    finally:
        close_all(pidfds)
    return ShimConnection(channel, _welcome(channel).beat_s)


def _welcome(channel: Channel) -> m.Welcome:
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    end = time.monotonic() + WELCOME_S
    while not channel.eof and time.monotonic() < end:
        poll.poll(max(0.0, end - time.monotonic()) * 1000)
        try:
            received = channel.receive()
        except BadFrame as error:
            raise NotAMember(f"what answers is no engine-shim of this version: {error}") from None
        for message, descriptors in received:
            close_all(descriptors)
            if isinstance(message, m.Welcome):
                return message
            if isinstance(message, m.Problem):
                raise NotAMember(f"the engine-shim turned this process away: {message.why}")
    raise NotAMember(f"the engine-shim did not answer within {WELCOME_S:g} s, or went away")


def _given(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise NotAMember(f"{variable} is not in the environment: this process is to be started by an engine-shim")
    return value

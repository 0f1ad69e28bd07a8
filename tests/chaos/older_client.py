"""An engine of the version before: `python -m tests.chaos.older_client RUN_DIR NAME`.

It says what a client of version 1 said (`tests/lockserver/recorded_1.py`), with its own name, pid and file in it, and
understands what was understood then. It prints what happens to it: `waits`, `granted TOKEN`, `back TOKEN`, `told WHY`.
It ends when its input does.
"""

import contextlib
import os
import secrets
import select
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from lockserver.rundir import LIFE, connect
from sidecar import peers
from sidecar.frames import Channel, Message, close_all
from sidecar.lifelock import LifeLock
from tests.lockserver import messages_1 as m1
from tests.lockserver import recorded_1


def recorded(frames: list[recorded_1.Frame], number: int) -> Any:
    return msgspec.structs.replace(m1.from_client.decode(bytes.fromhex(frames[number][1])[4:]), fds=0)


class OlderClient:
    def __init__(self, run_dir: Path, engine_id: str) -> None:
        self.run_dir = run_dir
        self.incarnation = secrets.token_hex(8)
        self.life = LifeLock.create(run_dir / LIFE, f"{engine_id}.{self.incarnation}")
        self.me = {"engine_id": engine_id, "incarnation": self.incarnation, "life": self.life.inode, "pid": os.getpid()}
        self.token = 0
        self.kept: tuple[m1.Keep, tuple[int, ...]] | None = None
        self.channel: Channel | None = None

    def run(self) -> None:
        while True:
            if self.channel is None or self.channel.eof:
                self.register()
            ready = select.select([sys.stdin, *([self.channel] if self.channel else [])], [], [], 0.05)[0]
            if sys.stdin in ready:
                return
            for message, descriptors in self.channel.receive() if self.channel else []:
                self.hear(message, descriptors)

    def register(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        frames = recorded_1.HOLDER_COMES_BACK if self.token else recorded_1.ACQUIRES
        register = msgspec.structs.replace(
            recorded(frames, 0), **self.me, claims={m1.ACTIVE: self.token} if self.token else {}
        )
        with contextlib.suppress(OSError):
            self.channel = Channel(connect(self.run_dir), m1.from_server)
            own = peers.own_pidfd()
            self.say(register, [own])
            os.close(own)

    def say(self, message: Message, descriptors: list[int] | None = None) -> None:
        assert self.channel is not None
        self.channel.send(message, descriptors or [])

    def hear(self, message: Any, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, m1.Keep):
            self.kept = (message, descriptors)
            tell("keeps", *message.numbers)
            return
        close_all(descriptors)  # it closed what it knew nothing of
        if isinstance(message, m1.Welcome):
            self.welcomed(message)
        elif isinstance(message, m1.Prepare):
            self.say(msgspec.structs.replace(recorded(recorded_1.WAITER_COMES_BACK, 6), round=message.round))
        elif isinstance(message, m1.Granted):
            self.token = message.token
            tell("granted", message.token)
            self.say(recorded(recorded_1.ACQUIRES, 4))
        else:
            tell("told", message)

    def welcomed(self, message: m1.Welcome) -> None:
        if self.token:
            assert message.holds == {m1.ACTIVE: self.token}, message
            tell("back", self.token)
            return
        if self.kept is not None:
            keep, descriptors = self.kept
            hand_back = recorded(recorded_1.WAITER_COMES_BACK, 2)
            self.say(
                msgspec.structs.replace(hand_back, token=keep.token, tree=keep.tree, numbers=keep.numbers),
                list(descriptors),
            )
            close_all(descriptors)
            self.kept = None
        self.say(recorded(recorded_1.ACQUIRES, 2))
        tell("waits")


def tell(*words: object) -> None:
    print(f"{time.monotonic():.3f}", *words, flush=True)


if __name__ == "__main__":
    OlderClient(Path(sys.argv[1]), sys.argv[2]).run()

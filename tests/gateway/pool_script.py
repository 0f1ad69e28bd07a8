"""A pool that says what a test wants it to say, and keeps what the door says."""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pool.client import SOCKET
from pool.entries import Entry, Flags, ModelDemand, ModelOutlook, ModelShown, Profile, State
from pool.rules import messages as m
from sidecar.wire.frames import Channel, Message, close_all


class PoolScript:
    def __init__(self, run_dir: Path, entries: Sequence[Entry], profiles: Sequence[Profile] = ()) -> None:
        self.run_dir, self.entries, self.profiles = run_dir, list(entries), list(profiles)
        self.flags = Flags()
        self.outlook = {entry.name: ModelOutlook(run_dir=str(self.lock_of(entry.name))) for entry in entries}
        self._shown: dict[str, State] = {}
        self.demand: dict[str, ModelDemand] = {}
        self.commands: list[m.Command] = []
        self.refuses: tuple[int, str] | None = None
        """What commands get instead of being done."""
        self.stands_still = False
        """Commands get no answer."""
        self._channels: list[Channel] = []
        self._lock = threading.RLock()
        self._wake = os.eventfd(0)
        self._ended = False
        run_dir.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(run_dir / SOCKET))
        self._socket.listen()
        self._thread.start()

    def lock_of(self, name: str) -> Path:
        return self.run_dir / "lock" / name

    def close(self) -> None:
        """As if it had been killed."""
        self._ended = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._socket.close()
        (self.run_dir / SOCKET).unlink(missing_ok=True)  # a test that failed closes it twice

    # -- what it says ----------------------------------------------------------------------------------------------

    def see(self, name: str, state: State, shown: State | None = None, **more: object) -> None:
        """From now on this is the outlook of a model. `shown`: what people see, where that is another state."""
        with self._lock:
            self._shown[name] = shown or state
            self.outlook[name] = ModelOutlook(state=state, run_dir=str(self.lock_of(name)), **more)  # type: ignore[arg-type]
            self._say(m.Outlook(models=self.outlook))
            self._say(self._listing())

    def again(self) -> None:
        """What models there are has changed."""
        with self._lock:
            for message in self._all():
                self._say(message)

    def _all(self) -> list[Message]:
        models = m.Models(entries=self.entries, profiles=self.profiles, flags=self.flags)
        return [models, m.Outlook(models=self.outlook), self._listing()]

    def _listing(self) -> m.Listing:
        shown = [
            ModelShown(
                name=name, state=self._shown.get(name, seen.state), why=seen.why, devices=["host:0"],
                bytes={"host:0": 1}, asleep_bytes={}, last_used=None, port=None, pinned=False,
                turn=seen.turn, estimate_ms=seen.estimate_ms,
            )
            for name, seen in self.outlook.items()
        ]  # fmt: skip
        return m.Listing(models=shown, token=len(self.commands), flags=self.flags)

    def _say(self, message: Message) -> None:
        for channel in self._channels:
            channel.send(message)
            if channel.wants_write:
                os.eventfd_write(self._wake, 1)

    # -- its thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            there: list[Any] = [self._socket, self._wake, *self._channels]
            slow = [channel for channel in self._channels if channel.wants_write]
            readable, writable, _ = select.select(there, slow, [])
            with self._lock:
                for channel in writable:
                    channel.flush()
                if self._ended:
                    for channel in self._channels:
                        channel.close()
                    return
                if self._wake in readable:
                    os.eventfd_read(self._wake)
                if self._socket in readable:
                    self._channels.append(
                        Channel(self._socket.accept()[0], m.from_any, max_frame_bytes=m.MAX_FRAME_BYTES)
                    )
                for channel in [channel for channel in self._channels if channel in readable]:
                    self._hear(channel)

    def _hear(self, channel: Channel) -> None:
        received = []
        with contextlib.suppress(OSError):
            received = channel.receive()
        for message, descriptors in received:
            close_all(descriptors)
            if isinstance(message, m.DoorHello):
                channel.send(m.Welcome(incarnation="1", protocol=1))
                for said in self._all():
                    channel.send(said)
            elif isinstance(message, m.Demand):
                self.demand = message.models
            elif isinstance(message, m.Command):
                self._obey(channel, message)
        if channel.eof:
            self._channels.remove(channel)
            channel.close()

    def _obey(self, channel: Channel, command: m.Command) -> None:
        self.commands.append(command)
        if self.stands_still:
            return
        if self.refuses is not None:
            channel.send(m.CommandDone(number=command.number, ok=False, status=self.refuses[0], detail=self.refuses[1]))
            return
        self.flags = command.flags or self.flags
        for said in self._all():
            channel.send(said)
        status, detail = (200, "done") if command.verb == "flags" else (202, f"{command.verb} is on its way")
        channel.send(m.CommandDone(number=command.number, ok=True, status=status, detail=detail))

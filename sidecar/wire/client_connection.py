"""A client's connection to its server, as far as it is the same for every client: said, heard, ended, and made anew as
often as the client's machine wants it.

It lives in the thread of its loop. What this file may not do: know a message, or decide when to connect. Used
by `client_shell.py`, and by a server that is itself a client of others (`sidecar/wire/upstream.py`).
"""

import contextlib
import select
from collections.abc import Callable, Sequence
from typing import Any

from sidecar.kernel import peers
from sidecar.machine.loop import Loop
from sidecar.wire.frames import BadFrame, Channel, Message, PeerTooSlow, close_all


class ClientConnection:
    def __init__(self, loop: Loop, *, heard: Callable[[Any], None], ended: Callable[[str], None]) -> None:
        """`heard` gets every message; `ended` is called when the server ended the connection, or spoke nonsense (then
        with what was wrong).
        """
        self._loop = loop
        self._heard = heard
        self._ended = ended
        self._channel: Channel | None = None
        self._writing = False
        self._arriving: tuple[int, ...] = ()

    @property
    def up(self) -> bool:
        return self._channel is not None

    def open(self, channel: Channel) -> None:
        self._channel, self._writing = channel, False
        self._loop.add(channel.fileno(), self._on_ready)

    def introduce(self, message: Message) -> bool:
        """Like `say`, with this process's own pidfd."""
        own: list[int] = []
        with contextlib.suppress(OSError):  # a kernel without pidfds: the server has its own way, or says so
            own = [peers.own_pidfd()]
        try:
            return self.say(message, own)
        finally:
            close_all(own)

    def say(self, message: Message, descriptors: Sequence[int] = ()) -> bool:
        """False: there is no connection any more. The server takes nothing, or it ended a moment ago."""
        if self._channel is None:
            return False
        try:
            self._channel.send(message, descriptors)
        except (PeerTooSlow, OSError):
            self.hang_up()
            return False
        if self._channel.held_up:  # the connection is made again a little later, and everything said again
            self.hang_up()
            return False
        self._mind_writing()
        return True

    def take_descriptors(self) -> tuple[int, ...]:
        """Those of the message that is being heard, to be closed by the caller. Those that aren't taken are closed."""
        taken, self._arriving = self._arriving, ()
        return taken

    def hang_up(self) -> None:
        if self._channel is not None:
            self._loop.remove(self._channel.fileno())
            self._channel.close()
            self._channel = None

    def _on_ready(self, what: int) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            if what & select.EPOLLOUT:
                channel.flush()
                self._mind_writing()
            received = channel.receive()
        except (BadFrame, PeerTooSlow, OSError) as error:
            self.hang_up()
            self._ended(str(error))
            return
        try:
            while received:
                message, self._arriving = received.pop(0)
                if self._channel is channel:  # an answer to the message before may have ended it
                    self._heard(message)
                close_all(self.take_descriptors())
        finally:  # where a message can't be handled the next ones leave nothing open
            close_all(self.take_descriptors())
            for _, descriptors in received:
                close_all(descriptors)
        if channel.eof and self._channel is channel:
            self.hang_up()
            self._ended("")

    def _mind_writing(self) -> None:
        if self._channel is not None and self._channel.wants_write is not self._writing:
            self._writing = not self._writing
            self._loop.also_when_writable(self._channel.fileno(), self._writing)

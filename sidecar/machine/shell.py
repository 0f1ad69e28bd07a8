"""What stands between a pure machine and the world, and is the same for every server.

The machine is fed event by event (`turns.py`). With nothing to wait for the loop sleeps in the kernel until a client
comes. What is for people (the log, the status for observers) waits until nothing is urgent.

A server derives from `Shell`, names in `effects` what carries each effect out, and sets `machine` and `connections`
before the first event. What this file may not do: know what is served. The parts: `loop.py`, `connections.py`,
`processes.py`, `sockets.py`.
"""

import math
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from sidecar.kernel import peers
from sidecar.kernel.durable import DurableFile
from sidecar.kernel.path_watch import CannotWatch, PathWatch
from sidecar.kernel.processes import Named, Processes, Unidentified
from sidecar.machine import context
from sidecar.machine.loop import Loop
from sidecar.machine.turns import Turns
from sidecar.terminal.logs import Log
from sidecar.wire.connections import Connections
from sidecar.wire.sockets import ServerSocket

LOOK_EVERY_S = 1.0
"""Where the kernel doesn't say when to look."""
CHORES_PUT_OFF = 32
"""Rounds of the loop: telling observers and writing the log wait while there is more urgent work, but not for ever."""


STOPPED_BY_SIGNAL = ("SIGTERM", "SIGINT")
"""What `run` returns when a person wanted the end."""


def _time() -> context.Time:
    return context.Time(time.monotonic(), time.time())


class Shell(Turns):
    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]]
    """Effect -> the method that carries it out."""
    connections: Connections
    processes: Processes
    server_socket: ServerSocket
    file: DurableFile
    """What it must not forget. (A server that keeps no record has neither.)"""
    encode: Callable[[Any], bytes]
    """A record, for the file."""

    def __init__(self, log: Log) -> None:
        super().__init__(self.effects, _time)
        self.log = log
        self.loop = Loop()
        self._notes: list[context.Note] = []
        self._publish = False
        self._put_off = 0
        self._watched: list[tuple[Path, Callable[[], None]]] = []
        self._watches: dict[Path, PathWatch] = {}
        self._look_at = math.inf
        self._why_unwatched = ""
        self._hindrance = ""

    # -- for the server --------------------------------------------------------------------------------------------

    def publish(self, effect: object) -> None:
        """Carries out: the public status has changed."""
        self._publish = True

    def note(self, effect: context.Note) -> None:
        """Carries out: a line for the log. Written when nothing waits: a grant shouldn't wait for it."""
        self._notes.append(effect)

    def persist(self, effect: Any) -> None:
        """Carries out: a record is to be on disk, in the directory in which callers find this server."""
        if self.server_socket.replaced():
            self.answer(self.replaced_event())
            return
        try:
            self.file.write(self.encode(effect.record))
        except OSError as error:
            self.answer(context.PersistFailed(effect.seq, error.strerror or str(error)))
        else:
            self.answer(context.Persisted(effect.seq))

    def watch_death(self, effect: context.WatchDeath) -> None:
        """Carries out."""
        event = context.Died(effect.process)
        self.processes.on_death(effect.process, lambda: self.feed(event))

    def forget_process(self, effect: context.ForgetProcess) -> None:
        """Carries out."""
        self.processes.forget(effect.process)

    def stop(self, effect: context.Stop) -> None:
        """Carries out."""
        if not effect.meant:
            self.log.alarm("stopping", why=effect.why)
        self.loop.stopping = effect.why

    def replaced_event(self) -> context.DirectoryReplaced:
        directory = self.server_socket.path.parent
        return context.DirectoryReplaced(f"{directory} or its socket was replaced", removed=not directory.exists())

    def look_at_path(self) -> None:
        """For `watch_over`, by a server that a process finds under its path."""
        if self.server_socket.replaced():
            self.feed(self.replaced_event())

    def identify_caller(
        self, conn: int, sock: socket.socket, descriptors: tuple[int, ...], said_pid: int
    ) -> Named | None:
        """The process that introduces itself on this connection. None: it is gone, or it was told why it can't be
        identified. Takes care of the descriptors.
        """
        try:
            return self.processes.identify(sock, descriptors, said_pid)
        except peers.PeerGone:
            self.connections.end(conn)
        except Unidentified as error:
            self.connections.complain(conn, str(error))
        return None

    def watch_over(self, path: Path, look: Callable[[], None]) -> None:
        """From now on `look` is called when the path may lead elsewhere. The kernel says when; where it doesn't (a user
        has 128 inotify instances, and all containers of one uid share them; or no watch is left when the way has
        changed) `look` is called every second, with an alarm, until the kernel does. Where a directory on the way may
        be entered and not read, no limit is the reason, and there is no alarm.
        """
        self._watched.append((path, look))
        self._look_again()

    def unwatch(self) -> None:
        """For `close`: the kernel says nothing any more."""
        self._watched.clear()
        for watch in self._watches.values():
            watch.close()

    def _look_again(self, _: int = 0) -> None:
        why_not, blind = "", False
        for path, look in list(self._watched):
            try:
                watch = self._watch(path)
                why, blind = watch.why_not, blind or watch.blind
            except CannotWatch as error:
                why = str(error)
            if why:
                why_not = f"the server looks every second whether its path and files were replaced: {why}"
            look()
        self._look_at = time.monotonic() + LOOK_EVERY_S if why_not or blind else math.inf
        if why_not != self._why_unwatched:
            self._why_unwatched = why_not
            self.feed(context.PathWatched(why_not))

    def _watch(self, path: Path) -> PathWatch:
        """It has just looked. Raises CannotWatch."""
        watch = self._watches.get(path)
        if watch is not None:
            watch.look()
            return watch
        watch = self._watches[path] = PathWatch(path)
        for fd, events in watch.descriptors():
            self.loop.add(fd, self._look_again, events)
        return watch

    def show(self) -> None:
        """The server's: shows the picture to observers. They see the last state of a round."""
        raise NotImplementedError

    def close(self) -> None:
        """The server's: lets go of everything."""
        raise NotImplementedError

    # -- the rounds ------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Serves until it is told to stop, or must; returns why."""
        while not self.loop.stopping:
            self.mind(self.loop.turn_until(self.due_at))
        return self.finish()

    @property
    def due_at(self) -> float:
        """When there is something to do though nothing happens."""
        if self._publish or self._notes:
            return 0.0
        return min(self.machine.deadline, self.connections.deadline, self._look_at)

    def mind(self, happened: bool) -> None:
        """What is due. `happened`: in this turn of the loop there was more urgent work."""
        connections, now = self.connections, time.monotonic()
        chores = self._publish or bool(self._notes)
        if now >= self.machine.deadline:
            self.feed(context.Tick())
        if now >= connections.deadline:
            connections.do_due(now)
        if (hindrance := connections.hindrance(now)) != self._hindrance:
            self._hindrance = hindrance
            self.feed(context.Hindered(hindrance))
        if now >= self._look_at:
            self._look_again()
        self._put_off = self._put_off + 1 if chores and happened else 0
        if chores and (not happened or self._put_off >= CHORES_PUT_OFF):
            if self._publish:
                self._publish = False
                self.show()
            self._write_notes()

    def finish(self) -> str:
        """Lets go of everything; returns why."""
        self._write_notes()
        self.close()
        return self.loop.stopping

    def _write_notes(self) -> None:
        for note in self._notes:
            (self.log.alarm if note.alarm else self.log.info)(note.event, **note.detail)
        self._notes.clear()

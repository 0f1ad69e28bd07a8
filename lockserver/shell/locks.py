"""Many locks in one process: one for each directory below another, which comes and goes with it.

Each is a server of its own (`server.py`), with a machine and a loop; this one's loop hears of theirs. What ends one of
them, or keeps it from being served, is nothing to the others. What this file may not do: know what a lock decides.
"""

import contextlib
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from lockserver.shell.rundir import SERVER_LOCK
from lockserver.shell.server import Server
from sidecar.kernel.durable import AlreadyLocked, DirectoryLock
from sidecar.kernel.path_watch import CannotWatch, PathWatch, make_private_directory
from sidecar.machine.loop import Loop
from sidecar.terminal.cannot_start import CannotStart, unusable
from sidecar.terminal.logs import Log
from sidecar.terminal.names import NAME

LOOK_EVERY_S = 1.0
"""Where the kernel doesn't say when to look, or a lock couldn't be served."""


class Locks:
    def __init__(self, directory: Path, serve: Callable[[Path], Server], log: Log, patience_s: float) -> None:
        """`serve` makes the server of one lock, and raises CannotStart or AlreadyLocked. So does this; a process before
        this one has so long to end.
        """
        self.directory = directory
        self.loop = Loop()
        self.servers: dict[str, Server] = {}
        self._serve = serve
        self._log = log
        self._refused: dict[str, str] = {}
        """Locks that can't be served, and why: it is tried again."""
        self._look_at = -math.inf
        self._watch: PathWatch | None = None
        try:
            make_private_directory(directory)
            self._lock = DirectoryLock(directory, SERVER_LOCK).acquire(patience_s)
        except OSError as error:
            raise unusable(directory, error) from None

    def start(self) -> None:
        self.look()
        self._log.info("serves", directory=self.directory, locks=len(self.servers))

    def run(self) -> str:
        """Serves until it is told to stop; returns by what."""
        loop, servers = self.loop, self.servers
        while not loop.stopping:
            if time.monotonic() >= self._look_at:
                self.look()
            loop.turn_until(min([self._look_at, *(server.due_at for server in servers.values())]))
            for name, server in list(servers.items()):
                if time.monotonic() >= server.due_at:
                    server.mind(server.loop.turn(0))
                if server.loop.stopping:
                    self._end(name)
        self.close()
        return loop.stopping

    def close(self) -> None:
        for name in list(self.servers):
            self._end(name)
        self._lock.close()

    def look(self) -> None:
        """Which locks there are, and whether the way to them has changed. Of mounts only this loop is told surely."""
        blind = self._watch_again()
        there: set[str] = set()
        with contextlib.suppress(OSError), os.scandir(self.directory) as found:
            there = {one.name for one in found if re.fullmatch(NAME, one.name) and one.is_dir()}
        self._refused = {name: why for name, why in self._refused.items() if name in there}
        for name in sorted(there - self.servers.keys()):
            self._begin(name)
        for server in self.servers.values():
            server.look_at_path()
        self._look_at = time.monotonic() + LOOK_EVERY_S if blind or self._refused else math.inf

    def _watch_again(self) -> bool:
        """True: the kernel doesn't say when to look."""
        if self._watch is not None:
            self._watch.look()
            return bool(self._watch.why_not) or self._watch.blind
        try:
            self._watch = watch = PathWatch(self.directory, arrivals=True)
        except CannotWatch as error:
            if math.isinf(self._look_at):
                self._log.alarm("looks_every_second", directory=self.directory, why=error)
            return True
        for fd, events in watch.descriptors():
            self.loop.add(fd, lambda _: self.look(), events)
        return watch.blind

    def _begin(self, name: str) -> None:
        server: Server | None = None
        try:
            server = self._serve(self.directory / name)
            server.start()
        except (CannotStart, AlreadyLocked) as error:
            if server is not None:
                server.close()
            if self._refused.get(name) != str(error):
                self._log.alarm("not_served", run_dir=self.directory / name, why=error)
            self._refused[name] = str(error)
            return
        self._refused.pop(name, None)
        self.servers[name] = begun = server
        self.loop.add(begun.loop.fileno(), lambda _: begun.mind(begun.loop.turn(0)))

    def _end(self, name: str) -> None:
        """Its directory is gone, or this process ends."""
        server = self.servers.pop(name)
        self.loop.remove(server.loop.fileno())
        server.log.info("stopped", why=server.finish() or self.loop.stopping)
        self._look_at = -math.inf  # another directory may have its name by now

"""The shim's own files in the run directory: its lock and its socket. They are made, and made again when they were
removed (a cleaner of /tmp, `rm`, an emptied volume): without them the shim goes on, and no probe can ask it.

What this file may not do: know what is spoken at the socket.
"""

import socket
from collections.abc import Callable
from pathlib import Path

from engine_shim.shell import paths
from sidecar.kernel.durable import DirectoryLock
from sidecar.kernel.path_watch import make_private_directory
from sidecar.wire.sockets import ServerSocket


class OwnFiles:
    def __init__(self, run_dir: Path, engine_id: str, listen: Callable[[socket.socket], None]) -> None:
        """`listen` is given each listening socket. Raises OSError and AlreadyLocked."""
        self.directory = run_dir / paths.ENGINES
        self._engine_id = engine_id
        self._listen = listen
        make_private_directory(self.directory)
        self._lock = DirectoryLock(self.directory, paths.shim_lock(engine_id)).acquire()
        self._socket = self._open()

    @property
    def socket_path(self) -> Path:
        return self._socket.path

    @property
    def socket_is_there(self) -> bool:
        return not self._socket.replaced()

    def make_again(self) -> list[str]:
        """What was missing, and is there again. Raises OSError where something can't be made, and AlreadyLocked when
        another shim has taken this engine's name meanwhile.
        """
        made: list[str] = []
        socket_is_there = self.socket_is_there
        if socket_is_there and self._lock.holds():
            return made
        make_private_directory(self.directory)
        if not self._lock.holds():
            new = DirectoryLock(self.directory, paths.shim_lock(self._engine_id)).acquire()
            self._lock.close()
            self._lock = new
            made.append(new.path.name)
        if not socket_is_there:
            old, self._socket = self._socket, self._open()
            old.close()
            made.append(self._socket.path.name)
        return made

    def close(self) -> None:
        self._socket.close()
        self._lock.close()

    def _open(self) -> ServerSocket:
        made = ServerSocket(self.directory, paths.shim_socket(self._engine_id))
        self._listen(made.open())
        return made

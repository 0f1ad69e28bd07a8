"""A server that binds trees, and keeps what it must not forget in a file: its directory, its start and its end.

It decides nothing. Callers, life files and what tells of processes are in `shell.py`. A server derives from
`RecordShell`, and sets `machine`, which knows `self.config`, and has `callers` and a `status`.
"""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from evidence.rules import messages as m
from evidence.rules.events import Config
from evidence.shell.lifefiles import SERVER_LOCK
from evidence.shell.memory import Reader
from evidence.shell.shell import EvidenceShell, pid_namespace
from sidecar.kernel import peers
from sidecar.kernel.durable import DirectoryLock, DurableFile
from sidecar.kernel.path_watch import make_private_directory
from sidecar.terminal.cannot_start import unusable
from sidecar.terminal.logs import Log
from sidecar.wire.connections import Access, Protocol
from sidecar.wire.sockets import ServerSocket

ENDING_S = 1.0
"""How long a server that was killed may take to end."""


class RecordShell(EvidenceShell):
    machine: Any
    decoder: ClassVar[msgspec.msgpack.Decoder[Any]]
    """For what callers say."""
    socket_name: ClassVar[str]
    file_name: ClassVar[str]
    decode: Callable[[bytes], Any]
    """What is in the file. Raises ValueError where it is no record."""

    def __init__(
        self,
        run_dir: Path,
        config: Config,
        access: Access,
        reader: Reader | None,
        log: Log,
        observe: Callable[[Any], None] | None,
        patience_s: float = ENDING_S,
    ) -> None:
        spoken = Protocol(self.decoder, lambda why: m.Problem(why=why), lambda why: m.Busy(why=why))
        super().__init__(log, run_dir, access.pidfds, spoken, access.allow_uids, reader)
        self.run_dir = run_dir
        self.access = access
        self.config: Any = msgspec.structs.replace(
            config,
            server_incarnation=secrets.token_hex(8),
            server_pid=os.getpid(),
            boot_id=peers.boot_id(),
            pid_namespace=pid_namespace(),
            evidence=self.kind_of_evidence,
            reads_memory=reader is not None,
        )
        self._observe = observe
        self.file = DurableFile(run_dir, self.file_name)
        try:
            make_private_directory(run_dir)
            make_private_directory(self.directory)
            self._lock = DirectoryLock(run_dir, SERVER_LOCK).acquire(patience_s)
            self.server_socket = ServerSocket(run_dir, self.socket_name)
            self.file.reserve()
        except OSError as error:
            raise unusable(run_dir, error) from None

    def started(self, record: Any, unreadable: str) -> Any:
        """The server's: the machine's first event."""
        raise NotImplementedError

    def at_start(self) -> dict[str, object]:
        """The server's: what its log says of it then."""
        raise NotImplementedError

    def start(self) -> None:
        """Looks at what the server before has left, and listens; from now on it may decide. Raises CannotStart."""
        try:
            self.feed(self.started(*self._read_what_was_left()))
            self.connections.listen(self.server_socket.open(self.access.socket_mode))
            self.server_socket.keep_inode()
        except OSError as error:
            raise unusable(self.run_dir, error) from None
        config = self.config
        how = {"evidence": config.evidence, "memory": config.reads_memory}
        self.log.info("ready", socket=self.server_socket.path, pid=os.getpid(), **self.at_start(), **how)
        if config.memory_why:
            self.log.warning("memory_unverified", why=f"{config.memory_why}; what is needed is not checked")
        self.watch_over(self.server_socket.path, self.look_at_path)

    def _read_what_was_left(self) -> tuple[Any, str]:
        """The record, or None; and why there is one that can't be read, which is put aside."""
        try:
            data = self.file.read()
            if data is not None:
                return self.decode(data), ""
            aside = self.file.newest_aside()
            return None, f"put aside as {aside}" if aside else ""
        except (ValueError, OSError) as error:
            aside_as = self.file.set_aside()
            self.log.alarm("file_unreadable", file=self.file_name, why=str(error), put_aside_as=str(aside_as))
            return None, str(error)

    def close(self) -> None:
        super().close()
        self._lock.close()

    def show(self) -> None:
        watchers = self.machine.callers.watchers()
        if not watchers and self._observe is None:
            return
        status = self.machine.status
        if self._observe is not None:
            self._observe(status)
        for conn in watchers:
            self.connections.send(conn, status)

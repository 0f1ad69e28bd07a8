"""The ledger's shell: its file, and its start and end. It decides nothing; `rules/machine.py` does.

What every server has is in `sidecar/machine/shell.py`; callers, life files, memory and what tells of processes in
`evidence/shell/shell.py`.
"""

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evidence.shell.memory import Reader
from evidence.shell.shell import EvidenceShell, pid_namespace
from sidecar.kernel import peers
from sidecar.kernel.durable import DirectoryLock, DurableFile
from sidecar.kernel.path_watch import make_private_directory
from sidecar.terminal.cannot_start import unusable
from sidecar.terminal.logs import Log
from sidecar.wire.connections import Protocol
from sidecar.wire.sockets import ServerSocket
from vram.rules import messages as m
from vram.rules import record
from vram.rules.events import Config, Started
from vram.rules.machine import Machine
from vram.shell.rundir import FILE, SERVER_LOCK, SOCKET, ledger_of

_SPOKEN = Protocol(m.from_client, lambda why: m.Problem(why=why), lambda why: m.Busy(why=why))
ENDING_S = 1.0
"""How long a server that was killed may take to end."""


@dataclass(frozen=True)
class Options:
    host_dir: Path
    window_s: float = 10.0
    settle_s: float = 2.0
    ask_s: float = 30.0
    least_held_s: float = 10.0
    patience_s: float = 5.0
    keep_free: int = 0
    totals: Mapping[str, int] = field(default_factory=dict)
    socket_mode: int = 0o600
    allow_uids: frozenset[int] = frozenset()
    pidfds: str = "auto"
    memory_why: str = ""
    """Why there is no reader."""


class Server(EvidenceShell):
    machine: Machine
    encode = staticmethod(record.encode)

    def __init__(
        self, options: Options, reader: Reader | None, log: Log, observe: Callable[[m.Status], None] | None = None
    ) -> None:
        self.options, self.run_dir = options, ledger_of(options.host_dir)
        super().__init__(log, self.run_dir, options.pidfds, _SPOKEN, options.allow_uids, reader)
        self._observe = observe
        self.file = DurableFile(self.run_dir, FILE)
        try:
            make_private_directory(options.host_dir)
            make_private_directory(self.run_dir)
            make_private_directory(self.directory)
            self._lock = DirectoryLock(self.run_dir, SERVER_LOCK).acquire(ENDING_S)
            self.server_socket = ServerSocket(self.run_dir, SOCKET)
            self.file.reserve()
        except OSError as error:
            raise unusable(self.run_dir, error) from None
        self.machine = Machine(
            Config(
                server_incarnation=secrets.token_hex(8),
                server_pid=os.getpid(),
                boot_id=peers.boot_id(),
                pid_namespace=pid_namespace(),
                evidence=self.kind_of_evidence,
                window_s=options.window_s,
                settle_s=options.settle_s,
                ask_s=options.ask_s,
                least_held_s=options.least_held_s,
                patience_s=options.patience_s,
                keep_free=options.keep_free,
                totals=dict(options.totals),
                reads_memory=reader is not None,
                memory_why=options.memory_why,
            )
        )

    def start(self) -> None:
        """Looks at what the server before has left, and listens; from now on it may decide. Raises CannotStart."""
        try:
            self.feed(self._read_what_was_left())
            self.connections.listen(self.server_socket.open(self.options.socket_mode))
            self.server_socket.keep_inode()
        except OSError as error:
            raise unusable(self.run_dir, error) from None
        self.log.info("ready", socket=self.server_socket.path, pid=os.getpid(), leases=len(self.machine.leases.all))
        if self.options.memory_why:
            self.log.warning("memory_unverified", why=self.options.memory_why)
        self.watch_over(self.server_socket.path, self.look_at_path)

    def _read_what_was_left(self) -> Started:
        floor = secrets.randbits(33) << 20  # as much as a JSON reader takes for a whole number
        try:
            data = self.file.read()
            if data is not None:
                return Started(record.decode(data), number_floor=floor)
            # One that was put aside by a server that then crashed is still the last word.
            aside = sorted(path.name for path in self.run_dir.glob(f"{FILE}.unreadable-*"))
            return Started(None, unreadable=f"put aside as {aside[-1]}" if aside else "", number_floor=floor)
        except (record.UnreadableRecord, OSError) as error:
            aside_as = self.file.set_aside()
            self.log.alarm("file_unreadable", why=str(error), put_aside_as=str(aside_as))
            return Started(None, unreadable=str(error), number_floor=floor)

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

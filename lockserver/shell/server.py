"""The lock server's shell: the holder file, names, memory. It decides nothing; `machine.py` does.

What every server has (the loop, connections, pidfds, the socket under its name) is in `sidecar/machine/shell.py` and
beside it; callers, life files and what else tells of processes in `evidence/shell/shell.py`. Here is what only the
lock needs.
"""

import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from evidence.shell.memory import Reader, exclusive_name
from evidence.shell.shell import EvidenceShell, pid_namespace
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules import record
from lockserver.rules.machine import Machine
from lockserver.shell.rundir import HOLDER, LIFE, SERVER_LOCK, SOCKET, absolute, names_of_path
from sidecar.kernel import exclusive_names, host_usage, peers
from sidecar.kernel.durable import DirectoryLock, DurableFile
from sidecar.kernel.path_watch import make_private_directory
from sidecar.machine.shell import Shell
from sidecar.terminal.cannot_start import unusable
from sidecar.terminal.logs import Log
from sidecar.wire.connections import Protocol
from sidecar.wire.sockets import ServerSocket

_SPOKEN = Protocol(m.from_client, lambda why: m.Problem(why=why), lambda why: m.Busy(why=why))


@dataclass(frozen=True)
class Options:
    run_dir: Path
    window_s: float = 10.0
    settle_s: float = 2.0
    memory_bound_s: float = math.inf
    prepare_timeout_s: float = 1.0
    presume_dead: bool = False
    grant_unproven: bool = False
    socket_mode: int = 0o600
    allow_uids: frozenset[int] = frozenset()
    pidfds: str = "auto"
    """`auto`: as the kernel can. `peer`, `sent`, `none`: as an older one would."""
    host_devices: Path | None = None
    memory_why: str = ""
    """Why there is no reader."""
    at_rest: bool = False
    """A lock that has no file yet is at rest."""
    patience_s: float = 1.0
    """How long a server that was killed may take to end."""


class Server(EvidenceShell):
    machine: Machine

    def __init__(
        self, options: Options, reader: Reader | None, log: Log, observe: "Callable[[m.Status], None] | None" = None
    ) -> None:
        self.options = options = replace(options, run_dir=absolute(options.run_dir))
        super().__init__(log, options.run_dir, options.pidfds, _SPOKEN, options.allow_uids, reader)
        self.encode = record.encode
        self.incarnation = secrets.token_hex(8)
        self._observe = observe
        self._names: dict[str, socket.socket] = {}
        """Those that this server has."""
        self._foreign_names: set[str] = set()
        """Those that another user has taken: none of ours."""
        self.file = DurableFile(options.run_dir, HOLDER)
        try:
            make_private_directory(options.run_dir)
            make_private_directory(options.run_dir / LIFE)
            self._lock = DirectoryLock(options.run_dir, SERVER_LOCK).acquire(options.patience_s)
            self.server_socket = ServerSocket(options.run_dir, SOCKET)
            self.file.reserve()
        except OSError as error:
            raise unusable(options.run_dir, error) from None
        self.machine = Machine(self._config())

    def _config(self) -> e.Config:
        options = self.options
        return e.Config(
            server_incarnation=self.incarnation,
            server_pid=os.getpid(),
            boot_id=peers.boot_id(),
            pid_namespace=pid_namespace(),
            evidence=self.kind_of_evidence,
            window_s=options.window_s,
            settle_s=options.settle_s,
            memory_bound_s=options.memory_bound_s,
            prepare_timeout_s=options.prepare_timeout_s,
            presume_dead=options.presume_dead,
            grant_unproven=options.grant_unproven,
            reads_memory=self._reader is not None,
            memory_why=options.memory_why,
            at_rest=options.at_rest,
        )

    # -- start and end ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Looks at what the server before has left, and listens; from now on it may decide. Raises CannotStart."""
        try:
            self.feed(self._read_what_was_left())
            self._open()
        except OSError as error:
            raise unusable(self.options.run_dir, error) from None

    def _read_what_was_left(self) -> e.Started:
        floor = int(time.time() * 1000)
        try:
            data = self.file.read()
            if data is not None:
                return e.Started(record.decode(data), token_floor=floor)
            # One that was put aside by a server that then crashed is still the last word.
            aside = sorted(path.name for path in self.options.run_dir.glob(f"{HOLDER}.unreadable-*"))
            return e.Started(None, unreadable=f"put aside as {aside[-1]}" if aside else "", token_floor=floor)
        except (record.UnreadableRecord, OSError) as error:
            aside_as = self.file.set_aside()
            self.log.alarm("holder_file_unreadable", why=str(error), put_aside_as=str(aside_as))
            return e.Started(None, unreadable=str(error), token_floor=floor)

    def _open(self) -> None:
        self.connections.listen(self.server_socket.open(self.options.socket_mode))
        self.server_socket.keep_inode()
        self.log.info(
            "ready",
            socket=self.server_socket.path,
            pid=os.getpid(),
            state=self.machine.succession.state,
            evidence=self.machine.config.evidence,
            memory=self.machine.config.reads_memory,
        )
        if self.options.memory_why:
            self.log.warning("memory_unverified", why=f"{self.options.memory_why}; what engines need is not checked")
        self.watch_over(self.server_socket.path, self.look_at_path)

    def close(self) -> None:
        super().close()
        for name in self._names.values():
            name.close()
        self._lock.close()
        self.loop.close()

    # -- effects ---------------------------------------------------------------------------------------------------

    def _do_send(self, effect: e.Send) -> None:
        descriptors = self.processes.pidfds(effect.processes) if effect.processes else []
        if effect.names:
            descriptors = [name.fileno() for name in self._names.values()]
        self.connections.send(effect.conn, effect.message, descriptors)

    def _do_take_names(self, effect: e.TakeNames) -> None:
        run_dir = self.options.run_dir
        wanted = {name: f"the path {name.removeprefix('lock ')}" for name in names_of_path(run_dir)}
        directory = self.options.host_devices or host_usage.devices_directory()
        wanted |= {exclusive_name(device, directory): f"the device {device}" for device in effect.devices}
        missing, others = [], False
        for name, what in wanted.items():
            try:
                who = self._take_name(name)
                others = others or bool(who)
            except OSError as error:
                who = f"this server, which can't take it ({error.strerror}),"
            if who:
                missing.append((what, who))
        self.answer(e.NamesTaken(tuple(missing), others))

    def _take_name(self, name: str) -> str:
        """Empty once this server has it. Raises OSError."""
        if name in self._names or name in self._foreign_names:
            return ""
        taken = exclusive_names.take(name)
        if taken is not None:
            self._names[name] = taken
            self.loop.add(taken.fileno(), lambda _: exclusive_names.accept_all(taken))
            return ""
        owner = exclusive_names.owner(name)
        ours = self.options.allow_uids | {os.getuid(), -1}
        if owner is not None and owner.uid not in ours:
            self._foreign_names.add(name)
            self.log.warning("name_taken_by_another_user", name=name, by=owner)
            return ""
        return f"{owner}, or an engine that it granted," if owner is not None else "a process that is leaving"

    def show(self) -> None:
        watchers = self.machine.callers.watchers()
        if not watchers and self._observe is None:
            return
        status = self.machine.status
        if self._observe is not None:
            self._observe(status)
        for conn in watchers:
            self.connections.send(conn, status)

    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        **EvidenceShell.effects,
        e.Send: _do_send,
        e.TakeNames: _do_take_names,
        e.Persist: Shell.persist,
    }

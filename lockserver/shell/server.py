"""The lock server's shell: names. It decides nothing; `machine.py` does.

What every server has (the loop, connections, pidfds, the socket under its name) is in `sidecar/machine/shell.py` and
beside it; its file, callers, life files and what else tells of processes in `evidence/shell/`. Here is what only the
lock needs.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from evidence.shell.memory import Reader, exclusive_name
from evidence.shell.record_shell import ENDING_S, RecordShell
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules import record
from lockserver.rules.machine import Machine
from lockserver.shell.rundir import HOLDER, SOCKET, absolute, names_of_path
from sidecar.kernel import exclusive_names
from sidecar.machine.shell import Shell
from sidecar.terminal.logs import Log
from sidecar.wire.connections import Access


class Server(RecordShell):
    machine: Machine
    decoder = m.from_client
    socket_name, file_name = SOCKET, HOLDER
    encode, decode = staticmethod(record.encode), staticmethod(record.decode)

    def __init__(
        self,
        run_dir: Path,
        config: e.Config,
        access: Access,
        reader: Reader | None,
        log: Log,
        observe: Callable[[m.Status], None] | None = None,
        *,
        host_devices: Path,
        patience_s: float = ENDING_S,
    ) -> None:
        super().__init__(absolute(run_dir), config, access, reader, log, observe, patience_s)
        self._host_devices = host_devices
        self._names: dict[str, socket.socket] = {}
        """Those that this server has."""
        self._foreign_names: set[str] = set()
        """Those that another user has taken: none of ours."""
        self.machine = Machine(self.config)

    def at_start(self) -> dict[str, object]:
        return {"state": self.machine.succession.state}

    def started(self, record: record.Record | None, unreadable: str) -> e.Started:
        return e.Started(record, unreadable, token_floor=int(time.time() * 1000))

    def close(self) -> None:
        for name in self._names.values():
            name.close()
        super().close()
        self.loop.close()

    # -- effects ---------------------------------------------------------------------------------------------------

    def _do_send(self, effect: e.Send) -> None:
        descriptors = self.processes.pidfds(effect.processes) if effect.processes else []
        if effect.names:
            descriptors = [name.fileno() for name in self._names.values()]
        self.connections.send(effect.conn, effect.message, descriptors)

    def _do_take_names(self, effect: e.TakeNames) -> None:
        wanted = {name: f"the path {name.removeprefix('lock ')}" for name in names_of_path(self.run_dir)}
        wanted |= {exclusive_name(device, self._host_devices): f"the device {device}" for device in effect.devices}
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
        ours = self.access.allow_uids | {os.getuid(), -1}
        if owner is not None and owner.uid not in ours:
            self._foreign_names.add(name)
            self.log.warning("name_taken_by_another_user", name=name, by=owner)
            return ""
        return f"{owner}, or an engine that it granted," if owner is not None else "a process that is leaving"

    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        **RecordShell.effects,
        e.Send: _do_send,
        e.TakeNames: _do_take_names,
        e.Persist: Shell.persist,
    }

"""The ledger's shell. It decides nothing; `rules/machine.py` does.

What every server has is in `sidecar/machine/shell.py`; its file, its start and its end, callers and what tells of
processes in `evidence/shell/`.
"""

import secrets
from collections.abc import Callable
from pathlib import Path

from evidence.shell.memory import Reader
from evidence.shell.record_shell import RecordShell
from sidecar.terminal.logs import Log
from sidecar.wire.connections import Access
from vram.rules import messages as m
from vram.rules import record
from vram.rules.events import Config, Started
from vram.rules.machine import Machine
from vram.shell.rundir import FILE, SOCKET, ledger_of


class Server(RecordShell):
    machine: Machine
    decoder = m.from_client
    socket_name, file_name = SOCKET, FILE
    encode, decode = staticmethod(record.encode), staticmethod(record.decode)

    def __init__(
        self,
        host_dir: Path,
        config: Config,
        access: Access,
        reader: Reader | None,
        log: Log,
        observe: Callable[[m.Status], None] | None = None,
    ) -> None:
        super().__init__(ledger_of(host_dir), config, access, reader, log, observe)
        self.machine = Machine(self.config)

    def at_start(self) -> dict[str, object]:
        return {"leases": len(self.machine.leases.all)}

    def started(self, record: record.Record | None, unreadable: str) -> Started:
        floor = secrets.randbits(33) << 20  # as much as a JSON reader takes for a whole number
        return Started(record, unreadable, number_floor=floor)

"""What every part of the machine has: the leases, what there is of each device, and what waits for the disk. Pure."""

from typing import Any

from evidence.rules.events import Send
from evidence.rules.evidence import Evidence
from evidence.rules.free_memory import FreeMemory
from evidence.rules.incarnation import Incarnation
from sidecar.machine.context import Context
from sidecar.machine.disk_writes import DiskWrites
from sidecar.wire.frames import Message
from vram.rules.devices import Devices
from vram.rules.events import Config
from vram.rules.heirs import Heirs
from vram.rules.leases import Leases


class Books:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.context: Context[Any] = Context(config.history_size)
        self.evidence = Evidence(config, self.context)
        self.memory = FreeMemory(config, self.context)
        self.disk: DiskWrites[Any] = DiskWrites()
        self.leases = Leases()
        self.heirs = Heirs(self.leases)
        self.devices = Devices(config, self.leases)


class Part:
    def __init__(self, books: Books) -> None:
        self.config, self.context, self.evidence = books.config, books.context, books.evidence
        self.memory, self.disk, self.devices = books.memory, books.disk, books.devices
        self.leases, self.heirs = books.leases, books.heirs

    def tell(self, who: Incarnation, message: Message) -> None:
        """If it is there."""
        if who.conn is not None:
            self.context.out.append(Send(who.conn, message))

"""The reference engine, which does with its device's memory what files say that may come and go.

engine: tests.many.odd_engine:make, arguments: [DIRECTORY, ...]. `keeps`: so many bytes its sleep doesn't give back; its
next wake uses them again, as it does with graphs and buffers outside of an allocator. `wakes`: it has its lease, and
stays before it takes the memory, for as long as the file is there.
"""

import contextlib
import dataclasses
import time
from pathlib import Path

from engine_shim.engine import Setting
from gms.memory import Handle
from gms.memory.host import HostMemory
from reference_engine.engine import ReferenceEngine


class OddEngine(ReferenceEngine):
    def __init__(self, setting: Setting) -> None:
        directory, *arguments = setting.arguments
        self.directory = Path(directory)
        self.still_has: tuple[HostMemory, Handle] | None = None
        self.served = False
        super().__init__(arguments, dataclasses.replace(setting, arguments=tuple(arguments)))

    def wake(self) -> None:
        while (self.directory / "wakes").exists():
            time.sleep(0.002)
        if self.still_has is not None:
            memory, handle = self.still_has
            memory.release(handle)
            self.still_has = None
        super().wake()
        self.served = True

    def sleep(self) -> None:
        super().sleep()
        with contextlib.suppress(FileNotFoundError):
            if self.served:
                count = int((self.directory / "keeps").read_text())
                memory = HostMemory(self.options.devices[0].removeprefix("host:"))
                self.still_has = memory, memory.create(count)


make = OddEngine

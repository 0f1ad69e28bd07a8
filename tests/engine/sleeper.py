"""The reference engine, which stays at a step of its sleep for as long as a file says so: for tests that kill it there.

engine-shim --engine tests.engine.sleeper:make ... -- DIRECTORY ARGUMENTS...

Files in DIRECTORY, which may come and go: `drain`, `give back` (it hasn't begun to sleep), `asleep` (it hasn't said so
yet), `wrong` (it answers a known question in another way than before).
"""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from engine_shim.engine import Setting
from reference_engine.engine import ReferenceEngine

STEPS = ("drain", "give back", "asleep")


class Sleeper(ReferenceEngine):
    def __init__(self, setting: Setting) -> None:
        directory, *arguments = setting.arguments
        self.directory = Path(directory)
        self.served = False
        super().__init__(arguments, dataclasses.replace(setting, arguments=tuple(arguments)))

    def stay(self, step: str) -> None:
        while (self.directory / step).exists():
            time.sleep(0.002)

    def wake(self) -> None:
        super().wake()
        self.served = True

    def known(self) -> Sequence[int]:
        return [0] if (self.directory / "wrong").exists() else super().known()

    def drain(self, timeout_s: float) -> None:
        self.resumed = False
        self.stay("drain")
        if not self.resumed:
            super().drain(timeout_s)

    def resume(self) -> None:
        self.resumed = True
        super().resume()

    def sleep(self) -> None:
        if self.served:
            self.stay("give back")
        super().sleep()
        if self.served:
            self.stay("asleep")


make = Sleeper

"""What goes wrong from outside for a server that binds trees, be it the lock's or the ledger's: with processes, its
file, the disk, time and the memory reader. Which fault comes how often, and what is a world's own, is in `faults.py`
and `vram_faults.py`.
"""

import contextlib
import errno
from typing import Any

from tests.sim.process import Process


class TreeFaults:
    file: str
    """Where the server has its record."""
    device: str

    def __init__(self, world: Any) -> None:
        self.world = world
        self.rng = world.rng
        self.kernel = world.kernel
        self._backups: list[bytes] = []

    # -- processes -------------------------------------------------------------------------------------------------

    def _victims(self) -> list[Process]:
        mains = [slot.tree.main for slot in self.world.slots if slot.tree is not None]
        return [process for process in mains + self.world.spawned[-6:] if process.alive]

    def _kill_any(self) -> None:
        if victims := self._victims():
            victim = self.rng.choice(victims)
            self.world.note_fault(f"kill {victim}")
            self.kernel.kill(victim, step_s=self.rng.choice((None, 0.2)))

    def _kill_all(self) -> None:
        self.world.note_fault("everything is killed at once")
        server = self.world.server
        for process in [*self._victims(), *([server.process] if server else [])]:
            self.kernel.kill(process)

    # -- the file and the disk -------------------------------------------------------------------------------------

    def back_up(self) -> None:
        with contextlib.suppress(OSError):
            self._backups.append(self.kernel.files.find(self.file).data)

    def _spoil(self, how: str) -> bool:
        """Whether it has been."""
        try:
            if how == "tear":
                self.kernel.tear(self.file)
            elif how == "corrupt":
                self.kernel.corrupt(self.file)
            elif how == "restore":
                if not self._backups:
                    return False
                self.kernel.files.find(self.file).data = self.rng.choice(self._backups)
            else:
                self.kernel.files.unlink(self.file)
        except OSError:
            return False
        self.world.spoiled = True
        return True

    def _disk(self) -> None:
        full = self.rng.random() < 0.5
        self.world.note_fault("the disk is full" if full else "the disk fails")
        self.kernel.files.disk_errno = errno.ENOSPC if full else errno.EIO
        self.kernel.after(self.rng.random() * 1.0, self._disk_ok)

    def _disk_ok(self) -> None:
        self.kernel.files.disk_errno = 0

    # -- time and memory -------------------------------------------------------------------------------------------

    def _clock(self) -> None:
        seconds = self.rng.choice((-1, 1)) * self.rng.random() * 1e6
        self.world.note_fault("the clock jumps")
        self.world.clock_went_back |= seconds < 0
        self.kernel.jump_wall_clock(seconds)

    def _foreign_gone(self) -> None:
        self.kernel.devices[self.device].foreign_bytes = 0

    def _reader(self) -> None:
        if self.rng.random() < 0.5:
            self.world.note_fault("the memory reader fails")
            self.kernel.devices[self.device].reader_works = False
            self.kernel.after(self.rng.random(), self._reader_ok)
        else:
            self.world.note_fault("the memory reader hangs")
            self.world.reader_hangs_until = self.kernel.now + self.rng.random()

    def _reader_ok(self) -> None:
        self.kernel.devices[self.device].reader_works = True

"""The weights' client, for programs: write a layout once, read it in as many processes as want it.

    client = GmsClient(run_dir, "host:0", "engine-a")

    with client.write() as writer:                  # alone, once no process reads or writes
        slab = writer.create(size)
        writer.memory(slab)[:] = ...
        reader = writer.commit(layout)              # and this process reads it from here on

    reader = client.read(timeout_s=60)              # every other process
    reader.view("embed.weight")
    reader.sleep()                                  # unmapped; addresses and descriptors stay
    reader.wake(timeout_s=30)                       # the same addresses; or StaleLayout

The rules are in `client_machine.py` and `shared_client.py`; the socket and the requests in `region_shell.py` and
`weights_shell.py`; what a program has in its hands is in `reader.py` and `writer.py`. One connection per process and
device.
"""

from functools import cached_property
from typing import Self

# What is imported under its own name is what other packages need of GMS.
from gms.layout import Layout as Layout
from gms.layout import Tensor as Tensor
from gms.memory import DeviceError as DeviceError
from gms.memory import Handle as Handle
from gms.memory import Memory as Memory
from gms.memory import OutOfMemory as OutOfMemory
from gms.memory.opening import open_memory as open_memory
from gms.pack import pack as pack
from gms.rules import messages as m
from gms.rules import region_key
from gms.rules.errors import Asleep as Asleep
from gms.rules.errors import Damaged as Damaged
from gms.rules.errors import GmsError as GmsError
from gms.rules.errors import Lost as Lost
from gms.rules.errors import NoCommonProtocol as NoCommonProtocol
from gms.rules.errors import NoPlace as NoPlace
from gms.rules.errors import NoRoom as NoRoom
from gms.rules.errors import NotInTime as NotInTime
from gms.rules.errors import Parked as Parked
from gms.rules.errors import PoolDiffers as PoolDiffers
from gms.rules.errors import PoolOwned as PoolOwned
from gms.rules.errors import PoolsOff as PoolsOff
from gms.rules.errors import PoolStale as PoolStale
from gms.rules.errors import Refused as Refused
from gms.rules.errors import StaleLayout as StaleLayout
from gms.rules.messages import WEIGHTS as WEIGHTS
from gms.rules.messages import Shape
from gms.shell import parking
from gms.shell.pool import Pool as Pool
from gms.shell.pool import PoolMapping as PoolMapping
from gms.shell.reader import Reader as Reader
from gms.shell.slabs import Addresses
from gms.shell.tables import header
from gms.shell.weights_shell import Granted, WeightsShell
from gms.shell.writer import Writer as Writer

PoolShape = Shape
table_header = header


class GmsClient(WeightsShell):
    @cached_property
    def _pools(self) -> dict[str, Pool]:
        return {}

    def write(self, timeout_s: float | None = None, *, bytes: int = 0) -> Writer:
        """Waits until no process writes or reads. A layout that is there is gone from then on. Raises NoRoom,
        before anything is cleared, if so many bytes can't be had even without it.
        """
        return self._writer(self.want(m.Open("rw", timeout_s, bytes=bytes)))

    def replace(self, bytes: int, timeout_s: float | None = None) -> Writer:
        """Like `write`, but the old layout stays until the new one is committed. Raises NoRoom at once if so many bytes
        can't be had beside it.
        """
        return self._writer(self.want(m.Open("rw", timeout_s, replace=True, bytes=bytes)))

    def read(self, timeout_s: float | None = None) -> Reader:
        """Waits until a layout is committed, and maps it."""
        return self._reader(self.want_to_read(m.Open("ro", timeout_s)))

    def write_or_read(self, timeout_s: float | None = None) -> Writer | Reader:
        """Reads if there is a layout, else writes. Only one of two engines may do this, else both may wait for ever
        (docs/inside/gms.md, "Roles").
        """
        granted = self.want_to_read(m.Open("rw_or_ro", timeout_s))
        return self._writer(granted) if granted.mode == "rw" else self._reader(granted)

    def bring_back(self, until: float | None) -> None:
        parking.bring_back(self, until)

    def park(self, timeout_s: float | None = None) -> m.Committed | m.RegionDropped:
        """Moves the weights to host memory, and gives back what they took of the device. Waits until no process reads
        or writes. Engines bring them back when they need them. Raises Parked if they are there already, StaleLayout if
        there are others by now, NoRoom if they may not be, and Damaged.
        """
        return parking.park(self, timeout_s)

    def pool(self, what: str, rank: int | None = None) -> Pool:
        """This process's standing with a pool of its model: from now on it has its descriptors, whenever there are any.
        Doesn't wait. Closed with this client. Another model's pool on this device is another one (`region_key.py`).
        """
        key = region_key.of_pool(self.model or self._machine.key, what, rank)
        if key not in self._pools:
            self._pools[key] = Pool(self.run_dir, self.device, self._machine.engine_id, key, lambda: self.memory)
        return self._pools[key]

    def wait_for_background(self, timeout_s: float | None = None) -> bool:
        """Until huge pages and checksums are made. False if that takes longer."""
        return self.background.wait(timeout_s)

    def close(self) -> None:
        """Gives everything up: readers and writers of this client too. In a forked child it closes what the child has,
        and the parent goes on.
        """
        for pool in self._pools.values():
            pool.close()
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writer(self, granted: Granted) -> Writer:
        try:
            return Writer(self, granted.use, self.memory, granted.slabs)
        except BaseException:
            self.release(granted.use, granted.slabs)
            raise

    def _reader(self, granted: Granted) -> Reader:
        kept = granted.kept
        assert kept is not None
        addresses: Addresses | None = None
        try:
            addresses = Addresses(self.memory)
            for size in kept.sizes:
                addresses.reserve(size)
            reader = Reader(self, granted.use, kept.hash, kept.layout, addresses)
        except BaseException:
            if addresses is not None:
                addresses.free()
            self.release(granted.use, granted.slabs)
            raise
        try:
            reader.take(granted.slabs, kept.sums)
        except BaseException:
            reader.close()
            raise
        return reader

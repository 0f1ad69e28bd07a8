"""The weights' client, for programs: write a layout once, read it in as many processes as want it.

    client = GmsClient("/run/failover", "host:0", "engine-a")

    with client.write() as writer:                  # alone, once no process reads or writes
        slab = writer.create(size)
        writer.memory(slab)[:] = ...
        reader = writer.commit(layout)              # and this process reads it from here on

    reader = client.read(timeout_s=60)              # everybody else
    reader.view("embed.weight")
    reader.sleep()                                  # unmapped; addresses and descriptors stay
    reader.wake(timeout_s=30)                       # the same addresses; or StaleLayout

The rules are in `client_machine.py`, the socket and the requests in `client_shell.py`; what a program has in its hands
is in `reader.py` and `writer.py`. One connection per process and device.
"""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from gms.layout import Layout, Tensor
from gms.memory import DeviceError, Handle, Memory, OutOfMemory
from gms.pack import pack
from gms.pool_client import Pool, PoolMapping
from gms.rules import client_events as c
from gms.rules.client_events import Shape as PoolShape
from gms.rules.errors import (
    Asleep,
    GmsError,
    Lost,
    NoCommonProtocol,
    NoPlace,
    NoRoom,
    NotInTime,
    PoolDiffers,
    PoolOwned,
    PoolsOff,
    PoolStale,
    Refused,
    StaleLayout,
)
from gms.rules.messages import WEIGHTS
from gms.rules.pool_client_machine import There as PoolThere
from gms.shell.client_shell import ClientShell, Granted
from gms.shell.mapping import Addresses
from gms.shell.reader import Reader
from gms.shell.region_shell import open_memory
from gms.shell.tables import header as table_header
from gms.shell.writer import Writer
from sidecar.terminal.logs import complain

__all__ = [  # all that other packages need of GMS
    "Asleep",
    "DeviceError",
    "GmsClient",
    "GmsError",
    "Handle",
    "Layout",
    "Lost",
    "Memory",
    "NoCommonProtocol",
    "NoPlace",
    "NoRoom",
    "NotInTime",
    "OutOfMemory",
    "Pool",
    "PoolDiffers",
    "PoolMapping",
    "PoolOwned",
    "PoolShape",
    "PoolStale",
    "PoolThere",
    "PoolsOff",
    "Reader",
    "Refused",
    "StaleLayout",
    "Tensor",
    "Writer",
    "open_memory",
    "pack",
    "table_header",
]


class GmsClient:
    def __init__(
        self,
        run_dir: Path | str,
        device: str,
        engine_id: str,
        *,
        region: str = WEIGHTS,
        memory: Memory | None = None,
        on_change: Callable[[int, str], object] = lambda generation, hash: None,
        on_lost: Callable[[str], object] = lambda why: None,
        on_problem: Callable[[str], object] | None = None,
        checksums: bool = True,
        huge_pages: bool = True,
    ) -> None:
        """`region`: which model's weights, where a device has several.

        `on_change(generation, hash)`: which layout there is now (0: none), also while this process sleeps, and each
        time that it is connected anew. `on_lost(why)`: what is being read is the layout no longer (it can still be
        read, but its memory should be given up soon), or a writer's work is gone. `on_problem(why)`: the server there
        won't have this process, or speaks no protocol that both know; it reads on, and an empty `why` says that all is
        well again. By default that is a line on stderr. The three run in whatever thread turns the loop: they must be
        short, and ask nothing of this client. What they raise is a line on stderr: it ends nothing.

        After a commit, a thread of low priority makes huge pages of the slabs, and sums up their contents for whoever
        verifies them later.
        """
        self.run_dir = Path(run_dir)
        self.device = device
        self.engine_id = engine_id
        self._pools: dict[str, Pool] = {}
        self._shell = ClientShell(
            self.run_dir,
            device,
            engine_id,
            region=region,
            memory=memory,
            on_change=on_change,
            on_lost=on_lost,
            on_problem=on_problem if on_problem is not None else self._say_problem,
            checksums=checksums,
            huge_pages=huge_pages,
        )

    @property
    def incarnation(self) -> str:
        """The server's that it spoke to last."""
        return self._shell.incarnation

    @property
    def granularity(self) -> int:
        """Sizes are multiples of it; known once it has spoken to a server."""
        return self._shell.granularity

    @property
    def generation(self) -> int:
        """The layout's that there was last."""
        return self._shell.generation

    @property
    def hash(self) -> str:
        """The same."""
        return self._shell.hash

    @property
    def problem(self) -> str:
        """Why the server there won't have this process; empty while all is well."""
        return self._shell.problem

    def write(self, timeout_s: float | None = None, *, bytes: int = 0) -> Writer:
        """Waits until no process writes or reads. A layout that is there is gone from then on. Raises NoRoom,
        before anything is cleared, if so many bytes can't be had even without it.
        """
        return self._writer(self._shell.want(c.Want("rw", timeout_s, bytes=bytes)))

    def replace(self, bytes: int, timeout_s: float | None = None) -> Writer:
        """Like `write`, but the old layout stays until the new one is committed. Raises NoRoom at once if so many bytes
        can't be had beside it.
        """
        return self._writer(self._shell.want(c.Want("rw", timeout_s, replace=True, bytes=bytes)))

    def read(self, timeout_s: float | None = None) -> Reader:
        """Waits until a layout is committed, and maps it."""
        return self._reader(self._shell.want(c.Want("ro", timeout_s)))

    def write_or_read(self, timeout_s: float | None = None) -> Writer | Reader:
        """Reads if there is a layout, else writes. Only one of two engines may do this, else both may wait for ever
        (docs/gms.md, "Roles").
        """
        granted = self._shell.want(c.Want("rw_or_ro", timeout_s))
        return self._writer(granted) if granted.mode == "rw" else self._reader(granted)

    def pool(self, key: str) -> Pool:
        """This process's standing with a pool: from now on it has its descriptors, whenever there are any. Doesn't
        wait. Closed with this client.
        """
        if key not in self._pools:
            self._pools[key] = Pool(self.run_dir, self.device, self.engine_id, key, lambda: self._shell.memory)
        return self._pools[key]

    def connected(self, timeout_s: float | None = None) -> None:
        """Waits for the server. Nothing else needs this: what is asked while it is away waits, too. Raises Refused when
        the server won't have this process.
        """
        self._shell.connected(timeout_s)

    def wait_for_background(self, timeout_s: float | None = None) -> bool:
        """Until huge pages and checksums are made. False if that takes longer."""
        return self._shell.background.wait(timeout_s)

    def close(self) -> None:
        """Gives everything up: readers and writers of this client too. In a forked child it closes what the child has,
        and the parent goes on.
        """
        for pool in self._pools.values():
            pool.close()
        self._shell.close()

    def __enter__(self) -> "GmsClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _writer(self, granted: Granted) -> Writer:
        try:
            return Writer(self._shell, granted.use, self._shell.memory, granted.slabs)
        except BaseException:
            self._shell.release(granted.use, granted.slabs)
            raise

    def _reader(self, granted: Granted) -> Reader:
        kept = granted.kept
        assert kept is not None
        addresses: Addresses | None = None
        try:
            addresses = Addresses(self._shell.memory)
            for size in kept.sizes:
                addresses.reserve(size)
            reader = Reader(self._shell, granted.use, kept.hash, kept.document, addresses)
        except BaseException:
            if addresses is not None:
                addresses.free()
            self._shell.release(granted.use, granted.slabs)
            raise
        try:
            reader.take(granted.slabs, kept.sums)
        except BaseException:
            reader.close()
            raise
        return reader

    def _say_problem(self, why: str) -> None:
        said = f"{why}; it goes on with what it has, and tries again" if why else "all is well again"
        complain(f"gms client: GMS of {self.device} at {self.run_dir}: {said}")

"""Faults of the simulator by which the run directory's path comes to lead elsewhere, or nowhere: for the server, for
the engines, or for all.

The kernel tells the server, and those who hold most of the time: it can't be relied on. What excuses what stands with
the flags of `world.py`: `directory_lost` (a path led elsewhere, so a holder may find no server in time), `life_lost` (a
server can't see the life locks of those who were there before).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.actors import LIFE, RUN
from tests.sim.filesystem import FileSystem

if TYPE_CHECKING:
    from tests.sim.world import World

ABOVE, ELSEWHERE, LINK = "/srv/one", "/srv/two", "/srv/link"


class PathFaults:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.rng = world.rng
        self.kernel = world.kernel
        self._moved = 0
        self._switched_away = False

    def any(self) -> None:
        if self.kernel.files.disk_errno:
            return
        what, fault = self.rng.choice(_FAULTS)
        world = self.world
        world.note_fault(what)
        first, world.directory_lost = not world.directory_lost, True
        try:
            fault(self)
        except OSError:
            return  # another fault is in its way
        finally:
            world.lose_sight()
            self._tell()
            for slot in world.slots:
                if first and slot.client is not None:
                    slot.client.look_now_and_then()

    def _tell(self) -> None:
        server, rng = self.world.server, self.rng
        if server is not None and server.process.alive:
            server.process.after(rng.random() * 0.01, server.path_changed)
        for slot in self.world.slots:
            client = slot.client
            if client is not None and client.process.alive and rng.random() < 0.7:
                client.process.after(rng.random() * 0.01, client.path_changed)

    def _later(self, what: Callable[[], None]) -> None:
        """When it is put right, as a rule while there are faults still; `end` sees to the rest."""

        def put_right() -> None:
            try:
                what()
            except OSError:
                return
            self._tell()

        self.kernel.after(self.rng.random(), put_right)

    # -- deleted ---------------------------------------------------------------------------------------------------

    def _replaced(self) -> None:
        self.world.life_lost = True
        self.kernel.replace_directory(RUN)
        self.kernel.make_directories(LIFE)

    def _removed(self) -> None:
        self.world.life_lost = True
        self.kernel.files.remove_tree(RUN)

    def _emptied(self) -> None:
        self.world.life_lost = True
        self.kernel.files.empty_directory(RUN)

    def _life_removed(self) -> None:
        self.world.life_lost = True
        self.kernel.files.remove_tree(LIFE)

    # -- elsewhere -------------------------------------------------------------------------------------------------

    def _renamed(self) -> None:
        self.world.life_lost = True
        self._moved += 1
        self.kernel.files.rename(RUN, f"{RUN}.{self._moved}")

    def _renamed_above(self) -> None:
        self.world.life_lost = True
        self._moved += 1
        self.kernel.files.rename(ABOVE, f"{ABOVE}.{self._moved}")
        self._later(lambda: self.kernel.make_directories(ABOVE))

    def _switched(self) -> None:
        self.world.life_lost = True
        self.kernel.make_directories(ELSEWHERE)
        self._switched_away = True
        self._link_to(ELSEWHERE)
        if self.rng.random() < 0.5:
            self._later(lambda: self._link_to(ABOVE))

    def _link_to(self, target: str) -> None:
        """As `ln -sfn` does it."""
        self.world.went_back |= target == ABOVE and self._switched_away
        self._moved += 1
        early = f"{LINK}.{self._moved}"
        self.kernel.files.symlink(target, early)
        self.kernel.files.rename(early, LINK)

    def _circle(self) -> None:
        self._link_to(LINK)
        self._later(lambda: self._link_to(ABOVE))

    def _closed(self) -> None:
        self.kernel.files.close_directory(ABOVE, closed=True)
        self._later(lambda: self.kernel.files.close_directory(ABOVE, closed=False))

    def _mounted(self) -> None:
        """For all; or where the server has a view of its own, for it alone, or for the others alone."""
        self.world.life_lost = True
        files, server = self.kernel.files, self.world.server
        views = [files]
        if server is not None and server.process.files is not files:
            views = self.rng.choice(([files], [server.process.files], [files, server.process.files]))
        for view in views:
            view.mount(RUN)
            if self.rng.random() < 0.5:
                self._later(lambda view=view: self._unmount(view))  # type: ignore[misc]

    def _unmount(self, view: FileSystem) -> None:
        view.unmount(RUN)
        self.world.went_back = True

    # -- the end of all faults -------------------------------------------------------------------------------------

    def end(self) -> None:
        """There is a way to a directory again, for all the same."""
        files, server = self.kernel.files, self.world.server
        self.world.went_back |= bool(files.mounts)
        files.mounts.clear()
        files.disk.layout += 1
        self.kernel.make_directories(ABOVE)
        self._link_to(ABOVE)
        files.close_directory(ABOVE, closed=False)
        if server is not None and server.process.files is not files:
            server.process.files.mounts.clear()
        self._tell()
        for slot in self.world.slots:
            if slot.client is not None:
                slot.client.look_now_and_then()


_FAULTS: tuple[tuple[str, Callable[[PathFaults], None]], ...] = (
    ("the run directory is replaced", PathFaults._replaced),
    ("the run directory is removed", PathFaults._removed),
    ("the run directory is emptied", PathFaults._emptied),
    ("the life files are removed", PathFaults._life_removed),
    ("the run directory is renamed", PathFaults._renamed),
    ("a directory above is renamed", PathFaults._renamed_above),
    ("a symlink on the way is switched", PathFaults._switched),
    ("a symlink on the way leads to itself", PathFaults._circle),
    ("a directory on the way is closed", PathFaults._closed),
    ("something is mounted over the run directory", PathFaults._mounted),
)

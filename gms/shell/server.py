"""The shell of one device's GMS: descriptors of slabs, the state file, memory. It decides nothing; `machine.py` does.

What every server has (the loop, connections, pidfds, the socket under its name) is in `sidecar/machine/shell.py` and
beside it. Here is what only memory needs. A slab is made, exported and released at once: what is kept is its
descriptor, under the number that the machine knows it by. Nothing is ever mapped here, and torch is not imported.

What a descriptor that comes back really is, the memory's maker says, before the machine hears of it: the sender's word
counts for nothing, and a wrong one costs it its connection.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gms.memory import DeviceError, Handle, Memory, OutOfMemory
from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import record
from gms.rules.machine import Machine
from gms.rules.weights import numbers_begin
from gms.shell import rundir, tables
from gms.shell.settings import Options
from sidecar.kernel import io_uring, peers
from sidecar.kernel.durable import DurableFile
from sidecar.kernel.path_watch import make_private_directory
from sidecar.kernel.processes import Processes, Whereabouts
from sidecar.machine.shell import Shell
from sidecar.terminal.cannot_start import CannotStart, unusable
from sidecar.terminal.logs import Log
from sidecar.wire.connections import Connections, Protocol
from sidecar.wire.frames import close_all
from sidecar.wire.sockets import ServerSocket

if TYPE_CHECKING:
    from gms.shell.ledger import Ledger

POOLS_OFF = (
    "pools are off on a GPU until a real device has shown that the end of a process is also the end of what its "
    "kernels write (python -m tests.gpu); gms --pools-on-gpu turns them on"
)
_SPOKEN = Protocol(
    m.from_client,
    lambda why: m.Problem(why=why[:2000]),
    busy=lambda why: m.Problem(why=why[:2000], about="place"),
    max_frame_bytes=m.MAX_FRAME_BYTES,
    max_backlog_bytes=2 * m.MAX_FRAME_BYTES,  # the largest layout, and whatever else is said until it is read
)


class Server(Shell):
    machine: Machine

    def __init__(self, options: Options, memory: Memory, log: Log) -> None:
        super().__init__(log)
        self.encode = record.encode
        self.memory = memory
        self.device = memory.device
        self._slabs: dict[int, int] = {}
        """Handle -> descriptor."""
        self._last_slab = 0
        self._process_of: dict[int, int] = {}
        """Connection -> the process that introduced itself on it."""
        self.processes = Processes(self.loop, options.pidfds)
        self.connections = Connections(
            self.loop, log, _SPOKEN, frozenset(options.allow_uids), heard=self._on_message, closed=self._on_closed
        )
        self._ledger = self._ledger_of(options) if options.ledger else None
        self._directory = rundir.directory(Path(options.run_dir))
        socket_path = rundir.socket_path(Path(options.run_dir), self.device)
        try:
            make_private_directory(self._directory)
            self.server_socket = ServerSocket(self._directory, socket_path.name)
            self._lock = rundir.lock(Path(options.run_dir), f"{self.device}.lock")
            self.file = DurableFile(self._directory, f"{self.device}.json")
            self.file.reserve()
        except OSError as error:
            raise unusable(self._directory, error) from None
        self.machine = Machine(
            e.Config(
                device=self.device,
                server_incarnation=secrets.token_hex(8),
                server_pid=os.getpid(),
                boot_id=peers.boot_id(),
                granularity=memory.granularity,
                capacity=memory.capacity(),
                window_s=options.window_s,
                memory_wait_s=options.memory_wait_s,
                pid_namespace=_namespace("pid"),
                time_namespace=_namespace("time"),
                leases=options.ledger,
                host_memory=options.host_memory,
                pools_off="" if memory.device.startswith("host:") or options.pools_on_gpu else POOLS_OFF,
            )
        )
        self.feed(self._read_what_was_left())
        self._open(options.socket_mode)
        self.loop.stop_on_signals()

    def _ledger_of(self, options: Options) -> "Ledger":
        from gms.shell.ledger import Ledger  # only a host of many models has one

        return Ledger(Path(options.run_dir), self.device, self.loop, self.log, self.feed)

    # -- start and end ---------------------------------------------------------------------------------------------

    def _read_what_was_left(self) -> e.Started:
        floor = numbers_begin(time.time(), self.machine.config.server_incarnation)
        try:
            data = self.file.read()
            if data is None:
                aside = self.file.newest_aside()
                return e.Started(None, f"kept aside as {aside}" if aside else "", floor)
            file = record.decode(data)
        except (record.UnreadableRecord, OSError) as error:
            return e.Started(None, self._keep_aside(error), floor)
        owned = [region for region in file.regions if region.owner is not None]
        return e.Started(file, "", floor, tuple(self._find_owner(file, region) for region in owned))

    def _find_owner(self, file: record.Record, region: record.Region) -> e.FoundOwner:
        """What has become of it. Its number means something only in the PID namespace in which it was written down."""
        owner, here = region.owner, _namespace("pid")
        if owner is None or not owner.pid or not here or file.namespace != here or file.boot_id != peers.boot_id():
            return e.FoundOwner(region.key)
        found = self.processes.look_up(owner.pid, owner.identity)
        if isinstance(found, Whereabouts):
            return e.FoundOwner(region.key, gone=found is Whereabouts.GONE)
        return e.FoundOwner(region.key, found.process)

    def _keep_aside(self, error: Exception) -> str:
        """A file that can't be read. Returns why."""
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        try:
            kept = self.file.set_aside()
        except OSError as failed:
            raise CannotStart(
                f"{self.file.path} can't be read ({why}), nor be kept aside ({failed.strerror}): move it away"
            ) from None
        self.log.alarm("state_file_unreadable", why=why, kept_as=str(kept))
        return why[:1000]

    def _open(self, mode: int) -> None:
        try:
            self.connections.listen(self.server_socket.open(mode))
            self.server_socket.keep_inode()
            self.watch_over(self.server_socket.path, self.look_at_path)
            self.watch_over(self.file.path, self._look_at_files)
        except OSError as error:
            raise unusable(self.server_socket.path, OSError(error.errno, error.strerror)) from None
        status = self.machine.status()
        self.log.info(
            "ready",
            state=status.state,
            generation=status.generation,
            capacity=status.capacity,
            socket=self.server_socket.path,
            pid=os.getpid(),
            evidence=self.processes.evidence.value,
        )

    def _look_at_files(self) -> None:
        """A file that a cleaner has deleted is written again."""
        if self.file.notice_deleted() and not self.server_socket.replaced():
            self.feed(e.FileGone())

    def close(self) -> None:
        self.unwatch()
        self.server_socket.close()
        self.connections.close()
        close_all(self._slabs.values())
        self._slabs.clear()
        self._lock.close()

    # -- effects: connections and processes ------------------------------------------------------------------------

    def _do_send(self, effect: e.Send) -> None:
        self.connections.send(effect.conn, effect.message, [self._slabs[handle] for handle in effect.slabs])

    def _do_close(self, effect: e.Close) -> None:
        self._process_of.pop(effect.conn, None)
        self.connections.drop(effect.conn)

    def _do_check_peer(self, effect: e.CheckPeer) -> None:
        process = self._process_of.get(effect.conn)
        dead = process is not None and self.processes.is_dead(process)
        self.answer(e.PeerChecked(effect.conn, not dead and self.connections.connected(effect.conn)))

    # -- effects: memory and the disk ------------------------------------------------------------------------------

    def _do_allocate(self, effect: e.Allocate) -> None:
        made: list[e.Slab] = []
        try:
            for size in effect.sizes:
                handle = self.memory.create(size)
                try:
                    made.append(self._exported(handle))
                finally:
                    self.memory.release(handle)
            if effect.table_size:
                made.append(self._keep(tables.create(effect.table_size, filled=bool(effect.sizes)), table=True))
        except (DeviceError, OSError) as error:  # OSError: no descriptors left
            self._do_forget(e.Forget(tuple(slab.handle for slab in made)))
            why = "" if isinstance(error, OutOfMemory) else str(error)
            self.answer(e.NotAllocated(effect.conn, sum(effect.sizes), self._free(), why))
        else:
            self.answer(e.Allocated(effect.conn, tuple(made)))

    def _do_lease(self, effect: e.Lease) -> None:
        assert self._ledger is not None
        self._ledger.lease(effect)

    def _do_call_off(self, effect: e.CallOff) -> None:
        assert self._ledger is not None
        self._ledger.call_off(effect.wish)

    def _exported(self, handle: Handle) -> e.Slab:
        descriptor = self.memory.export(handle)
        try:
            return self._keep(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def _keep(self, descriptor: int, *, table: bool = False) -> e.Slab:
        """Owns the descriptor from now on; unless it raises DeviceError."""
        identity = tables.identity(descriptor) if table else self.memory.identity(descriptor)
        self._last_slab += 1
        self._slabs[self._last_slab] = descriptor
        return e.Slab(self._last_slab, identity)

    def _do_forget(self, effect: e.Forget) -> None:
        for handle in effect.slabs:
            os.close(self._slabs.pop(handle))

    def _do_check_memory(self, effect: e.CheckMemory) -> None:
        self.answer(e.MemoryChecked(self._free(), self._a_process_has(effect.identities), self._blocks(effect.tables)))

    def _a_process_has(self, identities: tuple[str, ...]) -> bool | None:
        """Any of it. None: that can't be told. The first that a process has is enough, because on a host device each
        look goes through all that is locked: 255 slabs took a server seconds of a processor at its start.
        """
        a_process: bool | None = False
        try:
            for identity in identities:
                held = self.memory.held(identity)
                if held:
                    return True
                if held is None:
                    a_process = None
        except DeviceError as error:  # an identity that a person wrote into the file, say
            self.log.warning("memory_unknown", why=error)
            return None
        return a_process

    def _blocks(self, handles: tuple[int, ...]) -> dict[int, tuple[int, int]]:
        counted = {handle: tables.count(self._slabs[handle]) for handle in handles}
        return {handle: blocks for handle, blocks in counted.items() if blocks is not None}

    def _free(self) -> int:
        try:
            return self.memory.free()
        except (DeviceError, OSError) as error:
            self.log.warning("free_memory_unknown", why=error)
            return 0

    def show(self) -> None:
        watchers = self.machine.watchers
        if watchers:
            status = self.machine.status(self._free(), self._blocks(self.machine.tables))
            for conn in watchers:
                self.connections.send(conn, status)

    # -- what callers say ------------------------------------------------------------------------------------------

    def _on_closed(self, conn: int) -> None:
        self._process_of.pop(conn, None)
        self.feed(e.Closed(conn))

    def _on_message(self, conn: int, sock: socket.socket, message: Any, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, m.Hello):
            self._on_hello(conn, sock, message, descriptors)
        elif isinstance(message, m.HandBack):
            self._on_hand_back(conn, message, descriptors)
        elif descriptors:
            close_all(descriptors)
            self.connections.complain(conn, f"{type(message).__name__} takes no descriptors")
        else:
            self.feed(e.Received(conn, message))

    def _on_hello(self, conn: int, sock: socket.socket, message: m.Hello, descriptors: tuple[int, ...]) -> None:
        named = self.identify_caller(conn, sock, descriptors, message.pid)
        if named is None:
            return
        if named.process is not None:
            self._process_of[conn] = named.process
        pid = named.local_pid
        writes_end = message.writes_end and not _may_have_io_uring(pid)
        if message.writes_end and not writes_end:
            self.log.warning("may_write_late", pid=pid, why="it says that it can't have io_uring, and has no filter")
        self.feed(e.Received(conn, message, (), named.process, named.identity, local_pid=pid, writes_end=writes_end))

    def _on_hand_back(self, conn: int, message: m.HandBack, descriptors: tuple[int, ...]) -> None:
        sizes = message.sizes[message.first : message.first + len(descriptors)]
        if len(sizes) < len(descriptors):
            close_all(descriptors)
            self.connections.complain(conn, "HandBack: there are more slabs than sizes")
            return
        table_at = len(message.sizes) - 1 if message.table else -1
        slabs: list[e.Slab] = []
        try:
            for number, (descriptor, size) in enumerate(zip(descriptors, sizes, strict=True), message.first):
                if number == table_at:
                    tables.check(descriptor, size)
                else:
                    self.memory.release(self.memory.import_(descriptor, size))  # of this device, and of that size
                slabs.append(self._keep(descriptor, table=number == table_at))
        except DeviceError as error:
            self._do_forget(e.Forget(tuple(slab.handle for slab in slabs)))
            close_all(descriptors[len(slabs) :])
            self.connections.complain(conn, f"HandBack: slab {message.first + len(slabs)}: {error}")
            return
        self.feed(e.Received(conn, message, tuple(slabs)))

    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        e.Send: _do_send,
        e.Close: _do_close,
        e.WatchDeath: Shell.watch_death,
        e.ForgetProcess: Shell.forget_process,
        e.Allocate: _do_allocate,
        e.Lease: _do_lease,
        e.CallOff: _do_call_off,
        e.Forget: _do_forget,
        e.CheckMemory: _do_check_memory,
        e.CheckPeer: _do_check_peer,
        e.Persist: Shell.persist,
        e.Publish: Shell.publish,
        e.Note: Shell.note,
        e.Stop: Shell.stop,
    }


def _may_have_io_uring(pid: int) -> bool:
    """As far as that can be seen, and whatever the process says."""
    return bool(pid) and io_uring.is_filtered(pid) is False and not io_uring.kernel_refuses()


def _namespace(kind: str) -> str:
    """Empty where /proc doesn't tell."""
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""

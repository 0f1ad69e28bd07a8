"""The lock server's shell: sockets, pidfds, life files, the holder file, memory. It decides nothing; `machine.py` does.

One loop, no thread, no lock. An event goes into the machine, its effects are carried out in order, and what they
bring back (a probe, a reading, a write) goes in before anything else is looked at. With nothing to wait for the loop
sleeps in the kernel until somebody comes.
"""

import contextlib
import ctypes
import os
import secrets
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockserver import events as e
from lockserver import messages as m
from lockserver import record
from lockserver.machine import Machine
from lockserver.memory import Reader
from lockserver.picture import picture
from lockserver.rundir import HOLDER, LIFE, SERVER_LOCK, SOCKET, RunDir, address_of
from sidecar import peers
from sidecar.durable import DirectoryLock, DurableFile
from sidecar.frames import BadFrame, Channel, PeerTooSlow, close_all
from sidecar.lifelock import LifeProbe
from sidecar.logs import Log

HALF_FRAME_S = 10.0
DEAF_S = 1.0
"""After a connection could not be accepted: trying again at once, and again, would keep a processor busy."""
MOST_CONNECTIONS = 4096
CHORES_PUT_OFF = 32
"""Rounds of the loop: telling onlookers and writing the log wait while there is more urgent work, but not for ever."""
ACCEPTS_AT_A_TIME = 64
"""Then whatever else has happened: callers who come faster than they are let in must not keep the loop from a death."""
_IN_ATTRIB, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x4, 0x400, 0x800
_INTRODUCTIONS = (m.Register, m.Join)
_WITH_PIDFDS = (m.Adopt, m.HandBack)
_READ_WRITE = select.EPOLLIN | select.EPOLLOUT


class CannotStart(Exception):
    """Something that a person can put right."""


@dataclass(frozen=True)
class Options:
    run_dir: Path
    window_s: float = 10.0
    settle_s: float = 2.0
    memory_bound_s: float = 30.0
    prepare_timeout_s: float = 1.0
    presume_dead: bool = False
    grant_unproven: bool = False
    socket_mode: int = 0o600
    allow_uids: frozenset[int] = frozenset()
    pidfds: str = "auto"
    """`auto`: as the kernel can. `peer`, `sent`, `none`: as an older one would."""


@dataclass(slots=True)
class Connection:
    channel: Channel
    sock: socket.socket
    writing: bool = False
    """The loop waits for the socket to take more."""


class Server:
    def __init__(
        self, options: Options, reader: Reader | None, log: Log, observe: "Callable[[m.Status], None] | None" = None
    ) -> None:
        self.options = options
        self.log = log
        self.incarnation = secrets.token_hex(8)
        self._reader = reader
        self._observe = observe
        self._connections: dict[int, Connection] = {}
        self._processes: dict[int, int] = {}
        self._probes: dict[str, LifeProbe] = {}
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._half: dict[int, float] = {}
        """Connections in the middle of a frame -> when they must be through; the oldest first."""
        self._deaf_until = float("inf")
        """When it listens again; infinite while it does."""
        self._next = 0
        self._pending: deque[e.Event] = deque()
        self._publish = False
        self._notes: list[e.Note] = []
        self._socket_inode = 0
        """0 until the socket is in its place."""
        self._stopping = ""
        self._evidence, self._pidfs = _evidence(options.pidfds)
        try:
            options.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            (options.run_dir / LIFE).mkdir(mode=0o700, exist_ok=True)
            self._dir = RunDir(options.run_dir)
        except OSError as error:
            raise CannotStart(
                f"{options.run_dir} can't be used: {error.strerror}; give a --run-dir that this user may write"
            ) from None
        self._lock = DirectoryLock(options.run_dir, SERVER_LOCK).acquire()
        self._holder = DurableFile(options.run_dir, HOLDER)
        boot_id = peers.boot_id()
        self._machine = Machine(
            e.Config(
                server_incarnation=self.incarnation,
                server_pid=os.getpid(),
                boot_id=boot_id,
                evidence={
                    peers.Evidence.PEER: "peer pidfd",
                    peers.Evidence.SENT: "sent pidfd",
                    peers.Evidence.NONE: "end-of-file only",
                }[self._evidence],
                window_s=options.window_s,
                settle_s=options.settle_s,
                memory_bound_s=options.memory_bound_s,
                prepare_timeout_s=options.prepare_timeout_s,
                presume_dead=options.presume_dead,
                grant_unproven=options.grant_unproven,
                reads_memory=reader is not None,
            )
        )
        self._epoll = select.epoll()
        self._feed(self._first_event())
        self._listen()
        self._watch_directory()
        self._wake_on_signals()

    # -- start and end ---------------------------------------------------------------------------------------------

    def _first_event(self) -> e.Started:
        floor = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
        try:
            data = self._holder.read()
            if data is not None:
                return e.Started(record.decode(data), token_floor=floor)
            # One that was kept aside by a server that then crashed is still the last word.
            aside = sorted(path.name for path in self.options.run_dir.glob(f"{HOLDER}.unreadable-*"))
            return e.Started(None, unreadable=f"kept aside as {aside[-1]}" if aside else "", token_floor=floor)
        except (record.UnreadableRecord, OSError) as error:
            kept = self._holder.set_aside()
            self.log.alarm("holder_file_unreadable", why=str(error), kept_as=str(kept))
            return e.Started(None, unreadable=str(error), token_floor=floor)

    def _listen(self) -> None:
        """The socket appears under its name only once it listens."""
        path = self.options.run_dir / SOCKET
        early = path.with_name(f".{SOCKET}.{os.getpid()}")
        early.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with address_of(early) as address:
            self._listener.bind(address)
        os.chmod(early, self.options.socket_mode)
        self._listener.listen(1024)
        self._listener.setblocking(False)
        os.rename(early, path)
        self._socket_inode = os.stat(path).st_ino
        self._add(self._listener.fileno(), self._on_connect)
        self.log.info(
            "ready",
            socket=path,
            pid=os.getpid(),
            state=self._machine.state,
            evidence=self._machine.config.evidence,
            memory=self._machine.config.reads_memory,
        )

    def _watch_directory(self) -> None:
        """Without polling: the kernel says when the socket or the directory loses its name."""
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if fd < 0:
            raise CannotStart(f"inotify: {os.strerror(ctypes.get_errno())}; raise fs.inotify.max_user_instances")
        for path in (self.options.run_dir, self.options.run_dir / SOCKET):
            libc.inotify_add_watch(fd, os.fsencode(path), _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF)

        def changed(_: int) -> None:
            os.read(fd, 65536)
            if self._replaced():
                self._feed(e.DirectoryReplaced(f"{self.options.run_dir} or its socket was replaced"))

        self._add(fd, changed)

    def _replaced(self) -> bool:
        try:
            moved = self._socket_inode and os.stat(self.options.run_dir / SOCKET).st_ino != self._socket_inode
            return bool(moved) or self._dir.replaced()
        except FileNotFoundError:
            return True

    def _wake_on_signals(self) -> None:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

        def told(_: int) -> None:
            self._stopping = signal.Signals(os.read(reading, 64)[0]).name

        self._add(reading, told)

    def run(self) -> str:
        """Serves until it is told to stop, or must; returns why."""
        machine, epoll, handlers = self._machine, self._epoll, self._handlers
        put_off = 0
        while not self._stopping:
            deadline = min(machine.deadline, next(iter(self._half.values()), float("inf")), self._deaf_until)
            chores = self._publish or bool(self._notes)
            if chores:
                ready = epoll.poll(0)
            elif deadline == float("inf"):
                ready = epoll.poll()
            else:
                ready = epoll.poll(max(deadline - time.monotonic(), 0.0))
            for fd, what in ready:
                handler = handlers.get(fd)
                if handler is not None:
                    handler(what)
            now = time.monotonic()
            if now >= machine.deadline:
                self._feed(e.Tick())
            if self._half:
                self._end_slow_senders(now)
            if now >= self._deaf_until:
                self._deaf_until = float("inf")
                self._add(self._listener.fileno(), self._on_connect)
            put_off = put_off + 1 if chores and ready else 0
            if chores and (not ready or put_off >= CHORES_PUT_OFF):
                self._publish_status()
                self._write_notes()
        self._close()
        return self._stopping

    def _write_notes(self) -> None:
        for note in self._notes:
            (self.log.alarm if note.alarm else self.log.info)(note.event, **note.detail)
        self._notes.clear()

    def _close(self) -> None:
        self._write_notes()
        if not self._replaced():
            (self.options.run_dir / SOCKET).unlink(missing_ok=True)
        self._listener.close()
        for connection in self._connections.values():
            connection.channel.close()
        self._lock.close()

    # -- the machine -----------------------------------------------------------------------------------------------

    def _feed(self, event: e.Event) -> None:
        """One event, and everything that its effects bring back."""
        pending = self._pending
        pending.append(event)
        if len(pending) > 1:
            return  # an effect of the event before brought this one; the loop below comes to it
        while pending:
            for effect in self._machine.handle(pending[0], e.Time(time.monotonic(), time.time())):
                _DO[type(effect)](self, effect)
            pending.popleft()

    def _do_send(self, effect: e.Send) -> None:
        connection = self._connections.get(effect.conn)
        if connection is None:
            return
        try:
            connection.channel.send(
                effect.message, [self._processes[p] for p in effect.processes if p in self._processes]
            )
        except (PeerTooSlow, OSError) as error:  # OSError: no descriptors left to keep what it doesn't read
            self.log.warning("peer_too_slow", why=error)
            self._drop(effect.conn, tell=True)
            return
        self._mind_writing(effect.conn, connection)

    def _do_close(self, effect: e.Close) -> None:
        self._drop(effect.conn, tell=False)

    def _do_watch_death(self, effect: e.WatchDeath) -> None:
        process = effect.process
        pidfd = self._processes[process]

        def dead(_: int) -> None:
            if not peers.is_dead(pidfd):
                return  # a late event of a connection that was closed in this round, whose number this pidfd has
            self._remove(pidfd)
            self._feed(e.Died(process))

        self._add(pidfd, dead)

    def _do_forget(self, effect: e.Forget) -> None:
        pidfd = self._processes.pop(effect.process, None)
        if pidfd is not None:
            self._remove(pidfd)
            os.close(pidfd)

    def _do_kill(self, effect: e.Kill) -> None:
        if peers.kill(self._processes[effect.process]) is peers.KillResult.OUT_OF_REACH:
            self._pending.append(e.OutOfReach(effect.process))

    def _do_probe_life(self, effect: e.ProbeLife) -> None:
        try:
            probe = self._probe(effect.tree)
        except OSError as error:
            self.log.warning("life_file_unreadable", tree=effect.tree, why=error)
            self._pending.append(e.LifeProbed(effect.tree, True))  # nothing is proven; it is asked again
            return
        self._pending.append(e.LifeProbed(effect.tree, None if probe is None else probe.locked()))

    def _do_probe_strangers(self, effect: e.ProbeStrangers) -> None:
        held: list[str] = []
        free: list[str] = []
        for name in sorted(os.listdir(self.options.run_dir / LIFE)):
            if name in effect.known or name.startswith("."):
                continue
            try:
                probe = LifeProbe.open(self.options.run_dir / LIFE, name)
            except OSError as error:
                self.log.warning("life_file_unreadable", tree=name, why=error)
                held.append(name)  # nothing is proven
                continue
            if probe is not None:
                with probe:
                    (held if probe.locked() else free).append(name)
        self._pending.append(e.StrangersProbed(tuple(held), tuple(free)))

    def _do_unlink(self, effect: e.Unlink) -> None:
        probe = self._probes.pop(effect.tree, None)
        if probe is not None:
            probe.close()
        (self.options.run_dir / LIFE / effect.tree).unlink(missing_ok=True)

    def _do_read_memory(self, effect: e.ReadMemory) -> None:
        assert self._reader is not None
        try:
            self._pending.append(e.MemoryRead(self._reader()))
        except Exception as error:  # a driver's reader may raise anything; that it can't be read is the answer
            self._pending.append(e.MemoryRead({}, problem=f"{type(error).__name__}: {error}"))

    def _do_persist(self, effect: e.Persist) -> None:
        if self._replaced():
            self._pending.append(e.DirectoryReplaced(f"{self.options.run_dir} or its socket was replaced"))
            return
        try:
            self._holder.write(record.encode(effect.record))
        except OSError as error:
            self._pending.append(e.PersistFailed(effect.seq, error.strerror or str(error)))
        else:
            self._pending.append(e.Persisted(effect.seq))

    def _do_publish(self, effect: e.Publish) -> None:
        self._publish = True

    def _do_note(self, effect: e.Note) -> None:
        self._notes.append(effect)  # written when nothing waits: a grant shouldn't wait for a line in the log

    def _do_stop(self, effect: e.Stop) -> None:
        self.log.alarm("stopping", why=effect.why)
        self._stopping = effect.why

    def _publish_status(self) -> None:
        """After everything urgent: whoever watches sees the last state of this round."""
        if not self._publish:
            return
        self._publish = False
        watchers = self._machine.desk.watchers()
        if not watchers and self._observe is None:
            return
        status = picture(self._machine)
        if self._observe is not None:
            self._observe(status)
        for conn in watchers:
            self._do_send(e.Send(conn, status))

    # -- connections -----------------------------------------------------------------------------------------------

    def _on_connect(self, _: int) -> None:
        for _turn in range(ACCEPTS_AT_A_TIME):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self.log.alarm("accept_failed", why=error)  # no descriptors left, say: those who are in are served on
                self._remove(self._listener.fileno())
                self._deaf_until = time.monotonic() + DEAF_S
                return
            self._next += 1
            connection = Connection(Channel(sock, m.from_client), sock)
            self._connections[self._next] = connection
            why = self._why_not(sock)
            if why:
                self.log.warning("turned_away", why=why)
                self._part(self._next, connection, why)
                continue
            conn = self._next
            self._add(sock.fileno(), lambda what, conn=conn: self._on_ready(conn, what))  # type: ignore[misc]

    def _why_not(self, sock: socket.socket) -> str:
        uid = peers.credentials(sock).uid
        if uid != os.getuid() and uid not in self.options.allow_uids:
            return f"user {uid} is not allowed here; the server runs as user {os.getuid()} (--allow-uid lets more in)"
        if len(self._connections) > MOST_CONNECTIONS:
            return f"there are {MOST_CONNECTIONS} connections already"
        return ""

    def _on_ready(self, conn: int, what: int) -> None:
        connection = self._connections.get(conn)
        if connection is None:
            return
        channel = connection.channel
        if what & select.EPOLLOUT:
            channel.flush()
            self._mind_writing(conn, connection)
        if not what & ~select.EPOLLOUT:
            return
        try:
            received = channel.receive()
        except BadFrame as error:
            self.log.warning("bad_frame", why=error)
            self._part(conn, connection, str(error))
            self._feed(e.Closed(conn))
            return
        for message, descriptors in received:
            if conn in self._connections:
                self._on_message(conn, connection.sock, message, descriptors)
            else:
                close_all(descriptors)
        if channel.eof:
            self._drop(conn, tell=True)
        elif channel.half_frame:
            self._half.setdefault(conn, time.monotonic() + HALF_FRAME_S)
        elif self._half:
            self._half.pop(conn, None)

    def _on_message(self, conn: int, sock: socket.socket, message: object, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, _INTRODUCTIONS):
            peer = self._who(conn, sock, descriptors, message.pid)
            if peer is None:
                return
            try:
                held = self._life_held(f"{message.engine_id}.{message.incarnation}", message.life)
            except OSError as error:
                self._forget((peer,))
                self._complain(conn, f"your life file can't be looked at: {error.strerror}")
                return
            self._feed(e.Received(conn, message, (peer,), held, secrets.token_hex(16)))
        elif isinstance(message, _WITH_PIDFDS):
            named: list[e.Peer] = []
            try:
                for fd in descriptors:
                    named.append(self._peer(fd, 0))
            except (peers.NotAPidfd, OSError) as error:
                self._forget(named)
                close_all(descriptors[len(named) :])
                self._complain(conn, str(error))
                return
            self._feed(e.Received(conn, message, tuple(named)))
        elif descriptors:
            close_all(descriptors)
            self._complain(conn, f"{type(message).__name__} takes no descriptors")
        else:
            self._feed(e.Received(conn, message))  # type: ignore[arg-type]

    def _who(self, conn: int, sock: socket.socket, descriptors: tuple[int, ...], said_pid: int) -> e.Peer | None:
        """The process that sent this: the kernel's word where it gives one, else the pidfd that it sent."""
        try:
            pidfd = peers.peer_pidfd(sock) if self._evidence is peers.Evidence.PEER else None
        except peers.PeerGone:
            close_all(descriptors)
            self._drop(conn, tell=True)
            return None
        except OSError as error:
            close_all(descriptors)
            self._complain(conn, f"no pidfd of yours can be had: {error.strerror}")
            return None
        if pidfd is not None:
            close_all(descriptors)
            try:
                return self._peer(pidfd, peers.credentials(sock).pid or said_pid)
            except OSError as error:
                os.close(pidfd)
                self._complain(conn, f"your pidfd can't be looked at: {error.strerror}")
                return None
        if self._evidence is peers.Evidence.NONE:
            close_all(descriptors)
            return e.Peer(None, "", peers.credentials(sock).pid or said_pid)
        if len(descriptors) != 1:
            close_all(descriptors)
            self._complain(
                conn, "this kernel does not name its peers: send a pidfd of your own process with this message"
            )
            return None
        credentials = peers.credentials(sock)
        try:
            pid = peers.pidfd_pid(descriptors[0])
        except (peers.NotAPidfd, OSError) as error:
            close_all(descriptors)
            self._complain(conn, str(error))
            return None
        if credentials.pid > 0 and pid > 0 and pid != credentials.pid:
            close_all(descriptors)
            self._complain(conn, f"the pidfd names process {pid}, and you are {credentials.pid}")
            return None
        return self._peer(descriptors[0], credentials.pid or said_pid)

    def _forget(self, named: Iterable[e.Peer]) -> None:
        for peer in named:
            if peer.process is not None:
                self._do_forget(e.Forget(peer.process))

    def _peer(self, pidfd: int, pid: int) -> e.Peer:
        found = peers.pidfd_pid(pidfd)
        inode = peers.pidfd_inode(pidfd) if self._pidfs else None
        self._next += 1
        self._processes[self._next] = pidfd
        return e.Peer(self._next, f"pidfs:{inode}" if inode is not None else "", pid or max(found, 0))

    def _life_held(self, name: str, inode: tuple[int, int]) -> bool:
        """The named file is in its place, is the one that the sender means, and somebody has a lock on it."""
        old = self._probes.pop(name, None)
        if old is not None:
            old.close()
        probe = self._probe(name)
        return probe is not None and probe.inode == inode and probe.locked()

    def _probe(self, name: str) -> LifeProbe | None:
        """The server's eye on a life file, kept open: a file that loses its name meanwhile is still asked."""
        probe = self._probes.get(name)
        if probe is None:
            probe = LifeProbe.open(self.options.run_dir / LIFE, name)
            if probe is not None:
                self._probes[name] = probe
        return probe

    def _complain(self, conn: int, why: str) -> None:
        connection = self._connections.get(conn)
        if connection is not None:
            self.log.warning("bad_message", why=why)
            self._part(conn, connection, why)
            self._feed(e.Closed(conn))

    def _part(self, conn: int, connection: Connection, why: str) -> None:
        """Says what was wrong, and closes. What the peer doesn't read at once it doesn't get."""
        with contextlib.suppress(PeerTooSlow):
            connection.channel.send(m.Problem(why=why))
        self._drop(conn, tell=False)

    def _drop(self, conn: int, *, tell: bool) -> None:
        connection = self._connections.pop(conn, None)
        self._half.pop(conn, None)
        if connection is None:
            return
        if tell:
            self._feed(e.Closed(conn))  # first what follows from it, then the tidying
        self._remove(connection.sock.fileno())
        connection.channel.close()

    def _mind_writing(self, conn: int, connection: Connection) -> None:
        wants = connection.channel.wants_write
        if wants is not connection.writing:
            connection.writing = wants
            self._epoll.modify(connection.sock.fileno(), _READ_WRITE if wants else select.EPOLLIN)

    def _end_slow_senders(self, now: float) -> None:
        for conn, until in list(self._half.items()):
            if now < until:
                return
            self._complain(conn, f"a frame was begun and not finished within {HALF_FRAME_S:g} s")

    def _add(self, fd: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _remove(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)


def _evidence(wish: str) -> tuple[peers.Evidence, bool]:
    """How ends are seen, and whether pidfds have inodes."""
    if wish == "auto":
        return peers.kernel_evidence(), True
    return {"peer": peers.Evidence.PEER, "sent": peers.Evidence.SENT, "none": peers.Evidence.NONE}[wish], False


_DO: dict[type, Callable[[Server, Any], None]] = {
    e.Send: Server._do_send,
    e.Close: Server._do_close,
    e.WatchDeath: Server._do_watch_death,
    e.Forget: Server._do_forget,
    e.Kill: Server._do_kill,
    e.ProbeLife: Server._do_probe_life,
    e.ProbeStrangers: Server._do_probe_strangers,
    e.Unlink: Server._do_unlink,
    e.ReadMemory: Server._do_read_memory,
    e.Persist: Server._do_persist,
    e.Publish: Server._do_publish,
    e.Note: Server._do_note,
    e.Stop: Server._do_stop,
}

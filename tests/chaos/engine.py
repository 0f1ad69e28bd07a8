"""The programs of the real-process suite: a fork server that forks warmed-up processes, an engine that does what a test
tells it, a contender.

    python -m tests.chaos.engine fork_server FD     forks engines, contenders and servers; the reaper of all of them
    python -m tests.chaos.engine engine FD      one engine's process, for children that are started by exec

Commands and events go as JSON, one to a packet, over a SEQPACKET socket; descriptors may travel with them. What a
test can ask for is every `do_...` below. The other end of the sockets is `house.py`. Everything here dies with the
fork server, which dies with the tests.
"""

import contextlib
import ctypes
import encodings.ascii
import fcntl
import itertools
import json
import mmap
import os
import platform
import random
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import lockserver.shell.server
import sidecar.http.metrics
from lockserver import __main__ as lockserver_main
from lockserver.client import LockClient, Membership, NotInTime, Refused, join
from lockserver.rules import messages as m
from lockserver.shell.rundir import LIFE, connect
from sidecar.kernel import peers
from sidecar.kernel.lifelock import LifeLock
from sidecar.wire.frames import Channel
from tests.support.processes import ROOT

PF_EXITING = 0x4  # in the flags of /proc/PID/stat
LIFETIME_S = 300
"""Nothing of this suite lives longer, whatever happens to the tests."""
PACKET_BYTES = 60_000
FIRST_PASSED = 10
"""The number of the first descriptor that a program gets from the fork server."""
FORKED = "forked"
_CLONE_NEWPID = 0x20000000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SYS_EXIT = {"x86_64": 60, "aarch64": 93}
_FLOCK = struct.Struct("hhqqi4x")
_libc = ctypes.CDLL(None, use_errno=True)
NEEDED_LATER = encodings.ascii, lockserver.shell.server, sidecar.http.metrics
"""What a fork imports late (the server's command loads its server only when it serves). Another user may not be able to
read this interpreter's library, and a fork that imports it for itself isn't warm."""


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next packet; None when the other end is gone."""
    data, fds, _, _ = socket.recv_fds(sock, PACKET_BYTES, 16, socket.MSG_CMSG_CLOEXEC)
    return (json.loads(data), list(fds)) if data else None


def send(sock: socket.socket, what: dict[str, Any], fds: list[int] | None = None) -> None:
    socket.send_fds(sock, [json.dumps(what).encode()], fds or [])


def die_with_the_fork_server() -> None:
    """Not `sidecar.kernel.process_setup`: what cleans up after the tests must not be what is tested."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.alarm(LIFETIME_S)


def lock_range(path: str, start: int, length: int) -> int:
    """A host device's memory: an open file description with a write lock on the range. Raises BlockingIOError when
    a process has it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    except BaseException:
        os.close(fd)
        raise
    return fd


# -- the fork server ---------------------------------------------------------------------------------------------------


class ForkServer:
    """One thread, everything imported: a fork of it is an engine in milliseconds. Its orphans come back to it, so it
    can end them all."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def run(self) -> None:
        while (packet := receive(self.sock)) is not None:
            request, fds = packet
            try:
                getattr(self, "do_" + request.pop("do"))(request, fds)
            except Exception:
                send(self.sock, {"failed": traceback.format_exc()})
            finally:
                for fd in fds:
                    os.close(fd)

    def _fork(self, request: dict[str, Any], function: Callable[[], object]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self.sock.close()
                os.setsid()
                die_with_the_fork_server()
                for name, limit in request.get("limits", {}).items():
                    resource.setrlimit(getattr(resource, name), (limit, limit))
                if "uid" in request:
                    os.setgroups([])
                    os.setresgid(request["uid"], request["uid"], request["uid"])
                    os.setresuid(request["uid"], request["uid"], request["uid"])
                    die_with_the_fork_server()  # a change of user takes it back
                function()
                os._exit(0)
            except SystemExit as end:
                os._exit(end.code if isinstance(end.code, int) else 1)
            except BaseException:
                traceback.print_exc()
                os._exit(99)
        pidfd = os.pidfd_open(pid)
        send(self.sock, {"pid": pid}, [pidfd])
        os.close(pidfd)

    def do_engine(self, request: dict[str, Any], fds: list[int]) -> None:
        self._fork(request, lambda: Engine(socket.socket(fileno=fds[0])).born().run())

    def do_container(self, request: dict[str, Any], fds: list[int]) -> None:
        """An engine that is PID 1 of a PID namespace; the process that is reported is one outside, which goes with
        it."""

        def outside() -> None:
            if _libc.unshare(_CLONE_NEWPID) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            inner = os.fork()
            if inner == 0:
                die_with_the_fork_server()
                Engine(socket.socket(fileno=fds[0])).born().run()
            os.close(fds[0])
            os.waitpid(inner, 0)

        self._fork(request, outside)

    def do_contender(self, request: dict[str, Any], fds: list[int]) -> None:
        self._fork(request, lambda: keep_alive(lambda: contend(fds[0], **request["contend"])))

    def do_server(self, request: dict[str, Any], fds: list[int]) -> None:
        """`python -m lockserver`, without the 0.2 s that an interpreter takes to start."""

        def run() -> None:
            os.dup2(fds[0], 2)
            sys.exit(lockserver_main.main(request["argv"]))

        self._fork(request, run)

    def do_exec(self, request: dict[str, Any], fds: list[int]) -> None:
        def run() -> None:
            os.dup2(fds[0], 2)
            for number, fd in enumerate(fds[1:], start=FIRST_PASSED):
                os.dup2(fd, number)
            os.execve(request["argv"][0], request["argv"], os.environ | request.get("env", {}))

        self._fork(request, run)

    def do_wait(self, request: dict[str, Any], fds: list[int]) -> None:
        _, status = os.waitpid(request["pid"], 0)
        send(self.sock, {"code": os.waitstatus_to_exitcode(status)})

    def do_clear(self, request: dict[str, Any], fds: list[int]) -> None:
        """Kills whatever the tests have started, also what lost its parent."""
        killed = 0
        while children := _children(os.getpid()):
            for pid in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)
                killed += 1
        send(self.sock, {"killed": killed})


def _children(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path("/proc", entry, "stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry))
    return found


# -- contenders --------------------------------------------------------------------------------------------------------


def keep_alive(function: Callable[[], object]) -> NoReturn:
    """Restarts it for ever, as a supervisor would."""
    while True:
        pid = os.fork()
        if pid == 0:
            try:
                die_with_the_fork_server()
                function()
            except BaseException:
                traceback.print_exc()
            os._exit(98)
        os.waitpid(pid, 0)


def contend(pipe: int, run_dir: str, engine_id: str, witness: str) -> None:
    """Registers, acquires, and takes the witness: the test's own lock, of which the server knows nothing. Holds until
    it is killed."""

    def say(what: str, **more: Any) -> None:
        os.write(pipe, json.dumps({"event": what, "engine": engine_id, "pid": os.getpid(), **more}).encode() + b"\n")

    def lost(why: str) -> None:
        say("lost", why=why)
        os._exit(70)

    client = LockClient(run_dir, engine_id, on_lost=lost)
    client.start()
    grant = client.acquire()
    alone = take_witness(witness, f"{grant.token} {engine_id} {os.getpid()}")
    say("holding" if alone else "TWO", token=grant.token)
    while True:
        signal.pause()


def _runs(pidfd: int) -> bool:
    """It may still run code of its own: it is neither dead nor past the point in its exit where nothing of it is."""
    pid = peers.pidfd_pid(pidfd)
    if pid <= 0:
        return False
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not int(fields[6]) & PF_EXITING


def take_witness(path: str, line: str) -> bool:
    """No other engine holds. One line to the log, under the lock; the lock is kept until this process ends."""
    try:
        fd = lock_range(path, 0, 1)
    except (BlockingIOError, PermissionError):
        return False
    high = fcntl.fcntl(
        fd, fcntl.F_DUPFD_CLOEXEC, 900
    )  # a dying process closes the highest first: this before its life lock
    os.close(fd)
    os.lseek(high, 0, os.SEEK_END)
    os.write(high, line.encode() + b"\n")
    return True


# -- one engine's process ----------------------------------------------------------------------------------------------


class Engine:
    """Does what it is told, in the order in which it is told. Only `acquire`, `permit` and `join` take place beside
    it, in a thread of their own."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.client: LockClient | None = None
        self.membership: Membership | None = None
        self.well = True
        self.check_hangs = False
        self.permit_over = threading.Event()
        self.raw: dict[str, Any] = {}
        self.kept: list[Any] = []
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def run(self) -> NoReturn:
        with contextlib.suppress(ConnectionError):
            while (packet := receive(self.sock)) is not None:
                self._do(*packet)
        os._exit(0)

    def born(self) -> "Engine":
        own = os.pidfd_open(os.getpid())
        send(self.sock, {"event": "born"}, [own])
        os.close(own)
        return self

    def _do(self, request: dict[str, Any], fds: list[int]) -> None:
        name = request.pop("do")
        try:
            reply = getattr(self, "do_" + name)(*([fds] if fds else []), **request)
            if reply is not FORKED:
                send(self.sock, {"did": name, **(reply or {})})
        except Exception as error:
            send(self.sock, {"failed": name, "type": type(error).__name__, "why": str(error)})

    def _say(self, event: str, **more: Any) -> None:
        send(self.sock, {"event": event, "at": time.monotonic(), **more})

    def _aside(self, name: str, function: Callable[[], dict[str, Any]]) -> None:
        def run() -> None:
            try:
                self._say(name, **function())
            except Refused as error:
                self._say("refused", why=str(error))
            except Exception as error:
                self._say("failed", what=name, type=type(error).__name__, why=str(error))

        threading.Thread(target=run, daemon=True).start()

    # the lock

    def do_start(
        self, run_dir: str, engine_id: str, on_lost: str = "report", timeout_s: float | None = 30.0
    ) -> dict[str, Any]:
        """`on_lost`: report it; or also end, or exit by sys.exit."""

        def lost(why: str) -> None:
            self._say("lost", why=why)
            if on_lost == "end":
                os._exit(70)
            if on_lost == "exit":
                sys.exit(71)

        def resume(why: str) -> None:
            self._say("resume", why=why)

        self.client = LockClient(
            run_dir,
            engine_id,
            check=self._check,
            on_lost=lost,
            on_drain=self._drain,
            on_resume=resume,
            on_exit=self._exit,
        ).start(timeout_s)
        return {"environment": self.client.environment(), "tree": self.client.name}

    def _check(self) -> bool:
        if self.check_hangs:
            threading.Event().wait()
        return self.well

    def _exit(self) -> None:
        self._say("exit")
        os._exit(0)

    def _drain(self, timeout_s: float) -> None:
        self._say("drain")

    @property
    def _client(self) -> LockClient:
        assert self.client is not None, "start first"
        return self.client

    def do_acquire(
        self,
        fds: list[int] | None = None,
        needs: dict[str, int] | None = None,
        witness: str = "",
        timeout_s: float | None = None,
    ) -> None:
        """Pidfds that come along are looked at in the moment of the grant: are they dead?"""

        def acquire() -> dict[str, Any]:
            grant = self._client.acquire(needs, timeout_s)
            dead = [peers.is_dead(fd) for fd in fds or []]
            runs = [_runs(fd) for fd in fds or []]
            alone = (
                take_witness(witness, f"{grant.token} {self._client.me.engine_id} {os.getpid()}") if witness else None
            )
            return {"token": grant.token, "dead": dead, "runs": runs, "alone": alone}

        self._aside("granted", acquire)

    def do_poll(self, seed: int, witness: str) -> None:
        """Asks again and again, each time for a moment only, until it holds."""
        draw = random.Random(seed)

        def poll() -> dict[str, Any]:
            for tries in itertools.count(1):
                with contextlib.suppress(NotInTime):
                    grant = self._client.acquire(timeout_s=draw.uniform(0.0, 0.004))
                    return {"token": grant.token, "tries": tries, "alone": take_witness(witness, f"{grant.token}")}
                time.sleep(draw.uniform(0.0, 0.01))  # and does something else in between
            raise AssertionError

        self._aside("granted", poll)

    def do_poll_anew(self, run_dir: str, engine_id: str, times: int) -> None:
        """Asks for a moment, each time with a client of its own."""
        for _ in range(times):
            client = LockClient(run_dir, engine_id).start(30.0)
            with contextlib.suppress(NotInTime):
                client.acquire(timeout_s=0.01)
            client.close()

    def do_acquire_interrupted(self, times: int, witness: str = "") -> dict[str, Any]:
        """In the main thread, with signals at random moments whose handler raises; each time it tries again."""
        chance, interrupted = random.Random(times), 0

        class Interrupted(Exception):
            pass

        def handler(*_: object) -> None:
            raise Interrupted

        signal.signal(signal.SIGUSR1, handler)
        for _ in range(times):
            blow = threading.Timer(chance.uniform(0.0, 0.003), os.kill, (os.getpid(), signal.SIGUSR1))
            try:
                blow.start()
                self._client.acquire(timeout_s=30.0)
            except Interrupted:
                interrupted += 1
            finally:
                with contextlib.suppress(Interrupted):
                    blow.join()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        grant = self._client.acquire(timeout_s=30.0)
        return {"token": grant.token, "interrupted": interrupted, "alone": take_witness(witness, f"{grant.token}")}

    def do_chdir(self, path: str) -> None:
        os.chdir(path)

    def do_close_everything(self) -> None:
        """As a daemon does: all descriptors but the one by which we are told what to do."""
        ours = self.sock.fileno()
        os.closerange(3, ours)
        os.closerange(ours + 1, 4096)

    def do_fill_stderr(self) -> None:
        """It is a pipe from now on, that takes nothing any more and isn't read."""
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writes, bytes(4096))
        os.set_blocking(writes, True)
        os.dup2(writes, 2)
        self.kept += [reads, writes]

    def do_raise_in_client(self) -> None:
        """Something happens in its thread that it doesn't expect."""
        self._client.tell(None)

    def do_execute_anew(self) -> str:
        """The same process, another program, which is born again."""
        os.set_inheritable(self.sock.fileno(), True)
        words = [sys.executable, "-m", "tests.chaos.engine", "engine", str(self.sock.fileno())]
        os.chdir(ROOT)
        os.execv(sys.executable, words)

    def do_join_again(self, run_dir: str, tree: str) -> dict[str, Any]:
        """This process has joined already."""
        return {"same": join(run_dir, tree) is self.membership}

    def do_permit(self) -> None:
        def hold() -> dict[str, Any]:
            with self._client.permit() as grant:
                self._say("permit", token=grant.token)
                self.permit_over.wait()
            return {}

        self.permit_over.clear()
        self._aside("permit_over", hold)

    def do_end_permit(self) -> None:
        self.permit_over.set()

    def do_serving(self, url: str) -> None:
        self._client.serving(url)

    def do_serving_refused(self, url: str) -> dict[str, Any]:
        try:
            self._client.serving(url)
        except ValueError as error:
            return {"why": str(error)}
        return {"why": "it was taken"}

    def do_ready(self, ready: bool, needs: dict[str, int] | None = None) -> None:
        self._client.ready(ready, needs)

    def do_set(self, **settings: Any) -> None:
        """`well`: what `check` answers; or `check_hangs`."""
        for name, value in settings.items():
            setattr(self, name, value)

    def do_join(self, run_dir: str, tree: str, timeout_s: float | None = None, on_lost: str = "report") -> None:
        def lost(why: str) -> None:
            self._say("lost", why=why)
            if on_lost == "end":
                os._exit(70)

        def enter() -> dict[str, Any]:
            self.membership = join(run_dir, tree, on_lost=lost, timeout_s=timeout_s)
            return {}

        self._aside("joined", enter)

    def do_link(self) -> dict[str, Any]:
        """To which server is this process connected?"""
        session = self.membership or self._client
        standing = session._standing
        return {"server": standing.server_incarnation if standing.link.name == "IN" else "", "warned": standing.warned}

    def do_vouch_for(self, pid: int) -> None:
        self._client.vouch_for(pid, 30.0)

    def do_knock(self, run_dir: str) -> dict[str, Any]:
        """Looks at the lock as any process might; returns what came of it."""
        try:
            channel = Channel(connect(Path(run_dir)), m.from_server)
        except OSError as error:
            return {"says": type(error).__name__, "why": str(error)}
        channel.send(m.Observe(protocol=m.PROTOCOL))
        channel.send(m.AskStatus())
        received: list[Any] = []
        while not received and not channel.eof:
            select.select([channel.fileno()], [], [])
            received = channel.receive()
        channel.close()
        message = received[0].message if received else None
        return {"says": type(message).__name__, "why": getattr(message, "why", "")}

    def do_pretend(self, run_dir: str, tree: str, token: int) -> dict[str, Any]:
        """Says that it is the main process of that tree, with its life lock and its token."""
        engine_id, _, incarnation = tree.rpartition(".")
        life = LifeLock.join(Path(run_dir) / LIFE, tree)
        channel = Channel(connect(Path(run_dir)), m.from_server)
        claims: dict[m.LockName, int] = {"active": token}
        own = peers.own_pidfd()
        channel.send(
            m.Register(
                protocol=m.PROTOCOL,
                engine_id=engine_id,
                incarnation=incarnation,
                life=life.inode,
                pid=os.getpid(),
                claims=claims,
            ),
            [own],
        )
        os.close(own)
        received: list[Any] = []
        while not received and not channel.eof:
            select.select([channel.fileno()], [], [])
            received = channel.receive()
        channel.close()
        life.close()
        message = received[0].message if received else None
        return {"says": type(message).__name__, "why": getattr(message, "why", "")}

    # without the client: what a process may do that isn't written as it should be

    def do_raw_start(self, run_dir: str, engine_id: str, high: int = 0) -> dict[str, Any]:
        """Registers and acquires by hand, so that socket and life lock can be let go one by one. `high`: the life
        lock's descriptor."""
        incarnation = os.urandom(8).hex()
        life = LifeLock.create(Path(run_dir) / LIFE, f"{engine_id}.{incarnation}")
        if high:
            os.dup2(life.fd, high, inheritable=False)
            os.close(life.fd)
            life.fd = high
        sock = connect(Path(run_dir))
        channel = Channel(sock, m.from_server)
        pid, pidfd = os.getpid(), peers.own_pidfd()
        channel.send(
            m.Register(protocol=m.PROTOCOL, engine_id=engine_id, incarnation=incarnation, life=life.inode, pid=pid),
            [pidfd],
        )
        os.close(pidfd)
        channel.send(m.Acquire())
        self.raw = {"life": life, "socket": channel}
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        while True:
            poll.poll()
            for message, fds in channel.receive():
                for fd in fds:
                    os.close(fd)
                if isinstance(message, m.Granted):
                    return {"token": message.token, "tree": f"{engine_id}.{incarnation}"}
                if isinstance(message, m.Prepare):
                    channel.send(m.Prepared(round=message.round, ok=True))
            assert not channel.eof

    def do_raw_close(self, part: str) -> None:
        """Lets go of `life` or `socket`, and lives on."""
        self.raw.pop(part).close()

    # children, memory, ends

    def do_fork(self, fds: list[int], keep: bool = True) -> dict[str, Any]:
        """A child by fork: it has every descriptor of ours unless `keep` is false, but for the one by which we are
        told what to do."""
        pid = os.fork()
        if pid:
            os.close(fds[0])
            return {"pid": pid}
        self._become(fds[0], keep)

    def _become(self, fd: int, keep: bool) -> NoReturn:
        """The child goes on as an engine's process with a socket of its own."""
        signal.alarm(LIFETIME_S)
        with contextlib.suppress(OSError):
            os.close(self.sock.detach())
        if not keep:
            os.dup2(fd, 3)
            fd = 3
            os.closerange(4, 4096)
        Engine(socket.socket(fileno=fd)).born().run()

    def do_exec(self, fds: list[int], environment: dict[str, str]) -> dict[str, Any]:
        """A child as `subprocess` and multiprocessing's `spawn` make it: it has none of our descriptors."""
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.engine", "engine", str(fds[0])],
            pass_fds=fds[:1],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )
        os.close(fds[0])
        self.kept.append(child)
        return {"pid": child.pid}

    def do_hold(self, size: int) -> None:
        """Memory, touched."""
        fd = os.memfd_create("held")
        os.ftruncate(fd, size)
        area = mmap.mmap(fd, size)
        for at in range(0, size, mmap.PAGESIZE):
            area[at] = 1
        self.kept.append((fd, area))

    def do_allocate(self, path: str, start: int, length: int) -> None:
        """A range of a host device; the other end gets the descriptor too, as a process to which it was exported."""
        fd = lock_range(path, start, length)
        self.kept.append(fd)
        send(self.sock, {"event": "memory"}, [fd])

    def do_had_lives(self, directory: str, count: int, show: bool) -> dict[str, Any]:
        """As if its life file had lost its name so often. A program that never joined has the lock of the oldest.
        `show`: all of them are shown to the server, the oldest last.
        """
        place, session = Path(directory), self._client
        place.mkdir()
        lives = [LifeLock.create(place, f"life.{number}") for number in range(count)]
        held = subprocess.Popen(["/bin/sleep", str(LIFETIME_S)], pass_fds=[lives[0].fd])
        self.kept.append((held, lives))
        session._old_lives[:0] = lives
        for first in range(count - 200, -200, -200) if show else ():
            part = lives[max(first, 0) : first + 200]
            assert session.connection.say(m.OldLives(incarnation=session.name), [life.fd for life in reversed(part)])
        return {"pid": held.pid}

    def do_start_program(self) -> dict[str, Any]:
        """By exec alone: it inherits whatever isn't close-on-exec."""
        pid = os.posix_spawn("/bin/sleep", ["sleep", str(LIFETIME_S)], {})
        return {"pid": pid}

    def do_let_go(self, of: str) -> None:
        """Closes every descriptor of that kind, and unmaps the file, behind the back of its user."""
        for line in Path("/proc/self/maps").read_text().splitlines():
            if of in line:
                first, last = (int(end, 16) for end in line.split()[0].split("-"))
                assert _libc.munmap(ctypes.c_void_p(first), ctypes.c_size_t(last - first)) == 0
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if of in os.readlink(f"/proc/self/fd/{entry}"):
                    os.close(int(entry))

    def do_use_up_descriptors(self) -> None:
        """As a busy front end does: whatever becomes free is taken by the next request, until `do_free_descriptors`."""
        full = threading.Event()

        def take() -> None:
            taken: list[int] = []
            while not self.enough.wait(0.001):
                try:
                    while True:
                        taken.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    full.set()
            for fd in taken:
                os.close(fd)

        self.enough = threading.Event()
        threading.Thread(target=take).start()
        full.wait()

    def do_free_descriptors(self) -> None:
        self.enough.set()

    def do_end_main_thread(self) -> str:
        """The main thread ends as by pthread_exit; another goes on with the commands. /proc shows a zombie."""
        threading.Thread(target=self._go_on).start()
        _libc.syscall(_SYS_EXIT[platform.machine()], 0)
        return FORKED

    def _go_on(self) -> None:
        task = Path(f"/proc/self/task/{os.getpid()}/stat")
        while task.read_text().rpartition(")")[2].split()[0] != "Z":
            os.sched_yield()
        send(self.sock, {"did": "end_main_thread"})
        self.run()

    def do_ping(self) -> None:
        """It is there, and not stopped."""


def main() -> None:
    role, fd = sys.argv[1], int(sys.argv[2])
    sock = socket.socket(fileno=fd)
    if role == "fork_server":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        ForkServer(sock).run()
    else:
        signal.alarm(
            LIFETIME_S
        )  # and outlives its parent: what a spawned child of a killed parent does is what is tested
        Engine(sock).born().run()


if __name__ == "__main__":
    main()

"""One process of a script on the real kernel: it obeys its control socket, one command at a time.

Run as a program, by file name, with nothing but the standard library, so that an exec'ed child is ready in
milliseconds. A command is a JSON list [verb, arguments...], the answer a string; descriptors have names, as in the
scripts. The controller is linux_world.py, and what the verbs mean is listed in scripts.py.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

F_OFD_GETLK, F_OFD_SETLK = 36, 37
SO_PEERPIDFD = 77
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_VM, CLONE_NEWNS, CLONE_NEWPID = 0x100, 0x20000, 0x20000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MADV_DONTFORK = 10
MNT_DETACH = 2
CAPABILITY_VERSION_3 = 0x20080522
RENAME_EXCHANGE = 2
SYS_EXIT = 60 if os.uname().machine == "x86_64" else 93
SYS_IO_URING_SETUP, SYS_IO_URING_REGISTER, IORING_REGISTER_FILES = 425, 427, 2
UNIT = 4096
CONTROL_FD_MIN = 200  # out of the way: the descriptors of the scripts begin at 3
DEADLINE_S = 5.0
LOCKS = {"read": fcntl.F_RDLCK, "write": fcntl.F_WRLCK, "none": fcntl.F_UNLCK}

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def ofd_lock(fd: int, command: int, kind: str, start: int, length: int) -> bytes:
    answer: bytes = fcntl.fcntl(fd, command, struct.pack("hhqqi4x", LOCKS[kind], os.SEEK_SET, start, length, 0))
    return answer


def is_locked(fd: int, kind: str, start: int, length: int) -> bool:
    held: int = struct.unpack("hhqqi4x", ofd_lock(fd, F_OFD_GETLK, kind, start, length))[0]
    return held != fcntl.F_UNLCK


def free_units(device: str) -> int:
    """What is free on a device: a sparse file, on which every unit in use is locked by an open file description."""
    fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        units = os.fstat(fd).st_size // UNIT
        return sum(not is_locked(fd, "write", unit * UNIT, UNIT) for unit in range(units))
    finally:
        os.close(fd)


def readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def map_memory(length: int, flags: int, fd: int) -> int:
    address: int = libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        check(-1)
    return address


def new_ring() -> int:
    return check(libc.syscall(SYS_IO_URING_SETUP, 8, ctypes.create_string_buffer(120)))


class Actor:
    def __init__(self, control: int, names: dict[str, int]) -> None:
        self.control = self._move_away(control)
        self.names = names
        self.maps: dict[str, int] = {}

    @staticmethod
    def _move_away(control: int) -> socket.socket:
        high = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, CONTROL_FD_MIN)
        os.close(control)
        return socket.socket(fileno=high)

    def say_hello(self) -> None:
        pidfd = os.pidfd_open(os.getpid())
        socket.send_fds(self.control, [str(os.getpid()).encode()], [pidfd])
        os.close(pidfd)

    def obey(self) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self.control, 65536, 2)
            if not data:
                os._exit(0)
            verb, *arguments = json.loads(data)
            try:
                answer = self._do(verb, arguments, descriptors)
            except OSError as failed:
                answer = errno.errorcode[failed.errno or 0]
            except KeyError:  # an older kernel has not given what the name was to stand for
                answer = "EBADF"
            self.control.send(answer.encode())

    def _do(self, verb: str, arguments: list[str], descriptors: list[int]) -> str:
        if descriptors:
            (control,) = descriptors
            return self._new_process(verb, arguments, control)
        action: Callable[..., str | None] = getattr(self, "do_" + verb)
        return action(*arguments) or "ok"

    # Processes

    def _new_process(self, verb: str, arguments: list[str], control: int) -> str:
        if verb == "fork":
            return self._fork(control)
        if verb == "fork_again":  # with the pid of a dead process: within a container no other process takes it
            with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as last_pid:
                last_pid.write(str(int(arguments[0]) - 1))
            return self._fork(control)
        if verb == "spawn":
            return self._spawn(control, arguments)
        if verb == "container":
            return self._container(control)
        raise ValueError(verb)

    def _fork(self, control: int) -> str:
        pid = os.fork()
        if pid == 0:
            self._become(control)
        os.close(control)
        return "ok"

    def _become(self, control: int) -> None:
        """In a forked child: everything as it was in the parent, but for who commands."""
        self.control.close()
        self.control = self._move_away(control)
        self.say_hello()
        self.obey()

    def _spawn(self, control: int, inherited: list[str]) -> str:
        if os.fork() == 0:
            kept = {name: self.names[name] for name in inherited}
            for fd in (control, *kept.values()):
                os.set_inheritable(fd, True)
            arguments = [__file__, str(control), json.dumps(kept)]
            os.execv(sys.executable, [sys.executable, "-I", "-S", *arguments])
        os.close(control)
        return "ok"

    def _container(self, control: int) -> str:
        between = os.fork()
        if between == 0:
            check(libc.unshare(CLONE_NEWPID | CLONE_NEWNS))
            if os.fork() == 0:
                # As in every container: what fdinfo says of a pidfd depends on whose /proc it is read in
                check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
                check(libc.mount(b"proc", b"/proc", b"proc", 0, None))
                self._become(control)
            os._exit(0)
        os.close(control)
        os.waitpid(between, 0)
        return "ok"

    def do_execute(self, *inherited: str) -> None:
        """The new program says hello, and obeys."""
        kept = {name: self.names[name] for name in inherited}
        control = self.control.detach()
        for fd in (control, *kept.values()):
            os.set_inheritable(fd, True)
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, str(control), json.dumps(kept)])

    def do_obey_modes(self) -> None:
        """Without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH a closed directory is closed for root, too."""
        header, data = struct.pack("Ii", CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
        check(libc.capget(header, data))
        words = list(struct.unpack("6I", data.raw))
        words[0] &= ~0b110
        check(libc.capset(header, struct.pack("6I", *words)))

    def do_subreaper(self) -> None:
        """Orphans below this process become its children, and stay zombies until it reaps them."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1))

    def do_sweep(self) -> None:
        """Orphans below this process are reaped by the kernel."""
        check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1))
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def do_clone_vm(self) -> str:
        """The child only ever pauses, on a stack of its own."""
        size = 1 << 16
        stack = map_memory(size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        pause = ctypes.cast(libc.pause, ctypes.c_void_p)
        pid = check(libc.clone(pause, ctypes.c_void_p(stack + size), CLONE_VM | signal.SIGCHLD, None))
        pidfd = os.pidfd_open(pid)
        socket.send_fds(self.control, [str(pid).encode()], [pidfd])
        os.close(pidfd)
        return "ok"

    def do_end_leader(self) -> None:
        if threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._go_on_without_leader).start()
            libc.syscall(SYS_EXIT, 0)

    def _go_on_without_leader(self) -> None:
        self.control.send(b"ok")
        self.obey()

    def do_die_with_parent(self) -> None:
        check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))

    def do_parent(self) -> str:
        return str(os.getppid())

    def do_reap(self, pid: str) -> None:
        if os.waitpid(int(pid), os.WNOHANG)[0] == 0:
            raise OSError(errno.EAGAIN, "it lives")

    # Descriptors and files

    def do_close(self, name: str) -> None:
        os.close(self.names.pop(name))

    def do_dup(self, name: str, new: str) -> None:
        self.names[new] = fcntl.fcntl(self.names[name], fcntl.F_DUPFD_CLOEXEC, 3)

    def do_readable(self, name: str) -> str:
        return "yes" if readable(self.names[name]) else "no"

    def do_open(self, name: str, path: str, *how: str) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC
        flags |= os.O_CREAT if "create" in how else 0
        flags |= os.O_EXCL if "exclusive" in how else 0
        self.names[name] = os.open(path, flags, 0o600)

    def do_unlink(self, path: str) -> None:
        os.unlink(path)

    def do_rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def do_stat(self, path: str) -> str:
        return str(os.stat(path).st_ino)

    def do_fstat(self, name: str) -> str:
        return str(os.fstat(self.names[name]).st_ino)

    def do_directory(self, name: str, path: str) -> None:
        self.names[name] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _inside(self, directory: str, path: str) -> str:
        return f"/proc/self/fd/{self.names[directory]}/{path}"

    def do_open_at(self, name: str, directory: str, path: str, *how: str) -> None:
        self.do_open(name, self._inside(directory, path), *how)

    def do_stat_at(self, directory: str, path: str) -> str:
        return self.do_stat(self._inside(directory, path))

    def do_connect_at(self, name: str, directory: str, path: str) -> None:
        self.do_connect(name, self._inside(directory, path))

    def do_exchange(self, one: str, other: str) -> None:
        check(libc.renameat2(-100, one.encode(), -100, other.encode(), RENAME_EXCHANGE))

    def do_real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def do_list(self, path: str) -> str:
        return " ".join(sorted(os.listdir(path))) or "empty"

    def do_read(self, path: str) -> str:
        with open(path, encoding="utf-8") as file:
            return file.read()

    def do_write(self, path: str, text: str) -> None:
        """Durable: a spare, fsync, the two change names, fsync of the directory."""
        spare = path + ".spare"
        with open(spare, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            self.do_exchange(spare, path)
        except FileNotFoundError:
            os.rename(spare, path)
        directory = os.open(os.path.dirname(path), os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        with open(spare, "a", encoding="utf-8"):
            return  # there is one for the next time

    def do_run_out_of_disk(self) -> None:
        """A limit on this process, since a really full disk takes root: writing fails with EFBIG."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    def do_lock(self, name: str, kind: str, start: str, length: str) -> None:
        ofd_lock(self.names[name], F_OFD_SETLK, kind, int(start), int(length))

    def do_probe(self, name: str, kind: str, start: str, length: str) -> str:
        return "held" if is_locked(self.names[name], kind, int(start), int(length)) else "free"

    def do_flock(self, name: str) -> None:
        fcntl.flock(self.names[name], fcntl.LOCK_EX | fcntl.LOCK_NB)

    # Memory

    def do_map(self, new: str, name: str, *how: str) -> None:
        self.maps[new] = map_memory(UNIT, mmap.MAP_SHARED, self.names[name])
        if "dont_fork" in how:
            check(libc.madvise(self.maps[new], UNIT, MADV_DONTFORK))

    def do_unmap(self, name: str) -> None:
        check(libc.munmap(self.maps.pop(name), UNIT))

    def do_allocate(self, name: str, device: str, units: str) -> None:
        fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        wanted = int(units)
        for unit in range(os.fstat(fd).st_size // UNIT):
            if not wanted:
                break
            try:
                ofd_lock(fd, F_OFD_SETLK, "write", unit * UNIT, UNIT)
                wanted -= 1
            except BlockingIOError:
                continue
        if wanted:
            os.close(fd)
            raise OSError(errno.ENOMEM, "the device is full")
        self.names[name] = fd

    def do_free(self, device: str) -> str:
        return str(free_units(device))

    def do_ballast(self, mebibytes: str) -> None:
        """Private memory, which makes the death of this process slow."""
        map_memory(int(mebibytes) << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE, -1)

    def do_ballast_file(self, name: str, mebibytes: str) -> None:
        """A descriptor that takes long to release."""
        self.names[name] = os.memfd_create("ballast")
        os.posix_fallocate(self.names[name], 0, int(mebibytes) << 20)

    def do_pin(self, name: str) -> None:
        ring = new_ring()
        files = (ctypes.c_int * 1)(self.names[name])
        check(libc.syscall(SYS_IO_URING_REGISTER, ring, IORING_REGISTER_FILES, files, 1))
        fcntl.fcntl(ring, fcntl.F_DUPFD_CLOEXEC, CONTROL_FD_MIN)
        os.close(ring)

    # Sockets

    def do_listen(self, name: str, path: str) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(128)
        listener.setblocking(False)
        self.names[name] = listener.detach()

    def do_connect(self, name: str, path: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        connection.setblocking(False)
        self.names[name] = connection.detach()

    def do_listen_abstract(self, name: str, abstract: str) -> None:
        self.do_listen(name, f"\0{abstract}")

    def do_connect_abstract(self, name: str, abstract: str) -> None:
        self.do_connect(name, f"\0{abstract}")

    def do_accept(self, name: str, listener: str) -> str:
        with self._socket(listener) as borrowed:
            try:
                accepted, _ = borrowed.accept()
            except BlockingIOError:
                return "none"
            accepted.setblocking(False)
            self.names[name] = accepted.detach()
        return "ok"

    def do_send(self, name: str, text: str, *passed: str) -> None:
        """A line of text, with the number of descriptors that belong to it: the kernel may cut the stream elsewhere."""
        with self._socket(name) as borrowed:
            line = f"{text} {len(passed)}\n".encode()
            socket.send_fds(borrowed, [line], [self.names[each] for each in passed], socket.MSG_NOSIGNAL)

    def do_receive(self, name: str, *names: str) -> str:
        ended, stream, passed = False, b"", list[int]()
        with self._socket(name) as borrowed:
            while not ended:
                try:
                    data, descriptors, _, _ = socket.recv_fds(borrowed, 65536, 64, socket.MSG_CMSG_CLOEXEC)
                except BlockingIOError:
                    break
                except ConnectionResetError:  # it closed without having read what we sent: an end, like any other
                    data, descriptors = b"", []
                ended = not data
                stream += data
                passed += descriptors
        seen, new_names = [], list(names)
        for line in stream.splitlines():
            text, count = line.decode().rsplit(" ", 1)
            seen.append(f"{text}+{count}" if count != "0" else text)
            for _ in range(int(count)):
                if new_names:
                    self.names[new_names.pop(0)] = passed.pop(0)
                else:
                    os.close(passed.pop(0))
        return " ".join([*seen, "end" if ended else "open"])

    def _socket(self, name: str) -> "BorrowedSocket":
        return BorrowedSocket(self.names[name])

    # Pidfds

    def do_pidfd(self, name: str, pid: str) -> None:
        self.names[name] = os.pidfd_open(int(pid))

    def do_peer(self, name: str, connection: str) -> None:
        with self._socket(connection) as borrowed:
            self.names[name] = struct.unpack("i", borrowed.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0]

    def do_peer_pid(self, connection: str) -> str:
        with self._socket(connection) as borrowed:
            return str(struct.unpack("3i", borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    def do_dead(self, name: str) -> str:
        return "dead" if readable(self.names[name]) else "alive"

    def do_inode(self, name: str) -> str:
        return str(os.fstat(self.names[name]).st_ino)

    def do_pidfd_pid(self, name: str) -> str:
        with open(f"/proc/thread-self/fdinfo/{self.names[name]}", encoding="ascii") as lines:
            return next(line.split()[1] for line in lines if line.startswith("Pid:"))

    def do_pidfd_kill(self, name: str) -> None:
        signal.pidfd_send_signal(self.names[name], signal.SIGKILL)

    def do_watch_death(self, pidfd: str, connection: str, probe: str, device: str) -> str:
        """Kills, and looks at everything in turns. For each: when it was last as before, when first seen changed."""
        questions: dict[str, Callable[[], bool]] = {"dead": lambda: readable(self.names[pidfd])}
        if connection != "-":
            questions["end"] = lambda: readable(self.names[connection])
        if probe != "-":
            questions["unlocked"] = lambda: not is_locked(self.names[probe], "write", 0, 1)
        if device != "-":
            before = free_units(device)
            questions["freed"] = lambda: free_units(device) > before
        unchanged = dict.fromkeys(questions, time.monotonic_ns())
        changed: dict[str, int] = {}
        signal.pidfd_send_signal(self.names[pidfd], signal.SIGKILL)
        deadline = time.monotonic() + DEADLINE_S
        while len(changed) < len(questions) and time.monotonic() < deadline:
            for event, happened in questions.items():
                if event not in changed:
                    asked = time.monotonic_ns()
                    if happened():
                        changed[event] = time.monotonic_ns()
                    else:
                        unchanged[event] = asked
        return json.dumps({event: [unchanged[event], changed[event]] for event in changed})


class BorrowedSocket:
    """A socket object around a descriptor that it does not own."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.detach()


if __name__ == "__main__":
    actor = Actor(int(sys.argv[1]), json.loads(sys.argv[2]))
    actor.say_hello()
    actor.obey()

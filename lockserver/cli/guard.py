"""The guard of a held command: its parent, which sees to it that nothing of it stays behind.

It adopts every orphan below it. When the command has ended, or the holder of the lock has, it kills its children until
there are none, also those that were another process's before. It holds the life lock by inheritance, and isn't known to
the lock server, which would kill it before it is done: so the lock waits for it, and with it for everything that can't
be killed (another user's process, a process that is stuck in the kernel).

This is code in the fork of a process with threads: it takes no lock of theirs, loads nothing, and logs nothing.
"""

import errno
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sidecar.kernel import process_setup, process_tree
from sidecar.kernel.lifelock import LifeLock, LifeLockError
from sidecar.terminal.exit_codes import EX_CANT_RUN, EX_LOST

READY = "ready"
"""What the command says before its go. Anything else begins with an exit code, and says why it can't be run; and at the
end of file it runs.
"""
ENDED = "ended "
"""What the guard says last, with the command's exit code."""
TOKEN_VARIABLE = "FAILOVER_TOKEN"
NAME = "lockctl-guard"
"""As ps shows it, and `lockctl doctor` knows it."""
_PARENT_DIED = signal.SIGTERM


@dataclass(frozen=True)
class Command:
    program: str
    words: list[str]
    environment: dict[str, str]
    """What is added to this process's own."""
    life_directory: Path
    life: str
    mask: Iterable[int]
    """Signals that it is to have blocked."""


@dataclass(frozen=True)
class Pipes:
    """Ends of pipes to the holder of the lock."""

    go: int
    """The command reads the token from it, and then runs."""
    of_command: int
    of_guard: int


def be_the_guard(parent: int, command: Command, pipes: Pipes, keep: list[int]) -> NoReturn:
    """Doesn't return. `keep`: descriptors that stay open in the guard; all others of the parent's are closed."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        process_setup.adopt_orphans()
        process_setup.signal_when_parent_dies(_PARENT_DIED)
        process_setup.call_itself(NAME)
        _close_all_but({0, 1, 2, pipes.go, pipes.of_command, pipes.of_guard, *keep})
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            _be_the_command(guard, command, pipes)
        os.close(pipes.go)
        os.close(pipes.of_command)
        os.write(pipes.of_guard, f"{pid}\n".encode())
        code = _watch(pid, parent)
        kill_all_children()
        for descriptor in keep:  # nothing is left, and to end takes this process some milliseconds
            os.close(descriptor)
        os.write(pipes.of_guard, f"{ENDED}{code}\n".encode())
        os._exit(0)
    finally:
        os._exit(1)


def _watch(pid: int, parent: int) -> int:
    """Until the command has ended. Returns its exit code."""
    while True:
        if os.getppid() != parent:
            os.kill(pid, signal.SIGKILL)
        ended, left = process_tree.collect()
        if pid in ended or not left:
            return ended.get(pid, -signal.SIGKILL)
        signal.sigwaitinfo({signal.SIGCHLD, _PARENT_DIED})


def kill_all_children() -> None:
    """Until there are none. Their own children become this process's when they die."""
    while process_tree.collect()[1]:
        for pid in process_tree.children(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # it has ended; or it is another user's, and the lock waits for it
        time.sleep(0.001)


def _close_all_but(keep: set[int]) -> None:
    first = 0
    for fd in sorted(keep):
        if first < fd:  # an empty range closes everything (CPython 3.11)
            os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _be_the_command(guard: int, command: Command, pipes: Pipes) -> NoReturn:
    try:
        process_setup.die_with_parent(guard)  # that it writes no core dump it has from this process
        life = LifeLock.join(command.life_directory, command.life)
        os.set_inheritable(life.fd, True)
        environment = {**os.environb, **{os.fsencode(n): os.fsencode(v) for n, v in command.environment.items()}}
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, not by lockctl's parent
            signal.signal(ignored, signal.SIG_DFL)
        os.write(pipes.of_command, f"{READY}\n".encode())
        if token := os.read(pipes.go, 64).strip():
            environment[TOKEN_VARIABLE.encode()] = token
            signal.pthread_sigmask(signal.SIG_SETMASK, command.mask)
            _exec(command, environment)
    except LifeLockError as error:
        os.write(pipes.of_command, f"{EX_LOST} {error}\n".encode())
    except OSError as error:
        why = "the interpreter that it names isn't there" if error.errno == errno.ENOENT else error.strerror
        os.write(pipes.of_command, f"{EX_CANT_RUN} {command.program}: {why}\n".encode())
    finally:
        os._exit(EX_CANT_RUN)


def _exec(command: Command, environment: dict[bytes, bytes]) -> NoReturn:
    try:
        os.execve(command.program, command.words, environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without #!, as execvp does it.
    os.execve("/bin/sh", ["/bin/sh", command.program, *command.words[1:]], environment)

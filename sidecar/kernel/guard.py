"""The guard of a held command: its parent, which sees to it that nothing of it stays behind.

It adopts every orphan below it. When the command has ended, or the holder of the lock or lease has, it kills its
children until there are none, also those that were another process's before. A life lock it holds by inheritance, and
isn't known to the lock server, which would kill it before it is done: so the lock waits for it, and with it for
everything that can't be killed (another user's process, a process that is stuck in the kernel). Of a lease it knows the
end, and kills at that time whether its holder says anything or is stopped.

This is code in the fork of a process with threads: it takes no lock of theirs, loads nothing, and logs nothing.
"""

import errno
import math
import os
import signal
import struct
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
TERM = struct.Struct("d")
"""What the holder of a lease says of its end: a time of CLOCK_BOOTTIME."""
_PARENT_DIED = signal.SIGTERM
_NAP_S = 1.0
"""Waits are counted on a clock that a suspend stops."""


@dataclass(frozen=True)
class Command:
    program: str
    words: list[str]
    environment: dict[str, str]
    """What is added to this process's own."""
    token_variable: str
    """And the token, once it is known."""
    mask: Iterable[int]
    """Signals that it is to have blocked."""
    guard: str
    """What its guard is called, as ps shows it."""
    life: Path | None = None
    """The life lock that it joins."""


@dataclass(frozen=True)
class Pipes:
    """Ends of pipes to the holder of the lock."""

    go: int
    """The command reads the token from it, and then runs."""
    of_command: int
    of_guard: int
    terms: int = -1
    """The guard reads from it until when the command may run; without it there is no such time."""


def be_the_guard(parent: int, command: Command, pipes: Pipes, keep: list[int]) -> NoReturn:
    """Doesn't return. `keep`: descriptors that stay open in the guard; all others of the parent's are closed."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        process_setup.adopt_orphans()
        process_setup.signal_when_parent_dies(_PARENT_DIED)
        process_setup.call_itself(command.guard)
        _close_all_but({0, 1, 2, pipes.go, pipes.of_command, pipes.of_guard, *keep, max(pipes.terms, 0)})
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            _be_the_command(guard, command, pipes)
        os.close(pipes.go)
        os.close(pipes.of_command)
        os.write(pipes.of_guard, f"{pid}\n".encode())
        code = _watch(pid, parent, pipes.terms)
        kill_all_children()
        for descriptor in keep:  # nothing is left, and to end takes this process some milliseconds
            os.close(descriptor)
        os.write(pipes.of_guard, f"{ENDED}{code}\n".encode())
        os._exit(0)
    finally:
        os._exit(1)


def _watch(pid: int, parent: int, terms: int) -> int:
    """Until the command has ended. Returns its exit code."""
    until = math.inf
    while True:
        until = _newest(terms, until)
        left_s = until - time.clock_gettime(time.CLOCK_BOOTTIME)
        if os.getppid() != parent or left_s <= 0:
            os.kill(pid, signal.SIGKILL)
        ended, left = process_tree.collect()
        if pid in ended or not left:
            return ended.get(pid, -signal.SIGKILL)
        if left_s <= 0:
            kill_all_children()
            return -signal.SIGKILL
        if terms < 0:
            signal.sigwaitinfo({signal.SIGCHLD, _PARENT_DIED})
        else:
            signal.sigtimedwait({signal.SIGCHLD, _PARENT_DIED}, min(left_s, _NAP_S))


def _newest(terms: int, until: float) -> float:
    """The last end that was said."""
    try:
        while terms >= 0 and (said := os.read(terms, TERM.size)):
            (until,) = TERM.unpack(said)
    except BlockingIOError:
        pass
    return until


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
        if command.life is not None:
            life = LifeLock.join(command.life.parent, command.life.name)
            os.set_inheritable(life.fd, True)
        environment = {**os.environb, **{os.fsencode(n): os.fsencode(v) for n, v in command.environment.items()}}
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, not by our parent
            signal.signal(ignored, signal.SIG_DFL)
        os.write(pipes.of_command, f"{READY}\n".encode())
        if token := os.read(pipes.go, 64).strip():
            environment[command.token_variable.encode()] = token
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

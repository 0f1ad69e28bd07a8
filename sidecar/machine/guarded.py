"""A command that runs only as long as this process may let it: `lockctl hold`, `fleetctl run`.

Three processes. This one knows whether the command may run. Its child, the guard (`sidecar/kernel/guard.py`), adopts
every orphan of the command, so that nothing which the command starts can get away: when the command ends, or this
process does (however it ends), the guard kills what is left, and ends last. The command is the guard's child, and dies
with it. It is there, and waits for its go, before it may run; then it has only to be executed.

Signals that this process gets are passed on. What this file may not do: know what the command is run under.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence

from sidecar.kernel import peers, process_setup
from sidecar.kernel.guard import ENDED, READY, TERM, Command, Pipes, be_the_guard, kill_all_children
from sidecar.terminal.exit_codes import EX_CANT_RUN, EX_LOST
from sidecar.wire.frames import close_all

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
PASSED_ON = tuple(each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN)
"""Not what a shell wants ignored (`nohup`, the background of a script): it would be waited for all the same."""
BELL = signal.SIGCHLD
"""Wakes the main thread: when the child has ended, and when another thread has something for it."""
_SI_KERNEL = 0x80
"""si_code of a signal that the terminal sent, to every process in its foreground group."""
NOT_FOUND = 127


class CantRun(Exception):
    """Why the command can't be started, and the shell's exit code for that."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


def find(word: str) -> str:
    """The file that would be run, by the shell's rules."""
    if "/" in word:
        candidates = [word]
    else:
        places = os.environ.get("PATH", os.defpath).split(os.pathsep)
        candidates = [os.path.join(place or ".", word) for place in places]
    there = [path for path in candidates if os.path.exists(path)]
    for path in there:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    if not there:
        raise CantRun(NOT_FOUND, f"{word}: there is no such command" + ("" if "/" in word else " in PATH"))
    why = "is a directory" if os.path.isdir(there[0]) else "is not executable (chmod +x)"
    raise CantRun(EX_CANT_RUN, f"{there[0]} {why}")


class GuardedCommand:
    def __init__(self, complain: Callable[[str], None]) -> None:
        self.pid = 0
        self.pidfd = -1
        self._complain = complain
        self._guard = 0
        self._told = self._of_command = self._of_guard = self._terms = -1
        self._end_within_s: float | None = None

    def fork(self, command: Command, keep: Sequence[int] = (), *, terms: bool = False) -> None:
        """The guard, and by it the command, which waits for its go. From the main thread: by its end the guard knows
        that of this process. `keep`: descriptors that stay open in the guard. `terms`: the command runs no longer than
        `let_run_until` says. Raises CantRun.
        """
        try:
            (go, self._told), (self._of_command, says_command), (self._of_guard, says_guard) = (
                os.pipe(),
                os.pipe(),
                os.pipe(),
            )
            until = -1
            if terms:
                until, self._terms = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise CantRun(EX_CANT_RUN, f"the command can't be started: {error.strerror}") from None
        pipes = Pipes(go, says_command, says_guard, until)
        parent = os.getpid()
        process_setup.adopt_orphans()  # should the guard be killed
        self._guard = os.fork()
        if self._guard == 0:
            be_the_guard(parent, command, pipes, list(keep))
        for end in (go, says_command, says_guard, *([until] if terms else ())):
            os.close(end)
        pid, said = _line(self._of_guard), _line(self._of_command)
        if not pid.isdigit() or said != READY:
            raise _cant_start(said)
        self.pid = int(pid)
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            raise CantRun(
                EX_CANT_RUN, f"pidfd_open: {error.strerror}; a seccomp profile has to allow it (Linux 5.3 or newer)"
            ) from None

    def __del__(self) -> None:
        """Not before: a thread may be asking whether the command lives, and the number would be another file's."""
        if self.pidfd >= 0:
            os.close(self.pidfd)

    def lives(self) -> bool:
        return self.pidfd >= 0 and not peers.is_dead(self.pidfd)

    def let_run_until(self, at: float) -> None:
        """On CLOCK_BOOTTIME. The guard kills it then, whatever has become of this process. From any thread."""
        with contextlib.suppress(OSError):  # the guard is stopped or gone
            os.write(self._terms, TERM.pack(at))

    def go(self, token: int) -> None:
        """Raises CantRun."""
        try:
            os.write(self._told, f"{token}\n".encode())
        except BrokenPipeError:
            raise CantRun(EX_CANT_RUN, "the command was killed before it was told to run") from None
        finally:
            os.close(self._told)
        said = _line(self._of_command)
        if said:
            raise _cant_start(said)

    def end(self, within_s: float) -> None:
        """It gets SIGTERM, and SIGKILL after this time. From any thread."""
        self._end_within_s = within_s
        os.kill(os.getpid(), BELL)

    def end_now(self, within_s: float) -> int:
        """The same, and returns when nothing of it is left. For a program whose signals are its own business."""
        self.send(signal.SIGTERM)
        if not peers.await_end(self.pidfd, within_s):
            self.send(signal.SIGKILL)
        _, status = os.waitpid(self._guard, 0)
        code = self._ended(os.waitstatus_to_exitcode(status))
        close_all([self._of_command, self._of_guard])
        return code

    def wait(self) -> int:
        """Until the command has ended, and the guard with it. Returns the command's exit code."""
        kill_at: float | None = None
        while True:
            pid, status = os.waitpid(self._guard, os.WNOHANG)
            if pid:
                return self._ended(os.waitstatus_to_exitcode(status))
            if self._end_within_s is not None and kill_at is None:
                kill_at = time.monotonic() + self._end_within_s
                self.send(signal.SIGTERM)
            came = _await_signal(kill_at)
            if came is None:
                kill_at = float("inf")
                self.send(signal.SIGKILL)
            elif came.si_signo != BELL and not (came.si_code == _SI_KERNEL and self._has_terminal()):
                self.send(came.si_signo)

    def send(self, number: int) -> None:
        if number == signal.SIGKILL and self._guard:
            with contextlib.suppress(ProcessLookupError):  # a guard that is stopped would leave the rest alive
                os.kill(self._guard, signal.SIGCONT)
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return  # it has ended: a thread waits for that already
        except PermissionError:
            self._complain(
                f"process {self.pid} is another user's now (set-uid) and gets no {signal.Signals(number).name}"
            )

    def _has_terminal(self) -> bool:
        """The command gets what the terminal sends by itself."""
        with contextlib.suppress(ProcessLookupError):
            return os.getpgid(self.pid) == os.getpgrp()
        return True

    def _ended(self, code: int) -> int:
        said = _line(self._of_guard)
        if not said.startswith(ENDED):
            self._complain(f"the command's guard was killed (code {code}): whatever the command had started is killed")
            kill_all_children()
            return 128 + signal.SIGKILL
        of_command = int(said.removeprefix(ENDED))
        return of_command if of_command >= 0 else 128 - of_command


def let_signals_end_it() -> None:
    """While it waits a signal ends the program, and nothing is left to do."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(BELL, signal.SIG_DFL)


def _await_signal(until: float | None) -> signal.struct_siginfo | None:
    """None: the time is over first."""
    numbers = (*PASSED_ON, BELL)
    if until is None or until == float("inf"):
        return signal.sigwaitinfo(numbers)
    return signal.sigtimedwait(numbers, max(0.0, until - time.monotonic()))


def _line(fd: int) -> str:
    """The next one; empty at the end of file."""
    said = b""
    while not said.endswith(b"\n") and (more := os.read(fd, 1)):
        said += more
    return said.decode(errors="replace").rstrip("\n")


def _cant_start(said: str) -> CantRun:
    code, _, why = said.partition(" ")
    return CantRun(int(code), why) if code.isdigit() else CantRun(EX_LOST, f"the guard ended: {said or 'no word'}")

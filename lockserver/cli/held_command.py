"""A command under the lock, and the process that holds it: `lockctl hold`.

Three processes. This one registers and acquires. Its child, the guard, adopts every orphan of the command, so that
nothing which the command starts can get away: when the command ends, or this process does (however it ends), the guard
kills what is left, and ends last. The command is the guard's child, and dies with it. The life lock of this start
belongs to all three: so the next one is granted only when nothing is left, or nothing that could be killed.

All of it is there before the lock is asked for: the command waits for its go, as a member of this start, and with the
grant it has only to be executed.

What this file may not do: release the lock in any other way than by ending, or start the command before the grant.
The command line is `hold.py`'s, the guard is `guard.py`'s, what waiting looks like in words `status_text.py`'s.
"""

import argparse
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from lockserver.cli import status_text
from lockserver.cli.guard import ENDED, READY, Command, Pipes, be_the_guard, kill_all_children
from lockserver.client import LockClient, NotInTime, Refused
from lockserver.observer import ObserverError, watch_forever
from lockserver.shell.rundir import LIFE
from sidecar.kernel import peers, process_setup
from sidecar.terminal import logs
from sidecar.terminal.exit_codes import EX_CANT_RUN, EX_LOST

REFUSED, NOT_IN_TIME = 69, 75
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_BELL = signal.SIGCHLD
"""Wakes the main thread: when the child has ended, and when another thread has something for it."""
_SI_KERNEL = 0x80
"""si_code of a signal that the terminal sent, to every process in its foreground group."""


class CantStart(Exception):
    """The command was to become a member and run, and could not; with the exit code for that."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class HeldCommand:
    def __init__(self, options: argparse.Namespace, program: str, needs: dict[str, int]) -> None:
        self._options = options
        self._run_dir: Path = options.run_dir
        self._program = program
        self._needs = needs
        self._client = LockClient(
            self._run_dir, options.engine_id, check=self._command_lives, on_lost=self._on_lost, on_exit=self._on_exit
        )
        self._incarnation = self._client.me.incarnation
        self._why = ""
        """What it waits for, as last said."""
        self._decision = threading.Lock()
        """Between having the lock and giving it up."""
        self._granted = False
        self._memory_why = ""
        self._guard = self._pid = 0
        self._pidfd = self._told = self._of_command = self._of_guard = -1
        self._told_to_end = False
        self._lost = False

    def run(self) -> int:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it waits a signal ends it, and nothing is left to do
        signal.signal(_BELL, signal.SIG_DFL)
        # Threads inherit the mask: so signals come to this thread alone.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, _BELL))
        self._client.begin()
        threading.Thread(target=self._watch, name="hold-watch", daemon=True).start()
        began = time.monotonic()
        try:
            self._client.welcomed(self._left(began))
            self._fork(before)
            # Signals may end this process here: it may wait for long, and nothing has begun.
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._client.vouch_for(self._pid, self._left(began))
            token = self._acquire(began)
            signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, _BELL))
            self._go(token)
        except NotInTime:
            _complain(f"not acquired within {self._options.timeout_s:g} s" + (f": {self._why}" if self._why else ""))
            return NOT_IN_TIME
        except Refused as error:
            _complain(f"refused: {error}")
            return REFUSED
        except CantStart as error:
            _complain(str(error))
            return error.code
        return self._wait()

    def _left(self, began: float) -> float | None:
        timeout_s = self._options.timeout_s
        return None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())

    # -- until it is granted ---------------------------------------------------------------------------------------

    def _acquire(self, began: float) -> int:
        grant = self._client.acquire(self._needs, self._left(began))
        with self._decision:
            self._granted = True
        self._say(f"granted, with token {grant.token}, after {time.monotonic() - began:.1f} s{self._unchecked()}")
        return grant.token

    def _unchecked(self) -> str:
        return f"; it wasn't checked that it is free: {self._memory_why}" if self._needs and self._memory_why else ""

    def _watch(self) -> None:
        """In a thread of its own: says what it waits for, until it doesn't any more."""
        try:
            for status in watch_forever(self._run_dir):
                why = f"no lock server at {self._run_dir}"
                if status is not None:
                    self._memory_why = status.memory_why
                    if status.holder is not None and status.holder.incarnation == self._incarnation:
                        return
                    why = status_text.waiting_line(status, self._incarnation)
                with self._decision:
                    if self._granted:
                        return
                    if why and self._options.no_wait:
                        self._give_up(REFUSED if status is None else NOT_IN_TIME, why)
                    if why and why != self._why:
                        self._why = why
                        self._say(f"waiting: {why}")
        except ObserverError as error:
            with self._decision:
                if not self._granted:
                    self._give_up(REFUSED, str(error))

    def _give_up(self, code: int, why: str) -> NoReturn:
        """The client's connection ends with the process, and its place in the queue with that."""
        _complain(why)
        os._exit(code)

    # -- the command -----------------------------------------------------------------------------------------------

    def _fork(self, mask: Iterable[int]) -> None:
        """The guard, and by it the command, which waits for its go. From the main thread: by its end the guard knows
        that of this process.
        """
        try:
            (go, self._told), (self._of_command, says_command), (self._of_guard, says_guard) = (
                os.pipe(),
                os.pipe(),
                os.pipe(),
            )
        except OSError as error:
            raise CantStart(EX_CANT_RUN, f"the command can't be started: {error.strerror}") from None
        pipes = Pipes(go, says_command, says_guard)
        command = Command(
            self._program,
            self._options.words,
            self._client.environment(),
            self._run_dir / LIFE,
            self._client.name,
            mask,
        )
        parent = os.getpid()
        process_setup.adopt_orphans()  # should the guard be killed
        self._guard = os.fork()
        if self._guard == 0:
            be_the_guard(parent, command, pipes, self._client.life_descriptors())
        for end in (go, says_command, says_guard):
            os.close(end)
        pid, said = _line(self._of_guard), _line(self._of_command)
        if not pid.isdigit() or said != READY:
            raise _cant_start(said)
        self._pid = int(pid)
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except OSError as error:
            raise CantStart(
                EX_CANT_RUN, f"pidfd_open: {error.strerror}; a seccomp profile has to allow it (Linux 5.3 or newer)"
            ) from None
        threading.Thread(target=self._mind_the_command, name="hold-mind", daemon=True).start()

    def _command_lives(self) -> bool:
        """Else the next engine is asked."""
        return self._pidfd >= 0 and not peers.is_dead(self._pidfd)

    def _mind_the_command(self) -> None:
        """In a thread of its own, while it waits: if the command is killed, there is nothing to wait for."""
        peers.await_end(self._pidfd)
        with self._decision:
            if not self._granted:
                self._give_up(EX_CANT_RUN, "the command was killed while it waited for the lock")

    def _go(self, token: int) -> None:
        try:
            os.write(self._told, f"{token}\n".encode())
        except BrokenPipeError:
            raise CantStart(EX_CANT_RUN, "the command was killed before it had the lock") from None
        finally:
            os.close(self._told)
        said = _line(self._of_command)
        if said:
            raise _cant_start(said)
        if self._options.serving:
            self._client.serving(self._options.serving)

    def _wait(self) -> int:
        """Until the command has ended, and the guard with it. Returns the command's exit code."""
        kill_at: float | None = None
        while True:
            pid, status = os.waitpid(self._guard, os.WNOHANG)
            if pid:
                while self._lost:
                    signal.pause()  # the thread that has killed the command says why, and ends this process
                return self._ended(os.waitstatus_to_exitcode(status))
            if self._told_to_end and kill_at is None:
                kill_at = time.monotonic() + self._options.grace_s
                self._say(f"switchover: the command is told to end, and killed after {self._options.grace_s:g} s")
                self._send(signal.SIGTERM)
            came = _await_signal(kill_at)
            if came is None:
                kill_at = float("inf")
                self._send(signal.SIGKILL)
            elif came.si_signo != _BELL and not (came.si_code == _SI_KERNEL and self._has_terminal()):
                self._send(came.si_signo)

    def _has_terminal(self) -> bool:
        """The command gets what the terminal sends by itself."""
        with contextlib.suppress(ProcessLookupError):
            return os.getpgid(self._pid) == os.getpgrp()
        return True

    def _ended(self, code: int) -> int:
        said = _line(self._of_guard)
        if not said.startswith(ENDED):
            _complain(f"the command's guard was killed (code {code}): whatever the command had started is killed")
            kill_all_children()
            return 128 + signal.SIGKILL
        of_command = int(said.removeprefix(ENDED))
        return of_command if of_command >= 0 else 128 - of_command

    def _send(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return  # it has ended: a thread waits for that already
        except PermissionError:
            _complain(f"process {self._pid} is another user's now (set-uid) and gets no {signal.Signals(number).name}")

    # -- from the client's thread ----------------------------------------------------------------------------------

    def _on_exit(self) -> None:
        self._told_to_end = True
        os.kill(os.getpid(), _BELL)

    def _on_lost(self, why: str) -> NoReturn:
        self._lost = True
        if self._pidfd >= 0:
            self._send(signal.SIGKILL)
        _complain(f"lock lost: {why}" + ("; the command is killed" if self._pid else ""))
        os._exit(EX_LOST)

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            _complain(text)


def _await_signal(until: float | None) -> signal.struct_siginfo | None:
    """None: the time is over first."""
    numbers = (*PASSED_ON, _BELL)
    if until is None or until == float("inf"):
        return signal.sigwaitinfo(numbers)
    return signal.sigtimedwait(numbers, max(0.0, until - time.monotonic()))


def _line(fd: int) -> str:
    """The next one; empty at the end of file."""
    said = b""
    while not said.endswith(b"\n") and (more := os.read(fd, 1)):
        said += more
    return said.decode(errors="replace").rstrip("\n")


def _cant_start(said: str) -> CantStart:
    code, _, why = said.partition(" ")
    return CantStart(int(code), why) if code.isdigit() else CantStart(EX_LOST, f"the guard ended: {said or 'no word'}")


def _complain(text: str) -> None:
    logs.complain(f"lockctl hold: {text}")  # an unread or closed stderr mustn't cost the command its life

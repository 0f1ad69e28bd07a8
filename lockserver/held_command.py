"""A command under the lock, and the process that holds it: `lockctl hold`.

This process registers and acquires; the command is its child and a member of its tree. The child dies with this process
(PR_SET_PDEATHSIG), has its own hold on the life file, by a descriptor that survives exec, and touches nothing before
the server has acknowledged it. So however either of the two ends, the next one is granted only when both are gone.

What this file may not do: release the lock in any other way than by ending, or start the command before the grant.
The command line is `hold.py`'s, what waiting looks like in words `status_text.py`'s.
"""

import argparse
import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from lockserver import status_text
from lockserver.client import LockClient, NotInTime, Refused
from lockserver.observer import ObserverError, watch_forever
from lockserver.rundir import LIFE
from sidecar import process_setup
from sidecar.lifelock import LifeLock, LifeLockError

REFUSED, LOST, NOT_IN_TIME, CANT_RUN = 69, 70, 75, 126
TOKEN_VARIABLE = "FAILOVER_TOKEN"
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_BELL = signal.SIGCHLD
"""Wakes the main thread: when the child has ended, and when another thread has something for it."""
_SI_KERNEL = 0x80
"""si_code of a signal that the terminal sent, to every process in its foreground group."""
_READY, _GO = b"r", b"g"


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
        self._client = LockClient(self._run_dir, options.engine_id, on_lost=self._on_lost, on_exit=self._on_exit)
        self._incarnation = self._client.me.incarnation
        self._why = ""
        """What it waits for, as last said."""
        self._decision = threading.Lock()
        """Between having the lock and giving it up."""
        self._granted = False
        self._pid = 0
        self._pidfd = -1
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
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            self._start(self._acquire(), before)
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

    # -- until it is granted ---------------------------------------------------------------------------------------

    def _acquire(self) -> int:
        began, timeout_s = time.monotonic(), self._options.timeout_s
        self._client.welcomed(timeout_s)
        left = None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())
        grant = self._client.acquire(self._needs, left)
        with self._decision:
            self._granted = True
        self._say(f"granted, with token {grant.token}, after {time.monotonic() - began:.1f} s")
        return grant.token

    def _watch(self) -> None:
        """In a thread of its own: says what it waits for, until it doesn't any more."""
        try:
            for status in watch_forever(self._run_dir):
                why = f"no lock server at {self._run_dir}"
                if status is not None:
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

    def _start(self, token: int, mask: Iterable[int]) -> None:
        """Forks, has the child acknowledged as a member, and lets it become the command.

        From the main thread, which stays: the child dies with the thread that forks.
        """
        report, say = os.pipe()
        hear, go = os.pipe()
        environment = {**os.environ, **self._client.environment(), TOKEN_VARIABLE: str(token)}
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, _BELL))
        self._pid = os.fork()
        if self._pid == 0:
            self._be_the_command(parent, say, hear, environment, mask)
        self._pidfd = os.pidfd_open(self._pid)
        os.close(say)
        os.close(hear)
        with open(report, "rb", buffering=0) as reports:
            if (said := reports.read(1)) == _READY:
                # Signals may end this process here: the server may be away for long, and nothing has begun.
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                self._client.adopt(self._pid)
                signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, _BELL))
                os.write(go, _GO)
                said = b""
            os.close(go)
            said += reports.readall() or b""
        if said:
            os.waitpid(self._pid, 0)
            code, _, why = said.decode(errors="replace").partition(" ")
            raise CantStart(int(code), why)
        if self._options.serving:
            self._client.serving(self._options.serving)

    def _be_the_command(
        self, parent: int, say: int, hear: int, environment: dict[str, str], mask: Iterable[int]
    ) -> NoReturn:
        """In the child. Only what is safe in the fork of a process with threads: nothing takes a lock of theirs."""
        try:
            process_setup.die_with_parent(parent)  # that it writes no core dump it has from this process
            life = LifeLock.join(self._run_dir / LIFE, self._client.name)
            os.set_inheritable(life.fd, True)
            os.write(say, _READY)
            if os.read(hear, 1) == _GO:
                for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, not by whoever started lockctl
                    signal.signal(ignored, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                self._exec(environment)
        except LifeLockError as error:
            os.write(say, f"{LOST} {error}".encode())
        except OSError as error:
            why = "the interpreter that it names isn't there" if error.errno == errno.ENOENT else error.strerror
            os.write(say, f"{CANT_RUN} {self._program}: {why}".encode())
        finally:
            os._exit(CANT_RUN)

    def _exec(self, environment: dict[str, str]) -> NoReturn:
        words = self._options.words
        try:
            os.execve(self._program, words, environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
        os.execve("/bin/sh", ["/bin/sh", self._program, *words[1:]], environment)  # a script without #!, as execvp does

    def _wait(self) -> int:
        """Until the command has ended. Returns its exit code."""
        kill_at: float | None = None
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                while self._lost:
                    signal.pause()  # the thread that has killed the command says why, and ends this process
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if self._told_to_end and kill_at is None:
                kill_at = time.monotonic() + self._options.grace_s
                self._say(f"switchover: the command is told to end, and killed after {self._options.grace_s:g} s")
                self._send(signal.SIGTERM)
            came = _await_signal(kill_at)
            if came is None:
                kill_at = float("inf")
                self._send(signal.SIGKILL)
            elif came.si_signo != _BELL and not (came.si_code == _SI_KERNEL and os.getpgid(self._pid) == os.getpgrp()):
                self._send(came.si_signo)

    def _send(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return  # it has ended: somebody waits for that already
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
        os._exit(LOST)

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            _complain(text)


def _await_signal(until: float | None) -> signal.struct_siginfo | None:
    """None: the time is over first."""
    numbers = (*PASSED_ON, _BELL)
    if until is None or until == float("inf"):
        return signal.sigwaitinfo(numbers)
    return signal.sigtimedwait(numbers, max(0.0, until - time.monotonic()))


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed stderr mustn't cost the command its life
        print(f"lockctl hold: {text}", file=sys.stderr, flush=True)

"""`fleetctl run`: a command under a lease.

The command is there, below its guard, before the lease is asked for. Every renewal tells the guard until when it may
run; so it is dead at that time, whatever has become of this process or of the database.

What this file may not do: renew or judge by itself (`term.py`). Whether the time was clean: `clean.py`.
"""

import argparse
import os
import signal
import threading

from fleet.cli.clean import DoorsSeen
from fleet.rules import term as t
from fleet.rules.leases import Mode, Wish
from fleet.shell.holding import GIVING_BACK_S, Holding
from fleet.shell.store import StoreError, open_store
from sidecar.kernel.guard import Command
from sidecar.machine.guarded import BELL, PASSED_ON, CantRun, GuardedCommand, find, let_signals_end_it
from sidecar.terminal import logs
from sidecar.terminal.exit_codes import EX_CANT_RUN, EX_LOST, EX_NOT_IN_TIME, EX_REFUSED

TAINTED = 71
VARIABLES = {Mode.EXCLUSIVE: "FAILOVER_LEASE", Mode.SHARED: "FAILOVER_SHARED_LEASE"}
_CODES = {t.End.REFUSED: EX_REFUSED, t.End.NOT_IN_TIME: EX_NOT_IN_TIME, t.End.LOST: EX_LOST}


class Run:
    def __init__(self, options: argparse.Namespace, wish: Wish) -> None:
        self._options, self._wish = options, wish
        self._command = GuardedCommand(_complain)
        self._holding: Holding | None = None
        self._granted: t.Granted | None = None
        self._ended: t.Ended | None = None
        self._window_over = False

    def run(self) -> int:
        let_signals_end_it()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, BELL))
        words: list[str] = self._options.words
        try:
            command = Command(find(words[0]), words, {}, VARIABLES[self._wish.mode], before, "fleetctl-guard")
            self._command.fork(command, terms=True)
            if self._options.window is not None:
                window = threading.Timer(self._options.window, self._close_window)
                window.daemon = True  # this process doesn't wait for it
                window.start()
            self._holding = Holding(open_store(self._options.database), self._wish, self._hear)
            code = self._wait_for_grant()
            return code if code is not None else self._run_it()
        except CantRun as error:
            _complain(str(error))
            return error.code
        except StoreError as error:
            _complain(str(error))
            return EX_REFUSED
        finally:
            self._give_back()

    def _wait_for_grant(self) -> int | None:
        """None: it is granted."""
        while self._granted is None:
            if self._ended is not None:
                _complain(f"{self._ended.end.value}: {self._ended.why}")
                return _CODES[self._ended.end]
            if not self._command.lives():
                _complain("the command was killed while it waited")
                return EX_CANT_RUN
            if self._window_over:
                _complain("not in time: the window is over")
                return EX_NOT_IN_TIME
            came = signal.sigwaitinfo((*PASSED_ON, BELL))
            if came.si_signo != BELL:
                return 128 + came.si_signo
        return None

    def _run_it(self) -> int:
        assert self._granted is not None
        self._say(f"granted, with token {self._granted.token}")
        doors = DoorsSeen(self._options.database, self._wish)
        try:
            self._command.go(self._granted.token)
        except CantRun:
            self._give_back()  # which looks at the clock first
            if self._ended is None:
                raise
            _complain(f"{self._ended.end.value}: {self._ended.why}; the command did not run")
            return _CODES[self._ended.end]
        if self._window_over:  # just before the grant was seen
            self._command.end(self._options.grace_s)
        code = self._command.wait()
        self._give_back()  # which looks at the clock first: the guard may have ended the command before this process
        if self._ended is not None:  # was let run again, and knew that its lease is over
            _complain(f"lease lost: {self._ended.why}; the command was killed")
            return EX_LOST
        why = doors.why_tainted(self._granted.token)
        if why:
            _complain(f"tainted: {why}")
        elif self._wish.mode is Mode.EXCLUSIVE:
            self._say(doors.in_words())
        return code or (TAINTED if why else 0)

    def _give_back(self) -> None:
        """When nothing of the command is left."""
        if self._holding is not None:
            self._holding.give_back(GIVING_BACK_S)

    # -- from other threads ----------------------------------------------------------------------------------------

    def _hear(self, effect: t.Effect) -> None:
        if isinstance(effect, (t.Granted, t.Extended)):
            self._command.let_run_until(effect.until)
        if isinstance(effect, t.Granted):
            self._granted = effect
        elif isinstance(effect, t.Ended) and effect.end is not t.End.RELEASED:
            self._ended = effect
            if effect.end is t.End.LOST:
                self._command.send(signal.SIGKILL)
        elif isinstance(effect, t.Waits):
            self._say(f"waiting: {effect.why}")
        os.kill(os.getpid(), BELL)

    def _close_window(self) -> None:
        self._window_over = True
        if self._granted is not None:
            grace_s: float = self._options.grace_s
            self._say(f"the window is over: the command is told to end, and killed after {grace_s:g} s")
            self._command.end(grace_s)
        else:
            os.kill(os.getpid(), BELL)

    def _say(self, text: str) -> None:
        if not self._options.quiet:
            _complain(text)


def _complain(text: str) -> None:
    logs.complain(f"fleetctl run: {text}")  # an unread or closed stderr mustn't cost the command its life

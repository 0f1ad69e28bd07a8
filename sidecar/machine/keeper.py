"""A small process above a server, PID 1 of its container: when the server ends, it is started again at once.

    keeper.declare(parser)                                      # the setting --restart in-place|exit
    ...
    if options.restart == keeper.IN_PLACE:
        return keeper.keep("lockserver", argv, log)             # runs `python -m lockserver ARGV --restart exit`

Why: a container whose PID 1 ends makes its pod NotReady until the startup probe has passed again, and after the second
end kubelet waits for longer and longer. The server comes back within a fraction of a second, and clients notice
nothing. `--restart exit` is the specification's Decision 1 to the letter: the container ends with its server.

    a signal                    is passed on to the server
    SIGTERM, SIGINT             then everything ends, after `grace_s` by SIGKILL
    a signal that the server    ends everything, too, as it would have without a keeper
    dies of by itself
    orphans                     are adopted and collected

    exit code 0                 it was told to end, and has ended
    64, or the server's own     its arguments are wrong, or its first two starts failed soon; it says what is wrong
    137                         it was told to end, and had to be killed
    another                     the server's own, of an end that it was told

When the server is started again: `restarts.py`. What this file may not do: know what the server is for.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence

from sidecar.kernel import process_setup
from sidecar.machine.supervisor import NEVER, Child, Supervisor, how_it_ended
from sidecar.terminal.logs import Log
from sidecar.terminal.settings import Parser

IN_PLACE, EXIT = "in-place", "exit"
GRACE_S = 10.0
"""How long a server may take to end once it was told to."""
_ENDING = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def declare(parser: Parser) -> None:
    parser.setting(
        "--restart",
        default=EXIT,
        choices=(IN_PLACE, EXIT),
        help="in-place: a small process stays above the server and starts it again when it ends, as a container wants "
        "it; exit: there is only the server",
    )


def keep(module: str, argv: Sequence[str] | None, log: Log, grace_s: float = GRACE_S) -> int:
    """Runs `python -m MODULE ARGV` as a child and keeps it running. Returns the exit code of this process.

    `argv` is what `main` was given; None stands for the command line. The child is told `--restart exit`.
    """
    arguments = sys.argv[1:] if argv is None else argv
    return Keeper(Child(module, (module, *arguments, "--restart", EXIT)), log, grace_s).run()


class Keeper:
    def __init__(self, child: Child, log: Log, grace_s: float) -> None:
        self._child = child
        self._log = log
        self._grace_s = grace_s
        self._supervisor = Supervisor([child], ended=self._on_ended)
        self._told: signal.Signals | None = None
        """The last signal that was passed on."""
        self._ending = False
        self._kill_at = NEVER
        self._killed = False

    def run(self) -> int:
        supervisor, child = self._supervisor, self._child
        process_setup.adopt_orphans()
        supervisor.loop.deliver((*_ENDING, *_PASSED_ON, signal.SIGCHLD), self._on_signal)
        self._log.info("keeps", server=child.name, pid=os.getpid())
        while child.pid or not (self._ending or supervisor.hopeless):
            supervisor.turn(self._kill_at)
            if time.monotonic() >= self._kill_at:
                self._kill()
        code = self._exit_code()
        self._log.info("stopped", server=child.name, exit_code=code)
        return code

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            self._supervisor.collect()
            return
        self._told = number
        if number in _ENDING:
            self._end()
        self._supervisor.tell([self._child], number)

    def _on_ended(self, child: Child, how: str, pause_s: float) -> None:
        if self._told is not None and child.code == -self._told:
            self._end()  # it has no use for this signal, and so dies of it
            return
        self._log.alarm("ended", server=child.name, how=how, again_in_s=pause_s)

    def _end(self) -> None:
        if not self._ending:
            self._ending = True
            self._kill_at = time.monotonic() + self._grace_s
            self._supervisor.stop_restarting()

    def _kill(self) -> None:
        self._kill_at, self._killed = NEVER, True
        self._log.alarm("killed", server=self._child.name, why=f"it did not end within {self._grace_s:g} s")
        self._supervisor.tell([self._child], signal.SIGKILL)

    def _exit_code(self) -> int:
        code = self._child.code
        if self._supervisor.hopeless is not None:
            self._log.alarm("not_started", server=self._child.name, how=how_it_ended(code or 0))
        if self._killed:
            return 128 + signal.SIGKILL
        if code is None or (self._told is not None and code == -self._told and self._told in _ENDING):
            return 0  # told before it ran, or before it could mind signals
        return code if code >= 0 else 128 - code
